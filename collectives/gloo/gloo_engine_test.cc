// SPDX-License-Identifier: Apache-2.0
//
// The engine on Gloo passes the suite for engines over loopback, and says what is missing.
#include "collectives/gloo/gloo_engine.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/network/testing/engine_conformance.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/fake_coordinator.h"
#include "tests/support/matchers.h"

// Gloo keeps its list of interfaces where it cannot use the one that is asked.
extern "C" const char* __lsan_default_suppressions() { return "leak:libgloo\n"; }
extern "C" const char* __lsan_default_options() { return "print_suppressions=0"; }

namespace tessera::gloo {
namespace {

using network::EngineCase;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

StatusOr<std::unique_ptr<network::Engine>> make_on_loopback(Coordinator& coordinator) {
  return make_gloo_engine(coordinator, {.interface = "lo"});
}

class GlooEngineTest : public ::testing::TestWithParam<EngineCase> {};

// A thread that waits for Gloo is not always told that the peer has gone.
TEST_P(GlooEngineTest, PassesAsProcesses) {
  EXPECT_THAT(run_as_processes(GetParam(), make_on_loopback, {.finds_death = false}), IsOk());
}

INSTANTIATE_TEST_SUITE_P(Cases, GlooEngineTest, ::testing::ValuesIn(network::engine_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

Status connect_with(GlooOptions options) {
  testing::FakeJob job({1, 1});
  TESSERA_ASSIGN_OR_RETURN(const auto engine,
                           make_gloo_engine(job.coordinator(0), std::move(options)));
  return engine->connect({1}, steady_now() + absl::Minutes(1));
}

TEST(GlooErrorsTest, MissingLibraries) {
  EXPECT_THAT(
      connect_with({.interface = "lo", .library = "libthere_is_none.so"}),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("backend \"gloo\" between hosts needs the Gloo of the build: install "
                         "libgloo0, or set LD_LIBRARY_PATH")));
  EXPECT_THAT(
      connect_with({.interface = "lo", .library = "libm.so.6"}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("libm.so.6 has no CreateDevice()")));
}

TEST(GlooErrorsTest, Interfaces) {
  EXPECT_THAT(connect_with({.interface = "no_such"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("Gloo cannot use the interface \"no_such\" (Gloo: ")));
}

}  // namespace
}  // namespace tessera::gloo
