// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/message_pump.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/wait_policy.h"
#include "shm/activity.h"

namespace tessera::host {
namespace {

// The longest sleep while a message waits. It bounds the delay where a bell is not rung because its
// ringer has died.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

}  // namespace

StatusOr<std::unique_ptr<MessagePump>> MessagePump::create(int device_id,
                                                           shm::DeviceActivity& activity) {
  std::unique_ptr<MessagePump> pump(new MessagePump(activity));
  TESSERA_ASSIGN_OR_RETURN(pump->thread_,
                           start_thread(absl::StrCat("the messages of device ", device_id),
                                        [self = pump.get()] { self->run(); }));
  return pump;
}

void MessagePump::add(Lane lane, std::shared_ptr<Message> message,
                      absl::FunctionRef<void()> placed) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    placed();
    if (!stopping_) {
      lanes_[lane].push_back(std::move(message));
      message = nullptr;
    }
  }
  if (message != nullptr) return message->run_message();
  ring(activity_);
}

void MessagePump::look_again() { ring(activity_); }

void MessagePump::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  ring(activity_);
  if (thread_.joinable()) thread_.join();
}

bool MessagePump::run_ready(absl::Time* next) {
  *next = absl::InfiniteFuture();
  // Only this thread takes messages out, and others add behind: the first ones stay where they are.
  std::vector<std::map<Lane, Messages>::iterator> lanes;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = lanes_.begin(); it != lanes_.end(); ++it) lanes.push_back(it);
  }
  bool any = false;
  for (const auto lane : lanes) {
    std::shared_ptr<Message> message;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      message = lane->second.front();
    }
    const absl::Time ready_at = message->ready_at();
    if (ready_at > absl::InfinitePast() && ready_at > steady_now()) {
      *next = std::min(*next, ready_at);
      continue;
    }
    any = true;
    message->run_message();
    std::lock_guard<std::mutex> lock(mutex_);
    lane->second.pop_front();
    if (lane->second.empty()) lanes_.erase(lane);
  }
  return any;
}

void MessagePump::run() {
  int yields = 0;
  while (true) {
    // Before the messages are looked at: what changes after that has rung the bell.
    const uint32_t seen = activity_.bell.load(std::memory_order_seq_cst);
    absl::Time next;
    if (run_ready(&next)) {
      yields = kMembers.yields;
      continue;
    }
    bool is_empty;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_empty = lanes_.empty();
      if (is_empty && stopping_) return;
    }
    if (yields > 0) {
      --yields;
      sched_yield();
      continue;
    }
    if (!is_empty) next = std::min(next, steady_now() + kLongestSleep);
    shm::wait_for_ring(activity_, seen, next);
    yields = kMembers.yields;
  }
}

}  // namespace tessera::host
