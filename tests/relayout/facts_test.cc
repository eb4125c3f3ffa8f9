// SPDX-License-Identifier: Apache-2.0
//
// The rows of tests/facts/dtensor.md, Relayout, that give values: what each device holds after the
// move, and how much the busiest one receives. The first and the last element of a shard are the
// table's own; every element is compared with the dense value besides.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/relayout.h"
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

class RelayoutFactsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RelayoutFactsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, RelayoutFactsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, RelayoutFactsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

struct Ends {
  std::vector<int> devices;
  int32_t first;
  int32_t last;
};

struct Row {
  const char* name;
  const char* mesh;
  Shape shape;
  const char* from;
  const char* to;
  int64_t most_received;  // elements
  std::vector<Ends> ends;
};

constexpr const char* k2x4 = "{x=2, y=4}";

const std::vector<Row>& rows() {
  // clang-format off
  static const auto* const rows = new std::vector<Row>{
      {"iota_8x8_wx_to_xw", k2x4, {8, 8}, "[-, x]", "[x, -]", 16, {{{0, 1, 2, 3}, 0, 31}, {{4, 5, 6, 7}, 32, 63}}},
      {"iota_8x8_yw_to_wy", k2x4, {8, 8}, "[y, -]", "[-, y]", 12, {{{0, 4}, 0, 57}, {{1, 5}, 2, 59}, {{2, 6}, 4, 61}, {{3, 7}, 6, 63}}},
      {"iota_8x8_wy_to_yw", k2x4, {8, 8}, "[-, y]", "[y, -]", 12, {{{0, 4}, 0, 15}, {{1, 5}, 16, 31}, {{2, 6}, 32, 47}, {{3, 7}, 48, 63}}},
      {"iota_8x8x8_yww_to_wwy", k2x4, {8, 8, 8}, "[y, -, -]", "[-, -, y]", 96, {{{0}, 0, 505}, {{7}, 6, 511}}},
      {"iota_8x8x8_wwx_to_xww", k2x4, {8, 8, 8}, "[-, -, x]", "[x, -, -]", 128, {{{0}, 0, 255}, {{7}, 256, 511}}},
      {"iota_8x8x8_xww_to_wxw", k2x4, {8, 8, 8}, "[x, -, -]", "[-, x, -]", 128, {{{0}, 0, 479}, {{7}, 32, 511}}},
      {"iota_8x8x8_xwy_to_wxy", k2x4, {8, 8, 8}, "[x, -, y]", "[-, x, y]", 32, {{{0}, 0, 473}, {{7}, 38, 511}}},
      {"iota_8x8x8_wxy_to_xwy", k2x4, {8, 8, 8}, "[-, x, y]", "[x, -, y]", 32, {{{0}, 0, 249}, {{7}, 262, 511}}},
      {"iota_8x8x8_xyw_to_wyx", k2x4, {8, 8, 8}, "[x, y, -]", "[-, y, x]", 32, {{{0}, 0, 459}, {{7}, 52, 511}}},
      {"iota_8x8x8_wxw_to_wwx", k2x4, {8, 8, 8}, "[-, x, -]", "[-, -, x]", 128, {{{0}, 0, 507}, {{7}, 4, 511}}},
      {"iota_8x8x8_xyw_to_xwy", k2x4, {8, 8, 8}, "[x, y, -]", "[x, -, y]", 48, {{{0}, 0, 249}, {{7}, 262, 511}}},
      {"iota_8x8x8_xwy_to_xyw", k2x4, {8, 8, 8}, "[x, -, y]", "[x, y, -]", 48, {{{0}, 0, 207}, {{7}, 304, 511}}},
      {"iota_8x8x8_yxw_to_ywx", k2x4, {8, 8, 8}, "[y, x, -]", "[y, -, x]", 32, {{{0}, 0, 123}, {{7}, 388, 511}}},
      {"iota_8x8x8_ywx_to_yxw", k2x4, {8, 8, 8}, "[y, -, x]", "[y, x, -]", 32, {{{0}, 0, 95}, {{7}, 416, 511}}},
      {"swap_mesh_axis_on_the_way", "{x=2, y=2, z=2}", {4, 4, 4}, "[x, y, -]", "[-, z, x]", 16,
       {{{1}, 8, 61}, {{2}, 0, 53}, {{5}, 10, 63}, {{6}, 2, 55}}},
      {"equal_up_to_size_one", "{x=1, y=2}", {8, 3}, "[x, -]", "[-, -]", 0, {{{0, 1}, 0, 23}}},
  };
  // clang-format on
  return *rows;
}

Status check_ends(const Client& client, const DTensor& tensor, const Ends& ends) {
  for (const int device_id : ends.devices) {
    if (client.devices()[device_id].client_id != client.client_id()) continue;
    int shard = 0;
    for (const Device& device : client.local_devices()) shard += device.id < device_id ? 1 : 0;
    TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> view, tensor.shard<int32_t>(shard));
    TESSERA_REQUIRE(view.data.front() == ends.first && view.data.back() == ends.last, "device ",
                    device_id, " holds ", view.data.front(), " .. ", view.data.back());
  }
  return absl::OkStatus();
}

Status check_row(Client& client, const Row& row) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, row.mesh));
  TESSERA_ASSIGN_OR_RETURN(const Layout from, Layout::parse(mesh, row.from));
  TESSERA_ASSIGN_OR_RETURN(const Layout to, Layout::parse(mesh, row.to));
  TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                           plan_relayout(from, to, row.shape, DType::kInt32));
  TESSERA_REQUIRE(plan.max_received_bytes() == 4 * row.most_received, "received ",
                  plan.max_received_bytes(), " bytes");
  const DTensor moved = relayout(iota<int32_t>(row.shape, from), to);
  TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(moved));
  for (const Ends& ends : row.ends) TESSERA_RETURN_IF_ERROR(check_ends(client, moved, ends));
  return absl::OkStatus();
}

TEST_P(RelayoutFactsTest, FromTensorFlow) {
  EXPECT_THAT(run([](Client& client) -> Status {
                for (const Row& row : rows()) {
                  TESSERA_RETURN_IF_ERROR(with_context(check_row(client, row), row.name));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(RelayoutFactsTest, WholeToBlocks) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, k2x4));
        const std::vector<float> values = {1, 0, 3, 0, 5, 0, 0, 8};
        const DTensor whole = from_host<float>(values, {2, 4, 1}, Layout::parse(mesh, "[-, -, -]"));
        const DTensor blocks = relayout(whole, Layout::parse(mesh, "[x, y, -]"));
        for (int device = 0; device < 8; ++device) {
          TESSERA_RETURN_IF_ERROR(expect_device<float>(client, blocks, device, {values[device]}));
        }
        return blocks.await();
      }),
      IsOk());
}

// Moves of iota for a list of shapes, and back.
Status there_and_back(const Mesh& mesh, const std::vector<Shape>& shapes, const std::string& from,
                      const std::string& to, int64_t num_received_at_most) {
  for (const Shape& shape : shapes) {
    const DTensor start = iota<int32_t>(shape, Layout::parse(mesh, from));
    const DTensor there = relayout(start, Layout::parse(mesh, to));
    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(there));
    TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(relayout(there, Layout::parse(mesh, from))));
    TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                             plan_relayout(start.layout(), there.layout(), shape, DType::kInt32));
    TESSERA_REQUIRE(plan.steps().size() == 1u);
    TESSERA_REQUIRE(plan.max_received_bytes() <= 4 * num_received_at_most);
  }
  return absl::OkStatus();
}

TEST_P(RelayoutFactsTest, SliceRowsAndColumns) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                const std::vector<Shape> shapes = {{12, 3}, {13, 3}, {3, 14}};
                TESSERA_RETURN_IF_ERROR(there_and_back(mesh, shapes, "[-, -]", "[x, -]", 0));
                return there_and_back(mesh, shapes, "[-, -]", "[-, x]", 0);
              }),
              IsOk());
}

TEST_P(RelayoutFactsTest, RowsToColumnsShapes) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                TESSERA_RETURN_IF_ERROR(
                    there_and_back(mesh, {{8, 8}, {8, 5}, {5, 8}, {5, 5}}, "[x, -]", "[-, x]", 12));
                return there_and_back(mesh, {{8, 8, 8}}, "[x, -, -]", "[-, x, -]", 96);
              }),
              IsOk());
}

TEST_P(RelayoutFactsTest, WholeToSumAndBack) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                const DTensor whole = iota<int32_t>({6}, Layout::parse(mesh, "[-]"));
                const DTensor terms = relayout(whole, Layout::parse(mesh, "[-] sum{x,y}"));
                return expect_iota<int32_t>(relayout(terms, Layout::parse(mesh, "[-]")));
              }),
              IsOk());
}

// tests/facts/redistribution.md.
TEST(RelayoutSizesTest, EmptyClients) {
  EXPECT_THAT(run_clients({.setting = Setting::kProcesses, .num_clients = 8},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                            const DTensor split = iota<float>({2}, Layout::parse(mesh, "[x]"));
                            return expect_iota<float>(relayout(split, Layout::parse(mesh, "[-]")));
                          }),
              IsOk());
}

TEST_P(RelayoutFactsTest, EveryAxisOrder) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
        const char* orders[] = {"(x,y,z)", "(x,z,y)", "(y,x,z)", "(y,z,x)", "(z,x,y)", "(z,y,x)"};
        for (const Shape& shape :
             std::vector<Shape>{{16, 8}, {8, 16, 32}, {17, 5}, {33, 16, 8, 1}}) {
          for (size_t dim = 0; dim < shape.size(); ++dim) {
            for (size_t k = 0; k < std::size(orders); ++k) {
              const auto layout = [&](const char* order) {
                std::string text = "[";
                for (size_t d = 0; d < shape.size(); ++d) {
                  absl::StrAppend(&text, d == 0 ? "" : ", ", d == dim ? order : "-");
                }
                return Layout::parse(mesh, text + "]");
              };
              const DTensor start = iota<int32_t>(shape, layout(orders[k]));
              const DTensor there = relayout(start, layout(orders[(k + 1) % std::size(orders)]));
              TESSERA_RETURN_IF_ERROR(expect_iota<int32_t>(relayout(there, layout(orders[k]))));
            }
          }
        }
        return absl::OkStatus();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
