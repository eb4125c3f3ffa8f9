// SPDX-License-Identifier: Apache-2.0
//
// The assumptions of tests of several hosts: hosts have no memory in common, all traffic between
// them is counted, failures are as described, and nothing is left behind.
#include "tests/hosts/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "job/environment/host.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "tests/support/shared.h"

namespace tessera::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(100);
constexpr int kPort = 5000;

// Runs bodies[k] in host k.
std::vector<Status> run_in_hosts(const Hosts& hosts,
                                 const std::vector<std::function<Status()>>& bodies) {
  return run_forked(static_cast<int>(bodies.size()), kDeadline, [&](int host) -> Status {
    TESSERA_RETURN_IF_ERROR(hosts.enter(host));
    return run_isolated(kDeadline, bodies[host]);
  });
}

sockaddr_in address_of(int host) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, absl::StrCat("10.77.0.", host + 1).c_str(), &address.sin_addr);
  return address;
}

// A socket that listens at kPort of this host, and says so.
StatusOr<FileDescriptor> listen_at(int host, Gate& listening) {
  FileDescriptor result(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = address_of(host);
  TESSERA_REQUIRE(bind(result.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
                  0);
  TESSERA_REQUIRE(listen(result.get(), 8) == 0);
  listening.open();
  return result;
}

StatusOr<FileDescriptor> connect_to(int host) {
  FileDescriptor result(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = address_of(host);
  TESSERA_REQUIRE(
      connect(result.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return result;
}

Status send_all(int socket, size_t size) {
  const std::vector<char> bytes(size);
  for (size_t sent = 0; sent < size;) {
    const ssize_t count = send(socket, bytes.data() + sent, size - sent, MSG_NOSIGNAL);
    TESSERA_REQUIRE(count > 0);
    sent += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

Status receive_all(int socket, size_t size) {
  std::vector<char> bytes(size);
  for (size_t received = 0; received < size;) {
    const ssize_t count = recv(socket, bytes.data(), size - received, 0);
    TESSERA_REQUIRE(count > 0);
    received += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

// A name that only the hosts of this test have.
constexpr char kName[] = "/tessera-hosts-test";
constexpr key_t kKey = 0x7e55e7a;

int bind_abstract() {
  FileDescriptor result(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::copy(kName, kName + sizeof kName, address.sun_path + 1);
  if (bind(result.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return -1;
  }
  return result.release();
}

TEST(HostsTest, HostsHaveNoMemoryInCommon) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  Gate made;
  Gate looked;
  const auto make = [&]() -> Status {
    TESSERA_REQUIRE(shm_open(kName, O_CREAT | O_EXCL | O_RDWR, 0600) >= 0);
    TESSERA_REQUIRE(shmget(kKey, 4096, IPC_CREAT | IPC_EXCL | 0600) >= 0);
    TESSERA_REQUIRE(bind_abstract() >= 0);
    std::ofstream("/tmp/tessera-hosts-test") << "here";
    TESSERA_REQUIRE(access("/tmp/tessera-hosts-test", F_OK) == 0);
    made.open();
    return looked.wait();
  };
  const auto look = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(made.wait());
    TESSERA_REQUIRE(shm_open(kName, O_RDWR, 0600) < 0 && errno == ENOENT);
    TESSERA_REQUIRE(shmget(kKey, 4096, 0600) < 0 && errno == ENOENT);
    TESSERA_REQUIRE(bind_abstract() >= 0);
    TESSERA_REQUIRE(access("/tmp/tessera-hosts-test", F_OK) != 0);
    // Process 1 holds the host; this one is the other.
    int processes = 0;
    for (int pid = 1; pid < 100; ++pid) processes += kill(pid, 0) == 0 ? 1 : 0;
    TESSERA_REQUIRE(processes == 2, "processes: ", processes);
    looked.open();
    return absl::OkStatus();
  };
  EXPECT_THAT(run_in_hosts(hosts, {make, look}), Each(IsOk()));
}

TEST(HostsTest, OneKernelHasAKeyForEachHost) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  struct Texts {
    char of[3][256];
  };
  Shared<Texts> ids;
  Shared<Texts> names;
  const auto describe = [&](int place) {
    const MemberInfo info = describe_this_process();
    std::copy(info.host_id.begin(), info.host_id.end(), ids->of[place]);
    std::copy(info.host.begin(), info.host.end(), names->of[place]);
    return absl::OkStatus();
  };
  EXPECT_THAT(run_in_hosts(hosts, {[&] { return describe(0); }, [&] { return describe(1); }}),
              Each(IsOk()));
  EXPECT_THAT(run_isolated(kDeadline, [&] { return describe(2); }), IsOk());
  const std::string boot_id = std::string(ids->of[0]).substr(0, 36);
  for (const char* id : ids->of) EXPECT_THAT(id, HasSubstr(boot_id));
  EXPECT_STRNE(ids->of[0], ids->of[1]);
  EXPECT_STRNE(ids->of[0], ids->of[2]);
  EXPECT_STREQ(names->of[0], "host-a");
  EXPECT_STREQ(names->of[1], "host-b");
}

TEST(HostsTest, LinkCountsWhatPasses) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  constexpr size_t kSize = 4 << 20;
  Gate listening;
  const auto receive = [&]() -> Status {
    // listen_at() lets the other host connect and send, so the count comes first.
    TESSERA_ASSIGN_OR_RETURN(const int64_t before, received_bytes());
    TESSERA_ASSIGN_OR_RETURN(const FileDescriptor listener, listen_at(0, listening));
    const FileDescriptor peer(accept(listener.get(), nullptr, nullptr));
    TESSERA_RETURN_IF_ERROR(receive_all(peer.get(), kSize));
    TESSERA_ASSIGN_OR_RETURN(const int64_t after, received_bytes());
    TESSERA_REQUIRE(after - before > int64_t{kSize}, after - before);
    TESSERA_REQUIRE(after - before < int64_t{kSize / 100 * 105}, after - before);
    return absl::OkStatus();
  };
  const auto send = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(listening.wait());
    TESSERA_ASSIGN_OR_RETURN(const int64_t before, sent_bytes());
    TESSERA_ASSIGN_OR_RETURN(const FileDescriptor peer, connect_to(0));
    TESSERA_RETURN_IF_ERROR(send_all(peer.get(), kSize));
    // The other end closes when it has all.
    char byte;
    TESSERA_REQUIRE(recv(peer.get(), &byte, 1, 0) == 0);
    TESSERA_ASSIGN_OR_RETURN(const int64_t after, sent_bytes());
    TESSERA_REQUIRE(after - before > int64_t{kSize}, after - before);
    TESSERA_REQUIRE(after - before < int64_t{kSize / 100 * 105}, after - before);
    return absl::OkStatus();
  };
  EXPECT_THAT(run_in_hosts(hosts, {receive, send}), Each(IsOk()));
}

// A carrier of 1 or 0; an interface that is down has none.
Status expect_carrier(const std::string& expected) {
  std::string carrier;
  std::ifstream("/sys/class/net/eth0/carrier") >> carrier;
  TESSERA_REQUIRE(carrier == expected, "carrier ", carrier);
  return absl::OkStatus();
}

// Nothing gets through while the link is interrupted, and a connection from before goes on after.
class InterruptedLinkTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kinds, InterruptedLinkTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Cable" : "Switch"; });

TEST_P(InterruptedLinkTest, NothingPassesUntilItIsBack) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  const bool is_cable = GetParam();
  const auto pass = [&](bool passes) {
    return is_cable ? hosts.set_link(1, passes) : hosts.set_switch(1, passes);
  };
  Gate listening;
  Gate connected;
  Gate interrupted;
  Gate is_silent;
  const auto receive = [&]() -> Status {
    TESSERA_ASSIGN_OR_RETURN(const FileDescriptor listener, listen_at(0, listening));
    const FileDescriptor peer(accept(listener.get(), nullptr, nullptr));
    TESSERA_RETURN_IF_ERROR(interrupted.wait());
    pollfd ready = {peer.get(), POLLIN, 0};
    // As long as silence can be told from a slow machine.
    TESSERA_REQUIRE(poll(&ready, 1, 500) == 0);
    TESSERA_RETURN_IF_ERROR(expect_carrier("1"));
    is_silent.open();
    return receive_all(peer.get(), 1000);
  };
  const auto send = [&]() -> Status {
    TESSERA_RETURN_IF_ERROR(listening.wait());
    TESSERA_ASSIGN_OR_RETURN(const FileDescriptor peer, connect_to(0));
    connected.open();
    TESSERA_RETURN_IF_ERROR(interrupted.wait());
    TESSERA_RETURN_IF_ERROR(expect_carrier(is_cable ? "0" : "1"));
    TESSERA_RETURN_IF_ERROR(send_all(peer.get(), 1000));
    char byte;
    TESSERA_REQUIRE(recv(peer.get(), &byte, 1, 0) == 0);
    return absl::OkStatus();
  };
  const std::vector<Status> statuses = run_forked(3, kDeadline, [&](int i) -> Status {
    if (i < 2) {
      TESSERA_RETURN_IF_ERROR(hosts.enter(i));
      return run_isolated(kDeadline, i == 0 ? std::function<Status()>(receive) : send);
    }
    TESSERA_RETURN_IF_ERROR(connected.wait());
    TESSERA_RETURN_IF_ERROR(pass(false));
    interrupted.open(2);
    TESSERA_RETURN_IF_ERROR(is_silent.wait());
    return pass(true);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(HostsTest, AKilledHostEndsAllOfItsProcesses) {
  TESSERA_MAKE_HOSTS(hosts, 2);
  Gate running;
  const std::vector<Status> statuses = run_forked(2, kDeadline, [&](int i) -> Status {
    if (i == 0) {
      TESSERA_RETURN_IF_ERROR(running.wait());
      return hosts.kill(1);
    }
    TESSERA_RETURN_IF_ERROR(hosts.enter(1));
    return run_isolated(kDeadline, [&]() -> Status {
      running.open();
      pause();
      return absl::OkStatus();
    });
  });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the job died of signal Killed")));
  EXPECT_THAT(hosts.in_host(0, {"true"}), IsOk());
  EXPECT_THAT(hosts.in_host(1, {"true"}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("in_host: host 1 is gone")));
  EXPECT_THAT(hosts.in_host(2, {"true"}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("in_host: no host 2")));
}

TEST(HostsTest, CommandsRunInAHost) {
  TESSERA_MAKE_HOSTS(hosts, 2, "1gbit");
  EXPECT_THAT(hosts.in_host(1, {"sh", "-c", "test $(hostname) = host-b"}), IsOk());
  EXPECT_THAT(hosts.in_host(1, {"sh", "-c", "getent hosts host-a >/dev/null"}), IsOk());
  EXPECT_THAT(hosts.in_host(1, {"sh", "-c", "echo the reason; exit 3"}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the reason")));
  EXPECT_THAT(hosts.in_host(0, {"sh", "-c",
                                "PATH=$PATH:/sbin:/usr/sbin; "
                                "tc qdisc show dev eth0 | grep -q 'tbf.*rate 1Gbit'"}),
              IsOk());
}

// A test that is killed while clients run in its hosts leaves nothing behind.
TEST(HostsTest, NothingIsLeftOfAKilledTest) {
  struct Pids {
    std::atomic<pid_t> all[16];
  };
  Shared<Pids> pids;
  Shared<std::atomic<bool>> is_skipped;
  Gate running;
  const auto test = [&]() -> Status {
    StatusOr<Hosts> hosts = Hosts::make(2);
    if (absl::IsFailedPrecondition(hosts.status())) *is_skipped = true;
    if (!hosts.ok()) {
      running.open();
      return hosts.status();
    }
    int place = 0;
    for (const pid_t pid : hosts->holders()) pids->all[place++] = pid;
    run_in_hosts(*hosts, {[&]() -> Status {
      running.open();
      pause();
      return absl::OkStatus();
    }});
    return absl::OkStatus();
  };
  // Not run_isolated(), which ends the group of the child.
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    test().IgnoreError();
    _exit(0);
  }
  EXPECT_THAT(running.wait(), IsOk());
  std::vector<std::unique_ptr<FileDescriptor>> processes;
  for (const std::atomic<pid_t>& pid : pids->all) {
    if (pid == 0) break;
    processes.push_back(
        std::make_unique<FileDescriptor>(static_cast<int>(syscall(SYS_pidfd_open, pid.load(), 0))));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (*is_skipped) GTEST_SKIP() << "there are no namespaces";
  EXPECT_EQ(processes.size(), 4);  // make_hosts, login and two hosts
  for (const auto& process : processes) {
    pollfd ended = {process->get(), POLLIN, 0};
    EXPECT_EQ(poll(&ended, 1, 60'000), 1);
  }
}

}  // namespace
}  // namespace tessera::testing
