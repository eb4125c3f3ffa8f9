// SPDX-License-Identifier: Apache-2.0
//
// Messages of parameter_server.proto that carry the bytes of a tensor. The sender's message refers
// to its memory. The receiver copies the bytes once, from gRPC's memory to their destination.
//
//   grpc::ByteBuffer message = write_message(head, bytes_of(data, size, owner));
//   Status status = read_message(message, &head, &data);   then data.copy_to(tensor)
//
// A message has the bytes that protobuf writes for `message { Head head = 1; bytes data = 2; }`:
//
//   0x0a, size of head, head, 0x12, size of data, data             sizes as varints
//
// A reader accepts the fields only in this order. Without data the last three are missing.
//
// Thread-safe: the functions have no state. TF: grpc_tensor_coding.h.
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

// The most bytes of tensors in one message. The limit also holds for tensors in protobuf's fields;
// the serialized message has less than twice as many bytes.
inline constexpr int64_t kMostMessageBytes = 1 << 30;

// Bytes of a tensor, in one or more pieces of memory with other owners. Cheap to copy.
class TensorBytes {
 public:
  TensorBytes() = default;
  explicit TensorBytes(std::vector<grpc::Slice> slices) : slices_(std::move(slices)) {}

  int64_t size() const;
  const std::vector<grpc::Slice>& slices() const { return slices_; }
  // Appends the bytes of `other`.
  void append(const TensorBytes& other);
  // Copies size() bytes to `out`.
  void copy_to(std::byte* out) const;
  void append_to(std::string* out) const;

 private:
  std::vector<grpc::Slice> slices_;
};

// Refers to memory that `owner` keeps alive. It must not be written to afterwards.
TensorBytes bytes_of(const void* data, int64_t size, std::shared_ptr<const void> owner);

grpc::ByteBuffer write_message(const google::protobuf::MessageLite& head,
                               const TensorBytes& data = {});
// InvalidArgument for a message of another form.
Status read_message(grpc::ByteBuffer message, google::protobuf::MessageLite* head,
                    TensorBytes* data);

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TENSOR_MESSAGE_H_
