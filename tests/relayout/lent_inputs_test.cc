// SPDX-License-Identifier: Apache-2.0
//
// A member of a relayout is done when it has read the boxes that it needs; the others may still
// read its own tensor. Here that tensor has no other owner, and threads stop at random moments.
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/random_stalls.h"
#include "tests/support/sanitizers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

// Boxes too large for the shared record.
const Shape kShape = {64, 64};
constexpr int kRounds = kSanitized ? 60 : 300;

class LentInputsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, LentInputsTest, ::testing::ValuesIn(kJobForms), job_form_name);

// The memory of a source that is freed too early gets the next tensor's -1.
TEST_P(LentInputsTest, SourcesOutliveTheirReaders) {
  static constexpr struct {
    const char* from;
    const char* to;
  } kMoves[] = {
      {"[x, -]", "[-, x]"},        // an exchange
      {"[-, -] sum{x}", "[x, -]"}  // a reduction of boxes
  };
  const auto check = [](Client& client) -> Status {
    const RandomStalls stalls(/*seed=*/3 + client.client_id());
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    for (int round = 0; round < kRounds; ++round) {
      const auto& move = kMoves[round % 2];
      TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, move.from));
      TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, move.to));
      std::optional<DTensor> source = iota<int32_t>(kShape, from);
      TESSERA_RETURN_IF_ERROR(source->await());
      const DTensor moved = relayout(*source, to);
      TESSERA_RETURN_IF_ERROR(moved.await());
      source.reset();
      const DTensor next = full<int32_t>(kShape, -1, from);
      TESSERA_RETURN_IF_ERROR(
          with_context(expect_iota<int32_t>(moved), absl::StrCat(move.from, " to ", move.to)));
      TESSERA_RETURN_IF_ERROR(next.await());
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

// Lent memory is used again: the memory of a loop that drops its tensors does not grow. An
// allocation takes new memory where the others have not read the lent inputs yet, which are two per
// group at most.
TEST_P(LentInputsTest, MemoryComesBack) {
  const auto check = [](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
    TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
    TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, x]"));
    ArenaPool& pool = *internal::runtime_of(client)->devices().host_memory();
    const Shape shape = {1024, 1024};
    DTensor tensor = iota<float>(shape, rows);
    const uint64_t bytes_of_one = 4 * 1024 * 1024 * client.local_devices().size() / 8;
    for (int round = 0; round < 100; ++round) {
      const DTensor next = relayout(tensor, round % 2 == 0 ? columns : rows);
      TESSERA_RETURN_IF_ERROR(next.await());
      tensor = next;
    }
    // Source, result and two that are lent, and 1.5 times as much (ArenaPool).
    TESSERA_REQUIRE(pool.reserved_bytes() <= 7 * bytes_of_one, pool.reserved_bytes(), " bytes");
    TESSERA_RETURN_IF_ERROR(expect_iota<float>(tensor));
    TESSERA_RETURN_IF_ERROR(relayout(tensor, columns).await());
    tensor = full<float>({8}, 0, Layout::parse(mesh, "[x]"));
    TESSERA_RETURN_IF_ERROR(client.sync_devices());
    TESSERA_REQUIRE(pool.live_bytes() <= 64 * client.local_devices().size(), pool.live_bytes());
    return absl::OkStatus();
  };
  EXPECT_THAT(run(check), IsOk());
}

}  // namespace
}  // namespace tessera::testing
