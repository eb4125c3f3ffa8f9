// SPDX-License-Identifier: Apache-2.0
#include "servers/tensor_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tessera::distribute::internal {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Fields 1 and 2, each a length and that many bytes.
constexpr uint32_t kHeadTag = 1 << 3 | 2;
constexpr uint32_t kDataTag = 2 << 3 | 2;

// A tag, and a length as a varint.
constexpr size_t kMostPrefixBytes = 1 + 10;

std::byte* append(std::byte* out, const void* data, size_t size) {
  if (size > 0) std::memcpy(out, data, size);
  return out + size;
}

}  // namespace

int64_t TensorBytes::size() const {
  int64_t size = 0;
  for (const grpc::Slice& slice : slices_) size += static_cast<int64_t>(slice.size());
  return size;
}

void TensorBytes::append(const TensorBytes& other) {
  slices_.insert(slices_.end(), other.slices_.begin(), other.slices_.end());
}

void TensorBytes::copy_to(std::byte* out) const {
  for (const grpc::Slice& slice : slices_) {
    out = internal::append(out, slice.begin(), slice.size());
  }
}

void TensorBytes::append_to(std::string* out) const {
  out->reserve(out->size() + size());
  for (const grpc::Slice& slice : slices_) {
    out->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
}

TensorBytes bytes_of(const void* data, int64_t size, std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  if (size == 0) return {};
  // gRPC only reads the memory of a slice, but takes a non-const pointer.
  return TensorBytes({grpc::Slice(
      const_cast<void*>(data), static_cast<size_t>(size),
      [](void* released) { delete static_cast<Owner*>(released); }, new Owner(std::move(owner)))});
}

grpc::ByteBuffer write_message(const google::protobuf::MessageLite& head, const TensorBytes& data) {
  const size_t head_size = head.ByteSizeLong();
  std::string text(2 * kMostPrefixBytes + head_size, '\0');
  auto* const start = reinterpret_cast<uint8_t*>(text.data());
  uint8_t* end = CodedOutputStream::WriteTagToArray(kHeadTag, start);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(head_size), end);
  end = head.SerializeWithCachedSizesToArray(end);
  const int64_t data_size = data.size();
  if (data_size > 0) {
    end = CodedOutputStream::WriteTagToArray(kDataTag, end);
    end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(data_size), end);
  }
  std::vector<grpc::Slice> slices = {grpc::Slice(start, static_cast<size_t>(end - start))};
  slices.insert(slices.end(), data.slices().begin(), data.slices().end());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

namespace {

// Reads all before the data. Sets the place and size of the data; false for a malformed message.
bool read_head(CodedInputStream& in, google::protobuf::MessageLite* head, int64_t* data_start,
               int64_t* data_size) {
  int head_size = 0;
  std::string text;
  if (in.ReadTag() != kHeadTag || !in.ReadVarintSizeAsInt(&head_size) ||
      !in.ReadString(&text, head_size) || !head->ParseFromString(text)) {
    return false;
  }
  *data_start = in.CurrentPosition();
  *data_size = 0;
  const uint32_t tag = in.ReadTag();
  if (tag == 0) return in.ConsumedEntireMessage();
  int size = 0;
  if (tag != kDataTag || !in.ReadVarintSizeAsInt(&size)) return false;
  *data_start = in.CurrentPosition();
  *data_size = size;
  return true;
}

}  // namespace

Status read_message(grpc::ByteBuffer message, google::protobuf::MessageLite* head,
                    TensorBytes* data) {
  int64_t start = 0;
  int64_t size = 0;
  bool is_read = false;
  if (message.Valid()) {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream in(&reader);
    is_read = read_head(in, head, &start, &size);
  }
  const auto message_size = static_cast<int64_t>(message.Length());
  if (!is_read || start + size != message_size) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", message_size,
                                                   " bytes is not a ", head->GetTypeName(),
                                                   " with the bytes of a tensor"));
  }
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);
  std::vector<grpc::Slice> rest;
  for (const grpc::Slice& slice : slices) {
    const auto slice_size = static_cast<int64_t>(slice.size());
    if (slice_size > start) rest.push_back(slice.sub(start, slice_size));
    start = std::max<int64_t>(0, start - slice_size);
  }
  *data = TensorBytes(std::move(rest));
  return absl::OkStatus();
}

}  // namespace tessera::distribute::internal
