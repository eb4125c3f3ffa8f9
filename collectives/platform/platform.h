// SPDX-License-Identifier: Apache-2.0
//
// Platform: the kind of devices that a client has: their number, the checks of the clients of a job
// before the start, the devices themselves, and the objects that move bytes among them.
//
//   StatusOr<std::unique_ptr<Platform>> platform = open_platform(type, options);
//   platform->default_num_devices()      where nothing says how many
//   platform->prepare(job)               before this process connects to the job
//   platform->join(coordinator, ...)     checks with one result on all clients
//   platform->start_devices(start)       once
//   platform->make_mover()               for HostBackend
//   platform->end()                      when the streams and the backend have stopped
//
// Only its factories know which kinds of devices there are (open_platform.h): the layers above use
// LocalDevice.
//
// Threads. The thread that connects the client calls the functions in this order; the thread that
// shuts it down calls end(). Any thread that makes a group calls the function that make_mover()
// returned; one thread at a time, and not after end().
#ifndef TESSERA_COLLECTIVES_PLATFORM_PLATFORM_H_
#define TESSERA_COLLECTIVES_PLATFORM_PLATFORM_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/host/device_mover.h"
#include "device/cpu/arena.h"
#include "device/device.h"
#include "device/local_device.h"
#include "job/coordinator/coordinator.h"
#include "job/environment/environment.h"
#include "shm/host_link.h"

namespace tessera {

namespace cuda {
struct Libraries;
}  // namespace cuda
namespace nccl {
class Api;
}  // namespace nccl
namespace span {
class Network;
}  // namespace span

struct PlatformOptions {
  // If not null, these replace the libraries of this machine for GPUs.
  std::shared_ptr<const cuda::Libraries> cuda = {};
  std::shared_ptr<nccl::Api> nccl = {};
  // Whether NCCL adds terms, instead of only moving bytes.
  bool nccl_adds = false;
  absl::Duration collective_timeout = absl::InfiniteDuration();
};

// The devices of one client.
class Platform {
 public:
  virtual ~Platform() = default;

  virtual int default_num_devices() const = 0;
  // Checks and sets the environment of this process, before libraries are loaded that read it.
  virtual Status prepare(const JobEnvironment& job) = 0;
  // Called once by every client of the job: the same errors on all clients of the host.
  virtual Status join(Coordinator& coordinator, absl::Time deadline) = 0;

  struct Start {
    absl::Span<const Device> devices;  // of the client, by ordinal
    shm::HostLink& link;               // outlives the platform
    std::shared_ptr<ArenaPool> pool;   // memory of the host
  };
  // By ordinal. They must outlive the platform.
  virtual StatusOr<std::vector<std::unique_ptr<LocalDevice>>> start_devices(const Start& start) = 0;
  // Null where devices use memory of the host. Movers use the platform and its devices until end().
  // A Work that the user holds keeps the mover of its group, which is then destroyed after the
  // platform and the devices.
  // `network`: to the clients of other hosts; null where there are none.
  virtual host::MakeDeviceMover make_mover(std::shared_ptr<span::Network> network) = 0;
  // Ends all work of movers that is under way. From then on no mover is used, and none is made.
  virtual void end() = 0;
};

// The name by which clients tell each other their type of devices: "cpu" or "cuda".
const char* device_type_name(DeviceType type);
// InvalidArgument unless all clients of a job have devices of one type.
Status check_device_types(absl::Span<const MemberInfo> members);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PLATFORM_PLATFORM_H_
