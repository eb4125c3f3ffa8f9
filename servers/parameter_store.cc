// SPDX-License-Identifier: Apache-2.0
#include "servers/parameter_store.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "base/text.h"
#include "device/cpu/kernels.h"

namespace tessera::distribute::internal {

Status ParameterStore::create(int variable, int shard, const std::string& name, HostArray value) {
  TESSERA_RETURN_IF_ERROR(
      with_context(value.validate(), absl::StrCat("variable ", in_quotes(name))));
  std::unique_lock<std::shared_mutex> lock(mutex_);
  // A repeated call: pushes may have changed the value since the first.
  if (shards_.count({variable, shard}) > 0) return absl::OkStatus();
  std::string bytes(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
  auto spare = std::make_shared<Spare>();
  shards_[{variable, shard}] = {value.dtype, spare, value_of(std::move(bytes), spare)};
  return absl::OkStatus();
}

StatusOr<const ParameterStore::Shard*> ParameterStore::find(int variable, int shard) const {
  const auto it = shards_.find({variable, shard});
  if (it != shards_.end()) return &it->second;
  return absl::NotFoundError(
      absl::StrCat("shard ", shard, " of variable ", variable, " is not on this parameter server"));
}

StatusOr<std::shared_ptr<const std::string>> ParameterStore::read(int variable, int shard) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const Shard* const found, find(variable, shard));
  return found->bytes;
}

ParameterStore::Value ParameterStore::value_of(std::string bytes, std::shared_ptr<Spare> spare) {
  return Value(new std::string(std::move(bytes)), [spare = std::move(spare)](std::string* value) {
    const std::unique_ptr<std::string> owned(value);
    std::lock_guard<std::mutex> lock(spare->mutex);
    if (spare->memory.capacity() < value->capacity()) spare->memory.swap(*value);
  });
}

std::string ParameterStore::spare_memory(int variable, int shard) const {
  std::shared_lock<std::shared_mutex> lock(mutex_);
  const StatusOr<const Shard*> found = find(variable, shard);
  std::string memory;
  if (!found.ok()) return memory;
  std::lock_guard<std::mutex> spare_lock((*found)->spare->mutex);
  memory.swap((*found)->spare->memory);
  memory.clear();
  return memory;
}

Status ParameterStore::stage(const RunKey& run, int index, Push push) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const Shard* const found, find(push.variable, push.shard));
  if (push.bytes.size() != found->bytes->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a push of ", push.bytes.size(), " bytes to shard ", push.shard, " of variable ",
        push.variable, ", which has ", found->bytes->size(), " bytes"));
  }
  return ledger_.stage(run, index, std::move(push));
}

Status ParameterStore::update(const ServerUpdate& update) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(std::vector<Push> pushes, ledger_.update(update));
  for (Push& push : pushes) apply(std::move(push));
  return absl::OkStatus();
}

// The memory of the push becomes the new value, because readers may still be sending the old one.
void ParameterStore::apply(Push push) {
  Shard& shard = shards_[{push.variable, push.shard}];
  if (push.kind == PushKind::kAdd) {
    const auto* const value = reinterpret_cast<const std::byte*>(shard.bytes->data());
    auto* const delta = reinterpret_cast<std::byte*>(push.bytes.data());
    const int64_t num_elements =
        static_cast<int64_t>(shard.bytes->size()) / dtype_size(shard.dtype);
    cpu::reduce(shard.dtype, ReduceOp::kSum, {value, delta}, {delta}, num_elements);
  }
  shard.bytes = value_of(std::move(push.bytes), shard.spare);
}

}  // namespace tessera::distribute::internal
