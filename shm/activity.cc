// SPDX-License-Identifier: Apache-2.0
#include "shm/activity.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/time/time.h"
#include "shm/shared_word.h"

namespace tessera::shm {

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

namespace {

constexpr uint64_t kKindBits = 0xff;

// kind:8 | has_label:8 | code:16 | seq:32.
uint64_t pack(const Activity& activity) {
  return activity.kind | uint64_t{activity.has_label} << 8 | uint64_t{activity.code} << 16 |
         uint64_t{activity.seq} << 32;
}

// False where the word is none that pack() makes: another process may have overwritten it.
bool unpack(uint64_t word, Activity& activity) {
  const uint64_t kind = word & kKindBits;
  if (kind > DeviceActivity::kFinished) return false;
  activity.kind = static_cast<DeviceActivity::Kind>(kind);
  activity.has_label = (word >> 8 & 0xff) != 0;
  activity.code = static_cast<uint16_t>(word >> 16);
  activity.seq = static_cast<uint32_t>(word >> 32);
  return true;
}

// Lets readers see that the slot is being written meanwhile.
template <class Fn>
void write_between_versions(DeviceActivity& slot, Fn fields) {
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_relaxed);
  fields();
  slot.version.store(version + 2, std::memory_order_release);
}

void write_fields(DeviceActivity& slot, const Activity& activity) {
  slot.kind.store(pack(activity), std::memory_order_release);
  slot.since_ns.store(activity.since_ns, std::memory_order_release);
  slot.leader_client.store(activity.leader_client, std::memory_order_release);
  slot.block_offset.store(activity.block_offset, std::memory_order_release);
  slot.generation.store(activity.generation, std::memory_order_release);
  slot.name_hash.store(activity.name_hash, std::memory_order_release);
  slot.count.store(static_cast<uint64_t>(activity.count), std::memory_order_release);
}

}  // namespace

void write_activity(DeviceActivity& slot, const Activity& activity) {
  write_between_versions(slot, [&] { write_fields(slot, activity); });
}

void write_kind(DeviceActivity& slot, DeviceActivity::Kind kind) {
  write_between_versions(slot, [&] {
    const uint64_t rest = slot.kind.load(std::memory_order_relaxed) & ~kKindBits;
    slot.kind.store(rest | kind, std::memory_order_release);
    slot.since_ns.store(monotonic_ns(), std::memory_order_release);
  });
}

void write_activity(DeviceActivity& slot, const Activity& activity, absl::string_view label) {
  write_between_versions(slot, [&] {
    write_fields(slot, activity);
    label = label.substr(0, kLabelBytes - 1);
    for (size_t at = 0; at <= label.size(); at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, label.data() + at, std::min<size_t>(8, label.size() - at));
      slot.label[at / 8].store(word, std::memory_order_release);
    }
  });
}

// Writes the fields one by one. The caller has just filled in the activity field by field; a copy
// of the whole object would wait until those stores, and stores to lines that peers have read, are
// complete.
void publish_activity(DeviceActivity& slot, Activity& activity, absl::string_view label) {
  activity.has_label = !label.empty();
  activity.since_ns = monotonic_ns();
  if (!activity.has_label) return write_activity(slot, activity);
  const uint64_t before = slot.kind.load(std::memory_order_relaxed) & kKindBits;
  const bool is_new = before == DeviceActivity::kNothing || before == DeviceActivity::kFinished;
  if (!is_new) return write_activity(slot, activity);
  write_activity(slot, activity, label);
}

DeviceActivity::Kind read_kind(const DeviceActivity& slot) {
  return static_cast<DeviceActivity::Kind>(slot.kind.load(std::memory_order_acquire) & kKindBits);
}

ActivitySnapshot read_activity(const DeviceActivity& slot) {
  ActivitySnapshot snapshot;
  for (int tries = 0; tries < 1000 && !snapshot.consistent; ++tries) {
    const uint64_t version = slot.version.load(std::memory_order_acquire);
    if (!unpack(slot.kind.load(std::memory_order_acquire), snapshot)) {
      // A seqlock that is torn has parts of two writes, never parts of a word.
      return ActivitySnapshot();
    }
    snapshot.since_ns = slot.since_ns.load(std::memory_order_acquire);
    snapshot.leader_client = slot.leader_client.load(std::memory_order_acquire);
    snapshot.block_offset = slot.block_offset.load(std::memory_order_acquire);
    snapshot.generation = slot.generation.load(std::memory_order_acquire);
    snapshot.name_hash = slot.name_hash.load(std::memory_order_acquire);
    snapshot.count = static_cast<int64_t>(slot.count.load(std::memory_order_acquire));
    char text[kLabelBytes] = {};
    for (int i = 0; snapshot.has_label && i < kLabelBytes / 8; ++i) {
      const uint64_t word = slot.label[i].load(std::memory_order_acquire);
      std::memcpy(text + 8 * i, &word, 8);
      if (std::memchr(&word, 0, 8) != nullptr) break;
    }
    text[kLabelBytes - 1] = '\0';
    snapshot.label = text;
    snapshot.consistent =
        version % 2 == 0 && slot.version.load(std::memory_order_seq_cst) == version;
  }
  return snapshot;
}

void ring(DeviceActivity& slot) {
  slot.bell.fetch_add(1, std::memory_order_seq_cst);
  if (slot.num_bell_sleepers.load(std::memory_order_seq_cst) == 0) return;
  wake_all(slot.bell);
}

void wait_for_ring(DeviceActivity& slot, uint32_t seen, absl::Time deadline) {
  slot.num_bell_sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (slot.bell.load(std::memory_order_seq_cst) == seen &&
         sleep_while(slot.bell, seen, deadline)) {
  }
  slot.num_bell_sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

DeviceActivity& activity_slot(std::byte* control, int ordinal) {
  return reinterpret_cast<DeviceActivity*>(control + kActivitiesOffset)[ordinal];
}

DeviceActivity& call_slot(std::byte* control, int num_devices) {
  return activity_slot(control, num_devices);
}

}  // namespace tessera::shm
