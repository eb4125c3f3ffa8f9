// SPDX-License-Identifier: Apache-2.0
//
// Values between a program and tensors: item(), gather_to(), from_memory().
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "relayout/plan.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

class HostValuesTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, HostValuesTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, HostValuesTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, HostValuesTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

TEST_P(HostValuesTest, ItemIsTheOneElement) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                for (const char* text : {"[]", "[] sum{x}", "[] max{x}"}) {
                  const StatusOr<float> item =
                      full<float>({}, 2.5f, Layout::parse(mesh, text)).item<float>();
                  TESSERA_RETURN_IF_ERROR(item.status());
                  TESSERA_REQUIRE(*item == 2.5f, text, *item);
                }
                const DTensor cell = full<int64_t>({1, 1}, 7, Layout::parse(mesh, "[x, -]"));
                TESSERA_ASSIGN_OR_RETURN(const int64_t seven, cell.item<int64_t>());
                TESSERA_REQUIRE(seven == 7);
                TESSERA_RETURN_IF_ERROR(
                    expect_error(cell.item<float>().status(), StatusCode::kInvalidArgument,
                                 {"item<f32> of a tensor of i64; read it as its own dtype"}));
                for (const Shape& shape : {Shape{8, 6}, Shape{0, 1}}) {
                  const DTensor x = zeros<float>(shape, Layout::parse(mesh, "[x, -]"));
                  TESSERA_RETURN_IF_ERROR(expect_error(
                      x.item<float>().status(), StatusCode::kInvalidArgument,
                      {absl::StrCat("item() of a tensor of shape ", shape_to_string(shape),
                                    ": it has ", num_elements(shape), " elements")}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

// Uneven and partial layouts, and meshes of devices of other clients.
TEST_P(HostValuesTest, GatherToGivesOneClientTheWholeValue) {
  struct Row {
    const char* mesh;
    const char* layout;
  };
  EXPECT_THAT(
      run([](Client& client) -> Status {
        for (const Row& row : {Row{"{x=8}", "[x, -]"}, Row{"{x=8}", "[-, -]"},
                               Row{"{x=4, y=2}", "[x, -] sum{y}"}, Row{"{x=4, y=2}", "[y, x]"},
                               Row{"{x=2} on 6,7", "[x, -]"}, Row{"{x=2} on 0,1", "[-, -]"}}) {
          TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, row.mesh));
          const DTensor x = iota<float>({13, 3}, Layout::parse(mesh, row.layout));
          for (int to = 0; to < client.num_clients(); ++to) {
            TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, x.gather_to<float>(to));
            if (to != client.client_id()) {
              TESSERA_REQUIRE(host.data.empty() && host.shape == Shape{0}, row.mesh, row.layout);
              continue;
            }
            TESSERA_REQUIRE(host.shape == Shape({13, 3}) && host.data.size() == 39);
            for (int i = 0; i < 39; ++i) {
              TESSERA_REQUIRE(host.data[i] == static_cast<float>(i), row.mesh, row.layout, i);
            }
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(HostValuesTest, GatherToRefusesWhatToHostRefuses) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = iota<float>({8}, Layout::parse(mesh, "[x]"));
                const int none = client.num_clients();
                for (const int to : {-1, none}) {
                  TESSERA_RETURN_IF_ERROR(expect_error(
                      x.gather_to<float>(to).status(), StatusCode::kInvalidArgument,
                      {absl::StrCat("gather_to(", to, "): clients are 0 to ", none - 1)}));
                }
                return expect_error(x.gather_to<int32_t>(0).status(), StatusCode::kInvalidArgument,
                                    {"gather_to<i32> of a tensor of f32"});
              }),
              IsOk());
}

// The plan that gather_to() follows: every byte goes to the one device.
TEST(GatherToTest, OnlyTheOneDeviceReceives) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 4}, {"y", 2}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh one, Mesh::create({{"client", 1}}, {2}));
  for (const char* text : {"[x, -]", "[(x,y), -]", "[-, y]", "[y, x]"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Layout from, Layout::parse(mesh, text));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const RelayoutPlan plan,
        plan_relayout(from, Layout::replicated(one, 2), {16, 6}, DType::kFloat32));
    EXPECT_EQ(plan.max_received_bytes(), plan.received_bytes(0)) << text;
    const int64_t own = from.box({16, 6}, 2).num_elements();
    EXPECT_EQ(plan.received_bytes(0), (16 * 6 - own) * 4) << text;
  }
}

// An array of the caller for each local device: rows of an iota.
std::vector<std::vector<float>> rows_of(const Client& client, const Layout& layout) {
  std::vector<std::vector<float>> arrays;
  for (const Device& device : client.local_devices()) {
    const auto position = layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const Box box = layout.box({8, 6}, *position);
    std::vector<float>& array = arrays.emplace_back();
    for (int64_t i = 0; i < box.num_elements(); ++i) {
      array.push_back(static_cast<float>(box.offsets[0] * 6 + i));
    }
  }
  return arrays;
}

TEST_P(HostValuesTest, FromMemoryHasTheElementsOfTheArrays) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4, y=2}"));
        TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, "[x, -]"));
        auto arrays = std::make_shared<std::vector<std::vector<float>>>(rows_of(client, layout));
        std::weak_ptr<void> held = arrays;
        std::vector<absl::Span<const float>> spans(arrays->begin(), arrays->end());
        const float* const first = spans[0].data();
        DTensor x = from_memory<float>({8, 6}, layout, spans, std::move(arrays));
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(x));
        const bool is_gpu = client.local_devices()[0].type == DeviceType::kCuda;
        const bool wraps = client.num_clients() == 1 && !is_gpu;
        TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, x.shard<float>(0));
        TESSERA_REQUIRE((shard.data.data() == first) == wraps);
        TESSERA_REQUIRE(held.expired() == !wraps);
        TESSERA_REQUIRE(
            absl::StrContains(
                x.explain(),
                wraps    ? "made by from_memory() over the caller's memory"
                : is_gpu ? "made by from_memory(), copied: the devices are GPUs"
                         : absl::StrCat("made by from_memory(), copied: ", client.num_clients(),
                                        " clients must map the memory")),
            x.explain());
        // The memory serves collectives, and results that share it.
        const DTensor columns = relayout(x, "[-, x]");
        const DTensor whole = relayout(x, "[-, -]");
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(columns));
        TESSERA_RETURN_IF_ERROR(expect_iota<float>(whole));
        return expect_iota<float>(relayout(std::move(x), "[(x,y), -]"));
      }),
      IsOk());
}

TEST(FromMemoryTest, KeepsTheOwnerWhileMemoryIsShared) {
  EXPECT_THAT(run_clients({.num_clients = 1, .devices_per_client = 2},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                            auto array = std::make_shared<std::vector<int32_t>>(4, 5);
                            const std::weak_ptr<void> held = array;
                            const absl::Span<const int32_t> all = *array;
                            DTensor x = from_memory<int32_t>({4}, Layout::parse(mesh, "[-]"),
                                                             {all, all}, std::move(array));
                            DTensor half = relayout(x, "[x]");
                            TESSERA_RETURN_IF_ERROR(half.await());
                            x = DTensor();
                            TESSERA_REQUIRE(!held.expired());
                            half = DTensor();
                            TESSERA_RETURN_IF_ERROR(client.sync_devices());
                            TESSERA_REQUIRE(held.expired());
                            return absl::OkStatus();
                          }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
