// SPDX-License-Identifier: Apache-2.0
//
// Relayouts after which a device finds its part of the tensor in one piece in its old part: the
// result shares that memory while the caller keeps the source, and copies it otherwise.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/cpu/arena.h"
#include "device/cuda/cuda_device.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

class RelayoutViewsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutViewsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutViewsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutViewsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// A relayout on which each device finds its new box in one piece, `offset` elements into the old
// one.
struct ViewCase {
  const char* name;
  Shape shape;
  const char* from;
  const char* to;
  std::function<int64_t(int device)> offset;
};
const ViewCase kViewCases[] = {
    {"rows_of_a_whole", {8, 6}, "[-, -]", "[(x,y), -]", [](int d) { return d * 6; }},
    {"uneven_rows", {10, 3}, "[-, -]", "[(x,y), -]", [](int d) { return (d * 10 + 7) / 8 * 3; }},
    {"rows_of_rows", {8, 6}, "[x, -]", "[(x,y), -]", [](int d) { return d % 4 * 6; }},
    {"parts_of_one_row", {1, 16}, "[-, -]", "[-, (x,y)]", [](int d) { return d * 2; }},
    {"planes", {2, 4, 3}, "[x, -, -]", "[x, y, -]", [](int d) { return d % 4 * 3; }},
    {"terms_stay_terms", {8, 2}, "[-, -] sum{x}", "[y, -] sum{x}", [](int d) { return d % 4 * 4; }},
};

StatusOr<DTensor> source_of(const ViewCase& c, const Mesh& mesh) {
  TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, c.from));
  return iota<int32_t>(c.shape, from);
}

TEST_P(RelayoutViewsTest, ContiguousPartsShareTheMemoryOfTheSource) {
  const bool on_gpu = GetParam().num_gpus > 0;
  EXPECT_THAT(
      run([&](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
        for (const ViewCase& c : kViewCases) {
          TESSERA_ASSIGN_OR_RETURN(std::optional<DTensor> source, source_of(c, mesh));
          TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, c.to));
          const DTensor view = relayout(*source, to);
          for (int i = 0; i < view.num_local_shards(); ++i) {
            TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> whole, source->shard<int32_t>(i));
            TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> part, view.shard<int32_t>(i));
            const auto offset = static_cast<size_t>(c.offset(client.local_devices()[i].id));
            TESSERA_REQUIRE(whole.data.subspan(offset, part.data.size()) == part.data, c.name);
            // The host sees a copy of a GPU's memory.
            TESSERA_REQUIRE(on_gpu || whole.data.data() + offset == part.data.data(), c.name);
          }
          // The result of the view is right when the source is not there any more.
          source.reset();
          TESSERA_ASSIGN_OR_RETURN(const DTensor next, source_of(c, mesh));
          const DTensor whole = relayout(view, *Layout::replicated(mesh, to.rank()));
          TESSERA_RETURN_IF_ERROR(with_context(expect_iota<int32_t>(whole), c.name));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// The live bytes in the memory of a device of the client.
uint64_t live_bytes(const Client& client) {
  Runtime& runtime = *internal::runtime_of(client);
  const auto* gpu = dynamic_cast<const cuda::CudaDevice*>(&runtime.device(0));
  return gpu == nullptr ? runtime.devices().host_memory()->live_bytes()
                        : gpu->slabs()->live_bytes();
}

TEST_P(RelayoutViewsTest, ASourceThatIsGivenAwayIsNotShared) {
  EXPECT_THAT(run([&](Client& client) -> Status {
                const auto n = static_cast<int64_t>(client.devices().size());
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", n}}));
                TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::parse(mesh, "[x, -]"));
                TESSERA_ASSIGN_OR_RETURN(const Layout whole, Layout::parse(mesh, "[-, -]"));
                const Shape shape = {n, 1024};
                TESSERA_RETURN_IF_ERROR(client.sync_devices());
                const uint64_t before = live_bytes(client);
                const auto held = [&](const DTensor& result) -> StatusOr<uint64_t> {
                  TESSERA_RETURN_IF_ERROR(result.await());
                  TESSERA_RETURN_IF_ERROR(client.sync_devices());
                  return live_bytes(client) - before;
                };
                const bool on_gpu = !internal::runtime_of(client)->device(0).uses_host_memory();
                const auto row_bytes = static_cast<uint64_t>(shape[1]) * sizeof(float);
                const uint64_t result_bytes =
                    on_gpu ? row_bytes : row_bytes * client.local_devices().size();
                // The devices of a client share the source's buffer, where they are CPUs.
                const uint64_t source_bytes = row_bytes * static_cast<uint64_t>(n);

                std::optional<DTensor> source = iota<float>(shape, whole);
                {
                  const DTensor view = relayout(*source, rows);
                  TESSERA_ASSIGN_OR_RETURN(const uint64_t with_source, held(view));
                  TESSERA_REQUIRE(with_source == source_bytes, with_source, " bytes");
                  source.reset();
                  TESSERA_ASSIGN_OR_RETURN(const uint64_t without_source, held(view));
                  TESSERA_REQUIRE(without_source == source_bytes, without_source, " bytes");
                  TESSERA_RETURN_IF_ERROR(expect_iota<float>(view));
                }
                TESSERA_RETURN_IF_ERROR(client.sync_devices());
                TESSERA_REQUIRE(live_bytes(client) == before, live_bytes(client) - before,
                                " bytes left");

                const DTensor copy = relayout(iota<float>(shape, whole), rows);
                TESSERA_ASSIGN_OR_RETURN(const uint64_t of_copy, held(copy));
                TESSERA_REQUIRE(of_copy == result_bytes, of_copy, " bytes, not ", result_bytes);
                return expect_iota<float>(copy);
              }),
              IsOk());
}

// A view is there before its source is, and fails with it.
TEST_P(RelayoutViewsTest, AViewOfWhatFailsFails) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor failed =
                    local_map(Layout::parse(mesh, "[-, -]"), {8, 2}, DType::kFloat32, {},
                              [](LocalContext&) { return absl::DataLossError("no value"); });
                const DTensor view = relayout(failed, Layout::parse(mesh, "[x, -]"));
                const Status status = view.await();
                TESSERA_REQUIRE(absl::IsDataLoss(status), status.ToString());
                const Status of_next = relayout(view, Layout::parse(mesh, "[-, x]")).await();
                TESSERA_REQUIRE(absl::IsDataLoss(of_next), of_next.ToString());
                TESSERA_REQUIRE(absl::IsDataLoss(client.sync_devices()));
                return absl::OkStatus();
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
