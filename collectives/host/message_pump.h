// SPDX-License-Identifier: Apache-2.0
//
// MessagePump: the messages of one device that wait for the other side, on one thread.
//
//   lane from device 3   recv, recv        the first of each lane is looked at, until it is ready
//   lane from device 5   recv
//   lane to device 3     send, send        waits for a free record
//
// Messages of a lane run in the order in which they were added; lanes do not wait for each other.
// So the messages of a device need one thread, with however many devices it exchanges them.
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
    // When run() will not wait for the other side, if that is known: InfinitePast where it does not
    // wait now, InfiniteFuture where the bell will ring before. Called by the pump's thread.
    virtual absl::Time ready_at() = 0;
    virtual void run_message() = 0;
  };
  // The other device, and whether this one sends to it.
  using Lane = std::pair<int, bool>;

  // `activity` has the device's bell, and must outlive the pump. ResourceExhausted where no thread
  // can be had.
  static StatusOr<std::unique_ptr<MessagePump>> create(int device_id,
                                                       shm::DeviceActivity& activity);
  ~MessagePump() { stop(); }

  // Adds a message; `placed` is called as it takes its place in the lane. After stop() it is run at
  // once, on this thread.
  void add(Lane lane, std::shared_ptr<Message> message, absl::FunctionRef<void()> placed);
  // Looks at all messages again: they may be ready by an event that rings no bell.
  void look_again();
  // Runs what there is, and ends the thread. Requires that no message waits for the other side any
  // more.
  void stop();

 private:
  using Messages = std::deque<std::shared_ptr<Message>>;

  explicit MessagePump(shm::DeviceActivity& activity) : activity_(activity) {}
  void run();
  // Runs what is ready. Whether that was any; else `*next` is the time to look again.
  bool run_ready(absl::Time* next);

  shm::DeviceActivity& activity_;
  std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  std::map<Lane, Messages> lanes_;  // none is empty
  Thread thread_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_MESSAGE_PUMP_H_
