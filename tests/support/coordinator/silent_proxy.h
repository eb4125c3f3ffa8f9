// SPDX-License-Identifier: Apache-2.0
//
// SilentProxy: TCP connections to a service that stay open but silent from some moment on, as when
// the network between two hosts fails.
//
//   TESSERA_ASSIGN_OR_RETURN(auto proxy, SilentProxy::start("127.0.0.1:4001", 4000, marker));
//   ... a client connects to port 4001: all bytes pass until the service has sent `marker` ...
//
// Later bytes are read and dropped; no connection is closed before the proxy ends.
#ifndef TESSERA_TESTS_SUPPORT_COORDINATOR_SILENT_PROXY_H_
#define TESSERA_TESTS_SUPPORT_COORDINATOR_SILENT_PROXY_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/listener.h"
#include "job/environment/file_descriptor.h"

namespace tessera::testing {

class SilentProxy {
 public:
  // Listens on `address`, "host:port", and passes on to 127.0.0.1:`target_port`.
  static StatusOr<std::unique_ptr<SilentProxy>> start(const std::string& address, int target_port,
                                                      const std::string& marker) {
    std::unique_ptr<SilentProxy> proxy(new SilentProxy(target_port, marker));
    TESSERA_ASSIGN_OR_RETURN(
        proxy->listener_, Listener::listen(address, {.unproven_timeout = absl::InfiniteDuration(),
                                                     .crowded_timeout = absl::InfiniteDuration()}));
    SilentProxy* const self = proxy.get();
    TESSERA_RETURN_IF_ERROR(self->listener_->start([self](int caller) { self->add(caller); }));
    return proxy;
  }
  ~SilentProxy() {
    if (listener_ != nullptr) listener_->stop();
    for (const FileDescriptor& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);
    for (std::thread& pump : pumps_) pump.join();
  }

  bool is_silent() const { return is_silent_; }

 private:
  SilentProxy(int target_port, std::string marker)
      : target_port_(target_port), marker_(std::move(marker)) {}

  // Called by the listener's thread alone.
  void add(int caller) {
    fcntl(caller, F_SETFL, 0);  // blocking
    FileDescriptor service(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(target_port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockets_.emplace_back(caller);
    if (connect(service.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      shutdown(caller, SHUT_RDWR);  // as the service itself would refuse it
      return;
    }
    const int to = service.get();
    sockets_.push_back(std::move(service));
    pumps_.emplace_back([this, caller, to] { pump(caller, to, false); });
    pumps_.emplace_back([this, caller, to] { pump(to, caller, true); });
  }

  void pump(int from, int to, bool is_of_service) {
    std::string seen;
    char bytes[4096];
    ssize_t size;
    while ((size = read(from, bytes, sizeof bytes)) > 0) {
      if (is_silent_) continue;
      if (send(to, bytes, static_cast<size_t>(size), MSG_NOSIGNAL) != size) break;
      if (!is_of_service) continue;
      seen.append(bytes, static_cast<size_t>(size));
      if (seen.find(marker_) != std::string::npos) is_silent_ = true;
    }
    if (!is_silent_) shutdown(to, SHUT_RDWR);
  }

  const int target_port_;
  const std::string marker_;
  std::unique_ptr<Listener> listener_;
  std::vector<FileDescriptor> sockets_;
  std::vector<std::thread> pumps_;
  std::atomic<bool> is_silent_{false};
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_COORDINATOR_SILENT_PROXY_H_
