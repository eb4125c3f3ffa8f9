// SPDX-License-Identifier: Apache-2.0
//
// local_map() with several outputs: one run of the function on each device fills them all, and an
// error of one is the error of all.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "dtensor/local_map.h"
#include "dtensor/relayout.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

class LocalOutputsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, LocalOutputsTest, ::testing::ValuesIn(kJobForms), job_form_name);

// The rows of a matrix: their sums, the terms of the column sums, and the number of runs.
void sums_of_both_dims(LocalContext& local) {
  const ShardView<float> in = local.input<float>(0);
  const auto rows = local.output<float>(0).data;
  const auto columns = local.output<double>(1).data;
  for (float& each : rows) each = 0;
  for (double& each : columns) each = 0;
  for (size_t i = 0; i < in.data.size(); ++i) {
    rows[i / columns.size()] += in.data[i];
    columns[i % columns.size()] += in.data[i];
  }
  local.output<int32_t>(2).data[0] = local.num_outputs();
}

TEST_P(LocalOutputsTest, OneRunFillsThemAll) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const DTensor x = iota<float>({11, 3}, Layout::parse(mesh, "[x, -]"));
        const std::vector<DTensor> out =
            local_map({{Layout::parse(mesh, "[x]"), {11}, DType::kFloat32},
                       {Layout::parse(mesh, "[-] sum{x}"), {3}, DType::kFloat64},
                       {Layout::parse(mesh, "[-] sum{x}"), {1}, DType::kInt32}},
                      {x}, sums_of_both_dims);
        TESSERA_REQUIRE(out.size() == 3, out.size());
        TESSERA_RETURN_IF_ERROR(await_all(out));
        // Text is read on the mesh of input 0.
        const std::vector<DTensor> by_text = local_map({{"[x]", {11}, DType::kFloat32},
                                                        {"[-] sum{x}", {3}, DType::kFloat64},
                                                        {"[-] sum{x}", {1}, DType::kInt32}},
                                                       {x}, sums_of_both_dims);
        TESSERA_RETURN_IF_ERROR(await_all(by_text));
        for (size_t k = 0; k < 3; ++k) TESSERA_REQUIRE(by_text[k].layout() == out[k].layout());
        TESSERA_REQUIRE(out[1].dtype() == DType::kFloat64 && out[2].shape() == Shape{1});
        TESSERA_RETURN_IF_ERROR(
            expect_shards<float>(out[0], [](int64_t i) { return static_cast<float>(9 * i + 3); }));
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<double> columns, out[1].to_host<double>());
        for (int64_t i = 0; i < 3; ++i) TESSERA_REQUIRE(columns.data[i] == 165 + 11 * i);
        TESSERA_ASSIGN_OR_RETURN(const HostTensor<int32_t> runs, out[2].to_host<int32_t>());
        TESSERA_REQUIRE(runs.data[0] == 3 * 8, runs.data[0]);
        return absl::OkStatus();
      }),
      IsOk());
}

TEST_P(LocalOutputsTest, AnErrorOfARunIsTheErrorOfAll) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
        const LocalOutput output = {rows, {8}, DType::kFloat32};
        struct Row {
          LocalFn fn;
          std::string error;
        };
        const Row errors[] = {
            {[](LocalContext& local) -> Status {
               return local.device_id() == 2 ? absl::InvalidArgumentError("odd values")
                                             : absl::OkStatus();
             },
             "local_map on device 2: odd values"},
            {[](LocalContext& local) {
               if (local.device_id() == 2) local.output<int32_t>(1).data[0] = 1;
             },
             "local_map on device 2: output 1 written as i32, and it is f32"},
            {[](LocalContext& local) {
               if (local.device_id() == 2) local.output<float>(2).data[0] = 1;
             },
             "local_map on device 2: output 2 does not exist; 2 outputs were given"},
            {[](LocalContext& local) {
               if (local.device_id() == 2) (void)local.output_box(-1);
             },
             "local_map on device 2: output -1 does not exist; 2 outputs were given"},
        };
        for (const Row& row : errors) {
          // All clients get it, by the relayout.
          for (const DTensor& each : local_map({output, output}, {}, row.fn)) {
            TESSERA_RETURN_IF_ERROR(expect_error(relayout(each, Layout::parse(mesh, "[-]")).await(),
                                                 StatusCode::kInvalidArgument, {row.error}));
          }
        }
        client.sync_devices().IgnoreError();
        return expect_iota<float>(relayout(iota<float>({8}, rows), Layout::parse(mesh, "[-]")));
      }),
      IsOk());
}

TEST_P(LocalOutputsTest, AnErrorOfAnArgumentIsTheErrorOfAll) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        TESSERA_ASSIGN_OR_RETURN(const Mesh other, live_mesh(client, "{y=8}"));
        const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
        const LocalOutput good = {rows, {8}, DType::kFloat32};
        const auto never = [](LocalContext&) { return absl::InternalError("was called"); };
        struct Row {
          std::vector<LocalOutput> outputs;
          std::vector<DTensor> inputs;
          LocalFn fn;
          std::string error;
        };
        const Row errors[] = {
            {{good, {rows, {8, 2}, DType::kFloat32}},
             {},
             never,
             "local_map: output 1: layout [x] has 1 dim, shape [8, 2] has 2"},
            {{{Layout::parse(mesh, "[q]"), {8}, DType::kFloat32}, good},
             {},
             never,
             "local_map: output 0: layout \"[q]\" names axis \"q\""},
            {{good, {Layout::parse(other, "[y]"), {8}, DType::kFloat32}},
             {},
             never,
             "local_map: output 1 is on {y=8}, and output 0 on {x=8}; give all outputs one mesh"},
            {{good, good},
             {},
             std::function<Status(LocalContext&)>(),
             "local_map: the function is empty"},
            {{good, good},
             {iota<float>({8, 2}, rows)},
             never,
             "layout [x] has 1 dim, shape [8, 2] has 2"},
        };
        for (const Row& row : errors) {
          const std::vector<DTensor> out = local_map(row.outputs, row.inputs, row.fn);
          TESSERA_REQUIRE(out.size() == 2, out.size());
          for (size_t k = 0; k < 2; ++k) {
            TESSERA_RETURN_IF_ERROR(
                expect_error(out[k].status(), StatusCode::kInvalidArgument, {row.error}));
            TESSERA_REQUIRE(out[k].shape() == row.outputs[k].shape);
          }
        }
        TESSERA_REQUIRE(local_map(absl::Span<const LocalOutput>(), {}, never).empty());
        return client.sync_devices();
      }),
      IsOk());
}

}  // namespace
}  // namespace tessera::testing
