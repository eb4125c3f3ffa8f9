// SPDX-License-Identifier: Apache-2.0
//
// The calls of threads: groups, and sends, receives and collectives as transfers between two ranks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/fake/fake_nccl_state.h"

namespace tessera::nccl {

Status FakeNccl::group_start() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["group_start"];
  ++thread_group().depth;
  return absl::OkStatus();
}

void FakeNccl::wait_to_free(int gpu) {
  ThreadGroup& group = thread_group();
  if (group.depth > 0) {
    group.freed_on.insert(gpu);
  } else {
    cuda_->wait_for_gpu(gpu);
  }
}

Status FakeNccl::group_end() {
  const Status status = launch_group();
  if (thread_group().depth > 0) return status;
  for (const int gpu : std::exchange(thread_group().freed_on, {})) cuda_->wait_for_gpu(gpu);
  return status;
}

Status FakeNccl::launch_group() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["group_end"];
  ThreadGroup& group = thread_group();
  if (group.depth == 0) return misuse("group_end: no group was started");
  if (--group.depth > 0) return absl::OkStatus();
  std::vector<Call> calls = std::exchange(group.calls, {});
  // By communicator, in the order of their first calls.
  while (!calls.empty()) {
    const std::shared_ptr<Comm> comm = calls[0].comm;
    const auto others = std::stable_partition(calls.begin(), calls.end(),
                                              [&](const Call& call) { return call.comm == comm; });
    std::vector<Call> own(std::make_move_iterator(calls.begin()), std::make_move_iterator(others));
    calls.erase(calls.begin(), others);
    TESSERA_RETURN_IF_ERROR(launch_or_defer(*comm, std::move(own)));
  }
  return absl::OkStatus();
}

Status FakeNccl::launch_or_defer(Comm& comm, std::vector<Call> calls) {
  take_stall("group_end", comm);
  if (comm.stalled_polls == 0) return launch(std::move(calls));
  comm.deferred = std::move(calls);
  return absl::OkStatus();
}

FakeNccl::ThreadGroup& FakeNccl::thread_group() {
  thread_local ThreadGroup group;
  return group;
}

Status FakeNccl::submit(Call call) {
  if (thread_group().depth > 0) {
    thread_group().calls.push_back(std::move(call));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(check_ungrouped(call));
  const std::shared_ptr<Comm> comm = call.comm;
  if (call.operation.is_message()) ++comm->queued_ungrouped;
  std::vector<Call> calls;
  calls.push_back(std::move(call));
  return launch_or_defer(*comm, std::move(calls));
}

Status FakeNccl::check_ungrouped(const Call& call) {
  Comm& comm = *call.comm;
  const bool is_message = call.operation.is_message();
  if (is_message && comm.queued_ungrouped > 0) {
    return misuse("send/recv: outside of a group while another one is under way");
  }
  for (const auto& [rank, other] : comm.world->ranks) {
    if (rank != comm.rank && other->maker == comm.maker && !is_message) {
      return misuse("a collective for one of several ranks of a thread, outside of a group");
    }
  }
  return absl::OkStatus();
}

StatusOr<FakeNccl::Call> FakeNccl::begin_call(absl::string_view function, CommHandle comm,
                                              StreamHandle stream) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work(function, comm));
  return Call{std::move(found), stream, {}};
}

Status FakeNccl::send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
                      StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_call("send", comm, stream));
  call.operation.sends.push_back({peer, const_cast<std::byte*>(from), num_bytes, "send/recv"});
  return submit(std::move(call));
}

Status FakeNccl::recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
                      StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_call("recv", comm, stream));
  call.operation.recvs.push_back({peer, to, num_bytes, "send/recv"});
  return submit(std::move(call));
}

Status FakeNccl::all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes,
                            CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_call("all_gather", comm, stream));
  Operation& operation = call.operation;
  const auto rank = static_cast<uint64_t>(call.comm->rank);
  for (int peer = 0; peer < call.comm->world->num_ranks; ++peer) {
    if (peer == call.comm->rank) continue;
    operation.sends.push_back({peer, const_cast<std::byte*>(from), num_bytes, "all_gather"});
    operation.recvs.push_back(
        {peer, to + static_cast<uint64_t>(peer) * num_bytes, num_bytes, "all_gather"});
  }
  operation.from = from;
  operation.to = to + rank * num_bytes;
  operation.num_bytes = num_bytes;
  return submit(std::move(call));
}

Status FakeNccl::broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                           CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_call("broadcast", comm, stream));
  Operation& operation = call.operation;
  const std::string name = absl::StrCat("broadcast from ", root);
  operation.to = to;
  operation.from = to;
  operation.num_bytes = num_bytes;
  if (call.comm->rank == root) {
    operation.from = from;
    for (int peer = 0; peer < call.comm->world->num_ranks; ++peer) {
      if (peer == root) continue;
      operation.sends.push_back({peer, const_cast<std::byte*>(from), num_bytes, name});
    }
  } else {
    operation.recvs.push_back({root, to, num_bytes, name});
  }
  return submit(std::move(call));
}

Status FakeNccl::all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                            ReduceOp op, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_reduction("all_reduce", dtype, op, comm, stream));
  const auto num_ranks = static_cast<uint64_t>(call.comm->world->num_ranks);
  return submit_reduction(
      std::move(call),
      {.call = absl::StrCat("all_reduce ", reduce_op_name(op), " ", dtype_name(dtype)),
       .dtype = dtype,
       .op = op,
       .from = from,
       .parts = std::vector<Reduction::Part>(num_ranks, {0, count}),
       .to = to,
       .first_owner = 0,
       .chunk = (count + num_ranks - 1) / num_ranks});
}

Status FakeNccl::reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                        ReduceOp op, int root, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_reduction("reduce", dtype, op, comm, stream));
  std::vector<Reduction::Part> parts(call.comm->world->num_ranks, {0, 0});
  if (static_cast<size_t>(root) < parts.size()) parts[root].count = count;
  return submit_reduction(std::move(call), {.call = absl::StrCat("reduce ", reduce_op_name(op), " ",
                                                                 dtype_name(dtype), " to ", root),
                                            .dtype = dtype,
                                            .op = op,
                                            .from = from,
                                            .parts = std::move(parts),
                                            .to = to,
                                            .first_owner = root,
                                            .chunk = count});
}

Status FakeNccl::reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                                ReduceOp op, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_reduction("reduce_scatter", dtype, op, comm, stream));
  const int rank = call.comm->rank;
  std::vector<Reduction::Part> parts;
  for (int k = 0; k < call.comm->world->num_ranks; ++k) {
    parts.push_back({static_cast<uint64_t>(k) * count, count});
  }
  return submit_reduction(
      std::move(call),
      {.call = absl::StrCat("reduce_scatter ", reduce_op_name(op), " ", dtype_name(dtype)),
       .dtype = dtype,
       .op = op,
       .from = from,
       .parts = std::move(parts),
       .to = to,
       .first_owner = rank,
       .chunk = count});
}

StatusOr<FakeNccl::Call> FakeNccl::begin_reduction(absl::string_view function, DType dtype,
                                                   ReduceOp op, CommHandle comm,
                                                   StreamHandle stream) {
  TESSERA_ASSIGN_OR_RETURN(Call call, begin_call(function, comm, stream));
  const bool is_avg_of_integers = op == ReduceOp::kAvg && !is_floating_point(dtype);
  if (dtype == DType::kBool || is_avg_of_integers) {
    return misuse(absl::StrCat(function, ": ", reduce_op_name(op), " of ", dtype_name(dtype)));
  }
  return call;
}

Status FakeNccl::submit_reduction(Call call, Reduction reduction) {
  Operation& operation = call.operation;
  const int rank = call.comm->rank;
  const int num_ranks = call.comm->world->num_ranks;
  operation.reduction = std::make_shared<Reduction>(std::move(reduction));
  Reduction& own = *operation.reduction;
  const auto size = static_cast<uint64_t>(dtype_size(own.dtype));
  const uint64_t own_bytes = own.parts[rank].count * size;
  // Ranks that owe each other nothing meet too, to find out where they do not agree.
  for (int peer = 0; peer < num_ranks; ++peer) {
    const std::byte* part = own.from + own.parts[peer].first * size;
    own.terms.emplace_back(own_bytes);
    if (peer == rank) continue;
    operation.sends.push_back(
        {peer, const_cast<std::byte*>(part), own.parts[peer].count * size, own.call});
    operation.recvs.push_back({peer, own.terms.back().data(), own_bytes, own.call});
  }
  // Its own term is copied when the stream reaches the operation, as the others' are.
  operation.from = own.from + own.parts[rank].first * size;
  operation.to = own.to;
  operation.num_bytes = own_bytes;
  return submit(std::move(call));
}

}  // namespace tessera::nccl
