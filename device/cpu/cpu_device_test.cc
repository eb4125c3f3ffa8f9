// SPDX-License-Identifier: Apache-2.0
//
// A CPU as a LocalDevice: ops fill buffers, and the host uses the buffers themselves.
#include "device/cpu/cpu_device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/cpu/arena.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::ElementsAre;

class CpuDeviceTest : public ::testing::Test {
 protected:
  std::shared_ptr<Buffer> take(int64_t num_elements) {
    return *device_->new_buffer(num_elements * static_cast<int64_t>(sizeof(int32_t)));
  }
  template <size_t kCount>
  static std::array<int32_t, kCount> read(const Buffer& buffer) {
    std::array<int32_t, kCount> values = {};
    EXPECT_THAT(buffer.ready().wait(), IsOk());
    EXPECT_EQ(buffer.size_bytes(), static_cast<int64_t>(sizeof(values)));
    std::memcpy(values.data(), buffer.data(), sizeof(values));
    return values;
  }

  const std::shared_ptr<ArenaPool> pool_ = ArenaPool::create();
  const std::unique_ptr<CpuDevice> device_ = *CpuDevice::create("a device", nullptr, pool_);
};

TEST_F(CpuDeviceTest, FillsABufferOnItsStream) {
  const std::shared_ptr<Buffer> filled = take(3);
  const int32_t seven = 7;
  device_->produce("full", filled,
                   [&](std::byte* out) { return device_->fill(DType::kInt32, &seven, out, 3); });
  EXPECT_THAT(read<3>(*filled), ElementsAre(7, 7, 7));
  const std::shared_ptr<Buffer> counted = take(4);
  const Box box = {{1, 1}, {2, 2}};
  device_->produce("iota", counted, [&](std::byte* out) {
    return device_->iota(DType::kInt32, {4, 3}, box, out);
  });
  EXPECT_THAT(read<4>(*counted), ElementsAre(4, 5, 7, 8));
}

TEST_F(CpuDeviceTest, TakesTheMemoryOfADeferredBufferWhenTheStreamReachesIt) {
  const std::shared_ptr<Buffer> buffer = Buffer::deferred(device_->memory(), sizeof(int32_t));
  EXPECT_EQ(buffer->data(), nullptr);
  const int32_t seven = 7;
  device_->produce("full", buffer,
                   [&](std::byte* out) { return device_->fill(DType::kInt32, &seven, out, 1); });
  EXPECT_THAT(read<1>(*buffer), ElementsAre(7));
}

TEST_F(CpuDeviceTest, AnErrorOfAnOpIsItsBuffers) {
  const std::shared_ptr<Buffer> buffer = take(1);
  device_->produce("full", buffer, [](std::byte*) { return absl::InternalError("it broke"); });
  EXPECT_THAT(buffer->ready().wait(), StatusIs(absl::StatusCode::kInternal, "it broke"));
}

TEST_F(CpuDeviceTest, TheHostWritesAndReadsTheBufferItself) {
  const std::shared_ptr<Buffer> buffer = take(2);
  const std::shared_ptr<Buffer> staging = *device_->new_staging(buffer);
  EXPECT_EQ(staging, buffer);
  const std::array<int32_t, 2> values = {3, 4};
  std::memcpy(staging->mutable_data(), values.data(), sizeof(values));
  EXPECT_FALSE(buffer->ready().done());
  device_->upload(staging, buffer);
  EXPECT_TRUE(buffer->ready().done());
  EXPECT_EQ(device_->host_copy(buffer), buffer);
  EXPECT_THAT(read<2>(*buffer), ElementsAre(3, 4));
}

}  // namespace
}  // namespace tessera
