// SPDX-License-Identifier: Apache-2.0
//
// Local programs and reductions (tests/facts/dtensor.md), and the values of partial layouts
// (tests/facts/relayout.md). A row's name is the test's.
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
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

// Every local shard holds the whole value, given.
template <class T>
Status expect_whole(const DTensor& tensor, const std::vector<T>& elements) {
  TESSERA_RETURN_IF_ERROR(tensor.await());
  TESSERA_REQUIRE(tensor.layout().is_fully_replicated());
  return expect_shards<T>(tensor, [&](int64_t i) { return elements[i]; });
}

// Each device holds make(device id).
template <class T, class Make>
DTensor from_devices(const Client& client, const Shape& shape, const StatusOr<Layout>& layout,
                     Make make) {
  std::vector<HostTensor<T>> shards;
  for (const Device& device : client.local_devices()) {
    if (const auto position = layout->mesh().position_of_device(device.id)) {
      shards.push_back({layout->box(shape, *position).sizes, make(device.id)});
    }
  }
  return from_shards<T>(shape, layout, shards);
}

// Reduces a shard of rank 2 over one dim, by fn(so far, element).
template <class T, class Fn>
LocalFn over_dim(int dim, T start, Fn fn) {
  return [=](LocalContext& local) {
    const ShardView<T> in = local.input<T>(0);
    const MutableShardView<T> out = local.output<T>();
    for (T& x : out.data) x = start;
    for (int64_t i = 0; i < in.box.num_elements(); ++i) {
      T& x = out.data[dim == 0 ? i % in.shape[1] : i / in.shape[1]];
      x = fn(x, in.data[i]);
    }
  };
}

// c = a b of the local blocks.
void local_product(LocalContext& local) {
  const ShardView<float> a = local.input<float>(0);
  const ShardView<float> b = local.input<float>(1);
  const MutableShardView<float> c = local.output<float>();
  const int64_t depth = a.shape[1];
  const int64_t columns = b.shape[1];
  for (int64_t i = 0; i < static_cast<int64_t>(c.data.size()); ++i) {
    c.data[i] = 0;
    for (int64_t k = 0; k < depth; ++k) {
      c.data[i] += a.data[i / columns * depth + k] * b.data[k * columns + i % columns];
    }
  }
}

class LocalProgramTest : public JobFormTest {};
class PartialValueTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, LocalProgramTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Forms, PartialValueTest, ::testing::ValuesIn(kJobForms), job_form_name);

const std::vector<float> kA = {1, 2, 3, 4, 5, 6};
const std::vector<float> kB = {6, 5, 4, 3, 2, 1};

TEST_P(LocalProgramTest, MatmulReplicatedResult) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3, y=2}"));
                const DTensor a = from_host<float>(kA, {2, 3}, Layout::parse(mesh, "[-, x]"));
                const DTensor b = from_host<float>(kB, {3, 2}, Layout::parse(mesh, "[x, -]"));
                const DTensor terms = local_map(Layout::parse(mesh, "[-, -] sum{x}"), {2, 2},
                                                DType::kFloat32, {a, b}, local_product);
                return expect_whole<float>(relayout(terms, Layout::parse(mesh, "[-, -]")),
                                           {20, 14, 56, 41});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, MatmulRowResult) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3, y=2}"));
                const DTensor a = from_host<float>(kA, {2, 3}, Layout::parse(mesh, "[y, x]"));
                const DTensor b = from_host<float>(kB, {3, 2}, Layout::parse(mesh, "[x, -]"));
                const DTensor terms = local_map(Layout::parse(mesh, "[y, -] sum{x}"), {2, 2},
                                                DType::kFloat32, {a, b}, local_product);
                return expect_devices<float>(client, relayout(terms, Layout::parse(mesh, "[y, -]")),
                                             {{0, {20, 14}},
                                              {1, {56, 41}},
                                              {2, {20, 14}},
                                              {3, {56, 41}},
                                              {4, {20, 14}},
                                              {5, {56, 41}}});
              }),
              IsOk());
}

// The dense product of two square matrices whose inner dim is split into `num_blocks`: the terms of
// the blocks are added in ascending order, as the numerics of partial values want it.
std::vector<float> blocked_product(const std::vector<float>& a, const std::vector<float>& b,
                                   int64_t size, int64_t num_blocks) {
  std::vector<float> result;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      float sum = 0;
      for (int64_t block = 0; block < num_blocks; ++block) {
        float term = 0;
        for (int64_t k = block * size / num_blocks; k < (block + 1) * size / num_blocks; ++k) {
          term += a[i * size + k] * b[k * size + j];
        }
        sum = block == 0 ? term : sum + term;
      }
      result.push_back(sum);
    }
  }
  return result;
}

TEST_P(LocalProgramTest, Matmul128HasTheBitsOfTheDenseProduct) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        std::vector<float> values(128 * 128);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = 0.1f * static_cast<float>(i % 37) - 1.7f;
        }
        const Shape shape = {128, 128};
        const DTensor a = from_host<float>(values, shape, Layout::parse(mesh, "[-, x]"));
        const DTensor b = from_host<float>(values, shape, Layout::parse(mesh, "[x, -]"));
        const DTensor terms = local_map(Layout::parse(mesh, "[-, -] sum{x}"), shape,
                                        DType::kFloat32, {a, b}, local_product);
        const std::vector<float> expected = blocked_product(values, values, 128, 8);
        for (const char* layout : {"[-, -]", "[x, -]", "[-, x]"}) {
          TESSERA_RETURN_IF_ERROR(expect_shards<float>(relayout(terms, Layout::parse(mesh, layout)),
                                                       [&](int64_t i) { return expected[i]; }));
        }
        return absl::OkStatus();
      }),
      IsOk());
}

// [[1, 2], [3, 4], [5, 6], [7, 8]] by rows on {x=2, y=4}.
template <class T>
StatusOr<DTensor> four_rows(const Mesh& mesh) {
  return from_host<T>(std::vector<T>{1, 2, 3, 4, 5, 6, 7, 8}, {4, 2},
                      Layout::parse(mesh, "[x, -]"));
}

const auto kPlus = [](auto a, auto b) { return a + b; };
const auto kMax = [](auto a, auto b) { return a > b ? a : b; };
const auto kMin = [](auto a, auto b) { return a < b ? a : b; };

TEST_P(LocalProgramTest, SumOfRows) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
                TESSERA_ASSIGN_OR_RETURN(const DTensor x, four_rows<float>(mesh));
                const DTensor terms = local_map(Layout::parse(mesh, "[-] sum{x}"), {2},
                                                DType::kFloat32, {x}, over_dim(0, 0.0f, kPlus));
                return expect_whole<float>(relayout(terms, Layout::parse(mesh, "[-]")), {16, 20});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, SumOfColumns) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
                // Nothing is sent: one client is enough.
                if (client.client_id() != client.num_clients() - 1) return absl::OkStatus();
                TESSERA_ASSIGN_OR_RETURN(const DTensor x, four_rows<float>(mesh));
                const DTensor sums = local_map(Layout::parse(mesh, "[x]"), {4}, DType::kFloat32,
                                               {x}, over_dim(1, 0.0f, kPlus));
                return expect_devices<float>(
                    client, sums, {{0, {3, 7}}, {3, {3, 7}}, {4, {11, 15}}, {7, {11, 15}}});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, MeanMaxMin) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
                TESSERA_ASSIGN_OR_RETURN(const DTensor x, four_rows<float>(mesh));
                const auto reduce = [&](const char* layout, LocalFn fn) {
                  return relayout(local_map(Layout::parse(mesh, layout), {2}, DType::kFloat32, {x},
                                            std::move(fn)),
                                  Layout::parse(mesh, "[-]"));
                };
                const auto half_sum = [](float a, float b) { return a + b / 2; };
                TESSERA_RETURN_IF_ERROR(
                    expect_whole<float>(reduce("[-] avg{x}", over_dim(0, 0.0f, half_sum)), {4, 5}));
                TESSERA_RETURN_IF_ERROR(
                    expect_whole<float>(reduce("[-] max{x}", over_dim(0, -1e9f, kMax)), {7, 8}));
                return expect_whole<float>(reduce("[-] min{x}", over_dim(0, 1e9f, kMin)), {1, 2});
              }),
              IsOk());
}

// Each device squares its own term: of the terms 1, 2, 3 and 4 the squares are reduced, not the
// terms.
TEST_P(LocalProgramTest, PartialTermsGoInAsTheyAre) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                const std::pair<const char*, float> cases[] = {
                    {"sum", 30}, {"avg", 7.5}, {"max", 16}, {"min", 1}, {"prod", 576}};
                for (const auto& [reduction, expected] : cases) {
                  const StatusOr<Layout> partial =
                      Layout::parse(mesh, absl::StrCat("[-] ", reduction, "{x,y}"));
                  const DTensor terms = from_devices<float>(client, {1}, partial, [](int device) {
                    return std::vector<float>{static_cast<float>(device + 1)};
                  });
                  const DTensor squares =
                      local_map(partial, {1}, DType::kFloat32, {terms}, [](LocalContext& local) {
                        const float term = local.input<float>(0).data[0];
                        local.output<float>().data[0] = term * term;
                      });
                  TESSERA_RETURN_IF_ERROR(expect_whole<float>(
                      relayout(squares, Layout::parse(mesh, "[-]")), {expected}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(LocalProgramTest, MeanOfRaggedParts) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,7"));
                // Sum and count of [0, 1, 2, 3] and of [4, 5].
                const DTensor terms =
                    from_devices<float>(client, {2}, Layout::parse(mesh, "[-] sum{x}"), [](int d) {
                      return d == 0 ? std::vector<float>{6, 4} : std::vector<float>{9, 2};
                    });
                const DTensor both = relayout(terms, Layout::parse(mesh, "[-]"));
                const DTensor mean = local_map(Layout::parse(mesh, "[]"), {}, DType::kFloat32,
                                               {both}, [](LocalContext& local) {
                                                 const ShardView<float> in = local.input<float>(0);
                                                 local.output<float>().data[0] =
                                                     in.data[0] / in.data[1];
                                               });
                return expect_whole<float>(mean, {2.5f});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, AnyAll) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 1,6"));
        const bool values[] = {true, false, false, true, false, false, false, true};
        const DTensor x = from_host<bool>(values, {2, 4}, Layout::parse(mesh, "[x, -]"));
        const auto reduce = [&](const char* layout, bool start, bool is_any) {
          return relayout(local_map(Layout::parse(mesh, layout), {}, DType::kBool, {x},
                                    [=](LocalContext& local) {
                                      bool result = start;
                                      for (const bool b : local.input<bool>(0).data) {
                                        result = is_any ? (result || b) : (result && b);
                                      }
                                      local.output<bool>().data[0] = result;
                                    }),
                          Layout::parse(mesh, "[]"));
        };
        TESSERA_RETURN_IF_ERROR(expect_whole<bool>(reduce("[] min{x}", true, false), {false}));
        return expect_whole<bool>(reduce("[] max{x}", false, true), {true});
      }),
      IsOk());
}

TEST_P(LocalProgramTest, Bf16Columns) {
  EXPECT_THAT(run([](Client& client) -> Status {
                using T = Eigen::bfloat16;
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = iota<T>({8, 6}, Layout::parse(mesh, "[x, -]"));
                const DTensor terms =
                    local_map(Layout::parse(mesh, "[-] sum{x}"), {6}, DType::kBFloat16, {x},
                              over_dim(0, T(0), [](T a, T b) { return T(a + b); }));
                return expect_whole<T>(relayout(terms, Layout::parse(mesh, "[-]")),
                                       {T(168), T(176), T(184), T(192), T(200), T(208)});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, InputsOnOtherDevicesAreRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh all, live_mesh(client, "{x=8}"));
                TESSERA_ASSIGN_OR_RETURN(const Mesh some, live_mesh(client, "{x=2} on 0,2"));
                const DTensor x = ones<float>({8}, Layout::parse(some, "[x]"));
                const DTensor y = local_map(Layout::parse(all, "[x]"), {8}, DType::kFloat32, {x},
                                            [](LocalContext&) {});
                return expect_error(y.await(), StatusCode::kInvalidArgument,
                                    {"input 0", "{x=2} on 0,2", "{x=8}", "relayout it first"});
              }),
              IsOk());
}

TEST_P(LocalProgramTest, WrongViewsFailTheOp) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
                const DTensor x = ones<float>({8}, rows);
                const auto map = [&](LocalFn fn) {
                  return local_map(rows, {8}, DType::kFloat32, {x}, std::move(fn)).await();
                };
                const StatusCode invalid = StatusCode::kInvalidArgument;
                TESSERA_RETURN_IF_ERROR(expect_error(
                    map([](LocalContext& local) { (void)local.input<double>(0); }), invalid,
                    {"local_map on device", "input 0 read as f64", "it is f32"}));
                TESSERA_RETURN_IF_ERROR(
                    expect_error(map([](LocalContext& local) { (void)local.input<float>(1); }),
                                 invalid, {"input 1 does not exist", "1 input was given"}));
                TESSERA_RETURN_IF_ERROR(
                    expect_error(map([](LocalContext& local) { (void)local.output<int32_t>(); }),
                                 invalid, {"output written as i32", "it is f32"}));
                client.sync_devices().IgnoreError();
                return absl::OkStatus();
              }),
              IsOk());
}

// An object that is no std::exception.
struct Odd {};

TEST_P(LocalProgramTest, AnExceptionIsTheErrorOfTheTensor) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
        const auto map = [&](LocalFn fn) {
          return relayout(local_map(rows, {8}, DType::kFloat32, {}, std::move(fn)),
                          Layout::parse(mesh, "[-]"));
        };
        const DTensor standard = map([](LocalContext& local) {
          // NOTIDY(banned): what a function of the user's may do
          if (local.device_id() == 3) throw std::out_of_range("row 7 of 4");
        });
        // All clients, by the relayout.
        TESSERA_RETURN_IF_ERROR(
            expect_error(standard.await(), StatusCode::kUnknown,
                         {"local_map on device 3: the function raised an exception: row 7 of 4"}));
        const DTensor odd = map([](LocalContext& local) {
          // NOTIDY(banned): what a function of the user's may do
          if (local.device_id() == 3) throw Odd();
        });
        TESSERA_RETURN_IF_ERROR(
            expect_error(odd.await(), StatusCode::kUnknown,
                         {"local_map on device 3: the function raised an exception that is not"}));
        client.sync_devices().IgnoreError();
        return expect_iota<float>(relayout(iota<float>({8}, rows), Layout::parse(mesh, "[-]")));
      }),
      IsOk());
}

TEST_P(LocalProgramTest, EmptyFunctionsAreRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
                using Function = std::function<Status(LocalContext&)>;
                using Pointer = void (*)(LocalContext&);
                for (const LocalFn& fn : {LocalFn(Function()), LocalFn(Pointer(nullptr))}) {
                  TESSERA_RETURN_IF_ERROR(expect_error(
                      local_map(rows, {8}, DType::kFloat32, {}, fn).status(),
                      StatusCode::kInvalidArgument, {"local_map: the function is empty"}));
                }
                const Function whole = [](LocalContext& local) {
                  for (float& x : local.output<float>().data) x = 2;
                  return absl::OkStatus();
                };
                return expect_shards<float>(local_map(rows, {8}, DType::kFloat32, {}, whole),
                                            [](int64_t) { return 2.0f; });
              }),
              IsOk());
}

// relayout.md, values.

TEST_P(PartialValueTest, AvgPartial) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3} on 0,3,6"));
                const DTensor terms = from_devices<float>(
                    client, {1}, Layout::parse(mesh, "[-] avg{x}"), [](int device) {
                      return std::vector<float>{device == 0 ? 1.0f : device == 3 ? 2.0f : 4.0f};
                    });
                return expect_whole<float>(relayout(terms, Layout::parse(mesh, "[-]")),
                                           {2.3333332538604736f});
              }),
              IsOk());
}

TEST_P(PartialValueTest, AvgPartialIntegers) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=3}"));
        const StatusOr<Layout> avg = Layout::parse(mesh, "[-] avg{x}");
        const std::vector<std::string> texts = {"[-] avg{x}", "avg", "i32"};
        const DTensor made = zeros<int32_t>({1}, avg);
        TESSERA_RETURN_IF_ERROR(expect_error(made.status(), StatusCode::kInvalidArgument, texts));
        const DTensor x = zeros<int32_t>({1}, Layout::parse(mesh, "[-]"));
        return expect_error(relayout(x, avg).status(), StatusCode::kInvalidArgument, texts);
      }),
      IsOk());
}

TEST_P(PartialValueTest, ScalarToSum) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,7"));
                // Nothing is sent: the last client does it alone.
                if (client.client_id() != client.num_clients() - 1) return absl::OkStatus();
                const DTensor x = full<float>({}, 3.5f, Layout::parse(mesh, "[]"));
                return expect_devices<float>(client, relayout(x, Layout::parse(mesh, "[] sum{x}")),
                                             {{0, {3.5f}}, {7, {0}}});
              }),
              IsOk());
}

TEST_P(PartialValueTest, ShardsToSumAndBack) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,7"));
        const StatusOr<Layout> shards = Layout::parse(mesh, "[x]");
        const DTensor x = from_host<int32_t>(std::vector<int32_t>{1, 2, 3, 4, 5}, {5}, shards);
        const DTensor terms = relayout(x, Layout::parse(mesh, "[-] sum{x}"));
        TESSERA_RETURN_IF_ERROR(
            expect_devices<int32_t>(client, terms, {{0, {1, 2, 3, 0, 0}}, {7, {0, 0, 0, 4, 5}}}));
        return expect_shards<int32_t>(relayout(terms, shards),
                                      [](int64_t i) { return static_cast<int32_t>(i + 1); });
      }),
      IsOk());
}

TEST_P(PartialValueTest, SeveralAxesToSum) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2, z=2}"));
                const StatusOr<Layout> from = Layout::parse(mesh, "[(x,z), y]");
                const DTensor x = iota<int32_t>({6, 5}, from);
                const DTensor terms = relayout(x, Layout::parse(mesh, "[x, -] sum{y,z}"));
                TESSERA_RETURN_IF_ERROR(terms.await());
                return expect_iota<int32_t>(relayout(terms, from));
              }),
              IsOk());
}

TEST_P(PartialValueTest, WholeToMax) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2} on 0,7"));
                const StatusOr<Layout> whole = Layout::parse(mesh, "[-]");
                const DTensor x = iota<float>({5}, whole);
                const DTensor terms = relayout(x, Layout::parse(mesh, "[-] max{x}"));
                if (x.num_local_shards() > 0) {
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> before, x.shard<float>(0));
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> after, terms.shard<float>(0));
                  TESSERA_REQUIRE(before.data.data() == after.data.data(), "free");
                }
                return expect_iota<float>(relayout(terms, whole));
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
