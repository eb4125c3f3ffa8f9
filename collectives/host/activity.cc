// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/activity.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/format.h"

namespace tessera::host {

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::string ActivitySnapshot::to_string() const {
  if (kind == DeviceActivity::kNothing) return "which has not run any operation yet";
  const std::string age =
      format_duration(absl::Nanoseconds(static_cast<int64_t>(monotonic_ns() - since_ns)));
  switch (kind) {
    case DeviceActivity::kRunning:
      return absl::StrCat("still in ", label, " for ", age);
    case DeviceActivity::kWaiting:
      return absl::StrCat("waiting in ", label, " for ", age);
    default:
      return absl::StrCat("last seen at ", label, ", ", age, " ago");
  }
}

void write_activity(DeviceActivity& slot, const ActivitySnapshot& snapshot) {
  const uint64_t version = slot.version.load(std::memory_order_relaxed);
  slot.version.store(version + 1, std::memory_order_seq_cst);
  slot.kind.store(snapshot.kind, std::memory_order_release);
  slot.since_ns.store(snapshot.since_ns, std::memory_order_release);
  slot.leader_client.store(snapshot.leader_client, std::memory_order_release);
  slot.block_offset.store(snapshot.block_offset, std::memory_order_release);
  slot.seq.store(snapshot.seq, std::memory_order_release);
  slot.name_hash.store(snapshot.name_hash, std::memory_order_release);
  char text[kLabelBytes] = {};
  std::memcpy(text, snapshot.label.data(),
              std::min<size_t>(snapshot.label.size(), kLabelBytes - 1));
  for (int i = 0; i < kLabelBytes / 8; ++i) {
    uint64_t word;
    std::memcpy(&word, text + 8 * i, 8);
    slot.label[i].store(word, std::memory_order_release);
    if (word == 0) break;
  }
  slot.version.store(version + 2, std::memory_order_seq_cst);
}

ActivitySnapshot read_activity(const DeviceActivity& slot) {
  ActivitySnapshot snapshot;
  for (int tries = 0; tries < 1000 && !snapshot.consistent; ++tries) {
    const uint64_t version = slot.version.load(std::memory_order_seq_cst);
    snapshot.kind = slot.kind.load(std::memory_order_acquire);
    snapshot.since_ns = slot.since_ns.load(std::memory_order_acquire);
    snapshot.leader_client = slot.leader_client.load(std::memory_order_acquire);
    snapshot.block_offset = slot.block_offset.load(std::memory_order_acquire);
    snapshot.seq = static_cast<uint32_t>(slot.seq.load(std::memory_order_acquire));
    snapshot.name_hash = slot.name_hash.load(std::memory_order_acquire);
    char text[kLabelBytes] = {};
    for (int i = 0; i < kLabelBytes / 8; ++i) {
      const uint64_t word = slot.label[i].load(std::memory_order_acquire);
      std::memcpy(text + 8 * i, &word, 8);
      if (word == 0) break;
    }
    text[kLabelBytes - 1] = '\0';
    snapshot.label = text;
    snapshot.consistent =
        version % 2 == 0 && slot.version.load(std::memory_order_seq_cst) == version;
  }
  return snapshot;
}

DeviceActivity& activity_slot(std::byte* control, int ordinal) {
  const auto* header = reinterpret_cast<const ControlHeader*>(control);
  return reinterpret_cast<DeviceActivity*>(control + header->activities_offset)[ordinal];
}

}  // namespace tessera::host
