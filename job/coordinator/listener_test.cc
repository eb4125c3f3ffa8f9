// SPDX-License-Identifier: Apache-2.0
//
// Strangers at the port: how many connections, and for how long. Over 127.0.0.1.
#include "job/coordinator/listener.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr char kNamedTwice[] = "twice.test";

// The connections that a listener has passed on, by number.
class Accepted {
 public:
  Listener::Handler handler() {
    return [this](int fd) {
      std::lock_guard<std::mutex> lock(mutex_);
      sockets_.emplace_back(fd);
      changed_.notify_all();
    };
  }
  void wait_for(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return sockets_.size() >= count; });
  }
  size_t count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return sockets_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<FileDescriptor> sockets_;
};

struct Caller {
  FileDescriptor socket;
  std::string peer;  // as the listener's side sees it, in gRPC's words

  bool is_cut_off() const {
    pollfd state = {socket.get(), POLLIN | POLLRDHUP, 0};
    char byte;
    return poll(&state, 1, 60'000) == 1 && read(socket.get(), &byte, 1) <= 0;
  }
  bool is_open() const {
    pollfd state = {socket.get(), POLLIN | POLLRDHUP, 0};
    return poll(&state, 1, 0) == 0;
  }
};

Caller call(int port) {
  Caller caller = {FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), ""};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(connect(caller.socket.get(), generic, length), 0);
  EXPECT_EQ(getsockname(caller.socket.get(), generic, &length), 0);
  caller.peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  return caller;
}

std::unique_ptr<Listener> listen(const Listener::Options& options, Accepted& accepted) {
  StatusOr<std::unique_ptr<Listener>> listener = Listener::listen("127.0.0.1:0", options);
  EXPECT_THAT(listener, IsOk());
  EXPECT_THAT((*listener)->start(accepted.handler()), IsOk());
  return *std::move(listener);
}

TEST(ListenerTest, PortIsNotShared) {
  Accepted accepted;
  const auto listener = listen({}, accepted);
  EXPECT_THAT(Listener::listen(absl::StrCat("127.0.0.1:", listener->port()), {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Address already in use")));
}

TEST(ListenerTest, UnprovenConnectionsAreCutOff) {
  Accepted accepted;
  const auto listener = listen({.unproven_timeout = absl::Milliseconds(50)}, accepted);
  const Caller silent = call(listener->port());
  EXPECT_TRUE(silent.is_cut_off());
}

// Two at a time: the others wait in the kernel until one is proven, or ends.
TEST(ListenerTest, UnprovenConnectionsAreBounded) {
  Accepted accepted;
  const auto listener = listen(
      {.max_unproven = 2, .unproven_timeout = absl::Hours(1), .crowded_timeout = absl::Hours(1)},
      accepted);
  std::vector<Caller> callers;
  for (int i = 0; i < 5; ++i) callers.push_back(call(listener->port()));
  accepted.wait_for(2);
  EXPECT_EQ(accepted.count(), 2u);
  listener->proven(callers[0].peer);
  accepted.wait_for(3);
  EXPECT_EQ(accepted.count(), 3u);
  listener->proven(callers[1].peer);
  listener->proven(callers[2].peer);
  accepted.wait_for(5);
}

// A process that may have few descriptors keeps most of them for its job.
TEST(ListenerTest, UnprovenConnectionsLeaveDescriptors) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 128;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  Accepted accepted;
  const auto listener =
      listen({.unproven_timeout = absl::Hours(1), .crowded_timeout = absl::Hours(1)}, accepted);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<Caller> callers;
  for (int i = 0; i < 20; ++i) callers.push_back(call(listener->port()));
  accepted.wait_for(16);
  listener->proven(callers[0].peer);
  accepted.wait_for(17);
  EXPECT_EQ(accepted.count(), 17u);
}

// Silent connections, each renewed when it is cut off, take all places. A caller that comes after
// them is accepted: the oldest makes room.
TEST(ListenerTest, SilentConnectionsDoNotKeepOthersOut) {
  Accepted accepted;
  const auto listener = listen({.max_unproven = 3,
                                .unproven_timeout = absl::Hours(1),
                                .crowded_timeout = absl::Milliseconds(1)},
                               accepted);
  std::vector<Caller> silent;
  for (int i = 0; i < 3; ++i) silent.push_back(call(listener->port()));
  accepted.wait_for(3);
  for (size_t round = 0; round < 6; ++round) {
    const Caller real = call(listener->port());
    accepted.wait_for(4 + 2 * round);
    EXPECT_TRUE(silent[round].is_cut_off());
    listener->proven(real.peer);
    silent.push_back(call(listener->port()));
    accepted.wait_for(5 + 2 * round);
  }
}

// Without a caller that waits, a silent connection has its whole time.
TEST(ListenerTest, FullListenerCutsNoConnectionOffUnasked) {
  Accepted accepted;
  const auto listener = listen({.max_unproven = 2,
                                .unproven_timeout = absl::Hours(1),
                                .crowded_timeout = absl::ZeroDuration()},
                               accepted);
  const Caller first = call(listener->port());
  const Caller second = call(listener->port());
  accepted.wait_for(2);
  const Caller third = call(listener->port());
  accepted.wait_for(3);
  EXPECT_TRUE(first.is_cut_off());
  EXPECT_TRUE(second.is_open());
  EXPECT_TRUE(third.is_open());
}

// getaddrinfo() below finds its address twice.
TEST(ListenerTest, NameMayHaveAnAddressTwice) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Listener> listener,
                               Listener::listen(absl::StrCat(kNamedTwice, ":0"), {}));
  EXPECT_THAT(Listener::listen(absl::StrCat(kNamedTwice, ":", listener->port()), {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("Address already in use")));
}

}  // namespace
}  // namespace tessera

// Replaces getaddrinfo() of the C library. Calls that for all names except one.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  const auto next = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node == nullptr || std::string(node) != tessera::kNamedTwice) {
    return next(node, service, hints, found);
  }
  addrinfo* again = nullptr;
  const int error = next("127.0.0.1", service, hints, found);
  if (error != 0 || next("127.0.0.1", service, hints, &again) != 0) return error;
  addrinfo* last = *found;
  while (last->ai_next != nullptr) last = last->ai_next;
  last->ai_next = again;
  return 0;
}
