// SPDX-License-Identifier: Apache-2.0
//
// write_message and read_message against protobuf, in every cut of the memory.
#include "servers/tensor_message.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tessera/servers/parameter_server.pb.h"
#include "tests/support/matchers.h"

namespace tessera::distribute::internal {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

std::string bytes_of_size(int64_t size) {
  std::string bytes(size, '\0');
  for (int64_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

TensorBytes shared(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  return bytes_of(owner->data(), static_cast<int64_t>(owner->size()), owner);
}

rpc::StageRequest::Head some_head() {
  rpc::StageRequest::Head head;
  head.set_chief(0xfedcba9876543210);
  head.set_worker(3);
  head.set_run(1000);
  head.set_is_add(true);
  return head;
}

std::string text_of(const TensorBytes& bytes) {
  std::string text;
  bytes.append_to(&text);
  return text;
}
std::string text_of(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);
  return text_of(TensorBytes(std::move(slices)));
}

// The message in slices of `slice_size` bytes.
grpc::ByteBuffer cut(const std::string& text, int64_t slice_size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < text.size(); at += slice_size) {
    slices.emplace_back(text.data() + at, std::min<size_t>(slice_size, text.size() - at));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(TensorMessageTest, IsWhatProtobufWrites) {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{16383},
                             int64_t{16384}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB}) {
    SCOPED_TRACE(size);
    const std::string bytes = bytes_of_size(size);
    rpc::StageRequest expected;
    *expected.mutable_head() = some_head();
    expected.set_data(bytes);
    const grpc::ByteBuffer message = write_message(some_head(), shared(bytes));
    EXPECT_EQ(text_of(message), expected.SerializeAsString());
    for (const int64_t slice_size : {int64_t{4096}, int64_t{65536}, 2 * kMiB}) {
      rpc::StageRequest::Head head;
      TensorBytes data;
      ASSERT_THAT(read_message(cut(text_of(message), slice_size), &head, &data), IsOk());
      EXPECT_EQ(head.SerializeAsString(), some_head().SerializeAsString());
      EXPECT_EQ(data.size(), size);
      EXPECT_TRUE(text_of(data) == bytes);
    }
  }
}

// Slices of every size cut the head, the lengths and the data at every place.
TEST(TensorMessageTest, ReadsEveryCut) {
  const std::string bytes = bytes_of_size(300);
  const std::string text = text_of(write_message(some_head(), shared(bytes)));
  for (size_t slice_size = 1; slice_size <= text.size(); ++slice_size) {
    SCOPED_TRACE(slice_size);
    rpc::StageRequest::Head head;
    TensorBytes data;
    ASSERT_THAT(read_message(cut(text, static_cast<int64_t>(slice_size)), &head, &data), IsOk());
    EXPECT_EQ(head.SerializeAsString(), some_head().SerializeAsString());
    std::vector<std::byte> out(data.size());
    data.copy_to(out.data());
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), out.size()), bytes);
  }
}

TEST(TensorMessageTest, RefersToMemoryAndReleasesIt) {
  auto owner = std::make_shared<const std::string>(bytes_of_size(3 * kMiB));
  const std::weak_ptr<const std::string> watched = owner;
  const char* const start = owner->data();
  TensorBytes both = bytes_of(start, kMiB, owner);
  both.append(bytes_of(start + kMiB, 2 * kMiB, owner));
  both.append(bytes_of(start, 0, owner));
  owner.reset();
  {
    const grpc::ByteBuffer message = write_message(rpc::Outcome(), std::exchange(both, {}));
    ASSERT_FALSE(watched.expired());
    rpc::Outcome head;
    TensorBytes data;
    ASSERT_THAT(read_message(message, &head, &data), IsOk());
    ASSERT_EQ(data.slices().size(), 2u);
    EXPECT_EQ(reinterpret_cast<const char*>(data.slices()[0].begin()), start);
    EXPECT_EQ(data.size(), 3 * kMiB);
  }
  EXPECT_TRUE(watched.expired());
}

TEST(TensorMessageTest, RefusesOtherMessages) {
  const std::string text = text_of(write_message(some_head(), shared(bytes_of_size(300))));
  const auto refused = [](const std::string& bytes) {
    SCOPED_TRACE(bytes.size());
    rpc::StageRequest::Head head;
    TensorBytes data;
    EXPECT_THAT(
        read_message(cut(bytes, 64), &head, &data),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(" bytes is not a tessera.distribute.rpc.StageRequest.Head with the "
                           "bytes of a tensor")));
  };
  // Truncated at every place, except after the head, where the data may be missing.
  const size_t head_end = text_of(write_message(some_head())).size();
  for (size_t size = 0; size < text.size(); ++size) {
    if (size != head_end) refused(text.substr(0, size));
  }
  refused(text + "x");
  refused(text.substr(0, head_end) + text);     // a second head instead of data
  refused(text.substr(head_end));               // no head
  refused(std::string("\x0a\x01\xff", 3));      // a head that is no message
  refused(std::string("\x0a\x00\x12\x80", 4));  // a length that does not end
}

}  // namespace
}  // namespace tessera::distribute::internal
