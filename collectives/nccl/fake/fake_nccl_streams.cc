// SPDX-License-Identifier: Apache-2.0
//
// The work of streams, given and run: ranks leave each other letters, and go on once theirs are
// read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/fake/fake_nccl.h"
#include "collectives/nccl/fake/fake_nccl_state.h"
#include "collectives/nccl/fake/ring_sum.h"

namespace tessera::nccl {

Status FakeNccl::launch(std::vector<Call> calls) {
  const std::shared_ptr<Comm> comm = calls[0].comm;
  const StreamHandle stream = calls[0].stream;
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Operation> operation, merge(std::move(calls)));
  std::set<int> peers;
  for (auto* transfers : {&operation->sends, &operation->recvs}) {
    for (const Transfer& transfer : *transfers) peers.insert(transfer.peer);
  }
  const auto broken = broken_links_.find(++num_operations_);
  if (broken != broken_links_.end()) {
    operation->never_ends = true;
    comm->error = broken->second;
  }
  for (const int peer : peers) log_meeting(*comm->world, *comm, *comm->world->ranks[peer]);
  ++comm->queued;
  ++num_queued_;
  const Status status = cuda_->enqueue_work(
      "NCCL", operation->memory(), [this, comm, operation] { run(comm, *operation); }, stream);
  if (!status.ok()) {
    --comm->queued;
    --num_queued_;
  }
  return status;
}

StatusOr<std::shared_ptr<fake::Operation>> FakeNccl::merge(std::vector<Call> calls) {
  const StreamHandle stream = calls[0].stream;
  auto merged = std::make_shared<Operation>();
  for (Call& call : calls) {
    if (call.stream != stream) return misuse("group_end: several streams in one group");
    if (!call.operation.is_message()) {
      if (calls.size() > 1) return misuse("group_end: a collective beside other calls");
      *merged = std::move(call.operation);
      break;
    }
    for (Transfer& send : call.operation.sends) merged->sends.push_back(std::move(send));
    for (Transfer& recv : call.operation.recvs) merged->recvs.push_back(std::move(recv));
  }
  return merged;
}

std::vector<fake::Bytes> fake::Operation::memory() const {
  std::vector<Bytes> result;
  const auto add = [&](const std::byte* begin, uint64_t size_bytes) {
    if (size_bytes > 0) result.emplace_back(begin, size_bytes);
  };
  for (const Transfer& send : sends) add(send.memory, send.num_bytes);
  // The terms that a reduction receives are in memory of the fake.
  if (reduction == nullptr) {
    for (const Transfer& recv : recvs) add(recv.memory, recv.num_bytes);
  }
  add(from, num_bytes);
  add(to, num_bytes);
  return result;
}

// In ordered streams both ends reach their meetings in the same order: the end that is ahead
// records its meeting, and the other end must reach that one next.
void FakeNccl::log_meeting(const World& world, const Comm& comm, const Comm& peer) {
  std::deque<uint64_t>& theirs = ahead_[{peer.seat, comm.seat}];
  if (theirs.empty()) {
    ahead_[{comm.seat, peer.seat}].push_back(world.number);
  } else if (theirs.front() == world.number) {
    theirs.pop_front();
  } else {
    misuse(absl::StrCat("GPUs ", comm.gpu, " and ", peer.gpu,
                        " use their communicators in different orders"))
        .IgnoreError();
  }
}

void FakeNccl::forget_meetings(const World& world) {
  for (auto& [pair, worlds] : ahead_) {
    worlds.erase(std::remove(worlds.begin(), worlds.end(), world.number), worlds.end());
  }
}

void FakeNccl::run(const std::shared_ptr<Comm>& comm, Operation& operation) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++comm->running;
  if (operation.never_ends) changed_.wait(lock, [&] { return comm->ended; });
  if (comm->ended) return end_work(*comm);
  Reduction* const reduction = operation.reduction.get();
  const bool has_own_part = operation.num_bytes > 0;
  if (reduction != nullptr && has_own_part) {
    lock.unlock();
    std::memcpy(reduction->terms[comm->rank].data(), operation.from, operation.num_bytes);
    lock.lock();
  } else if (operation.to != operation.from && has_own_part) {
    lock.unlock();
    std::memcpy(operation.to, operation.from, operation.num_bytes);
    lock.lock();
  }
  std::vector<std::shared_ptr<Letter>> letters;
  for (const Transfer& transfer : operation.sends) {
    letters.push_back(std::make_shared<Letter>());
    letters.back()->transfer = transfer;
    comm->world->mail[{comm->rank, transfer.peer}].push_back(letters.back());
  }
  changed_.notify_all();
  for (const Transfer& transfer : operation.recvs) receive(lock, *comm, transfer);
  for (const auto& letter : letters) {
    changed_.wait(lock, [&] { return letter->read || (comm->ended && !letter->taken); });
    if (letter->read) continue;
    auto& box = comm->world->mail[{comm->rank, letter->transfer.peer}];
    box.erase(std::remove(box.begin(), box.end(), letter), box.end());
  }
  // In place: all ranks have read the memory that this overwrites.
  if (reduction != nullptr && reduction->to != nullptr && !comm->ended &&
      !comm->error.has_value()) {
    lock.unlock();
    reduction->run();
    lock.lock();
  }
  end_work(*comm);
}

void FakeNccl::receive(std::unique_lock<std::mutex>& lock, Comm& comm, const Transfer& transfer) {
  std::deque<std::shared_ptr<Letter>>& box = comm.world->mail[{transfer.peer, comm.rank}];
  changed_.wait(lock, [&] { return comm.ended || !box.empty(); });
  if (comm.ended) return;
  const std::shared_ptr<Letter> letter = box.front();
  box.pop_front();
  const Transfer& sent = letter->transfer;
  if (sent.num_bytes != transfer.num_bytes || sent.call != transfer.call) {
    comm.error = misuse(absl::StrCat("rank ", transfer.peer, " has ", sent.call, " of ",
                                     sent.num_bytes, " bytes, and rank ", comm.rank, " ",
                                     transfer.call, " of ", transfer.num_bytes));
  } else if (transfer.num_bytes > 0) {
    letter->taken = true;
    lock.unlock();
    std::memcpy(transfer.memory, sent.memory, transfer.num_bytes);
    lock.lock();
  }
  letter->read = true;
  changed_.notify_all();
}

void FakeNccl::end_work(Comm& comm) {
  --comm.running;
  --num_queued_;
  if (--comm.queued == 0) comm.queued_ungrouped = 0;
  changed_.notify_all();
}

void fake::Reduction::run() {
  const auto size = static_cast<uint64_t>(dtype_size(dtype));
  const uint64_t count = terms[0].size() / size;
  for (uint64_t first = 0; first < count; first += chunk) {
    const size_t owner = static_cast<size_t>(first_owner) + first / chunk;
    std::vector<const std::byte*> in_order;
    for (size_t k = 1; k <= terms.size(); ++k) {
      in_order.push_back(terms[(owner + k) % terms.size()].data() + first * size);
    }
    ring_sum(dtype, op, in_order, std::min(chunk, count - first), to + first * size);
  }
}

}  // namespace tessera::nccl
