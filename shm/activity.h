// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing DeviceActivity: what the stream of a device is doing, as all clients see it.
//
// Threads. A slot has one writer at a time: the thread that runs a task of the device's stream, or
// that has taken the stream. A stream that was stopped runs tasks on their callers' threads; what
// these write may be mixed. Any thread of any client may read a slot and ring its bell. Only the
// thread of the device's messages sleeps on the bell (MessagePump).
#ifndef TESSERA_SHM_ACTIVITY_H_
#define TESSERA_SHM_ACTIVITY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "shm/control.h"

namespace tessera::shm {

// The part that every operation writes: no text, which would cost as much as a small operation.
struct Activity {
  DeviceActivity::Kind kind = DeviceActivity::kNothing;
  bool has_label = false;  // the slot's label is this activity's, else it follows from the code
  uint16_t code = 0;       // which operation it is, as the writer numbers them
  uint32_t seq = 0;
  uint64_t since_ns = 0;
  uint64_t leader_client = 0;
  uint64_t block_offset = 0;
  uint64_t generation = 0;
  uint64_t name_hash = 0;
  int64_t count = 0;
};

struct ActivitySnapshot : Activity {
  std::string label;  // empty where has_label is false
  // False where the writer was in the middle of writing, for long or for ever (it died): then the
  // fields need not belong together, and are good for a message alone.
  bool consistent = false;
};

// The label stays what it was, or is changed as well.
void write_activity(DeviceActivity& slot, const Activity& activity);
void write_activity(DeviceActivity& slot, const Activity& activity, absl::string_view label);
// Writes the activity of an operation, with its own label if it has one, as of now. Fills in the
// activity's has_label and since_ns.
void publish_activity(DeviceActivity& slot, Activity& activity, absl::string_view label);
// Changes the kind, and since when it is so.
void write_kind(DeviceActivity& slot, DeviceActivity::Kind kind);
// The kind alone, which costs little to read.
DeviceActivity::Kind read_kind(const DeviceActivity& slot);
// The state of the slot, from any client. Does not wait for a writer that is held up.
ActivitySnapshot read_activity(const DeviceActivity& slot);
// Wakes the thread that sleeps on the device's bell, from any client.
void ring(DeviceActivity& slot);
// Sleeps until the bell has been rung since it read `seen`, or the deadline.
void wait_for_ring(DeviceActivity& slot, uint32_t seen, absl::Time deadline);
// The slot of a device in its client's control region.
DeviceActivity& activity_slot(std::byte* control, int ordinal);
// The slot of calls by the client's threads. Written under a lock of the client's process.
DeviceActivity& call_slot(std::byte* control, int num_devices);

// Since when it is so, of steady_now().
inline absl::Time since_of(const Activity& activity) {
  return absl::FromUnixNanos(static_cast<int64_t>(activity.since_ns));
}

// To a few milliseconds: for messages only. Read on every operation.
uint64_t monotonic_ns();

}  // namespace tessera::shm

#endif  // TESSERA_SHM_ACTIVITY_H_
