// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/double/nccl_double.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"

namespace tessera::nccl {

// What one end wants of the other.
struct NcclDouble::Transfer {
  int peer;
  std::byte* memory;  // only read of a send
  uint64_t num_bytes;
  std::string call;  // what both ends must have called: "send/recv", "broadcast from 2"
};

// A send that its stream has come to.
struct NcclDouble::Letter {
  Transfer transfer;
  bool taken = false;
  bool read = false;
};

struct NcclDouble::Operation {
  std::vector<Transfer> sends;
  std::vector<Transfer> recvs;
  // A rank's own part of a collective.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t num_bytes = 0;
  bool never_ends = false;
};

// One call of the interface, as it waits for the end of its group.
struct NcclDouble::Call {
  std::shared_ptr<Comm> comm;
  StreamHandle stream;
  Operation operation;
};

struct NcclDouble::ThreadGroup {
  int depth = 0;
  std::vector<Call> calls;
};

struct NcclDouble::World {
  uint64_t number = 0;
  int num_ranks = 0;
  std::map<int, std::shared_ptr<Comm>> ranks;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  // by (from, to)
};

struct NcclDouble::Comm {
  enum class State { kMaking, kReady, kRevoked, kFinalized };

  std::shared_ptr<World> world;
  int rank = 0;
  int gpu = 0;
  std::thread::id maker;
  State state = State::kMaking;
  bool ended = false;  // its work is to come to an end
  int stalled_polls = 0;
  int queued = 0;            // operations that its streams were given and have not done
  int running = 0;           // of these, at work now
  int queued_ungrouped = 0;  // of these, sends and receives outside of a group
  std::optional<Status> error;
};

NcclDouble::ThreadGroup& NcclDouble::thread_group() {
  thread_local ThreadGroup group;
  return group;
}

std::shared_ptr<NcclDouble> NcclDouble::create(std::shared_ptr<cuda::CudaDouble> cuda) {
  return std::shared_ptr<NcclDouble>(new NcclDouble(std::move(cuda)));
}

NcclDouble::~NcclDouble() {
  cuda_->release();
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto& [number, world] : worlds_) {
    for (auto& [rank, comm] : world->ranks) comm->ended = true;
  }
  changed_.notify_all();
  changed_.wait(lock, [this] { return num_queued_ == 0; });
  for (auto& [number, world] : worlds_) world->ranks.clear();
}

std::vector<std::string> NcclDouble::misuses() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return misuses_;
}

int NcclDouble::num_calls(absl::string_view function) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = calls_.find(std::string(function));
  return it == calls_.end() ? 0 : it->second;
}

int NcclDouble::num_communicators() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(comms_.size());
}

void NcclDouble::stall(absl::string_view function, int num_calls, int num_polls) {
  std::lock_guard<std::mutex> lock(mutex_);
  stalls_[std::string(function)] = {num_calls, num_polls};
}

void NcclDouble::break_link(int nth, Status error) {
  std::lock_guard<std::mutex> lock(mutex_);
  broken_links_[num_operations_ + nth] = std::move(error);
}

void NcclDouble::hang_aborts() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_hang_ = true;
}

void NcclDouble::release_aborts() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_hang_ = false;
  changed_.notify_all();
}

Status NcclDouble::misuse(std::string what) {
  misuses_.push_back(std::move(what));
  return absl::InternalError(absl::StrCat("the double of NCCL: ", misuses_.back()));
}

StatusOr<std::shared_ptr<NcclDouble::Comm>> NcclDouble::enter(absl::string_view function,
                                                              CommHandle comm) {
  ++calls_[std::string(function)];
  const auto it = comms_.find(comm);
  if (it == comms_.end()) {
    return misuse(absl::StrCat(function, ": a communicator that is not there, or no longer"));
  }
  return it->second;
}

StatusOr<std::shared_ptr<NcclDouble::Comm>> NcclDouble::enter_for_work(absl::string_view function,
                                                                       CommHandle comm) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter(function, comm));
  if (found->state != Comm::State::kReady) {
    return misuse(absl::StrCat(function, ": a communicator that ",
                               found->state == Comm::State::kMaking    ? "is still being made"
                               : found->state == Comm::State::kRevoked ? "was revoked"
                                                                       : "was finalized"));
  }
  if (found->stalled_polls > 0) {
    return misuse(absl::StrCat(function, ": a communicator with a call in progress"));
  }
  if (found->maker != std::this_thread::get_id()) {
    return misuse(absl::StrCat(function, ": a communicator that another thread made"));
  }
  if (found->gpu != cuda_->current_device()) {
    return misuse(absl::StrCat(function, ": a communicator of GPU ", found->gpu, " while GPU ",
                               cuda_->current_device(), " is current"));
  }
  return found;
}

void NcclDouble::take_stall(absl::string_view function, Comm& comm) {
  const auto it = stalls_.find(std::string(function));
  if (it == stalls_.end()) return;
  comm.stalled_polls += it->second.second;
  if (--it->second.first <= 0) stalls_.erase(it);
}

StatusOr<UniqueId> NcclDouble::get_unique_id() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["get_unique_id"];
  auto world = std::make_shared<World>();
  world->number = next_id_++;
  UniqueId id = {};
  std::memcpy(id.data(), &world->number, sizeof(world->number));
  worlds_[world->number] = std::move(world);
  return id;
}

StatusOr<CommHandle> NcclDouble::comm_init_rank(int num_ranks, const UniqueId& id, int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["comm_init_rank"];
  uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof(number));
  const auto it = worlds_.find(number);
  if (it == worlds_.end()) return misuse("comm_init_rank: a unique id of nobody's");
  World& world = *it->second;
  if (world.num_ranks == 0) world.num_ranks = num_ranks;
  if (world.num_ranks != num_ranks || rank < 0 || rank >= num_ranks) {
    return misuse(absl::StrCat("comm_init_rank: rank ", rank, " of ", num_ranks,
                               " where others are ", world.num_ranks));
  }
  if (world.ranks.count(rank) > 0) {
    return misuse(absl::StrCat("comm_init_rank: rank ", rank, " twice, or an id used again"));
  }
  for (const auto& [other, comm] : world.ranks) {
    if (comm->gpu != cuda_->current_device()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ncclCommInitRankConfig: invalid usage: Duplicate GPU detected: ranks ", other,
                     " and ", rank, " both on GPU ", comm->gpu));
  }
  auto comm = std::make_shared<Comm>();
  comm->world = it->second;
  comm->rank = rank;
  comm->gpu = cuda_->current_device();
  comm->maker = std::this_thread::get_id();
  take_stall("comm_init_rank", *comm);
  world.ranks[rank] = comm;
  const auto handle = reinterpret_cast<CommHandle>(next_handle_++);
  comms_[handle] = std::move(comm);
  return handle;
}

StatusOr<bool> NcclDouble::poll(CommHandle comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("poll", comm));
  if (found->state == Comm::State::kRevoked) {
    if (found->stalled_polls > 0) --found->stalled_polls;
    return found->stalled_polls == 0 && found->running == 0;
  }
  if (found->error.has_value()) return *found->error;
  if (found->stalled_polls > 0) {
    --found->stalled_polls;
    return false;
  }
  if (found->state == Comm::State::kMaking) {
    if (static_cast<int>(found->world->ranks.size()) < found->world->num_ranks) return false;
    found->state = Comm::State::kReady;
  }
  if (found->state == Comm::State::kFinalized) return found->queued == 0;
  return true;
}

Status NcclDouble::group_start() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["group_start"];
  ++thread_group().depth;
  return absl::OkStatus();
}

Status NcclDouble::group_end() {
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
    take_stall("group_end", *comm);
    TESSERA_RETURN_IF_ERROR(launch(std::move(own)));
  }
  return absl::OkStatus();
}

Status NcclDouble::check_ungrouped(const Call& call) {
  Comm& comm = *call.comm;
  const bool is_message = call.operation.from == nullptr && call.operation.to == nullptr;
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

Status NcclDouble::launch(std::vector<Call> calls) {
  const std::shared_ptr<Comm> comm = calls[0].comm;
  auto operation = std::make_shared<Operation>();
  std::vector<std::pair<const std::byte*, uint64_t>> memory;
  std::set<int> peers;
  for (Call& call : calls) {
    if (call.stream != calls[0].stream) return misuse("group_end: several streams in one group");
    for (const auto* transfers : {&call.operation.sends, &call.operation.recvs}) {
      for (const Transfer& transfer : *transfers) {
        if (transfer.num_bytes > 0) memory.emplace_back(transfer.memory, transfer.num_bytes);
        peers.insert(transfer.peer);
      }
    }
    for (auto& t : call.operation.sends) operation->sends.push_back(std::move(t));
    for (auto& t : call.operation.recvs) operation->recvs.push_back(std::move(t));
    if (call.operation.to != nullptr) {
      if (calls.size() > 1) return misuse("group_end: a collective beside other calls");
      operation->from = call.operation.from;
      operation->to = call.operation.to;
      operation->num_bytes = call.operation.num_bytes;
    }
  }
  const auto broken = broken_links_.find(++num_operations_);
  if (broken != broken_links_.end()) {
    operation->never_ends = true;
    comm->error = broken->second;
  }
  for (const int peer : peers) log_meeting(*comm->world, comm->gpu, comm->world->ranks[peer]->gpu);
  ++comm->queued;
  ++num_queued_;
  const Status status = cuda_->enqueue_work(
      "NCCL", memory, [this, comm, operation] { run(comm, *operation); }, calls[0].stream);
  if (!status.ok()) {
    --comm->queued;
    --num_queued_;
  }
  return status;
}

// In order streams both ends come to their meetings one after another: the one that is ahead says
// where, and the other one must come there next.
void NcclDouble::log_meeting(const World& world, int gpu, int peer_gpu) {
  std::deque<uint64_t>& theirs = ahead_[{peer_gpu, gpu}];
  if (theirs.empty()) {
    ahead_[{gpu, peer_gpu}].push_back(world.number);
  } else if (theirs.front() == world.number) {
    theirs.pop_front();
  } else {
    misuse(absl::StrCat("GPUs ", gpu, " and ", peer_gpu,
                        " use their communicators in different orders"))
        .IgnoreError();
  }
}

void NcclDouble::forget_meetings(const World& world) {
  for (auto& [pair, worlds] : ahead_) {
    worlds.erase(std::remove(worlds.begin(), worlds.end(), world.number), worlds.end());
  }
}

Status NcclDouble::submit(Call call, absl::FunctionRef<void(Comm&)> alone) {
  if (thread_group().depth > 0) {
    thread_group().calls.push_back(std::move(call));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(check_ungrouped(call));
  alone(*call.comm);
  std::vector<Call> calls;
  calls.push_back(std::move(call));
  return launch(std::move(calls));
}

Status NcclDouble::send(const std::byte* from, uint64_t num_bytes, int peer, CommHandle comm,
                        StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work("send", comm));
  Call call = {std::move(found), stream, {}};
  call.operation.sends.push_back({peer, const_cast<std::byte*>(from), num_bytes, "send/recv"});
  return submit(std::move(call), [](Comm& own) { ++own.queued_ungrouped; });
}

Status NcclDouble::recv(std::byte* to, uint64_t num_bytes, int peer, CommHandle comm,
                        StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work("recv", comm));
  Call call = {std::move(found), stream, {}};
  call.operation.recvs.push_back({peer, to, num_bytes, "send/recv"});
  return submit(std::move(call), [](Comm& own) { ++own.queued_ungrouped; });
}

Status NcclDouble::all_gather(const std::byte* from, std::byte* to, uint64_t num_bytes,
                              CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work("all_gather", comm));
  Call call = {std::move(found), stream, {}};
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
  return submit(std::move(call), [this](Comm& own) { take_stall("all_gather", own); });
}

Status NcclDouble::broadcast(const std::byte* from, std::byte* to, uint64_t num_bytes, int root,
                             CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work("broadcast", comm));
  Call call = {std::move(found), stream, {}};
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
  return submit(std::move(call), [](Comm&) {});
}

void NcclDouble::receive(std::unique_lock<std::mutex>& lock, Comm& comm, const Transfer& transfer) {
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

void NcclDouble::run(const std::shared_ptr<Comm>& comm, Operation& operation) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++comm->running;
  if (operation.never_ends) changed_.wait(lock, [&] { return comm->ended; });
  if (comm->ended) return end_work(*comm);
  if (operation.to != operation.from && operation.num_bytes > 0) {
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
  end_work(*comm);
}

void NcclDouble::end_work(Comm& comm) {
  --comm.running;
  --num_queued_;
  if (--comm.queued == 0) comm.queued_ungrouped = 0;
  changed_.notify_all();
}

Status NcclDouble::comm_revoke(CommHandle comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_revoke", comm));
  if (found->state == Comm::State::kRevoked) return misuse("comm_revoke: revoked already");
  found->state = Comm::State::kRevoked;
  found->stalled_polls = 0;
  take_stall("comm_revoke", *found);
  found->ended = true;
  forget_meetings(*found->world);
  changed_.notify_all();
  return absl::OkStatus();
}

Status NcclDouble::comm_finalize(CommHandle comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_finalize", comm));
  if (found->state != Comm::State::kReady) {
    return misuse("comm_finalize: a communicator that is not in use");
  }
  found->state = Comm::State::kFinalized;
  return absl::OkStatus();
}

Status NcclDouble::comm_destroy(CommHandle comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_destroy", comm));
  if (found->state != Comm::State::kFinalized && found->state != Comm::State::kRevoked) {
    return misuse("comm_destroy: a communicator that was neither finalized nor revoked");
  }
  if (found->queued > 0) return misuse("comm_destroy: work of it is in flight");
  comms_.erase(comm);
  return absl::OkStatus();
}

Status NcclDouble::comm_abort(CommHandle comm) {
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_abort", comm));
  changed_.wait(lock, [this] { return !aborts_hang_; });
  found->ended = true;
  forget_meetings(*found->world);
  comms_.erase(comm);
  changed_.notify_all();
  return absl::OkStatus();
}

}  // namespace tessera::nccl
