// SPDX-License-Identifier: Apache-2.0
//
// CudaMover: collectives among the GPUs of one client, by direct copies and reduce kernels.
//
//   device 0   ... work | A0   wait A1 A2   part 0 | L0   wait L1 L2 | work ...
//   device 1   ... work | A1   wait A0 A2   part 1 | L1   wait L0 L2 | work ...     one CUDA stream
//   device 2   ... work | A2   wait A0 A1   part 2 | L2   wait L0 L1 | work ...     a device
//
// A and L are events. Each device reads and writes the memory of the others directly, so the
// member's Collective defines the part of a device. In an all-reduce each device adds its chunk of
// the terms, in ascending order of the members, and writes it to every output. Steps and bytes are
// the host backend's (host_backend.h). So are the bits of the results, except which NaN is the
// result where several NaNs are added.
//
// The members are at most kMaxTerms, and their GPUs reach each other's memory.
#ifndef TESSERA_COLLECTIVES_CUDA_CUDA_MOVER_H_
#define TESSERA_COLLECTIVES_CUDA_CUDA_MOVER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/host/device_mover.h"
#include "collectives/move.h"
#include "device/cuda/cuda_device.h"

namespace tessera::cuda {

class CudaMover : public host::DeviceMover {
 public:
  // `devices` by member, null for devices of other clients. They must outlive the mover.
  // Unimplemented for more members than a kernel has terms.
  static StatusOr<std::unique_ptr<CudaMover>> create(std::vector<CudaDevice*> devices);
  ~CudaMover() override;

  Status arrive(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
                absl::Span<std::byte> board) override;
  Status move(const Collective& collective, const Arguments& arguments, uint32_t seq, int member,
              absl::Span<const MemberMemory> members) override;
  Status leave(uint32_t seq, int member) override;
  Status wait_done(int member, absl::Time deadline) override;

 private:
  // The events of one operation of one member.
  struct Slot {
    uint32_t seq = 0;
    Event arrived;
    Event left;
  };
  // Larger than the number of operations that a group has under way (GroupRecords::num_records()).
  static constexpr size_t kSlots = 64;

  explicit CudaMover(std::vector<CudaDevice*> devices);
  Slot slot(uint32_t seq, int member) const;
  // Makes the stream wait for the event of each of these members, if it has one; not for its own.
  Status wait_for(CudaDevice& device, uint32_t seq, int member, absl::Span<const int> of,
                  Event Slot::*event);
  // The two steps that a Collective consists of, on the member's stream.
  Status copy(const Collective& collective, absl::Span<const BoxPull> pulls,
              absl::Span<const MemberMemory> members);
  Status reduce(const Collective& collective, absl::Span<const MemberMemory> members);
  Status reduce_run(const Collective& collective, absl::Span<const MemberMemory> members);
  Status reduce_box(const Collective& collective, absl::Span<const MemberMemory> members);
  Status receive(const Collective& collective, uint32_t seq,
                 absl::Span<const MemberMemory> members);

  const std::vector<CudaDevice*> devices_;
  std::vector<int> all_;

  mutable std::mutex mutex_;              // guards slots_
  std::vector<std::vector<Slot>> slots_;  // by member, by seq % kSlots

  // The receiver's queue for messages. It is separate from its device's stream, so that messages do
  // not hold that up. Created by the first message, on the only thread that receives.
  std::unique_ptr<CudaQueue> messages_;
};

}  // namespace tessera::cuda

#endif  // TESSERA_COLLECTIVES_CUDA_CUDA_MOVER_H_
