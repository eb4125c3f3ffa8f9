// SPDX-License-Identifier: Apache-2.0
//
// Memory of Client::allocate() (device/device_span.h) in the collectives of Group.
#include "device/device_span.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/group.h"
#include "device/cpu/arena.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;

TEST(DeviceSpanTest, LiesInTheArenaUntilItsLastHandleGoes) {
  EXPECT_THAT(run_clients({.devices_per_client = 2},
                          [](Client& client) -> Status {
                            const ArenaPool& pool =
                                *internal::runtime_of(client)->devices().host_memory();
                            const uint64_t before = pool.live_bytes();
                            {
                              TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x,
                                                       client.allocate<float>(1, 1000));
                              const DeviceSpan<float> copy = x;
                              x = {};
                              TESSERA_REQUIRE(x.empty() && copy.size() == 1000);
                              TESSERA_REQUIRE(pool.locate(copy.data(), 4000).has_value());
                              TESSERA_REQUIRE(reinterpret_cast<uintptr_t>(copy.data()) % 64 == 0);
                              TESSERA_REQUIRE(pool.live_bytes() >= before + 4000);
                            }
                            TESSERA_REQUIRE(pool.live_bytes() == before);
                            return absl::OkStatus();
                          }),
              IsOk());
}

TEST(DeviceSpanTest, WhatIsRefused) {
  EXPECT_THAT(
      run_clients(
          {.devices_per_client = 2},
          [](Client& client) -> Status {
            const auto invalid = StatusCode::kInvalidArgument;
            for (const int device : {-1, 2}) {
              TESSERA_RETURN_IF_ERROR(
                  expect_error(client.allocate<float>(device, 1).status(), invalid,
                               {"local device ", "does not exist; client 0 has 0 to 1"}));
            }
            TESSERA_RETURN_IF_ERROR(expect_error(client.allocate<float>(0, -1).status(), invalid,
                                                 {"allocate of -1 elements; give 0 or more"}));
            for (const int64_t count : {int64_t{1} << 61, std::numeric_limits<int64_t>::max()}) {
              TESSERA_RETURN_IF_ERROR(
                  expect_error(client.allocate<double>(0, count).status(), invalid, {"allocate"}));
            }
            TESSERA_RETURN_IF_ERROR(
                expect_error(client.allocate<float>(0, int64_t{1} << 50).status(),
                             StatusCode::kResourceExhausted));
            TESSERA_RETURN_IF_ERROR(client.allocate<float>(0, 0).status());
            TESSERA_RETURN_IF_ERROR(client.shutdown());
            return expect_error(client.allocate<float>(0, 1).status(),
                                StatusCode::kFailedPrecondition, {"has shut down"});
          }),
      IsOk());
}

// Each of two members has 2 elements per member: 10 * member + 0, 1, 2, 3.
Status run_collectives(Client& client) {
  const int me = client.client_id();
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
  TESSERA_ASSIGN_OR_RETURN(const DeviceSpan<int> in, client.allocate<int>(0, 4));
  TESSERA_ASSIGN_OR_RETURN(const DeviceSpan<int> half, client.allocate<int>(0, 2));
  TESSERA_ASSIGN_OR_RETURN(const DeviceSpan<int> out, client.allocate<int>(0, 4));
  for (int i = 0; i < 4; ++i) in[i] = 10 * me + i;
  for (int i = 0; i < 2; ++i) half[i] = 10 * me + i;
  const auto expect = [](const Work& work, const DeviceSpan<int>& held,
                         const std::vector<int>& values) -> Status {
    TESSERA_RETURN_IF_ERROR(work.await());
    TESSERA_REQUIRE(std::equal(held.begin(), held.end(), values.begin(), values.end()));
    return absl::OkStatus();
  };
  const ReduceOp sum = ReduceOp::kSum;
  TESSERA_RETURN_IF_ERROR(expect(group.all_reduce(in, out, sum), out, {10, 12, 14, 16}));
  // A span on one side.
  std::vector<int> vector(4);
  TESSERA_RETURN_IF_ERROR(group.all_reduce<int>(in, absl::MakeSpan(vector), sum).await());
  TESSERA_REQUIRE(vector == (std::vector<int>{10, 12, 14, 16}));
  TESSERA_RETURN_IF_ERROR(expect(group.broadcast(in, out, 1), out, {10, 11, 12, 13}));
  TESSERA_RETURN_IF_ERROR(expect(group.all_gather(half, out), out, {0, 1, 10, 11}));
  const std::vector<int64_t> counts = {2, 2};
  TESSERA_RETURN_IF_ERROR(expect(group.all_gather(half, out, counts), out, {0, 1, 10, 11}));
  TESSERA_RETURN_IF_ERROR(expect(group.reduce_scatter(in, half, sum), half,
                                 me == 0 ? std::vector<int>{10, 12} : std::vector<int>{14, 16}));
  TESSERA_RETURN_IF_ERROR(
      expect(group.all_to_all(in, out), out,
             me == 0 ? std::vector<int>{0, 1, 10, 11} : std::vector<int>{2, 3, 12, 13}));
  TESSERA_RETURN_IF_ERROR(
      expect(group.all_to_all(in, out, counts, counts), out,
             me == 0 ? std::vector<int>{0, 1, 10, 11} : std::vector<int>{2, 3, 12, 13}));
  TESSERA_RETURN_IF_ERROR(expect(group.scatter(in, half, 1), half,
                                 me == 0 ? std::vector<int>{10, 11} : std::vector<int>{12, 13}));
  const std::vector<int> before(out.begin(), out.end());
  TESSERA_RETURN_IF_ERROR(
      expect(group.gather(half, out, 0), out, me == 0 ? std::vector<int>{10, 11, 12, 13} : before));
  const std::vector<int> old(out.begin(), out.end());
  TESSERA_RETURN_IF_ERROR(
      expect(group.reduce(in, out, sum, 0), out, me == 0 ? std::vector<int>{10, 12, 14, 16} : old));
  const Work sent = group.send(in, 1 - me);
  TESSERA_RETURN_IF_ERROR(
      expect(group.recv(out, 1 - me), out,
             me == 0 ? std::vector<int>{10, 11, 12, 13} : std::vector<int>{0, 1, 2, 3}));
  TESSERA_RETURN_IF_ERROR(sent.await());
  const Box box = {{0}, {4}};
  const std::vector<BoxPull> pulls = {{1 - me, box, box}};
  return expect(group.exchange(in, box, out, box, pulls), out,
                me == 0 ? std::vector<int>{10, 11, 12, 13} : std::vector<int>{0, 1, 2, 3});
}

TEST(DeviceSpanTest, EveryCollectiveTakesIt) {
  for (const Setting setting : {Setting::kThreads, Setting::kProcesses}) {
    EXPECT_THAT(run_clients({.setting = setting, .num_clients = 2}, run_collectives), IsOk());
  }
}

class DeviceSpanOnGpusTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSpanOnGpusTest, ::testing::ValuesIn(cuda_forms()),
                         job_form_name);

// The host cannot look at the memory: only that the device takes it for its own.
TEST_P(DeviceSpanOnGpusTest, AllReduce) {
  EXPECT_THAT(run([](Client& client) -> Status {
                std::vector<int> ids;
                for (const Device& device : client.devices()) ids.push_back(device.id);
                std::vector<DeviceSpan<float>> memory;
                std::vector<Work> works;
                for (const Device& device : client.local_devices()) {
                  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(ids, device.ordinal));
                  TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x,
                                           client.allocate<float>(device.ordinal, 64));
                  works.push_back(group.all_reduce(x, x, ReduceOp::kSum));
                  memory.push_back(x);
                }
                for (const Work& work : works) TESSERA_RETURN_IF_ERROR(work.await());
                return absl::OkStatus();
              }),
              IsOk());
}

}  // namespace
}  // namespace tessera::testing
