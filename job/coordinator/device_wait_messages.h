// SPDX-License-Identifier: Apache-2.0
//
// DeviceWait as a message, and back.
#ifndef TESSERA_JOB_COORDINATOR_DEVICE_WAIT_MESSAGES_H_
#define TESSERA_JOB_COORDINATOR_DEVICE_WAIT_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "job/coordinator/device_wait.h"
#include "job/coordinator/id_ranges.h"
#include "tessera/job/coordinator/coordinator.pb.h"

namespace tessera {

using DeviceWaitMessages = google::protobuf::RepeatedPtrField<rpc::DeviceWait>;

inline void write_waits(const std::vector<DeviceWait>& waits, DeviceWaitMessages* messages) {
  for (const DeviceWait& wait : waits) {
    rpc::DeviceWait& message = *messages->Add();
    message.set_device(wait.device);
    message.set_group(wait.run.group);
    message.set_seq(wait.run.seq);
    message.set_spans_hosts(wait.spans_hosts);
    message.set_name_hash(wait.name_hash);
    message.set_label(wait.label);
    for (const IdRanges::Range& range : wait.group) {
      message.add_members(range.begin);
      message.add_members(range.end);
    }
    const std::vector<int32_t> missing = wait.missing.to_numbers();
    message.mutable_missing()->Assign(missing.begin(), missing.end());
  }
}

inline std::vector<DeviceWait> read_waits(const DeviceWaitMessages& messages) {
  std::vector<DeviceWait> waits;
  for (const rpc::DeviceWait& message : messages) {
    waits.push_back({.device = message.device(),
                     .run = {message.group(), message.seq()},
                     .spans_hosts = message.spans_hosts(),
                     .name_hash = message.name_hash(),
                     .label = message.label(),
                     .group = {},
                     .missing = IdRanges::of_numbers(message.missing())});
    for (int i = 0; i + 1 < message.members_size(); i += 2) {
      waits.back().group.push_back({message.members(i), message.members(i + 1)});
    }
  }
  return waits;
}

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_DEVICE_WAIT_MESSAGES_H_
