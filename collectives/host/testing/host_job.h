// SPDX-License-Identifier: Apache-2.0
//
// HostJob: clients of the host backend as threads of one process, for tests.
//
//   HostJob job({2, 2});                 two clients of two devices: devices 0, 1 and 2, 3
//   job.group(3, {0, 3})                 the group of devices 0 and 3, as device 3 sees it
//
// Each client has its own pool, link, streams and backend, and so its own mappings of everything
// that clients share: this exercises all that happens between processes, except their deaths.
#ifndef TESSERA_COLLECTIVES_HOST_TESTING_HOST_JOB_H_
#define TESSERA_COLLECTIVES_HOST_TESTING_HOST_JOB_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/group.h"
#include "collectives/host/host_backend.h"
#include "collectives/testing/conformance.h"
#include "device/cpu/arena.h"
#include "device/cpu/cpu_stream.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"

namespace tessera::host {

class HostJob {
 public:
  struct Client {
    std::shared_ptr<ArenaPool> pool;
    std::unique_ptr<shm::HostLink> link;
    std::vector<std::unique_ptr<CpuStream>> streams;
    std::unique_ptr<HostBackend> backend;
  };

  static StatusOr<std::unique_ptr<HostJob>> create(
      absl::Span<const int> devices_by_client,
      absl::Duration collective_timeout = absl::Seconds(6));
  ~HostJob();

  int num_devices() const { return static_cast<int>(devices_.size()); }
  Client& client(int id) { return clients_[id]; }
  testing::FakeJob& job() { return job_; }
  StatusOr<Group> group(int device, absl::Span<const int> device_ids);
  // Runs `body` on a thread for each device, as a member of the group of all devices; the first
  // error, with the device that had it.
  Status run(const conformance::MemberBody& body);

 private:
  explicit HostJob(absl::Span<const int> devices_by_client);
  Status connect(int client, absl::Duration collective_timeout);

  testing::FakeJob job_;
  std::vector<Device> devices_;
  std::vector<Client> clients_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_TESTING_HOST_JOB_H_
