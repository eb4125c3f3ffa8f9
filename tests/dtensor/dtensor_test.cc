// SPDX-License-Identifier: Apache-2.0
//
// DTensors by the rows of tests/facts/placement.md, "Making tensors", and tests/facts/dtensor.md,
// "Shards and values". A row's name is the test's.
#include "dtensor/dtensor.h"

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
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

// to_host on the clients of the mesh; the others pass.
template <class T>
Status expect_host(const DTensor& tensor, const std::vector<T>& elements) {
  if (tensor.num_local_shards() == 0) return tensor.status();
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, tensor.to_host<T>());
  TESSERA_REQUIRE(host.shape == tensor.shape());
  std::string held;
  for (const T x : host.data) absl::StrAppend(&held, " ", static_cast<double>(x));
  TESSERA_REQUIRE(host.data == elements, "held", held);
  return absl::OkStatus();
}

// The tensor whose shard on each local device is make(device id).
template <class T, class Make>
DTensor from_devices(const Client& client, const Shape& shape, const StatusOr<Layout>& layout,
                     Make make) {
  std::vector<HostTensor<T>> shards;
  for (const Device& device : client.local_devices()) {
    if (layout->mesh().position_of_device(device.id).has_value()) {
      shards.push_back(make(device.id));
    }
  }
  return from_shards<T>(shape, layout, shards);
}

class MakingTest : public JobFormTest {};
class ShardsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, MakingTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, MakingTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, MakingTest, ::testing::ValuesIn(cuda_forms()), job_form_name);
INSTANTIATE_TEST_SUITE_P(Forms, ShardsTest, ::testing::ValuesIn(kJobForms), job_form_name);
INSTANTIATE_TEST_SUITE_P(Hosts, ShardsTest, ::testing::Values(kTwoHosts), job_form_name);
INSTANTIATE_TEST_SUITE_P(Cuda, ShardsTest, ::testing::ValuesIn(cuda_forms()), job_form_name);

// tests/facts/placement.md, "Making tensors".

TEST_P(MakingTest, TooManyShards) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const std::vector<HostTensor<float>> four(4, {{1}, {0.0f}});
                const DTensor x = from_shards<float>({8}, Layout::parse(mesh, "[x]"), four);
                return expect_error(
                    x.await(), StatusCode::kInvalidArgument,
                    {absl::StrCat("expected ", client.local_devices().size(), " shards"), "got 4"});
              }),
              IsOk());
}

TEST_P(MakingTest, WrongShardShape) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
        const DTensor x = from_devices<float>(client, {8, 2}, Layout::parse(mesh, "[x, -]"),
                                              [](int device) -> HostTensor<float> {
                                                if (device == 2)
                                                  return {{4, 2}, std::vector<float>(8)};
                                                return {{2, 2}, std::vector<float>(4)};
                                              });
        if (x.num_local_shards() == 0) return x.await();
        const std::vector<std::string> texts = {"device 2", "expected [2, 2]", "shape [4, 2]"};
        bool owner = false;
        for (const Device& device : client.local_devices()) owner |= device.id == 2;
        TESSERA_REQUIRE(x.await().ok() == !owner);
        // The next collective tells all clients.
        const DTensor y = relayout(x, Layout::parse(mesh, "[-, -]"));
        return expect_error(y.await(), StatusCode::kInvalidArgument, texts);
      }),
      IsOk());
}

TEST_P(MakingTest, RankMismatch) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                const DTensor x = zeros<float>({8}, Layout::parse(mesh, "[x, -]"));
                return expect_error(x.status(), StatusCode::kInvalidArgument,
                                    {"[x, -]", "has 2 dims", "[8]"});
              }),
              IsOk());
}

TEST_P(MakingTest, FunctionOnceABox) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                int calls = 0;
                const auto fill = [&](const Box& box, absl::Span<float> out) {
                  ++calls;
                  for (int64_t i = 0; i < box.num_elements(); ++i) out[i] = static_cast<float>(i);
                };
                const DTensor x = from_function<float>({3, 2}, Layout::parse(mesh, "[-, -]"), fill);
                TESSERA_REQUIRE(calls == 1, calls);
                return expect_iota<float>(x);
              }),
              IsOk());
}

// One client's function fails in one box; all clients get its error when they read the tensor, and
// the next tensor is made.
TEST_P(MakingTest, AnExceptionOfTheFillIsTheErrorOfTheTensor) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
        const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
        const DTensor x =
            from_function<float>({8}, rows, [](const Box& box, absl::Span<float> out) {
              out[0] = 1;
              // NOTIDY(banned): what a function of the user's may do
              if (box.offsets[0] == 3) throw std::out_of_range("no such file");
            });
        const Status read = x.to_host<float>().status();
        TESSERA_REQUIRE(absl::IsUnknown(read), read.ToString());
        TESSERA_REQUIRE(absl::StrContains(read.message(),
                                          "from_function: box [3:4]: the "
                                          "function raised an exception: no such file"),
                        read.ToString());
        return expect_iota<float>(relayout(iota<float>({8}, rows), Layout::parse(mesh, "[-]")));
      }),
      IsOk());
}

TEST(MakingShapesTest, FunctionOnEmptyBoxes) {
  EXPECT_THAT(run_clients({.num_clients = 4},
                          [](Client& client) -> Status {
                            TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                            int64_t asked = 0;
                            const DTensor x = from_function<int32_t>(
                                {2}, Layout::parse(mesh, "[x]"),
                                [&](const Box& box, absl::Span<int32_t> out) {
                                  asked += box.num_elements();
                                  out[0] = static_cast<int32_t>(box.offsets[0]);
                                });
                            const bool empty = client.client_id() % 2 == 1;
                            TESSERA_REQUIRE(asked == (empty ? 0 : 1), asked);
                            TESSERA_ASSIGN_OR_RETURN(const auto shard, x.shard<int32_t>(0));
                            TESSERA_REQUIRE(shard.data.empty() == empty);
                            return expect_host<int32_t>(x, {0, 1});
                          }),
              IsOk());
}

TEST_P(MakingTest, IotaByBox) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const DTensor x = iota<float>({4, 4}, Layout::parse(mesh, "[-, x]"));
                return expect_device<float>(client, x, 1, {2, 3, 6, 7, 10, 11, 14, 15});
              }),
              IsOk());
}

TEST_P(MakingTest, HostValueToPartial) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const std::vector<float> data = {1, 2, 3, 4};
                const DTensor x = from_host<float>(data, {4}, Layout::parse(mesh, "[-] sum{x}"));
                TESSERA_REQUIRE(x.layout().is_partial());
                TESSERA_REQUIRE(!x.layout().is_fully_replicated());
                return expect_devices<float>(client, x, {{0, data}, {1, {0, 0, 0, 0}}});
              }),
              IsOk());
}

TEST_P(MakingTest, NumShards) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4, y=2}"));
                const DTensor x = zeros<float>({8, 2}, Layout::parse(mesh, "[(x,y), -]"));
                TESSERA_REQUIRE(x.layout().num_shards(0) == 8);
                TESSERA_REQUIRE(x.layout().num_shards(1) == 1);
                return x.await();
              }),
              IsOk());
}

TEST_P(MakingTest, FromHostOfAnotherSizeIsRefused) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2}"));
                const std::vector<float> data = {1, 2, 3};
                const DTensor x = from_host<float>(data, {2, 2}, Layout::parse(mesh, "[x, -]"));
                return expect_error(x.status(), StatusCode::kInvalidArgument,
                                    {"[2, 2]", "needs 4 elements", "got 3"});
              }),
              IsOk());
}

TEST(MakingAbstractTest, AbstractMesh) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::create({{"x", 2}}));
  const DTensor x = zeros<float>({4}, Layout::parse(mesh, "[x]"));
  EXPECT_THAT(x.status(), StatusIs(StatusCode::kFailedPrecondition,
                                   ::testing::AllOf(::testing::HasSubstr("{x=2}"),
                                                    ::testing::HasSubstr("is abstract"),
                                                    ::testing::HasSubstr("create_mesh"))));
  EXPECT_THAT(x.shard<float>(0), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_THAT(x.to_host<float>(), StatusIs(StatusCode::kFailedPrecondition));
  EXPECT_EQ(x.num_local_shards(), 0);
}

// tests/facts/dtensor.md, "Shards and values".

struct ArangeCase {
  const char* name;
  const char* mesh;
  const char* layout;
  Shape shape;
  std::vector<DeviceValue<int32_t>> values;
};

// clang-format off
const ArangeCase kArangeCases[] = {
    {"arange_4x4_y_whole", "{x=2, y=2}", "[y, -]", {4, 4},
     {{0, {0, 1, 2, 3, 4, 5, 6, 7}}, {1, {8, 9, 10, 11, 12, 13, 14, 15}}, {2, {0, 1, 2, 3, 4, 5, 6, 7}}, {3, {8, 9, 10, 11, 12, 13, 14, 15}}}},
    {"arange_4x4_whole_x", "{x=2, y=2}", "[-, x]", {4, 4},
     {{0, {0, 1, 4, 5, 8, 9, 12, 13}}, {1, {0, 1, 4, 5, 8, 9, 12, 13}}, {2, {2, 3, 6, 7, 10, 11, 14, 15}}, {3, {2, 3, 6, 7, 10, 11, 14, 15}}}},
    {"arange_4x4_whole_y", "{x=2, y=2}", "[-, y]", {4, 4},
     {{0, {0, 1, 4, 5, 8, 9, 12, 13}}, {1, {2, 3, 6, 7, 10, 11, 14, 15}}, {2, {0, 1, 4, 5, 8, 9, 12, 13}}, {3, {2, 3, 6, 7, 10, 11, 14, 15}}}},
    {"arange_4x4_x_y", "{x=2, y=2}", "[x, y]", {4, 4}, {{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}, {2, {8, 9, 12, 13}}, {3, {10, 11, 14, 15}}}},
    {"arange_4x4_y_x", "{x=2, y=2}", "[y, x]", {4, 4}, {{0, {0, 1, 4, 5}}, {1, {8, 9, 12, 13}}, {2, {2, 3, 6, 7}}, {3, {10, 11, 14, 15}}}},
    {"arange_3x2_x_y", "{x=3, y=2}", "[x, y]", {3, 2}, {{0, {0}}, {1, {1}}, {2, {2}}, {3, {3}}, {4, {4}}, {5, {5}}}},
};
// clang-format on

TEST_P(ShardsTest, Arange) {
  EXPECT_THAT(run([](Client& client) -> Status {
                for (const ArangeCase& c : kArangeCases) {
                  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, c.mesh));
                  const DTensor x = iota<int32_t>(c.shape, Layout::parse(mesh, c.layout));
                  TESSERA_RETURN_IF_ERROR(
                      with_context(expect_devices<int32_t>(client, x, c.values), c.name));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(ShardsTest, FromShardsTwo) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{batch=2} on 1,6"));
        const DTensor x =
            from_devices<int32_t>(client, {4}, Layout::parse(mesh, "[batch]"), [](int device) {
              return HostTensor<int32_t>{
                  {2}, device == 1 ? std::vector<int32_t>{1, 2} : std::vector<int32_t>{3, 4}};
            });
        TESSERA_RETURN_IF_ERROR(expect_devices<int32_t>(client, x, {{1, {1, 2}}, {6, {3, 4}}}));
        return expect_host<int32_t>(x, {1, 2, 3, 4});
      }),
      IsOk());
}

TEST_P(ShardsTest, FromShardsRows) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=4}"));
        const DTensor x =
            from_devices<int32_t>(client, {2, 2}, Layout::parse(mesh, "[x, -]"), [](int device) {
              return HostTensor<int32_t>{
                  {1, 2}, device < 4 ? std::vector<int32_t>{2, 1} : std::vector<int32_t>{4, 3}};
            });
        return expect_host<int32_t>(x, {2, 1, 4, 3});
      }),
      IsOk());
}

TEST_P(ShardsTest, FromShardsColumns) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                const DTensor x = from_devices<int32_t>(
                    client, {8, 16}, Layout::parse(mesh, "[-, x]"), [](int device) {
                      return HostTensor<int32_t>{{8, 4}, std::vector<int32_t>(32, device)};
                    });
                TESSERA_REQUIRE(x.shape() == Shape({8, 16}));
                return expect_shards<int32_t>(
                    x, [](int64_t i) { return static_cast<int32_t>(i % 16 / 4); });
              }),
              IsOk());
}

TEST_P(ShardsTest, FromShardsUnevenRefused) {
  if (GetParam().devices_per_client == 1) GTEST_SKIP() << "needs two devices per client";
  EXPECT_THAT(
      run([](Client& client) -> Status {
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
        const DTensor x =
            from_devices<int32_t>(client, {2, 14}, Layout::parse(mesh, "[-, x]"), [](int device) {
              const int64_t columns = device + 2;
              return HostTensor<int32_t>{{2, columns}, std::vector<int32_t>(2 * columns)};
            });
        if (x.num_local_shards() == 0) return absl::OkStatus();
        const bool first = client.local_devices()[0].id == 0;
        return expect_error(x.await(), StatusCode::kInvalidArgument,
                            first ? std::vector<std::string>{"device 0", "[2, 2]", "[2, 4]"}
                                  : std::vector<std::string>{"device 3", "[2, 3]", "[2, 5]"});
      }),
      IsOk());
}

TEST_P(ShardsTest, FromShardsDtype) {
  if (GetParam().num_clients == 1) GTEST_SKIP() << "needs two clients";
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const StatusOr<Layout> rows = Layout::parse(mesh, "[x]");
                const DTensor x = client.client_id() == 0
                                      ? from_devices<float>(client, {8}, rows,
                                                            [](int) {
                                                              return HostTensor<float>{{1}, {1}};
                                                            })
                                      : from_devices<double>(client, {8}, rows, [](int) {
                                          return HostTensor<double>{{1}, {1}};
                                        });
                TESSERA_RETURN_IF_ERROR(
                    expect_error(relayout(x, Layout::parse(mesh, "[-]")).await(),
                                 StatusCode::kInvalidArgument, {"f32", "f64", "client 0 "}));
                client.sync_devices().IgnoreError();
                return mesh.barrier("usable", absl::Seconds(20));
              }),
              IsOk());
}

TEST_P(ShardsTest, FromShardsRank) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x =
                    from_devices<float>(client, {8, 2}, Layout::parse(mesh, "[x, -]"), [](int) {
                      return HostTensor<float>{{2}, {1, 2}};
                    });
                return expect_error(x.await(), StatusCode::kInvalidArgument, {"rank 1", "rank 2"});
              }),
              IsOk());
}

TEST_P(ShardsTest, FromShardsReplicasDiffer) {
  if (GetParam().devices_per_client == 1) GTEST_SKIP() << "needs two devices per client";
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x =
                    from_devices<int32_t>(client, {}, Layout::parse(mesh, "[]"), [](int device) {
                      return HostTensor<int32_t>{{}, {device}};
                    });
                const int first = client.local_devices()[0].id;
                return expect_error(x.await(), StatusCode::kInvalidArgument,
                                    {absl::StrCat("device ", first),
                                     absl::StrCat("device ", first + 1), "replicas must be equal"});
              }),
              IsOk());
}

TEST_P(ShardsTest, FillRows) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = ones<float>({8, 1}, Layout::parse(mesh, "[x, -]"));
                for (int s = 0; s < x.num_local_shards(); ++s) {
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<float> shard, x.shard<float>(s));
                  TESSERA_REQUIRE(shard.shape == Shape({1, 1}) && shard.data[0] == 1.0f);
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(ShardsTest, FillUneven) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4} on 0,2,4,6"));
                // No communication: client 0 makes its shards alone.
                if (client.client_id() != 0) return absl::OkStatus();
                const StatusOr<Layout> layout = Layout::parse(mesh, "[x, -]");
                const std::vector<int64_t> rows = {4, 3, 3, 3};
                const auto check = [&](const DTensor& x, int32_t value) -> Status {
                  for (int s = 0; s < x.num_local_shards(); ++s) {
                    TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> shard, x.shard<int32_t>(s));
                    TESSERA_REQUIRE(shard.shape == Shape({rows[s], 3}));
                  }
                  return expect_shards<int32_t>(x, [&](int64_t) { return value; });
                };
                TESSERA_RETURN_IF_ERROR(check(zeros<int32_t>({13, 3}, layout), 0));
                TESSERA_RETURN_IF_ERROR(check(ones<int32_t>({13, 3}, layout), 1));
                return check(full<int32_t>({13, 3}, 7, layout), 7);
              }),
              IsOk());
}

TEST_P(ShardsTest, FillManyLayouts) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=2, y=2}"));
                for (const char* layout : {"[x]", "[y]"}) {
                  for (const int64_t n : {16, 4096}) {
                    const DTensor x = zeros<double>({n}, Layout::parse(mesh, layout));
                    TESSERA_REQUIRE(x.dtype() == DType::kFloat64);
                    for (int s = 0; s < x.num_local_shards(); ++s) {
                      TESSERA_ASSIGN_OR_RETURN(const ShardView<double> shard, x.shard<double>(s));
                      TESSERA_REQUIRE(shard.shape == Shape({n / 2}));
                    }
                    TESSERA_RETURN_IF_ERROR(expect_shards<double>(x, [](int64_t) { return 0.0; }));
                  }
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(ShardsTest, FromHostUneven) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
                std::vector<int32_t> data(35);
                std::iota(data.begin(), data.end(), 0);
                const DTensor x = from_host<int32_t>(data, {7, 5}, Layout::parse(mesh, "[x, -]"));
                const std::vector<int64_t> rows = {2, 2, 2, 1};
                for (int s = 0; s < x.num_local_shards(); ++s) {
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> shard, x.shard<int32_t>(s));
                  TESSERA_REQUIRE(shard.shape[0] == rows[shard.box.offsets[0] / 2]);
                }
                return expect_iota<int32_t>(x);
              }),
              IsOk());
}

// Clients of one device each that share a GPU.
class ShardsOnSharedGpuTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, ShardsOnSharedGpuTest, ::testing::ValuesIn(sharing_forms()),
                         job_form_name);

// Every way to make a tensor, uneven, under every layout, and its value on every client.
TEST_P(ShardsOnSharedGpuTest, EveryWayThereAndBack) {
  EXPECT_THAT(
      run([](Client& client) -> Status {
        const auto n = static_cast<int64_t>(client.devices().size());
        TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 2}, {"y", n / 2}}));
        const Shape shape = {7, 5};
        std::vector<int32_t> data(35);
        std::iota(data.begin(), data.end(), 0);
        for (const Layout& layout : all_layouts(mesh, 2, false)) {
          const DTensor made[] = {
              iota<int32_t>(shape, layout), from_host<int32_t>(data, shape, layout),
              from_function<int32_t>(shape, layout, [&](const Box& box, absl::Span<int32_t> out) {
                for_each_element(box, [&](const std::vector<int64_t>& index, int64_t place) {
                  out[place] = static_cast<int32_t>(flat_index(shape, index));
                });
              })};
          for (const DTensor& x : made) {
            TESSERA_RETURN_IF_ERROR(
                with_context(expect_iota<int32_t>(x), layout.to_string_with_mesh()));
          }
          TESSERA_RETURN_IF_ERROR(
              with_context(expect_host<int32_t>(made[1], data), layout.to_string()));
        }
        return mesh.barrier("end", absl::Seconds(60));
      }),
      IsOk());
}

TEST_P(ShardsTest, NoHiddenGather) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = iota<int32_t>({16}, Layout::parse(mesh, "[x]"));
                // Only client 0 reads: a shard that communicated would wait for the others.
                if (client.client_id() == 0) {
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> a, x.shard<int32_t>(0));
                  TESSERA_ASSIGN_OR_RETURN(const ShardView<int32_t> b, x.shard<int32_t>(0));
                  TESSERA_REQUIRE(a.data.data() == b.data.data() && a.data.size() == 2);
                }
                return mesh.barrier("end", absl::Seconds(20));
              }),
              IsOk());
}

TEST_P(ShardsTest, ShardIndexOutOfRange) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = zeros<float>({8}, Layout::parse(mesh, "[x]"));
                const int n = static_cast<int>(client.local_devices().size());
                for (const int index : {n, -1}) {
                  TESSERA_RETURN_IF_ERROR(expect_error(
                      x.shard<float>(index).status(), StatusCode::kInvalidArgument,
                      {absl::StrCat("shard(", index, ")"), absl::StrCat("0 to ", n - 1)}));
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(ShardsTest, WrongType) {
  EXPECT_THAT(run([](Client& client) -> Status {
                TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=8}"));
                const DTensor x = zeros<float>({8}, Layout::parse(mesh, "[x]"));
                TESSERA_RETURN_IF_ERROR(expect_error(x.shard<double>(0).status(),
                                                     StatusCode::kInvalidArgument, {"f64", "f32"}));
                return expect_error(x.to_host<double>().status(), StatusCode::kInvalidArgument,
                                    {"f64", "f32"});
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
