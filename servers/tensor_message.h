// SPDX-License-Identifier: Apache-2.0
//
// Messages of parameter_server.proto that carry the bytes of a tensor. Neither side copies these
// bytes into a message or out of one: the sender's message refers to its memory, and the receiver
// copies them once, from gRPC's memory to where they belong.
//
//   grpc::ByteBuffer message = write_message(head, bytes_of(data, size, owner));
//   Status status = read_message(message, &head, &data);   then data.copy_to(tensor)
//
// A message has the bytes that protobuf writes for `message { Head head = 1; bytes data = 2; }`:
//
//   0x0a, size of head, head, 0x12, size of data, data             sizes as varints
//
// and a reader accepts the fields in this order only. Without data the last three are missing.
//
// Functions of memory: thread-safe. TF: grpc_tensor_coding.h.
#ifndef TESSERA_SERVERS_TENSOR_MESSAGE_H_
#define TESSERA_SERVERS_TENSOR_MESSAGE_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace tessera::distribute::internal {

// The most bytes of tensors that one message carries, in protobuf's fields too, whose messages have
// less than twice as many.
inline constexpr int64_t kMostMessageBytes = 1 << 30;

// Bytes of a tensor, in one or more pieces of memory that others own. Cheap to copy.
class TensorBytes {
 public:
  TensorBytes() = default;
  explicit TensorBytes(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {}

  int64_t size() const;
  const std::vector<grpc::Slice>& slices() const { return slices_; }
  // The bytes of `other` come after these.
  void append(const TensorBytes& other);
  // To size() bytes at `out`.
  void copy_to(std::byte* out) const;
  void append_to(std::string* out) const;

 private:
  std::vector<grpc::Slice> slices_;
};

// A part of memory that `owner` keeps, which no one writes to from now on.
TensorBytes bytes_of(const void* data, int64_t size, std::shared_ptr<const void> owner);

grpc::ByteBuffer write_message(const google::protobuf::MessageLite& head,
                               const TensorBytes& data = {});
// InvalidArgument where the message is not such a one.
Status read_message(grpc::ByteBuffer message, google::protobuf::MessageLite* head,
                    TensorBytes* data);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TENSOR_MESSAGE_H_
