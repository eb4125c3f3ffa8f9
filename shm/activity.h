// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing DeviceActivity: what the stream of a device is doing, as all clients see it.
//
// Threads.
// - A slot has one writer at a time: the thread that runs a task of the device's stream, or that
//   has taken the stream.
// - A stopped stream runs tasks on their callers' threads; activities that these threads write may
//   be mixed.
// - Any thread of any client may read a slot and ring its bell.
// - Only the thread of the device's messages sleeps on the bell (MessagePump).
#ifndef TESSERA_SHM_ACTIVITY_H_
#define TESSERA_SHM_ACTIVITY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "shm/control.h"

namespace tessera::shm {

// The part that every operation writes. It has no text, which would cost as much as a small
// operation.
struct Activity {
  DeviceActivity::Kind kind = DeviceActivity::kNothing;
  bool has_label = false;  // the slot's label is this activity's; else it follows from the code
  uint16_t code = 0;       // the operation, as the writer numbers operations
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
  // False where the writer was interrupted while it wrote, for long or for ever (it died): the
  // fields may then belong to different activities, and are good for a message alone.
  bool consistent = false;
};

// Writes the activity; the first function keeps the label, the second replaces it.
void write_activity(DeviceActivity& slot, const Activity& activity);
void write_activity(DeviceActivity& slot, const Activity& activity, absl::string_view label);
// Writes the activity of an operation, with its own label if it has one, with the present time.
// Fills in the activity's has_label and since_ns.
void publish_activity(DeviceActivity& slot, Activity& activity, absl::string_view label);
// Changes the kind, and the time since which it holds.
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

// The begin of the activity, by steady_now().
inline absl::Time since_of(const Activity& activity) {
  return absl::FromUnixNanos(static_cast<int64_t>(activity.since_ns));
}

// Exact to a few milliseconds: for messages only. Read on every operation.
uint64_t monotonic_ns();

}  // namespace tessera::shm

#endif  // TESSERA_SHM_ACTIVITY_H_
