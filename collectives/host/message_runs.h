// SPDX-License-Identifier: Apache-2.0
//
// MessageRuns: the messages of one direction between two devices; member 0 sends, member 1
// receives.
//
//   SendRun      the sender's stream, or the pump where every record is in use:
//                publish() --arrived--> unread --> the receiver has finished it, or it has failed
//   ReceiveRun   the pump: join() when the record is free --> execute() when the sender has
//                arrived: moves the bytes and finishes for both
//
// A member waits for the other one on the thread of the pump, never on its device's stream. A
// single message needs no waiting thread: bells are rung (Rendezvous::ring_bells()). On GPUs each
// end of the messages between two devices has a stream instead (HostResources::message_stream()),
// which runs one message after another and waits for each.
//
// Invariants:
//   1. the k-th receive receives the k-th send, whether or not earlier messages failed;
//   2. num_unread_ counts the messages that are unread, or still to be published. While it is at
//      most the number of records, and no message has failed, the stream publishes the next message
//      without waiting. A message that failed keeps its record until the receiver has read the
//      reason.
//
// Threads. publish() and execute() run on the running thread (run.h); wait_received() and reap() on
// any thread. mutex_ guards the list of unread messages; it is held while their verdicts are read.
#ifndef TESSERA_COLLECTIVES_HOST_MESSAGE_RUNS_H_
#define TESSERA_COLLECTIVES_HOST_MESSAGE_RUNS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/host/host_group.h"
#include "collectives/host/joint_run.h"
#include "collectives/host/meetings.h"
#include "collectives/host/message_pump.h"
#include "device/completion.h"

namespace tessera::host {

class MessageRuns;

// One end of a message.
class MessageRun : public JointRun, public MessagePump::Message {
 public:
  MessageRun(MessageRuns& runs, int member, Collective::Ptr collective, Arguments&& run_arguments);

  void placed() override;
  void run_message() override { run().IgnoreError(); }  // the Work has the error

  Completion published;  // the member has arrived, or failed before that

 protected:
  Status give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;

  MessageRuns& runs_;
};

class SendRun final : public MessageRun {
 public:
  using MessageRun::MessageRun;

  bool done() const override;
  Status run() override;
  absl::Time ready_at() override;

  absl::Time receive_deadline = absl::InfiniteFuture();  // set before `published`

 private:
  bool wait_in_time(absl::Time deadline) override;
  void end_late(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;
};

class ReceiveRun final : public MessageRun {
 public:
  using MessageRun::MessageRun;

  Status run() override;
  absl::Time ready_at() override;

  bool is_timed = false;    // start and deadline are set
  bool has_joined = false;  // it has arrived, or failed before that, and waits only for the sender
  Status join_status;

 private:
  void end_late(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;
};

class MessageRuns final : public HostGroup {
 public:
  MessageRuns(HostResources& resources, std::vector<shm::GroupMember> members,
              Rendezvous rendezvous, std::unique_ptr<DeviceMover> device_mover);

  Work start(Collective::Ptr collective, Arguments arguments) override;
  void reap() override;

  Meetings& meetings() { return meetings_; }
  // Called by runs. Gives the run the member's next number, in the order of its runs.
  void number(MessageRun& run);
  // Publishes a message and returns.
  Status publish(SendRun& run);
  // The time from which publish() will not wait; see MessagePump::Message.
  absl::Time send_ready_at(SendRun& run);
  absl::Time receive_ready_at(ReceiveRun& run);
  // Waits for the sender, and receives.
  Status execute(ReceiveRun& run);
  // Waits until the message has been received, and completes it.
  void wait_received(SendRun& run, absl::Time deadline);
  // Waits without completing the run. False if the message was not received in time.
  bool wait_until_received(const SendRun& run, absl::Time until);
  // Releases the messages that have been received.
  void reap_sent();
  // The verdict of a run whose waiter's deadline has passed.
  Status give_up(MessageRun& run, absl::Time called, absl::Time deadline);

 private:
  Work send(Collective::Ptr collective, Arguments&& arguments);
  Work receive(Collective::Ptr collective, Arguments&& arguments);
  // The task of a send on the sender's stream: publishes the message, or leaves that to the pump.
  Status publish_or_queue(const std::shared_ptr<SendRun>& run);
  // Arrives, unless the receive was given up. Requires that its record is free.
  void join(ReceiveRun& run);
  Status meet_and_move(ReceiveRun& run);
  // Makes the queue in which messages of the member wait, if there is none. ResourceExhausted where
  // its thread cannot be started.
  Status prepare_queue(int member);
  // Queues a message that waits for the other side; calls `placed` as it takes its place.
  Status add_to_queue(std::shared_ptr<MessageRun> run, Stream::Placed placed);
  // Counts a message that will be sent.
  Status expect_send(const SendRun& run);
  void fail_pending(const Status& reason) override { meetings_.fail_pending(reason); }
  void forget() override;

  Meetings meetings_;
  std::mutex mutex_;                            // guards the members below
  std::vector<std::shared_ptr<SendRun>> sent_;  // messages that may not have been read yet
  uint32_t num_unread_ = 0;                     // sent_, and those still to be published
  bool has_failed_ = false;                     // whether any message has failed so far
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MESSAGE_RUNS_H_
