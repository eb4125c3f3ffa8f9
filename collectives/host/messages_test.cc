// SPDX-License-Identifier: Apache-2.0
//
// Messages of many devices: their threads and their memory in the control region. Messages of one
// pair never wait for messages of another pair.
#include <dirent.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/group.h"
#include "collectives/host/message_pump.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/host/testing/host_job.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "shm/control.h"
#include "shm/host_link.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

int num_threads() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return count;
}

constexpr uint32_t kMessageRecords = 16;  // as HostBackend has them
constexpr uint64_t kMessageSalt = 1;

class MessagesTest : public ::testing::Test {
 protected:
  void create(const std::vector<int>& devices, absl::Duration timeout = absl::Seconds(60)) {
    groups_.clear();
    TESSERA_ASSERT_OK_AND_ASSIGN(job_, HostJob::create(devices, timeout));
    std::vector<int> all(job_->num_devices());
    std::iota(all.begin(), all.end(), 0);
    for (const int device : all) {
      TESSERA_ASSERT_OK_AND_ASSIGN(Group group, job_->group(device, all));
      groups_.push_back(std::move(group));
    }
  }
  int64_t value(int from, int to, int number) const {
    return (int64_t{from} << 32) + (int64_t{to} << 16) + number;
  }

  testing::TestDeadline deadline_{absl::Seconds(120), "messages_test"};
  std::unique_ptr<HostJob> job_;
  std::vector<Group> groups_;  // of all devices, as each of them sees it
};

// Issue 15, R7: 4,032 pairs had a thread each, and did not fit into the control region.
TEST_F(MessagesTest, AllPairsOf64DevicesOfOneClient) {
  create({64});
  const int n = job_->num_devices();
  const int threads_before = num_threads();
  std::vector<int64_t> in(n * n);
  std::vector<int64_t> out(n * n, -1);
  std::vector<Work> works;
  // All receives first: each of them waits.
  for (int to = 0; to < n; ++to) {
    for (int from = 0; from < n; ++from) {
      if (from == to) continue;
      works.push_back(groups_[to].recv<int64_t>(absl::MakeSpan(&out[to * n + from], 1), from));
    }
  }
  EXPECT_LE(num_threads(), threads_before + n);
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (from == to) continue;
      in[from * n + to] = value(from, to, 0);
      works.push_back(groups_[from].send<int64_t>(absl::MakeSpan(&in[from * n + to], 1), to));
    }
  }
  for (const Work& work : works) ASSERT_THAT(work.await(), IsOk());
  for (int to = 0; to < n; ++to) {
    for (int from = 0; from < n; ++from) {
      const int64_t expected = from == to ? -1 : value(from, to, 0);
      ASSERT_EQ(out[to * n + from], expected);
    }
  }
}

// More messages of a pair than there are records, in every order of sends and receives.
TEST_F(MessagesTest, MessagesOfAPairComeInOrder) {
  create({2, 1});
  constexpr int kMessages = 100;
  for (const bool sends_first : {true, false}) {
    for (const auto& [from, to] : {std::pair(0, 1), {0, 2}, {2, 1}}) {
      std::vector<int64_t> in(kMessages);
      std::vector<int64_t> out(kMessages, -1);
      std::vector<Work> works;
      const auto send = [&, from = from, to = to] {
        for (int i = 0; i < kMessages; ++i) {
          in[i] = value(from, to, i);
          works.push_back(groups_[from].send<int64_t>(absl::MakeSpan(&in[i], 1), to));
        }
      };
      if (sends_first) send();
      for (int i = 0; i < kMessages; ++i) {
        works.push_back(groups_[to].recv<int64_t>(absl::MakeSpan(&out[i], 1), from));
      }
      if (!sends_first) send();
      for (const Work& work : works) ASSERT_THAT(work.await(), IsOk());
      EXPECT_EQ(in, out);
    }
  }
}

// A message that its receiver gives up is never told to its sender as received, although its record
// goes on to a message that waits for it.
TEST_F(MessagesTest, AMessageThatIsGivenUpIsNotReceived) {
  create({1, 1});
  constexpr int kMessages = 40;  // more than twice the records of a pair
  const int64_t sent = 7;
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> out(kMessages, -1);
    std::vector<Work> sends;
    for (int i = 0; i < kMessages; ++i) {
      sends.push_back(groups_[0].send<int64_t>(absl::MakeConstSpan(&sent, 1), 1));
    }
    // The first message has been published when the sender's device reaches this operation.
    const Work waiting = groups_[1].barrier();
    ASSERT_THAT(groups_[0].barrier().await(), IsOk());
    ASSERT_THAT(waiting.await(), IsOk());
    std::vector<Status> received;
    for (int i = 0; i < kMessages; ++i) {
      const Work recv = groups_[1].recv<int64_t>(absl::MakeSpan(&out[i], 1), 0);
      received.push_back(i == 0 ? recv.wait(absl::ZeroDuration()) : recv.await());
    }
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_EQ(sends[i].await().code(), received[i].code()) << round << ": message " << i;
    }
  }
}

// The receiver is stopped while it fails a message. The sender, which looks at its messages under a
// lock, is not held up by that: each look took 20 s.
TEST_F(MessagesTest, ALookAtAMessageDoesNotWaitForASettlerThatIsStopped) {
  create({1, 1});
  const testing::TestDeadline deadline(absl::Seconds(15), "less than the time limit of a settler");
  const int64_t sent = 7;
  const Work send = groups_[0].send<int64_t>(absl::MakeConstSpan(&sent, 1), 1);
  shm::HostLink& link = *job_->client(0).link;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Rendezvous pair,
                               Rendezvous::open(link, {{0, 0, 0}, {1, 1, 0}}, kMessageRecords,
                                                kMessageSalt, {.records = Records::kSmall}));
  // Small records cut the text of the verdict short.
  auto* const entry = reinterpret_cast<std::byte*>(&pair.records().entry(1, 0));
  OpRecord& record = *reinterpret_cast<OpRecord*>(
      entry - shm::align64(offsetof(OpRecord, verdict) + kSmallVerdictBytes));
  while (State::unpack(record.state).arrived == 0) std::this_thread::yield();
  record.state = State{.seq = 1, .phase = Phase::kSettling, .settler = 1 + 1}.pack();
  EXPECT_FALSE(send.done());
  const Work next = groups_[0].send<int64_t>(absl::MakeConstSpan(&sent, 1), 1);
  EXPECT_FALSE(send.done());
  job_->client(0).link->liveness().report_lost(1, absl::UnavailableError("client 1 is lost"));
  // By its loss another member may say how it ended.
  EXPECT_THAT(send.await(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("was lost before it could say")));
  EXPECT_THAT(next.await(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is lost")));
}

// The k-th receive matches the k-th send, whatever became of earlier messages. A late end gets the
// verdicts of messages that the other end has given up in order, as far as the records reach. Issue
// 15: a receiver joined the newest message, and returned its contents for the first one.
class LateEndTest : public MessagesTest {
 protected:
  static constexpr int kMessages = 40;  // more than twice the records of a pair

  Work start(bool sends, int i) {
    return sends ? groups_[0].send<int64_t>(absl::MakeConstSpan(&in_[i], 1), 1)
                 : groups_[1].recv<int64_t>(absl::MakeSpan(&out_[i], 1), 0);
  }
  void expect_same(bool late_end_sends, const std::vector<Status>& verdicts) {
    for (int i = 0; i < kMessages; ++i) {
      const Status late = start(late_end_sends, i).await();
      if (i + kMessageRecords <= kMessages && absl::IsUnavailable(late)) {
        ASSERT_THAT(late, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("given up without")));
      } else {
        ASSERT_EQ(late, verdicts[i]) << i;
      }
    }
    EXPECT_EQ(out_, std::vector<int64_t>(kMessages + 1, -1));
  }

  std::vector<int64_t> in_ = std::vector<int64_t>(kMessages + 1, 7);
  std::vector<int64_t> out_ = std::vector<int64_t>(kMessages + 1, -1);
};

TEST_F(LateEndTest, GetsTheVerdictOfEachMessageInOrder) {
  for (const bool late_end_sends : {false, true}) {
    create({1, 1});
    std::vector<Status> verdicts;
    for (int i = 0; i < kMessages; ++i) {
      verdicts.push_back(start(!late_end_sends, i).wait(absl::Microseconds(100 * (i % 8))));
      ASSERT_THAT(verdicts[i], StatusIs(absl::StatusCode::kDeadlineExceeded)) << i;
    }
    const Work early = start(!late_end_sends, kMessages);
    expect_same(late_end_sends, verdicts);
    ASSERT_THAT(start(late_end_sends, kMessages).await(), IsOk());
    ASSERT_THAT(early.await(), IsOk());
    EXPECT_EQ(out_[kMessages], 7);
    out_[kMessages] = -1;
  }
}

TEST_F(LateEndTest, GetsTheVerdictsOfReceivesThatNobodyWaitedFor) {
  create({1, 1}, absl::Milliseconds(1));
  std::vector<Work> receives;
  for (int i = 0; i < kMessages; ++i) receives.push_back(start(/*sends=*/false, i));
  std::vector<Status> verdicts;
  for (const Work& work : receives) {
    while (!work.done()) std::this_thread::yield();
    verdicts.push_back(work.await());
    ASSERT_THAT(verdicts.back(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  expect_same(/*late_end_sends=*/true, verdicts);
}

// A receive whose sender never comes holds up neither another lane nor its own device.
TEST_F(MessagesTest, LanesDoNotWaitForEachOther) {
  create({2, 2});
  int64_t never = 0;
  const Work waits = groups_[0].recv<int64_t>(absl::MakeSpan(&never, 1), 1);
  const int64_t sent = 7;
  for (int i = 0; i < 20; ++i) {
    int64_t received = 0;
    const Work recv = groups_[0].recv<int64_t>(absl::MakeSpan(&received, 1), 3);
    const Work send = groups_[3].send<int64_t>(absl::MakeConstSpan(&sent, 1), 0);
    ASSERT_THAT(recv.await(), IsOk());
    ASSERT_THAT(send.await(), IsOk());
    EXPECT_EQ(received, sent);
  }
  EXPECT_FALSE(waits.done());
  EXPECT_THAT(waits.wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing client 0")));
  // The sender that is late gets the error, and the next message is received.
  EXPECT_THAT(groups_[1].send<int64_t>(absl::MakeConstSpan(&sent, 1), 0).await(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  const Work recv = groups_[0].recv<int64_t>(absl::MakeSpan(&never, 1), 1);
  ASSERT_THAT(groups_[1].send<int64_t>(absl::MakeConstSpan(&sent, 1), 0).await(), IsOk());
  ASSERT_THAT(recv.await(), IsOk());
  EXPECT_EQ(never, sent);
}

// ---- The pump by itself.

struct FakeMessage : MessagePump::Message {
  explicit FakeMessage(std::atomic<int>& runs) : num_runs(runs) {}
  absl::Time ready_at() override { return absl::FromUnixNanos(at.load()); }
  void run_message() override { order = ++num_runs; }

  static constexpr int64_t kNever = int64_t{1} << 62;
  std::atomic<int64_t> at{kNever};  // as absl::ToUnixNanos()
  std::atomic<int>& num_runs;
  std::atomic<int> order{0};
};

TEST(MessagePumpTest, ALaneIsInOrderAndLanesAreFree) {
  const testing::TestDeadline deadline(absl::Seconds(60), "messages_test");
  auto activity = std::make_unique<shm::DeviceActivity>();
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MessagePump> pump,
                               MessagePump::create(0, *activity));
  std::atomic<int> num_runs = 0;
  std::vector<std::shared_ptr<FakeMessage>> messages;
  for (int i = 0; i < 4; ++i) messages.push_back(std::make_shared<FakeMessage>(num_runs));
  int num_placed = 0;
  const auto add = [&](int lane, int i) {
    pump->add({lane, false}, messages[i], [&] { ++num_placed; });
  };
  messages[1]->at = 0;                                // behind a message that is not ready
  messages[3]->at = absl::ToUnixNanos(steady_now());  // by its deadline
  add(1, 0);
  add(1, 1);
  add(2, 2);
  add(3, 3);
  EXPECT_EQ(num_placed, 4);
  while (messages[3]->order == 0) {
  }
  EXPECT_EQ(num_runs, 1);
  messages[2]->at = 0;
  pump->look_again();
  while (messages[2]->order == 0) {
  }
  EXPECT_EQ(num_runs, 2);
  messages[0]->at = 0;
  pump->look_again();
  while (messages[1]->order == 0) {
  }
  EXPECT_EQ(messages[0]->order, 3);
  EXPECT_EQ(messages[1]->order, 4);
  pump->stop();
  // Messages that come later run at once.
  auto late = std::make_shared<FakeMessage>(num_runs);
  pump->add({1, false}, late, [] {});
  EXPECT_EQ(late->order, 5);
}

}  // namespace
}  // namespace tessera::host
