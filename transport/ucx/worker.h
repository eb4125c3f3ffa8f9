// SPDX-License-Identifier: Apache-2.0
//
// Context and Worker: UCX's objects of one engine, which end with their C++ objects.
//
// A Worker owns a listening socket, buffers and the queues of messages; endpoints belong to one.
//
// Invariants:
//   1. The context is restricted to the chosen interface and to TCP, without UCX's keepalive and
//      rendezvous, and connects without blocking, except where an environment variable UCX_... says
//      otherwise.
//   2. Messages that arrived for a worker end with it.
//
// One thread uses both: the engine's.
#ifndef TESSERA_TRANSPORT_UCX_WORKER_H_
#define TESSERA_TRANSPORT_UCX_WORKER_H_

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "transport/ucx/ucx_api.h"

namespace tessera::ucx {

class Context {
 public:
  // Loads UCX. `interface` is a name such as "eth0"; empty: UCX chooses. InvalidArgument names the
  // interfaces that exist; Unimplemented: see open_ucx_api().
  static StatusOr<std::shared_ptr<const Context>> create(const std::string& interface);
  Context(const Context&) = delete;
  ~Context();

  const UcxApi& api() const { return api_; }
  ucp_context_h handle() const { return handle_; }
  // For messages: `10.77.0.1 (interface "eth0")`.
  const std::string& place() const { return place_; }

 private:
  explicit Context(const UcxApi& api) : api_(api) {}
  Status start(const std::string& interface);

  const UcxApi api_;
  ucp_context_h handle_ = nullptr;
  std::string place_;
};

class Worker {
 public:
  static StatusOr<std::unique_ptr<Worker>> create(std::shared_ptr<const Context> context);
  Worker(const Worker&) = delete;
  // Ends all its requests without their callbacks, and closes its endpoints: up to 120 ms.
  ~Worker();

  ucp_worker_h handle() const { return handle_; }
  // The address from which a peer makes an endpoint to this worker; any bytes.
  const std::string& address() const { return address_; }
  // Readable when there is something to do for progress(), once armed.
  int event_fd() const { return event_fd_; }

  // Advances sends and receives, and calls their callbacks. Whether there was anything to do.
  bool progress() { return context_->api().ucp_worker_progress(handle_) > 0; }
  // Prepares for sleep on event_fd(). False where progress() has to be called first.
  bool arm() { return context_->api().ucp_worker_arm(handle_) != UCS_ERR_BUSY; }

 private:
  explicit Worker(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  Status start();

  const std::shared_ptr<const Context> context_;
  ucp_worker_h handle_ = nullptr;
  std::string address_;
  int event_fd_ = -1;  // UCX's
};

}  // namespace tessera::ucx

#endif  // TESSERA_TRANSPORT_UCX_WORKER_H_
