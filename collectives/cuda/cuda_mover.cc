// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/cuda_mover.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/buffer.h"
#include "device/cuda/kernel_plan.h"

namespace tessera::cuda {
namespace {

using host::MemberMemory;
using Members = absl::Span<const MemberMemory>;

// The members whose input this one reads, or whose output it writes.
std::vector<int> partners(const CollectiveCall& call, int member, const std::vector<int>& all) {
  switch (call.kind) {
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return {call.root};
    case OpKind::kGather:
      return member == call.root ? all : std::vector<int>{};
    case OpKind::kExchange: {
      std::vector<int> sources;
      for (const BoxPull& pull : call.pulls) sources.push_back(pull.source);
      std::sort(sources.begin(), sources.end());
      sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
      return sources;
    }
    default:
      return all;
  }
}

}  // namespace

StatusOr<std::unique_ptr<CudaMover>> CudaMover::create(std::vector<CudaDevice*> devices) {
  if (devices.size() > kMaxTerms) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", devices.size(), " GPUs; groups of up to ", kMaxTerms, " are there"));
  }
  return std::unique_ptr<CudaMover>(new CudaMover(std::move(devices)));
}

CudaMover::CudaMover(std::vector<CudaDevice*> devices)
    : devices_(std::move(devices)),
      all_(devices_.size()),
      slots_(devices_.size(), std::vector<Slot>(kSlots)) {
  std::iota(all_.begin(), all_.end(), 0);
}

CudaMover::~CudaMover() = default;

CudaMover::Slot CudaMover::slot(uint32_t seq, int member) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Slot& slot = slots_[member][seq % kSlots];
  return slot.seq == seq ? slot : Slot();
}

Status CudaMover::arrive(const CollectiveCall& /*call*/, uint32_t seq, int member,
                         absl::Span<std::byte> /*board*/) {
  TESSERA_ASSIGN_OR_RETURN(Event arrived, devices_[member]->queue().record());
  std::lock_guard<std::mutex> lock(mutex_);
  slots_[member][seq % kSlots] = {seq, std::move(arrived), nullptr};
  return absl::OkStatus();
}

Status CudaMover::wait_for(CudaDevice& device, uint32_t seq, int member, absl::Span<const int> of,
                           Event Slot::*event) {
  for (const int other : of) {
    if (other == member) continue;
    // A member that failed before its part has no event, and nothing to wait for.
    const Slot slot = this->slot(seq, other);
    if (slot.*event != nullptr) TESSERA_RETURN_IF_ERROR(device.queue().wait_for(slot.*event));
  }
  return absl::OkStatus();
}

// Orders the parts on the GPUs by events, without a wait of the host: this part runs after the
// `arrived` events of its partners, and records `left` for leave(), which lets later work of the
// other streams run after this part.
Status CudaMover::move(const CollectiveCall& call, uint32_t seq, int member, Members members) {
  TESSERA_RETURN_IF_ERROR(host::check_part(call, members));
  if (call.kind == OpKind::kSendRecv) return receive(call, seq, members);
  CudaDevice& device = *devices_[member];
  TESSERA_RETURN_IF_ERROR(
      wait_for(device, seq, member, partners(call, member, all_), &Slot::arrived));
  Status status = enqueue_part(call, member, members);
  if (members.size() == 1) return status;
  // Also after an error: the others must not reuse memory that an earlier kernel of this part
  // reads.
  TESSERA_ASSIGN_OR_RETURN(Event left, device.queue().record());
  std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[member][seq % kSlots];
  if (slot.seq == seq) slot.left = std::move(left);
  return status;
}

Status CudaMover::leave(uint32_t seq, int member) {
  return wait_for(*devices_[member], seq, member, all_, &Slot::left);
}

Status CudaMover::wait_done(int member, absl::Time deadline) {
  return devices_[member]->queue().wait_done(deadline);
}

Status CudaMover::enqueue_part(const CollectiveCall& call, int member, Members members) {
  CudaDevice& device = *devices_[member];
  const int64_t size = dtype_size(call.dtype);
  std::byte* out = members[member].out;
  switch (call.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      return reduce_chunk(call, member, members);
    case OpKind::kReduceBoxes:
      return reduce_box(call, member, members);
    case OpKind::kExchange: {
      CopyPlan plan;
      for (const BoxPull& pull : call.pulls) {
        add_copy(pull.box, members[pull.source].in, pull.source_box, out, call.out_box, size,
                 &plan);
      }
      return device.copy(plan);
    }
    default:
      for (const host::PieceCopy& piece : host::own_copies(call, member, members)) {
        if (piece.count == 0) continue;
        TESSERA_RETURN_IF_ERROR(device.copy_bytes(out + piece.to * size,
                                                  members[piece.source].in + piece.from * size,
                                                  piece.count * size));
      }
      return absl::OkStatus();
  }
}

Status CudaMover::reduce_chunk(const CollectiveCall& call, int member, Members members) {
  const host::Chunk chunk = host::own_chunk(call, member, members.size());
  if (chunk.count == 0) return absl::OkStatus();
  std::vector<const std::byte*> terms;
  for (const MemberMemory& other : members) {
    terms.push_back(other.in + chunk.first * dtype_size(call.dtype));
  }
  return devices_[member]->reduce(plan_reduce(
      call.dtype, call.reduction, terms, host::chunk_outputs(call, member, members), chunk.count));
}

Status CudaMover::reduce_box(const CollectiveCall& call, int member, Members members) {
  if (call.out_box->is_empty()) return absl::OkStatus();
  CudaDevice& device = *devices_[member];
  std::byte* out = members[member].out;
  const Box& first_box = call.pulls[0].source_box;
  const bool all_alike = std::all_of(call.pulls.begin(), call.pulls.end(),
                                     [&](const BoxPull& p) { return p.source_box == first_box; });
  std::vector<const std::byte*> terms;
  if (all_alike) {
    for (const MemberMemory& other : members) terms.push_back(other.in);
    return device.reduce(plan_reduce_box(call.dtype, call.reduction, call.out_box, terms, first_box,
                                         out, call.out_box));
  }
  // Terms with other strides are packed first. Their memory is freed as soon as the work is given
  // to the stream, which orders its next owner after that work.
  const int64_t size = dtype_size(call.dtype);
  const int64_t count = call.out_box->num_elements();
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<Buffer> packed,
      Buffer::allocate(device.memory(), count * size * static_cast<int64_t>(members.size())));
  CopyPlan plan;
  for (size_t k = 0; k < members.size(); ++k) {
    std::byte* term = packed->mutable_data() + static_cast<int64_t>(k) * count * size;
    add_copy(call.out_box, members[k].in, call.pulls[k].source_box, term, call.out_box, size,
             &plan);
    terms.push_back(term);
  }
  TESSERA_RETURN_IF_ERROR(device.copy(plan));
  return device.reduce(
      plan_reduce(call.dtype, call.reduction, terms, absl::MakeConstSpan(&out, 1), count));
}

// A message is copied on a queue of its own, so that neither device's stream waits for the other.
Status CudaMover::receive(const CollectiveCall& call, uint32_t seq, Members members) {
  const int64_t num_bytes = call.count * dtype_size(call.dtype);
  if (num_bytes == 0) return absl::OkStatus();
  const CudaQueue& own = devices_[1]->queue();
  if (messages_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(messages_, CudaQueue::create(own.api(), own.gpu()));
  }
  // After what the sender had done, and after what the receiver's stream does with the memory.
  for (const int end : {0, 1}) {
    const Slot slot = this->slot(seq, end);
    if (slot.arrived == nullptr) continue;
    TESSERA_RETURN_IF_ERROR(messages_->wait_for(slot.arrived));
  }
  TESSERA_RETURN_IF_ERROR(own.api()->copy(members[1].out, members[0].in,
                                          static_cast<uint64_t>(num_bytes), messages_->handle()));
  return messages_->wait_done(absl::InfiniteFuture());
}

}  // namespace tessera::cuda
