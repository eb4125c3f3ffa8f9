// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/last_seen.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/format.h"
#include "collectives/host/op_record.h"
#include "collectives/label.h"
#include "shm/control.h"

namespace tessera::host {
namespace {

struct Call {
  OpKind op;
  DType dtype;
  ReduceOp reduction;
};

// False where activity_code() cannot make the code.
bool read_code(uint16_t code, Call& call) {
  const int op = code & 0xff;
  const int dtype = code >> 8 & 0xf;
  const int reduction = code >> 12;
  call = {static_cast<OpKind>(op), static_cast<DType>(dtype), static_cast<ReduceOp>(reduction)};
  return op < kNumOpKinds && dtype <= static_cast<int>(DType::kFloat64) &&
         reduction <= static_cast<int>(ReduceOp::kAvg);
}

}  // namespace

shm::ActivitySnapshot last_seen(const shm::HostLink& link, int client, int ordinal) {
  shm::ActivitySnapshot seen =
      shm::read_activity(shm::activity_slot(link.memory().control(client), ordinal));
  Call call;
  if (!read_code(seen.code, call)) return shm::ActivitySnapshot();
  if (seen.has_label) return seen;
  int32_t own_id = ordinal;
  for (int i = 0; i < client; ++i) own_id += link.members()[i].num_local_devices;
  std::vector<int32_t> ids;
  // A torn snapshot may have an invalid offset, which is not followed.
  if (seen.consistent && seen.block_offset != 0) ids = devices_in(link, seen);
  if (seen.consistent && seen.block_offset == 0) ids = {own_id};
  seen.label = default_label(call.op, call.dtype, call.reduction, seen.count, ids);
  return seen;
}

std::string describe_last_seen(const shm::ActivitySnapshot& seen) {
  if (seen.kind == shm::DeviceActivity::kNothing) return "which has not run any operation yet";
  const std::string age =
      format_duration(absl::Nanoseconds(static_cast<int64_t>(shm::monotonic_ns() - seen.since_ns)));
  switch (seen.kind) {
    case shm::DeviceActivity::kRunning:
      return absl::StrCat("still in ", seen.label, " for ", age);
    case shm::DeviceActivity::kWaiting:
      return absl::StrCat("waiting in ", seen.label, " for ", age);
    default:
      return absl::StrCat("last seen at ", seen.label, ", ", age, " ago");
  }
}

shm::GroupMember device_of_id(const shm::HostLink& link, int device_id) {
  int client = 0;
  int first = 0;
  while (client + 1 < link.members().num_clients() &&
         device_id >= first + link.members()[client].num_local_devices) {
    first += link.members()[client].num_local_devices;
    ++client;
  }
  return {device_id, client, device_id - first};
}

std::vector<int32_t> devices_in(const shm::HostLink& link, const shm::Activity& activity) {
  if (activity.leader_client >= static_cast<uint64_t>(link.members().num_clients())) return {};
  std::byte* const region = link.memory().control(static_cast<int>(activity.leader_client));
  const auto find = [&] {
    return shm::GroupTable::find(region, activity.block_offset, activity.generation);
  };
  shm::GroupBlock* const block = find();
  if (block == nullptr) return {};
  // All that another process has written is compared with what there can be.
  const uint32_t num_ids = block->num_members;
  if (num_ids > kMaxMembers ||
      link.memory().find_in_control(activity.leader_client, activity.block_offset,
                                    sizeof(shm::GroupBlock) + num_ids * sizeof(int32_t)) ==
          nullptr) {
    return {};
  }
  std::vector<int32_t> ids(num_ids);
  const int32_t* const first = shm::device_ids(block);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = std::atomic_ref(first[i]).load(std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // The memory may have become another block's meanwhile.
  if (find() == nullptr) return {};
  int num_devices = 0;
  for (int i = 0; i < link.members().num_clients(); ++i)
    num_devices += link.members()[i].num_local_devices;
  const bool are_devices =
      std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < num_devices; });
  return are_devices ? ids : std::vector<int32_t>();
}

}  // namespace tessera::host
