// SPDX-License-Identifier: Apache-2.0
//
// Listener: accepts TCP connections at one address and passes them on, a bounded number of unproven
// ones at a time.
//
//   auto listener = Listener::listen("127.0.0.1:0");     listener->port(): the port that it got
//   listener->start([](int fd) { ... owns fd ... });
//   listener->proven("ipv4:127.0.0.1:4711");             that peer has shown the job token
//
// Invariants:
//   1. The address is of this listener alone: the port is not shared (no SO_REUSEPORT), so that a
//      second listener is refused.
//   2. At most max_unproven connections are open that have not been proven, and they have at most a
//      quarter of the descriptors of the process. Others wait in the kernel, where they cost this
//      process nothing, until one is proven or the oldest has been open for `crowded_timeout` and
//      is cut off. So N silent connections before a real one delay it by at most
//      (N / max_unproven + 1) * crowded_timeout, however often they are renewed.
//   3. A connection that is not proven within unproven_timeout is cut off.
//   4. A lack of descriptors or memory neither spins nor ends the listener: a spare descriptor is
//      spent to turn the caller away; after other errors it pauses.
//
// Thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_LISTENER_H_
#define TESSERA_JOB_COORDINATOR_LISTENER_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "job/environment/file_descriptor.h"

namespace tessera {

class Listener {
 public:
  struct Options {
    std::string name = "the coordinator";  // name of the service, in messages
    int max_unproven = 64;  // fewer where the process may have fewer than 512 descriptors
    absl::Duration unproven_timeout = absl::Seconds(30);
    absl::Duration crowded_timeout = absl::Seconds(1);  // where others wait
  };
  // Owns the socket that it is given.
  using Handler = std::function<void(int fd)>;

  // Listens on all addresses that the name of the host has; port 0: a free one. InvalidArgument for
  // a malformed address, Unavailable where this host cannot listen there.
  static StatusOr<std::unique_ptr<Listener>> listen(const std::string& address,
                                                    const Options& options);
  ~Listener() { stop(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Accepts from now on. Called once.
  Status start(Handler handler);
  // Notes that the connection from this peer, named as in gRPC, belongs to the job.
  void proven(absl::string_view peer);
  // No call of the handler follows. Idempotent.
  void stop();

 private:
  struct Unproven {
    std::string peer;   // as gRPC names it
    FileDescriptor fd;  // a duplicate, to see the connection end and to cut it off
    absl::Time accepted;
  };

  explicit Listener(const Options& options) : options_(options) {}
  Status add_socket(int family, const void* address, unsigned length);
  void serve();
  void accept_from(int socket);
  // Closes connections that are over or took too long.
  void sweep(absl::Time now);
  bool is_full() const { return static_cast<int>(unproven_.size()) >= options_.max_unproven; }
  // Whether a caller can be accepted: there is room, or the oldest connection can make room.
  bool has_room(absl::Time now) const;
  void make_room();
  absl::Time next_deadline(absl::Time now) const;

  Options options_;
  int port_ = 0;
  std::vector<FileDescriptor> sockets_;
  FileDescriptor spare_;
  FileDescriptor wake_;  // an eventfd
  Handler handler_;
  std::mutex mutex_;                // guards the members below
  std::vector<Unproven> unproven_;  // the oldest first
  bool stopping_ = false;
  Thread thread_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_LISTENER_H_
