// SPDX-License-Identifier: Apache-2.0
//
// Device: a place that can hold a shard, as every client of the job sees it.
//
//   client 0: devices 0, 1     ids are 0..n-1 over the job, ordered by client, then by local
//   client 1: devices 2, 3     ordinal: device 3 is client 1's ordinal 1
//
// A CPU device is a worker with its own stream; any number of them fits on one machine.
#ifndef TESSERA_DEVICE_DEVICE_H_
#define TESSERA_DEVICE_DEVICE_H_

#include <cstdint>
#include <string>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  int id = 0;
  int client_id = 0;
  int ordinal = 0;
  DeviceType type = DeviceType::kCpu;
  std::string host;

  friend bool operator==(const Device& a, const Device& b) {
    return a.id == b.id && a.client_id == b.client_id && a.ordinal == b.ordinal &&
           a.type == b.type && a.host == b.host;
  }
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_DEVICE_H_
