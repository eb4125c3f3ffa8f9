// SPDX-License-Identifier: Apache-2.0
//
// MessagePump: the messages of one device that wait for the other side, on one thread.
//
//   lane from device 3   recv, recv        only the first of each lane is tested, until it is ready
//   lane from device 5   recv
//   lane to device 3     send, send        waits for a free record
//
// Messages of a lane run in the order in which they were added; lanes do not wait for each other.
// So a device needs one thread for messages, however many other devices it exchanges them with.
//
// The thread sleeps on the bell of its device, a word in the control region, which the clients ring
// whenever the record of a message changes hands (Record::wake).
//
// Thread-safe.
#ifndef TESSERA_COLLECTIVES_HOST_MESSAGE_PUMP_H_
#define TESSERA_COLLECTIVES_HOST_MESSAGE_PUMP_H_

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "shm/control.h"

namespace tessera::host {

class MessagePump {
 public:
  // One end of a message that waits for its turn.
  class Message {
   public:
    virtual ~Message() = default;
    // The time at which run() will not wait for the other side, if that is known: InfinitePast
    // where it would not wait now, InfiniteFuture where the bell will ring first. Called by the
    // pump's thread.
    virtual absl::Time ready_at() = 0;
    virtual void run_message() = 0;
  };
  // The other device, and whether this one sends to it.
  using Lane = std::pair<int, bool>;

  // `activity` has the device's bell, and must outlive the pump. ResourceExhausted where no thread
  // can be started.
  static StatusOr<std::unique_ptr<MessagePump>> create(int device_id,
                                                       shm::DeviceActivity& activity);
  ~MessagePump() { stop(); }

  // Adds a message; `placed` is called when it takes its place in the lane. After stop() the
  // message runs immediately, on this thread.
  void add(Lane lane, std::shared_ptr<Message> message, absl::FunctionRef<void()> placed);
  // Looks at all messages again: they may be ready by an event that rings no bell.
  void look_again();
  // Runs the messages that are left, and ends the thread. Requires that no message waits for the
  // other side any more.
  void stop();

 private:
  using Messages = std::deque<std::shared_ptr<Message>>;

  explicit MessagePump(shm::DeviceActivity& activity) : activity_(activity) {}
  void run();
  // Runs the messages that are ready. Returns whether there were any; else `*next` is the time to
  // look again.
  bool run_ready(absl::Time* next);

  shm::DeviceActivity& activity_;
  std::mutex mutex_;  // guards the members below
  bool stopping_ = false;
  std::map<Lane, Messages> lanes_;  // none is empty
  Thread thread_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MESSAGE_PUMP_H_
