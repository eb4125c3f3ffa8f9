// SPDX-License-Identifier: Apache-2.0
//
// TaskService: receives the calls of parameter_server.proto.
//
//   TaskService service(token_metadata(token), proven);
//   service.add<rpc::BeatRequest, rpc::Outcome>("Beat", [&](const auto& request, auto answer) {
//     answer(outcome_of(request));       now or later, on any thread, once
//   });
//   builder.RegisterCallbackGenericService(&service);
//
// gRPC's own services receive and parse a request of any size before they pass it on. This service
// is generic: it gets a call with its metadata, and receives the request itself.
//
// Invariants:
//   1. The request of a caller without the token is not received. gRPC holds its first bytes, up to
//      the window of flow control, and drops them with the call.
//   2. A request of a small method has at most kMostSmallBytes.
//
// Thread-safe once the methods are added.
#ifndef TESSERA_SERVERS_TASK_SERVICE_H_
#define TESSERA_SERVERS_TASK_SERVICE_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace tessera::distribute::internal {

class TaskService : public grpc::CallbackGenericService {
 public:
  static constexpr size_t kMostSmallBytes = 4 << 20;

  enum class Size {
    kSmall,  // kMostSmallBytes
    kLarge,  // gRPC's limit: requests that carry tensors
  };
  using RawAnswer = std::function<void(const grpc::ByteBuffer&)>;
  template <class Response>
  using Answer = std::function<void(const Response&)>;

  // Calls `proven` with the peer of each call that carries the token.
  TaskService(std::string token_metadata, std::function<void(const std::string& peer)> proven)
      : token_metadata_(std::move(token_metadata)), proven_(std::move(proven)) {}

  // Passes the bytes of each request to `serve`.
  void add_raw(const std::string& method, Size size,
               std::function<void(const grpc::ByteBuffer&, RawAnswer)> serve) {
    add_method(method, size, [serve = std::move(serve)](grpc::ByteBuffer& bytes, RawAnswer answer) {
      serve(bytes, std::move(answer));
      return grpc::Status::OK;
    });
  }
  template <class Request, class Response>
  void add(const std::string& method, Size size,
           std::function<void(const Request&, Answer<Response>)> serve) {
    add_method(method, size, [serve = std::move(serve)](grpc::ByteBuffer& bytes, RawAnswer answer) {
      Request request;
      const grpc::Status parsed = grpc::SerializationTraits<Request>::Deserialize(&bytes, &request);
      if (!parsed.ok()) return parsed;
      serve(request, [answer = std::move(answer)](const Response& response) {
        grpc::ByteBuffer message;
        bool owns_buffer = false;
        (void)grpc::SerializationTraits<Response>::Serialize(response, &message, &owns_buffer);
        answer(message);
      });
      return grpc::Status::OK;
    });
  }

  // Adds a small method whose calls stay open if begin() returns OK. end() is called once, when the
  // connection of such a call has ended or its caller has cancelled it.
  template <class Request>
  void add_open(const std::string& method, std::function<grpc::Status(const Request&)> begin,
                std::function<void()> end) {
    add_method(
        method, Size::kSmall,
        [begin = std::move(begin)](grpc::ByteBuffer& bytes, RawAnswer) {
          Request request;
          const grpc::Status parsed =
              grpc::SerializationTraits<Request>::Deserialize(&bytes, &request);
          return parsed.ok() ? begin(request) : parsed;
        },
        std::move(end));
  }

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  // A status other than OK means that the request cannot be read, and is not answered.
  using Serve = std::function<grpc::Status(grpc::ByteBuffer& request, RawAnswer answer)>;
  struct Method {
    std::string name;
    Size size = Size::kSmall;
    Serve serve;
    std::function<void()> end = {};  // set for a method whose calls stay open
  };
  class Call;

  void add_method(const std::string& name, Size size, Serve serve,
                  std::function<void()> end = nullptr);

  const std::string token_metadata_;
  const std::function<void(const std::string& peer)> proven_;
  std::map<std::string, Method> methods_;  // by path
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_SERVERS_TASK_SERVICE_H_
