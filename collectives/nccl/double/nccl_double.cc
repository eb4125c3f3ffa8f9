// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/double/nccl_double.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/double/ring_sum.h"

namespace tessera::nccl {

// What one end wants of the other.
struct NcclDouble::Transfer {
  int peer;
  std::byte* memory;  // only read of a send
  uint64_t num_bytes;
  std::string call;         // what both ends must have called: "send/recv", "broadcast from 2"
  bool registered = false;  // so is all memory of the operation
};

// A send that its stream has come to.
struct NcclDouble::Letter {
  Transfer transfer;
  bool taken = false;
  bool read = false;
};

// What a rank does with the terms of all, once it has them.
struct NcclDouble::Reduction {
  std::string call;  // as Transfer::call
  DType dtype;
  ReduceOp op;
  // The part of its elements that it sends to each rank, and keeps for itself.
  const std::byte* from;
  struct Part {
    uint64_t first;
    uint64_t count;
  };
  std::vector<Part> parts;
  std::byte* to;  // where its own part of the result goes
  // Who owns the elements of the own part, in chunks of so many: their terms are added from the
  // rank after it on.
  int first_owner;
  uint64_t chunk;
  std::vector<std::vector<std::byte>> terms = {};  // of the own part, by rank

  void run();
};

struct NcclDouble::Operation {
  std::vector<Transfer> sends;
  std::vector<Transfer> recvs;
  // A rank's own part of a collective.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t num_bytes = 0;
  std::shared_ptr<Reduction> reduction;
  bool never_ends = false;

  bool is_message() const { return from == nullptr && to == nullptr && reduction == nullptr; }
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
  int seat = 0;
  std::thread::id maker;
  State state = State::kMaking;
  bool ended = false;  // its work is to come to an end
  int stalled_polls = 0;
  int queued = 0;            // operations that its streams were given and have not done
  int running = 0;           // of these, at work now
  int queued_ungrouped = 0;  // of these, sends and receives outside of a group
  struct Registration {
    std::byte* begin;
    uint64_t num_bytes;
  };
  std::map<RegisterHandle, Registration> registered;
  std::optional<Status> error;
};

void NcclDouble::Reduction::run() {
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

NcclDouble::ThreadGroup& NcclDouble::thread_group() {
  thread_local ThreadGroup group;
  return group;
}

std::shared_ptr<NcclDouble> NcclDouble::create(std::shared_ptr<cuda::CudaDouble> cuda) {
  return create(std::move(cuda), Options());
}

std::shared_ptr<NcclDouble> NcclDouble::create(std::shared_ptr<cuda::CudaDouble> cuda,
                                               const Options& options) {
  return std::shared_ptr<NcclDouble>(new NcclDouble(std::move(cuda), options));
}

int NcclDouble::seat_of(int gpu) {
  if (!options_.shares_gpus) return gpu;
  const auto next = static_cast<int>(seats_.size());
  return seats_.try_emplace({gpu, std::this_thread::get_id()}, next).first->second;
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

int NcclDouble::num_registrations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t number = 0;
  for (const auto& [handle, comm] : comms_) number += comm->registered.size();
  return static_cast<int>(number);
}

int NcclDouble::num_allocations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(allocations_.size());
}

int NcclDouble::num_registered_operations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_registered_operations_;
}

void NcclDouble::refuse_to_register(int nth, StatusOr<RegisterHandle> answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_.emplace(nth, std::move(answer));
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

uint64_t NcclDouble::num_ranks_of(CommHandle comm) const {
  const auto it = comms_.find(comm);
  return it == comms_.end() ? 1 : static_cast<uint64_t>(it->second->world->num_ranks);
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
  const int gpu = cuda_->current_device();
  const int seat = seat_of(gpu);
  for (const auto& [other, comm] : world.ranks) {
    if (comm->seat != seat) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ncclCommInitRankConfig: invalid usage: Duplicate GPU detected: ranks ", other,
                     " and ", rank, " both on GPU ", comm->gpu));
  }
  auto comm = std::make_shared<Comm>();
  comm->world = it->second;
  comm->rank = rank;
  comm->gpu = gpu;
  comm->seat = seat;
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

StatusOr<std::byte*> NcclDouble::mem_alloc(uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["mem_alloc"];
  TESSERA_ASSIGN_OR_RETURN(std::byte* const memory, cuda_->allocate(size_bytes));
  allocations_[memory] = size_bytes;
  return memory;
}

Status NcclDouble::mem_free(std::byte* memory) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_["mem_free"];
    const auto it = allocations_.find(memory);
    if (it == allocations_.end()) return misuse("mem_free: memory that is not of mem_alloc()");
    for (const auto& [handle, comm] : comms_) {
      for (const auto& [registration, registered] : comm->registered) {
        if (registered.begin < memory + it->second &&
            memory < registered.begin + registered.num_bytes) {
          return misuse("mem_free: memory that is registered with a communicator");
        }
      }
    }
    allocations_.erase(it);
  }
  // Waits for what is in flight, which may need the lock.
  return cuda_->free(memory);
}

StatusOr<RegisterHandle> NcclDouble::comm_register(CommHandle comm, std::byte* memory,
                                                   uint64_t size_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found,
                           enter_for_work("comm_register", comm));
  if (refusal_.has_value() && --refusal_->first <= 0) return refusal_->second;
  auto it = allocations_.upper_bound(memory);
  if (it == allocations_.begin() || memory + size_bytes > (--it)->first + it->second) {
    return misuse("comm_register: memory that is not of mem_alloc()");
  }
  const auto handle = reinterpret_cast<RegisterHandle>(next_handle_++);
  found->registered[handle] = {memory, size_bytes};
  return handle;
}

Status NcclDouble::comm_deregister(CommHandle comm, RegisterHandle handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_deregister", comm));
  const auto it = found->registered.find(handle);
  if (it == found->registered.end()) {
    return misuse("comm_deregister: a handle that is not the communicator's, or no longer");
  }
  if (found->queued > 0) return misuse("comm_deregister: work of the communicator is in flight");
  found->registered.erase(it);
  return absl::OkStatus();
}

bool NcclDouble::is_registered(const Comm& comm, const std::byte* memory,
                               uint64_t num_bytes) const {
  if (num_bytes == 0) return true;
  return std::any_of(comm.registered.begin(), comm.registered.end(), [&](const auto& entry) {
    const Comm::Registration& piece = entry.second;
    return piece.begin <= memory && memory + num_bytes <= piece.begin + piece.num_bytes;
  });
}

bool NcclDouble::is_registered(const Comm& comm, const Operation& operation) const {
  const auto all_are = [&](const std::vector<Transfer>& transfers) {
    return std::all_of(transfers.begin(), transfers.end(), [&](const Transfer& transfer) {
      return is_registered(comm, transfer.memory, transfer.num_bytes);
    });
  };
  if (comm.registered.empty() || !all_are(operation.sends)) return false;
  // Its terms are the double's own.
  if (operation.reduction == nullptr && !all_are(operation.recvs)) return false;
  return is_registered(comm, operation.from, operation.num_bytes) &&
         is_registered(comm, operation.to, operation.num_bytes);
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

Status NcclDouble::launch(std::vector<Call> calls) {
  const std::shared_ptr<Comm> comm = calls[0].comm;
  auto operation = std::make_shared<Operation>();
  std::vector<std::pair<const std::byte*, uint64_t>> memory;
  std::set<int> peers;
  for (Call& call : calls) {
    if (call.stream != calls[0].stream) return misuse("group_end: several streams in one group");
    for (const auto* transfers : {&call.operation.sends, &call.operation.recvs}) {
      // What a reduction receives is not of the GPU.
      const bool is_terms =
          transfers == &call.operation.recvs && call.operation.reduction != nullptr;
      for (const Transfer& transfer : *transfers) {
        if (transfer.num_bytes > 0 && !is_terms) {
          memory.emplace_back(transfer.memory, transfer.num_bytes);
        }
        peers.insert(transfer.peer);
      }
    }
    if (call.operation.num_bytes > 0) {
      memory.emplace_back(call.operation.from, call.operation.num_bytes);
      memory.emplace_back(call.operation.to, call.operation.num_bytes);
    }
    for (auto& t : call.operation.sends) operation->sends.push_back(std::move(t));
    for (auto& t : call.operation.recvs) operation->recvs.push_back(std::move(t));
    if (!call.operation.is_message()) {
      if (calls.size() > 1) return misuse("group_end: a collective beside other calls");
      operation->reduction = call.operation.reduction;
      operation->from = call.operation.from;
      operation->to = call.operation.to;
      operation->num_bytes = call.operation.num_bytes;
    }
  }
  const bool registered = is_registered(*comm, *operation);
  num_registered_operations_ += registered ? 1 : 0;
  for (auto* transfers : {&operation->sends, &operation->recvs}) {
    for (Transfer& transfer : *transfers) transfer.registered = registered;
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
      "NCCL", memory, [this, comm, operation] { run(comm, *operation); }, calls[0].stream);
  if (!status.ok()) {
    --comm->queued;
    --num_queued_;
  }
  return status;
}

// In order streams both ends come to their meetings one after another: the one that is ahead says
// where, and the other one must come there next.
void NcclDouble::log_meeting(const World& world, const Comm& comm, const Comm& peer) {
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

Status NcclDouble::start_reduction(absl::string_view function, Reduction reduction, CommHandle comm,
                                   StreamHandle stream) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Comm> found, enter_for_work(function, comm));
  const bool is_avg_of_integers =
      reduction.op == ReduceOp::kAvg && !is_floating_point(reduction.dtype);
  if (reduction.dtype == DType::kBool || is_avg_of_integers) {
    return misuse(absl::StrCat(function, ": ", reduce_op_name(reduction.op), " of ",
                               dtype_name(reduction.dtype)));
  }
  Call call = {std::move(found), stream, {}};
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
  // Its own term is copied when the stream comes to it, as the others'.
  operation.from = own.from + own.parts[rank].first * size;
  operation.to = own.to;
  operation.num_bytes = own_bytes;
  return submit(std::move(call), [](Comm&) {});
}

Status NcclDouble::all_reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                              ReduceOp op, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t num_ranks = num_ranks_of(comm);
  return start_reduction(
      "all_reduce",
      {.call = absl::StrCat("all_reduce ", reduce_op_name(op), " ", dtype_name(dtype)),
       .dtype = dtype,
       .op = op,
       .from = from,
       .parts = std::vector<Reduction::Part>(num_ranks, {0, count}),
       .to = to,
       .first_owner = 0,
       .chunk = (count + num_ranks - 1) / num_ranks},
      comm, stream);
}

Status NcclDouble::reduce(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                          ReduceOp op, int root, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  Reduction reduction = {
      .call = absl::StrCat("reduce ", reduce_op_name(op), " ", dtype_name(dtype), " to ", root),
      .dtype = dtype,
      .op = op,
      .from = from,
      .parts = std::vector<Reduction::Part>(num_ranks_of(comm), {0, 0}),
      .to = to,
      .first_owner = root,
      .chunk = count};
  if (static_cast<size_t>(root) < reduction.parts.size()) reduction.parts[root].count = count;
  return start_reduction("reduce", std::move(reduction), comm, stream);
}

Status NcclDouble::reduce_scatter(const std::byte* from, std::byte* to, uint64_t count, DType dtype,
                                  ReduceOp op, CommHandle comm, StreamHandle stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = comms_.find(comm);
  Reduction reduction = {
      .call = absl::StrCat("reduce_scatter ", reduce_op_name(op), " ", dtype_name(dtype)),
      .dtype = dtype,
      .op = op,
      .from = from,
      .parts = {},
      .to = to,
      .first_owner = it == comms_.end() ? 0 : it->second->rank,
      .chunk = count};
  for (uint64_t k = 0; k < num_ranks_of(comm); ++k) reduction.parts.push_back({k * count, count});
  return start_reduction("reduce_scatter", std::move(reduction), comm, stream);
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
  } else if (sent.registered != transfer.registered) {
    comm.error = misuse(absl::StrCat(
        transfer.call, ": memory of rank ", sent.registered ? transfer.peer : comm.rank,
        " is registered, and that of rank ", sent.registered ? comm.rank : transfer.peer, " not"));
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
  // In place: now that all have read what it overwrites.
  if (reduction != nullptr && reduction->to != nullptr && !comm->ended &&
      !comm->error.has_value()) {
    lock.unlock();
    reduction->run();
    lock.lock();
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
  if (!found->registered.empty()) return misuse("comm_destroy: memory is registered with it");
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
