// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/doing.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/format.h"
#include "collectives/host/last_seen.h"
#include "collectives/host/member_texts.h"
#include "shm/activity.h"

namespace tessera::host {
namespace {

bool is_active(const shm::ActivitySnapshot& seen) {
  return seen.kind == shm::DeviceActivity::kRunning || seen.kind == shm::DeviceActivity::kWaiting;
}

std::string describe_activity(const shm::ActivitySnapshot& seen) {
  const absl::string_view name = name_of_operation(seen.label);
  const std::string age = format_duration(steady_now() - shm::since_of(seen));
  switch (seen.kind) {
    case shm::DeviceActivity::kNothing:
      return "in user code, without any operation so far";
    case shm::DeviceActivity::kRunning:
      return absl::StrCat("in ", name, " for ", age);
    case shm::DeviceActivity::kWaiting:
      return absl::StrCat("waiting in ", name, " for ", age);
    default:
      return absl::StrCat("in user code for ", age, " since ", name);
  }
}

// The activity of the device. Where the device is idle: the call in which a thread of its client
// waits, or else the last activity of the client.
shm::ActivitySnapshot find_activity(const shm::HostLink& link, const shm::GroupMember& device) {
  const int client = device.client_id;
  const shm::ActivitySnapshot own = last_seen(link, client, device.ordinal);
  if (is_active(own)) return own;
  const int num_devices = link.members()[client].num_local_devices;
  shm::ActivitySnapshot latest =
      shm::read_activity(shm::call_slot(link.memory().control(client), num_devices));
  if (is_active(latest)) return latest;
  for (int ordinal = 0; ordinal < num_devices; ++ordinal) {
    const shm::ActivitySnapshot seen = last_seen(link, client, ordinal);
    if (seen.kind != shm::DeviceActivity::kFinished) continue;
    if (latest.kind == shm::DeviceActivity::kNothing || seen.since_ns > latest.since_ns)
      latest = seen;
  }
  return latest;
}

}  // namespace

std::string describe_stop(const MemberInfo& member) {
  std::ifstream file(absl::StrCat("/proc/", member.pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  // "PID (NAME) STATE ...", where a name may have anything.
  const size_t name_end = stat.rfind(") ");
  if (name_end == stat.npos || name_end + 2 >= stat.size()) return "";
  switch (stat[name_end + 2]) {
    case 'T':
      return "stopped";
    case 't':
      return "stopped by a debugger";
    default:
      return "";
  }
}

std::string describe_doing(const shm::HostLink& link, const shm::GroupMember& device) {
  const std::string stop = describe_stop(link.members()[device.client_id]);
  return absl::StrCat(stop, stop.empty() ? "" : ", ",
                      describe_activity(find_activity(link, device)));
}

}  // namespace tessera::host
