// SPDX-License-Identifier: Apache-2.0
//
// The checks of HostLink on messages and words of other processes, and its behaviour where
// descriptors run out. A RawPeer speaks the protocol of the sockets by hand.
#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "device/cpu/arena.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "job/environment/file_descriptor.h"
#include "shm/activity.h"
#include "shm/control.h"
#include "shm/host_link.h"
#include "shm/link_message.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"
#include "tests/support/forked.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace {

// How many of the next messages of client 0 the system refuses.
std::atomic<int> num_refusals{0};
// Whether epoll_wait() has an event at least every millisecond.
std::atomic<bool> has_steady_traffic{false};

}  // namespace

// These two functions replace the functions of the C library.
extern "C" int epoll_wait(int epoll, epoll_event* events, int most, int timeout) {
  if (has_steady_traffic) timeout = 1;
  const auto count =
      static_cast<int>(syscall(SYS_epoll_pwait, epoll, events, most, timeout, nullptr, size_t{8}));
  if (count != 0 || !has_steady_traffic) return count;
  constexpr int kNoDescriptor = -2;
  *events = {.events = EPOLLIN, .data = {.fd = kNoDescriptor}};
  return 1;
}

extern "C" ssize_t sendmsg(int socket, const msghdr* header, int flags) {
  const auto* const message =
      static_cast<const tessera::shm::LinkMessage*>(header->msg_iov[0].iov_base);
  const bool is_of_a_link = header->msg_iov[0].iov_len == sizeof *message;
  if (num_refusals > 0 && is_of_a_link && message->client == 0) {
    --num_refusals;
    errno = ETOOMANYREFS;
    return -1;
  }
  return syscall(SYS_sendmsg, socket, header, flags);
}

namespace tessera::shm {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::run_isolated;
using testing::StatusIs;

constexpr uint64_t kPage = 4096;

FileDescriptor make_file(uint64_t size_bytes, int seals) {
  FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}
constexpr int kRightSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A control region of a client with one device.
FileDescriptor make_control() {
  FileDescriptor fd = make_file(kControlBytes, kRightSeals);
  ControlHeader* header = static_cast<ControlHeader*>(
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  header->num_devices = 1;
  header->activities_offset = kActivitiesOffset;
  header->slots_offset = slots_offset(1);
  header->units_offset = align64(slots_offset(1) + kMaxGroups * sizeof(GroupSlot));
  header->magic = kControlMagic;
  munmap(header, kPage);
  return fd;
}

// The other end of client 0's socket.
class RawPeer {
 public:
  explicit RawPeer(testing::FakeJob& job) {
    const std::string name = *job.coordinator(1).get("host_link/0", 0, absl::InfiniteFuture());
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    socket_ = FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    is_connected_ =
        connect(socket_.get(), reinterpret_cast<sockaddr*>(&address),
                static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0;
    hello_ = {.kind = LinkMessage::kHello,
              .client = 1,
              .size_bytes = kControlBytes,
              .from_incarnation = job.coordinator(1).members()[1].incarnation,
              .to_incarnation = job.coordinator(1).members()[0].incarnation};
  }

  bool is_connected() const { return is_connected_; }
  const LinkMessage& hello() const { return hello_; }
  SendResult send(const LinkMessage& message, const FileDescriptor& fd = {}) {
    return send_message(socket_.get(), message, fd.get());
  }
  std::optional<ReceivedMessage> receive() { return receive_message(socket_.get()); }
  // The hello of client 1, and client 0's.
  void join() {
    send(hello_, make_control());
    ASSERT_TRUE(receive().has_value());
  }

 private:
  FileDescriptor socket_;
  bool is_connected_ = false;
  LinkMessage hello_;
};

class LinkChecksTest : public ::testing::Test {
 protected:
  // Connects client 0, on a thread: its peer is the test.
  void start() {
    pool_ = ArenaPool::create(kPage);
    connecting_ = std::thread([this] {
      StatusOr<std::unique_ptr<HostLink>> link =
          HostLink::create(job_.coordinator(0), pool_, steady_now() + absl::Seconds(20));
      result_ = link.status();
      if (link.ok()) link_ = *std::move(link);
    });
  }
  void wait() { connecting_.join(); }
  // Waits until client 1 is lost; why.
  Status wait_lost() {
    testing::Gate lost;
    link_->liveness().set_lost_listener([&](int, const Status&) { lost.open(); });
    EXPECT_THAT(lost.wait(), IsOk());
    link_->liveness().set_lost_listener(nullptr);
    return link_->liveness().client_status(1);
  }
  ~LinkChecksTest() override {
    if (connecting_.joinable()) connecting_.join();
  }

  testing::TestDeadline deadline_{absl::Seconds(60), "link_checks_test"};
  testing::FakeJob job_{std::vector<int>{1, 1}};
  std::shared_ptr<ArenaPool> pool_;
  std::thread connecting_;
  Status result_;
  std::unique_ptr<HostLink> link_;
};

// Nothing is handed out before the hello, and a hello that is not a member's ends the connection.
// The member connects all the same, and from then on nothing listens.
TEST_F(LinkChecksTest, StrangersGetNothing) {
  start();
  for (int field = 0; field < 4; ++field) {
    RawPeer stranger(job_);
    LinkMessage message = stranger.hello();
    if (field == 0) ++message.from_incarnation;
    if (field == 1) ++message.to_incarnation;
    if (field == 2) message.client = 0;
    if (field == 3) message.kind = LinkMessage::kAskArena;
    EXPECT_EQ(stranger.send(message, make_control()), SendResult::kSent);
    EXPECT_FALSE(stranger.receive().has_value()) << "field " << field;
  }
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<RawPeer>(job_));
  RawPeer member(job_);
  member.join();
  wait();
  EXPECT_THAT(result_, IsOk());
  for (const auto& stranger : silent) EXPECT_FALSE(stranger->receive().has_value());
  // The socket that listened has been closed before they were.
  EXPECT_FALSE(RawPeer(job_).is_connected());
}

TEST_F(LinkChecksTest, ASecondHelloIsRefused) {
  start();
  RawPeer member(job_);
  RawPeer twin(job_);
  member.join();
  twin.send(twin.hello(), make_control());
  EXPECT_FALSE(twin.receive().has_value());
  wait();
  ASSERT_THAT(result_, IsOk());
  EXPECT_THAT(link_->liveness().client_status(1), IsOk());
  member.send(member.hello(), make_control());
  EXPECT_THAT(wait_lost(), StatusIs(StatusCode::kUnavailable, HasSubstr("said hello twice")));
}

TEST_F(LinkChecksTest, AMessageInAnothersNameEndsTheConnection) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  LinkMessage message = {.kind = LinkMessage::kArena, .client = 0, .size_bytes = kPage};
  member.send(message, make_file(kPage, kRightSeals));
  EXPECT_THAT(wait_lost(), StatusIs(StatusCode::kUnavailable,
                                    HasSubstr("it sent a message in the name of client 0")));
}

struct BadControl {
  const char* name;
  uint64_t size_bytes;  // of the file
  uint64_t told_bytes;
  int seals;
  const char* message;
};
const BadControl kBadControls[] = {
    {"short", kPage, kControlBytes, kRightSeals, "not a sealed file of 268435456 bytes"},
    {"unsealed", kControlBytes, kControlBytes, 0, "not a sealed file of 268435456 bytes"},
    {"may_shrink", kControlBytes, kControlBytes, F_SEAL_GROW,
     "not a sealed file of 268435456 bytes"},
    {"other_size", kPage, kPage, kRightSeals, "it has 4096 bytes"},
    {"empty", kControlBytes, kControlBytes, kRightSeals, "it holds something else"},
};

class BadControlTest : public LinkChecksTest, public ::testing::WithParamInterface<BadControl> {};
INSTANTIATE_TEST_SUITE_P(Files, BadControlTest, ::testing::ValuesIn(kBadControls),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadControlTest, IsNotMapped) {
  start();
  RawPeer member(job_);
  LinkMessage hello = member.hello();
  hello.size_bytes = GetParam().told_bytes;
  member.send(hello, make_file(GetParam().size_bytes, GetParam().seals));
  wait();
  EXPECT_THAT(result_,
              StatusIs(StatusCode::kUnavailable,
                       ::testing::AllOf(HasSubstr(" is lost: its control region is not one: "),
                                        HasSubstr(GetParam().message))));
}

TEST_F(LinkChecksTest, ArenasThatAreNoneAreTheErrorOfWhatUsesThem) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  LinkMessage arena = {
      .kind = LinkMessage::kArena, .client = 1, .arena = 3, .size_bytes = 2 * kPage};
  member.send(arena, make_file(kPage, kRightSeals));
  // The answer to this comes when the arena has been looked at.
  member.send({.kind = LinkMessage::kAskArena, .client = 1, .arena = 0});
  ASSERT_EQ(member.receive()->message.kind, LinkMessage::kNoArena);
  // The arena is asked for again, and is no better.
  StatusOr<std::byte*> memory = nullptr;
  std::thread resolving([&] { memory = link_->memory().resolve({3, 1, 64}, 8); });
  const std::optional<ReceivedMessage> ask = member.receive();
  ASSERT_TRUE(ask.has_value());
  EXPECT_EQ(ask->message.kind, LinkMessage::kAskArena);
  EXPECT_EQ(ask->message.arena, 3);
  member.send(arena, make_file(kPage, kRightSeals));
  resolving.join();
  EXPECT_THAT(memory, StatusIs(StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("client 0 cannot map memory of client 1 ("),
                                     HasSubstr("not a sealed file of 8192 bytes"))));
  EXPECT_THAT(link_->liveness().client_status(1), IsOk());
}

// A lost announcement is requested again a second later. An arena that does not exist is an error.
TEST_F(LinkChecksTest, AnArenaThatDoesNotComeIsAskedFor) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  EXPECT_THAT(link_->memory().resolve({2, 1, 0}, 1, steady_now() + absl::Milliseconds(1)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("was not shared in time")));
  StatusOr<std::byte*> memory = nullptr;
  std::thread resolving([&] { memory = link_->memory().resolve({2, 1, 64}, 8); });
  ASSERT_EQ(member.receive()->message.kind, LinkMessage::kAskArena);
  LinkMessage arena = {.kind = LinkMessage::kArena, .client = 1, .arena = 2, .size_bytes = kPage};
  member.send(arena, make_file(kPage, kRightSeals));
  resolving.join();
  EXPECT_THAT(memory, IsOk());
  std::thread other([&] { memory = link_->memory().resolve({9, 1, 64}, 8); });
  ASSERT_EQ(member.receive()->message.arena, 9);
  member.send({.kind = LinkMessage::kNoArena, .client = 1, .arena = 9});
  other.join();
  EXPECT_THAT(memory, StatusIs(StatusCode::kInternal, HasSubstr("has no arena 9")));
}

TEST_F(LinkChecksTest, AnAskIsAnswered) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  member.send({.kind = LinkMessage::kAskArena, .client = 1, .arena = 0});
  EXPECT_EQ(member.receive()->message.kind, LinkMessage::kNoArena);
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool_->allocate(64));
  EXPECT_EQ(member.receive()->message.kind, LinkMessage::kArena);
  member.send({.kind = LinkMessage::kAskArena, .client = 1, .arena = 0});
  const std::optional<ReceivedMessage> again = member.receive();
  EXPECT_EQ(again->message.kind, LinkMessage::kArena);
  EXPECT_TRUE(SharedMapping::map_received(again->fd.get(), again->message.size_bytes).ok());
  member.send({.kind = LinkMessage::kAskArena, .client = 1, .arena = -1});
  EXPECT_EQ(member.receive()->message.kind, LinkMessage::kNoArena);
}

TEST_F(LinkChecksTest, AddressesAreComparedWithWhatIsMapped) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const ArenaPool::Block block, pool_->allocate(64));
  LinkMessage arena = {.kind = LinkMessage::kArena, .client = 1, .arena = 0, .size_bytes = kPage};
  member.send(arena, make_file(kPage, kRightSeals));
  for (const int client : {0, 1}) {
    EXPECT_THAT(link_->memory().resolve({0, client, 0}, kPage), IsOk());
    EXPECT_THAT(link_->memory().resolve({0, client, kPage}, 0), IsOk());
    const std::pair<uint64_t, uint64_t> bad[] = {
        {0, kPage + 1},  {1, kPage},      {kPage + 1, 0},
        {UINT64_MAX, 2}, {2, UINT64_MAX}, {uint64_t{1} << 62, uint64_t{1} << 62}};
    for (const auto& [offset, num_bytes] : bad) {
      EXPECT_THAT(link_->memory().resolve({0, client, offset}, num_bytes),
                  StatusIs(StatusCode::kInternal,
                           HasSubstr(" do not exist, and a client says that its memory is there")));
    }
    for (const int index : {-7, ArenaPool::kMaxArenas, INT32_MAX, SharedAddress::kPointer}) {
      EXPECT_THAT(link_->memory().resolve({index, client, 0}, 1), StatusIs(StatusCode::kInternal));
    }
    EXPECT_THAT(link_->memory().resolve({SharedAddress::kNull, client, 5}, 1),
                testing::IsOkAndHolds(nullptr));
  }
  for (const int client : {-1, 2, INT32_MAX}) {
    EXPECT_THAT(link_->memory().resolve({0, client, 0}, 1), StatusIs(StatusCode::kInternal));
    EXPECT_THAT(link_->liveness().client_status(client),
                StatusIs(StatusCode::kInternal, HasSubstr("does not exist; the job has 2")));
  }
  EXPECT_EQ(link_->memory().find_in_control(1, 64, kControlBytes - 64),
            link_->memory().control(1) + 64);
  EXPECT_EQ(link_->memory().find_in_control(2, 0, 1), nullptr);
  EXPECT_EQ(link_->memory().find_in_control(uint64_t{1} << 40, 0, 1), nullptr);
  EXPECT_EQ(link_->memory().find_in_control(1, kControlBytes - 63, 64), nullptr);
  EXPECT_EQ(link_->memory().find_in_control(1, UINT64_MAX, 64), nullptr);
}

// Words of an activity that no writer made: no enumerator out of range comes of them.
TEST_F(LinkChecksTest, OverwrittenActivitiesAreNoActivities) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  DeviceActivity& slot = activity_slot(link_->memory().control(1), 0);
  for (const uint64_t word : {uint64_t{0x04}, uint64_t{0xff}, UINT64_MAX}) {
    slot.kind.store(word);
    const ActivitySnapshot seen = read_activity(slot);
    EXPECT_FALSE(seen.consistent);
    EXPECT_EQ(seen.kind, DeviceActivity::kNothing);
  }
}

// Messages that a socket does not take are kept, in their order.
TEST_F(LinkChecksTest, NothingIsDroppedWhereThePeerIsSlow) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  constexpr int kMessages = 3000;  // ten times the capacity of a socket
  for (int i = 0; i < kMessages; ++i) link_->leave();
  std::thread closing([&] { link_->close(); });
  for (int i = 0; i < kMessages; ++i) {
    const std::optional<ReceivedMessage> message = member.receive();
    ASSERT_TRUE(message.has_value()) << i;
    ASSERT_EQ(message->message.kind, LinkMessage::kGoodbye);
  }
  closing.join();
  EXPECT_FALSE(member.receive().has_value());
}

// The system refuses a message of the link for a moment, as it does with too many descriptors in
// transit. The message is sent soon after that, although events never pause.
TEST_F(LinkChecksTest, WhatTheSystemRefusedIsSentUnderSteadyTraffic) {
  start();
  RawPeer member(job_);
  member.join();
  wait();
  ASSERT_THAT(result_, IsOk());
  has_steady_traffic = true;
  num_refusals = 1;
  link_->leave();
  const std::optional<ReceivedMessage> goodbye = member.receive();
  has_steady_traffic = false;
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_EQ(goodbye->message.kind, LinkMessage::kGoodbye);
  EXPECT_EQ(num_refusals, 0);
}

// --- Descriptors ---

int num_descriptors(const std::string& target) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/thread-self/fd")) {
    std::error_code error;
    const std::string path = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StrContains(path, target)) ++count;
  }
  return count;
}

// Lets this process have descriptors up to number `limit` - 1.
Status limit_descriptors(uint64_t limit) {
  const rlimit both = {limit, limit};
  TESSERA_REQUIRE(setrlimit(RLIMIT_NOFILE, &both) == 0);
  return absl::OkStatus();
}

// Opens descriptors until `num_left` more can be had.
std::vector<FileDescriptor> use_up_descriptors(size_t num_left) {
  std::vector<FileDescriptor> used;
  for (FileDescriptor next(dup(0)); next.is_open(); next = FileDescriptor(dup(0))) {
    used.push_back(std::move(next));
  }
  used.resize(used.size() - num_left);
  return used;
}

Status only_own_arenas_keep_theirs() {
  testing::FakeJob job({1, 1, 1});
  std::vector<std::shared_ptr<ArenaPool>> pools;
  std::vector<std::unique_ptr<HostLink>> links(3);
  std::vector<Status> results(3);
  std::vector<std::thread> threads;
  for (int c = 0; c < 3; ++c) pools.push_back(ArenaPool::create(kPage));
  for (int c = 0; c < 3; ++c) {
    threads.emplace_back([&, c] {
      auto link = HostLink::create(job.coordinator(c), pools[c], steady_now() + absl::Seconds(20));
      results[c] = link.status();
      if (link.ok()) links[c] = *std::move(link);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& result : results) TESSERA_RETURN_IF_ERROR(result);
  TESSERA_REQUIRE(num_descriptors("tessera-control") == 3);
  std::vector<ArenaPool::Block> blocks;
  for (int k = 0; k < 6; ++k) {
    TESSERA_ASSIGN_OR_RETURN(ArenaPool::Block block, pools[0]->allocate(kPage << k));
    for (const int c : {1, 2}) {
      TESSERA_ASSIGN_OR_RETURN(
          std::byte * seen,
          links[c]->memory().resolve({block.address().arena, 0, block.address().offset}, kPage << k,
                                     absl::InfiniteFuture()));
      TESSERA_REQUIRE(seen != nullptr);
    }
    blocks.push_back(std::move(block));
  }
  const int num_arenas = blocks.back().address().arena + 1;
  TESSERA_REQUIRE(num_arenas > 3);
  TESSERA_REQUIRE(num_descriptors("tessera-arena") == num_arenas);
  return absl::OkStatus();
}

TEST(DescriptorsTest, OnlyOwnArenasKeepTheirs) {
  EXPECT_THAT(run_isolated(absl::Seconds(60), only_own_arenas_keep_theirs), IsOk());
}

TEST(DescriptorsTest, TheLimitIsRaisedAsFarAsItMayBe) {
  EXPECT_THAT(run_isolated(absl::Seconds(60),
                           []() -> Status {
                             rlimit limit = {50, 100};
                             TESSERA_REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
                             raise_descriptor_limit();
                             TESSERA_REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
                             TESSERA_REQUIRE(limit.rlim_cur == 100);
                             return absl::OkStatus();
                           }),
              IsOk());
}

// Client 0 in a table of descriptors of its own, in which `num_left` are free when it connects.
struct PairResults {
  Status constrained;
  Status other;
};
PairResults connect_with(size_t num_left) {
  testing::FakeJob job({1, 1});
  PairResults results;
  const auto connect = [&](int client) {
    return HostLink::create(job.coordinator(client), ArenaPool::create(kPage),
                            steady_now() + absl::Seconds(client == 0 ? 20 : 2));
  };
  testing::Gate done;
  std::thread constrained([&] {
    if (unshare(CLONE_FILES) != 0) {
      results.constrained = absl::UnknownError("unshare");
      return;
    }
    const std::vector<FileDescriptor> used = use_up_descriptors(num_left);
    const auto link = connect(0);
    results.constrained = link.status();
    // The other one is connected as long as this one is.
    if (link.ok()) done.wait().IgnoreError();
  });
  const auto link = connect(1);
  results.other = link.status();
  done.open();
  constrained.join();
  return results;
}

TEST(DescriptorsTest, ConnectingSaysWhenTheyAreUsedUp) {
  const auto sweep = []() -> Status {
    TESSERA_RETURN_IF_ERROR(limit_descriptors(100));
    int num_refusals = 0;
    for (size_t num_left = 0;; ++num_left) {
      const PairResults results = connect_with(num_left);
      if (results.constrained.ok() && results.other.ok()) break;
      if (results.constrained.ok()) continue;  // the other one's deadline came first
      TESSERA_REQUIRE(absl::IsResourceExhausted(results.constrained), num_left,
                      " left: ", results.constrained.ToString());
      ++num_refusals;
    }
    // The region, the socket, epoll, the event, the connection, the other's region.
    TESSERA_REQUIRE(num_refusals >= 6, num_refusals);
    return absl::OkStatus();
  };
  EXPECT_THAT(run_isolated(absl::Seconds(100), sweep), IsOk());
}

// An arena comes when client 1 can take no descriptor: an operation that uses it is
// ResourceExhausted, no client is lost, and the next operation that uses it asks for the arena
// again.
Status receive_without_descriptors() {
  TESSERA_RETURN_IF_ERROR(limit_descriptors(200));
  testing::FakeJob job({1, 1});
  const auto pool = ArenaPool::create(kPage);
  testing::Gate is_full, is_made, done;
  std::atomic<int> arena{0};
  Status result;
  std::thread constrained([&] {
    result = [&]() -> Status {
      TESSERA_REQUIRE(unshare(CLONE_FILES) == 0);
      TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<HostLink> link,
                               HostLink::create(job.coordinator(1), ArenaPool::create(kPage),
                                                steady_now() + absl::Seconds(20)));
      std::vector<FileDescriptor> used = use_up_descriptors(0);
      is_full.open();
      TESSERA_RETURN_IF_ERROR(is_made.wait());
      const auto resolve = [&] {
        return link->memory().resolve({arena.load(), 0, 0}, kPage).status();
      };
      const Status error = resolve();
      TESSERA_REQUIRE(absl::IsResourceExhausted(error), error.ToString());
      TESSERA_REQUIRE(absl::StrContains(error.message(), "out of file descriptors"),
                      error.ToString());
      TESSERA_RETURN_IF_ERROR(link->liveness().client_status(0));
      used.clear();
      return resolve();
    }();
    is_full.open();
    done.open();
  });
  const Status connected = [&]() -> Status {
    TESSERA_ASSIGN_OR_RETURN(
        const std::unique_ptr<HostLink> link,
        HostLink::create(job.coordinator(0), pool, steady_now() + absl::Seconds(20)));
    TESSERA_RETURN_IF_ERROR(is_full.wait());
    TESSERA_ASSIGN_OR_RETURN(const ArenaPool::Block block, pool->allocate(kPage));
    arena = block.address().arena;
    is_made.open();
    return done.wait();
  }();
  is_made.open();
  constrained.join();
  TESSERA_RETURN_IF_ERROR(connected);
  return result;
}

TEST(DescriptorsTest, AnArenaThatCannotBeTakenIsNoLoss) {
  EXPECT_THAT(run_isolated(absl::Seconds(60), receive_without_descriptors), IsOk());
}

}  // namespace
}  // namespace tessera::shm
