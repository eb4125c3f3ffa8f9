// SPDX-License-Identifier: Apache-2.0
//
// The front headers give a program maps of what they include, names that no two of their namespaces
// share, and no door to internals.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/tessera.h"
#include "tessera/version.h"

namespace tessera {
namespace {

// The headers that the comment at the top of one names, and those that it includes: of the folder
// tessera/, and others.
struct Headers {
  std::set<std::string> named, named_here;
  std::set<std::string> included, included_here;
};

Headers read_headers(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Headers headers;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool is_comment = absl::StartsWith(line, "//");
    for (const absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" ,;:()\""), absl::SkipEmpty())) {
      const absl::string_view name = absl::StripSuffix(word, ".");
      if (!absl::EndsWith(name, ".h") || !absl::StrContains(name, "/")) continue;
      const bool is_here = absl::StartsWith(name, "tessera/");
      std::set<std::string>& of_comment = is_here ? headers.named_here : headers.named;
      std::set<std::string>& of_includes = is_here ? headers.included_here : headers.included;
      (is_comment ? of_comment : of_includes).emplace(name);
    }
  }
  return headers;
}

std::set<std::string> front_headers() {
  std::set<std::string> headers;
  for (const auto& entry : std::filesystem::directory_iterator("tessera")) {
    if (entry.path().extension() == ".h") headers.insert(entry.path().string());
  }
  return headers;
}

TEST(FrontHeadersTest, TheMapOfEachNamesWhatItIncludes) {
  int num_named = 0;
  for (const std::string& path : front_headers()) {
    if (path == "tessera/eigen.h" || path == "tessera/mpi.h") continue;  // without a map
    const Headers headers = read_headers(path);
    EXPECT_EQ(headers.named, headers.included) << path;
    num_named += headers.named.size();
  }
  EXPECT_GT(num_named, 50);
}

TEST(FrontHeadersTest, TesseraNamesAllAndIncludesAllWithoutDependenciesOfTheirOwn) {
  std::set<std::string> others = front_headers();
  EXPECT_GT(others.size(), 10u);
  EXPECT_EQ(others.erase("tessera/tessera.h"), 1u);
  const Headers headers = read_headers("tessera/tessera.h");
  EXPECT_EQ(headers.named_here, others);
  EXPECT_EQ(others.erase("tessera/eigen.h") + others.erase("tessera/mpi.h"), 2u);
  EXPECT_EQ(headers.included_here, others);
}

TEST(FrontHeadersTest, VersionIsWrittenTheSameTwice) {
  EXPECT_EQ(
      absl::StrCat(TESSERA_VERSION_MAJOR, ".", TESSERA_VERSION_MINOR, ".", TESSERA_VERSION_PATCH),
      TESSERA_VERSION);
}

// Options of tests, and access to the implementation behind the types of the API.
template <class Options>
concept HasTestHooks = requires(Options options) {
  options.faults;
}
|| requires(Options options) { options.cuda; }
|| requires(Options options) { options.nccl; };
template <class C>
concept ShowsItsRuntime = requires(const C& client) {
  client.runtime();
}
|| requires(const C& client) { client.runtime_of_meshes(); };
template <class T>
concept ShowsItsRep = requires(const T& value) {
  value.rep();
};

static_assert(!HasTestHooks<ClientOptions>);
static_assert(!ShowsItsRuntime<Client>);
static_assert(!ShowsItsRep<DTensor> && !ShowsItsRep<PlanStep> && !ShowsItsRep<RelayoutPlan>);
static_assert(!ShowsItsRep<Layout> && !ShowsItsRep<Mesh>);
static_assert(!std::is_constructible_v<DTensor, std::shared_ptr<const internal::TensorRep>>);
static_assert(!std::is_constructible_v<PlanStep, std::shared_ptr<const internal::PlanStepRep>>);
static_assert(!std::is_constructible_v<RelayoutPlan, std::shared_ptr<const RelayoutPlan::Rep>>);

}  // namespace
}  // namespace tessera

// A program may use all namespaces.
namespace program {
namespace {

using namespace tessera;
using namespace tessera::cluster;
using namespace tessera::distribute;
using namespace tessera::input;
using namespace tessera::ops;
using namespace tessera::random;

[[maybe_unused]] std::tuple<
    Client*, ClientOptions*, Mesh*, Layout*, DTensor*, HostArray*, Shape*, Box*, Group*, Work*,
    Variable*, Tape*, Key*, RelayoutPlan*, PlanStep*, Topology*, Cluster*, ClusterSpec*,
    EnvironmentLookup*, Strategy*, StrategyOptions*, PerReplica*, ReplicaContext*, CrossDeviceOps*,
    Server*, ClusterCoordinator*, CoordinatorOptions*, RemoteValue*, RemoteVariable*, InputContext*,
    Dataset*, Element*, Source*, HostIterator*, IteratorState*, TensorSpec*>
    types;

}  // namespace
}  // namespace program
