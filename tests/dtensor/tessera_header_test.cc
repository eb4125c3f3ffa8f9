// SPDX-License-Identifier: Apache-2.0
//
// tessera.h alone gives a program a map of its headers, names that no two of its namespaces share,
// and no door to internals.
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera.h"

namespace tessera {
namespace {

// The headers that the comment at the top names, and the included headers.
struct Headers {
  std::set<std::string> named;
  std::set<std::string> included;
};

Headers read_headers(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Headers headers;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" ,;\""), absl::SkipEmpty())) {
      if (!absl::EndsWith(word, ".h") || !absl::StrContains(word, "/")) continue;
      (absl::StartsWith(line, "//") ? headers.named : headers.included).emplace(word);
    }
  }
  return headers;
}

TEST(TesseraHeaderTest, ItsMapNamesWhatItIncludes) {
  const Headers headers = read_headers("tessera.h");
  EXPECT_GT(headers.included.size(), 10u);
  EXPECT_EQ(headers.named, headers.included);
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
