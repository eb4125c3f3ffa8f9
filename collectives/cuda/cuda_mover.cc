// SPDX-License-Identifier: Apache-2.0
#include "collectives/cuda/cuda_mover.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "device/buffer.h"
#include "device/cuda/kernel_plan.h"

namespace tessera::cuda {
namespace {

using Members = absl::Span<const MemberMemory>;

// The sources of the pulls, ascending.
std::vector<int> sources_of(absl::Span<const BoxPull> pulls) {
  std::vector<int> sources;
  for (const BoxPull& pull : pulls) sources.push_back(pull.source);
  std::sort(sources.begin(), sources.end());
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  return sources;
}

// Where `box` begins in a dense buffer that holds `held`. Requires boxes of rank 1.
int64_t offset_bytes(const Box& box, const Box& held, int64_t element_bytes) {
  return (box.offsets[0] - held.offsets[0]) * element_bytes;
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

Status CudaMover::arrive(const Collective& /*collective*/, const Arguments& /*arguments*/,
                         uint32_t seq, int member, absl::Span<std::byte> /*board*/) {
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
Status CudaMover::move(const Collective& collective, const Arguments& arguments, uint32_t seq,
                       int member, Members members) {
  std::vector<BoxPull> made;
  const StatusOr<absl::Span<const BoxPull>> pulls = checked_pulls(collective, members, made);
  Status checked = pulls.status();
  checked.Update(check_terms(collective, members));
  if (!checked.ok()) return with_context(checked, arguments.label.to_string());
  if (collective.kind() == OpKind::kSendRecv) return receive(collective, seq, members);
  CudaDevice& device = *devices_[member];
  const bool reduces = collective.reduction() != nullptr;
  TESSERA_RETURN_IF_ERROR(
      wait_for(device, seq, member, reduces ? all_ : sources_of(*pulls), &Slot::arrived));
  Status status = reduces ? reduce(collective, members) : copy(collective, *pulls, members);
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

Status CudaMover::copy(const Collective& collective, absl::Span<const BoxPull> pulls,
                       Members members) {
  const int member = collective.place().position;
  if (collective.fill().has_value()) {
    const auto identity = identity_element(*collective.fill(), collective.dtype());
    TESSERA_RETURN_IF_ERROR(devices_[member]->fill(collective.dtype(), identity.data(),
                                                   members[member].out,
                                                   collective.out_box().num_elements()));
  }
  CopyPlan plan;
  for (const BoxPull& pull : pulls) {
    add_copy(pull.box, members[pull.source].in, pull.source_box, members[member].out,
             collective.out_box(), dtype_size(collective.dtype()), &plan);
  }
  return devices_[member]->copy(plan);
}

Status CudaMover::reduce(const Collective& collective, Members members) {
  const Box& box = collective.reduction()->box;
  if (box.is_empty()) return absl::OkStatus();
  if (box.sizes.size() == 1) return reduce_run(collective, members);
  return reduce_box(collective, members);
}

// A box of rank 1, into one output or several.
Status CudaMover::reduce_run(const Collective& collective, Members members) {
  using Target = BoxReduction::Target;
  const BoxReduction& reduction = *collective.reduction();
  const int64_t size = dtype_size(collective.dtype());
  const int own = collective.place().position;
  const int64_t out_offset = offset_bytes(reduction.box, collective.out_box(), size);
  std::vector<const std::byte*> terms;
  std::vector<std::byte*> outs;
  for (size_t k = 0; k < members.size(); ++k) {
    const Box& held = reduction.held_by(static_cast<int>(k));
    terms.push_back(members[k].in + offset_bytes(reduction.box, held, size));
    if (reduction.target == Target::kAll) outs.push_back(members[k].out + out_offset);
  }
  if (reduction.target == Target::kOwn) outs = {members[own].out + out_offset};
  if (reduction.target == Target::kRoot) outs = {members[collective.root()].out + out_offset};
  return devices_[own]->reduce(
      plan_reduce(collective.dtype(), collective.op(), terms, outs, reduction.box.sizes[0]));
}

// A box into the member's own output.
Status CudaMover::reduce_box(const Collective& collective, Members members) {
  const BoxReduction& reduction = *collective.reduction();
  const Box& box = reduction.box;
  const int own = collective.place().position;
  CudaDevice& device = *devices_[own];
  const DType dtype = collective.dtype();
  std::byte* out = members[own].out;
  const int n = static_cast<int>(members.size());
  bool all_alike = true;
  std::vector<const std::byte*> terms;
  for (int k = 0; k < n; ++k) {
    all_alike &= reduction.held_by(k) == reduction.held_by(0);
    terms.push_back(members[k].in);
  }
  if (all_alike) {
    return device.reduce(plan_reduce_box(dtype, collective.op(), box, terms, reduction.held_by(0),
                                         out, collective.out_box()));
  }
  // Terms with other strides are packed first. Their memory is freed as soon as the work is given
  // to the stream, which orders its next owner after that work.
  const int64_t size = dtype_size(dtype);
  const int64_t count = box.num_elements();
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> packed,
                           Buffer::allocate(device.memory(), count * size * n));
  CopyPlan plan;
  for (int k = 0; k < n; ++k) {
    std::byte* term = packed->mutable_data() + k * count * size;
    add_copy(box, members[k].in, reduction.held_by(k), term, box, size, &plan);
    terms[k] = term;
  }
  TESSERA_RETURN_IF_ERROR(device.copy(plan));
  return device.reduce(
      plan_reduce(dtype, collective.op(), terms, absl::MakeConstSpan(&out, 1), count));
}

// A message is copied on a queue of its own, so that neither device's stream waits for the other.
Status CudaMover::receive(const Collective& collective, uint32_t seq, Members members) {
  const int64_t num_bytes = collective.count() * dtype_size(collective.dtype());
  if (num_bytes == 0) return absl::OkStatus();
  const CudaQueue& own = devices_[1]->queue();
  if (messages_ == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(messages_, CudaQueue::create(own.api(), own.gpu()));
  }
  // Waits for the sender's earlier work, and for the receiver's earlier work with the memory.
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
