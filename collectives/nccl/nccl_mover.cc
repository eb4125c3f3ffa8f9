// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_mover.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "device/cuda/kernels.h"
#include "device/memory_pool.h"

namespace tessera::nccl {
namespace {

using Members = absl::Span<const MemberMemory>;

// The latest generations of a group, which a member may still ask about.
constexpr uint32_t kGenerationRecords = 4;
// Tells the generations of a group from its operations and messages.
constexpr uint64_t kGenerationSalt = 2;
// The same for meetings of members that lacked memory: they are rare, and never two at once.
constexpr uint32_t kMemoryRecords = 2;
constexpr uint64_t kMemorySalt = 3;

// How often a message that waits for its GPU looks whether it is still wanted.
constexpr absl::Duration kMessageCheckInterval = absl::Milliseconds(20);
// How long the copy of a message may take once its GPU has reached it.
constexpr absl::Duration kMessageCopyLimit = absl::Seconds(30);

// Cuts one block of memory into pieces. Of one thread.
class PackingPool : public MemoryPool {
 public:
  explicit PackingPool(std::shared_ptr<Buffer> block)
      : MemoryPool(UsedBy::kDevice), block_(std::move(block)) {}
  StatusOr<Memory> take(int64_t size_bytes) override {
    const int64_t begin = used_;
    used_ += (size_bytes + kPackingAlignment - 1) / kPackingAlignment * kPackingAlignment;
    if (block_ == nullptr || used_ > block_->size_bytes()) {
      return absl::InternalError(absl::StrCat("packing takes ", used_,
                                              " bytes, more than its bound of ",
                                              block_ == nullptr ? 0 : block_->size_bytes()));
    }
    return Memory{.data = block_->mutable_data() + begin};
  }
  void give_back(const Memory& /*memory*/, int64_t /*size_bytes*/) override {}

 private:
  const std::shared_ptr<Buffer> block_;
  int64_t used_ = 0;
};

// Verdicts are of communicators; each operation that they end says which it is.
Status labelled(const Status& verdict, const Label& label) {
  const std::string text = label.to_string();
  if (absl::StartsWith(verdict.message(), text)) return verdict;
  return with_context(verdict, text);
}

// What NCCL is to do in a round.
Status call_nccl(const Round& round, Api& api, CommHandle comm, StreamHandle stream) {
  const auto num_bytes = static_cast<uint64_t>(round.num_bytes);
  const auto count = static_cast<uint64_t>(round.count);
  switch (round.kind) {
    case Round::Kind::kAllGather:
      return api.all_gather(round.from, round.to, num_bytes, comm, stream);
    case Round::Kind::kBroadcast:
      return api.broadcast(round.from, round.to, num_bytes, round.root, comm, stream);
    case Round::Kind::kAllReduce:
      return api.all_reduce(round.from, round.to, count, round.dtype, round.op, comm, stream);
    case Round::Kind::kReduce:
      return api.reduce(round.from, round.to, count, round.dtype, round.op, round.root, comm,
                        stream);
    case Round::Kind::kReduceScatter:
      return api.reduce_scatter(round.from, round.to, count, round.dtype, round.op, comm, stream);
    case Round::Kind::kMessages:
      break;
  }
  for (const Send& send : round.sends) {
    TESSERA_RETURN_IF_ERROR(
        api.send(send.from, static_cast<uint64_t>(send.num_bytes), send.peer, comm, stream));
  }
  for (const Receive& receive : round.receives) {
    TESSERA_RETURN_IF_ERROR(
        api.recv(receive.to, static_cast<uint64_t>(receive.num_bytes), receive.peer, comm, stream));
  }
  return absl::OkStatus();
}

absl::Time deadline_of(const Arguments& arguments, absl::Duration timeout) {
  return arguments.deadline.value_or(steady_now() + arguments.timeout.value_or(timeout));
}

// Of a meeting of which nothing but the entries is used.
Signature ends_at_arrival() {
  Signature signature;
  signature.inlined = true;
  return signature;
}

}  // namespace

StatusOr<std::unique_ptr<NcclMover>> NcclMover::create(StatusOr<Watch*> watch, host::HostLink& link,
                                                       std::vector<host::GroupMember> members,
                                                       std::vector<cuda::CudaDevice*> devices,
                                                       const Options& options) {
  std::vector<int> clients;
  for (const host::GroupMember& member : members) clients.push_back(member.client_id);
  TESSERA_ASSIGN_OR_RETURN(
      host::Rendezvous generations,
      host::Rendezvous::open(link, members, kGenerationRecords, kGenerationSalt));
  TESSERA_ASSIGN_OR_RETURN(
      host::Rendezvous memory,
      host::Rendezvous::open(link, std::move(members), kMemoryRecords, kMemorySalt));
  return std::unique_ptr<NcclMover>(new NcclMover(std::move(watch), std::move(generations),
                                                  std::move(memory), std::move(clients),
                                                  std::move(devices), options));
}

NcclMover::NcclMover(StatusOr<Watch*> watch, host::Rendezvous generations, host::Rendezvous memory,
                     std::vector<int> clients, std::vector<cuda::CudaDevice*> devices,
                     const Options& options)
    : watch_(std::move(watch)),
      generations_(std::move(generations)),
      memory_(std::move(memory)),
      clients_(std::move(clients)),
      devices_(std::move(devices)),
      options_(options),
      packing_(devices_.size()),
      ranks_(devices_.size()) {
  refusal_ = find_refusal();
}

Status NcclMover::find_refusal() const {
  TESSERA_RETURN_IF_ERROR(watch_.status());
  if (devices_.size() > cuda::kMaxTerms) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", devices_.size(), " GPUs; groups of up to ", cuda::kMaxTerms, " are there"));
  }
  for (size_t a = 0; a < devices_.size(); ++a) {
    for (size_t b = a + 1; b < devices_.size(); ++b) {
      if (devices_[a] == nullptr || devices_[b] == nullptr) continue;
      if (devices_[a]->gpu() != devices_[b]->gpu()) continue;
      return absl::UnimplementedError(absl::StrCat(
          "members ", a, " and ", b, " share GPU ", devices_[a]->gpu(),
          "; NCCL takes one device of a GPU in a group of several clients: give each client at "
          "most as many devices as it has GPUs"));
    }
  }
  return absl::OkStatus();
}

Status NcclMover::check(const Collective& collective) const {
  return collective.kind() == OpKind::kSendRecv ? absl::OkStatus() : refusal_;
}

std::vector<int64_t> NcclMover::encode_request(const Collective& collective) const {
  return nccl::encode_request(collective);
}

Status NcclMover::arrive(const Collective& collective, const Arguments& arguments, uint32_t seq,
                         int member, absl::Span<std::byte> board) {
  const bool is_message = collective.kind() == OpKind::kSendRecv;
  if (!is_message) TESSERA_RETURN_IF_ERROR(take_packing(collective, member));
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_message) {
    // What the stream has now comes first; what it has when the message's turn comes does not.
    if (collective.count() == 0 || arrived_[member].count(seq) > 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(arrived_[member][seq], devices_[member]->queue().record());
    return absl::OkStatus();
  }
  const Rank& rank = ranks_[member];
  const bool is_usable = rank.communicator != nullptr && !rank.communicator->is_failed();
  Board own = {};
  own.generation = is_usable ? rank.generation : rank.generation + 1;
  own.sums = options_.sums;
  own.sums_in_place = collective.kind() == OpKind::kAllReduce && options_.sums == Sums::kNccl &&
                      collective.count() > 0 && arguments.in == arguments.out;
  const std::shared_ptr<Buffer>& sent = packing_[member].sent;
  own.sent_bytes = sent == nullptr ? 0 : sent->size_bytes();
  own.registered = is_usable ? register_memory(collective, arguments, member, *rank.communicator)
                             : Board::Registered::kNotYet;
  std::memcpy(board.data(), &own, sizeof(own));
  return absl::OkStatus();
}

Status NcclMover::take_packing(const Collective& collective, int member) {
  Packing& packing = packing_[member];
  packing.own = packing.sent = nullptr;
  const std::shared_ptr<cuda::SlabPool>& pool = devices_[member]->slabs();
  const int64_t own_bytes = packing_bytes(collective, options_.sums);
  if (own_bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(packing.own, Buffer::allocate(pool, own_bytes));
  }
  const OpKind kind = collective.kind();
  const bool may_be_wanted = kind == OpKind::kExchange || kind == OpKind::kReduceBoxes;
  if (!may_be_wanted || packing.most_sent_bytes == 0) return absl::OkStatus();
  // It may not be needed: without it members meet again if it is.
  StatusOr<std::shared_ptr<Buffer>> sent = Buffer::allocate(pool, packing.most_sent_bytes);
  if (sent.ok()) packing.sent = *std::move(sent);
  return absl::OkStatus();
}

Status NcclMover::take_sent_packing(const Collective& collective, const Label& label, int member,
                                    Members members, absl::Time deadline) {
  const std::vector<int64_t> sent_bytes = sent_packing_bytes(collective, members);
  bool is_enough = true;
  for (size_t m = 0; m < members.size(); ++m) {
    Board board = {};
    std::memcpy(&board, members[m].board, sizeof(board));
    is_enough &= sent_bytes[m] <= board.sent_bytes;
  }
  if (is_enough) return absl::OkStatus();
  return meet_for_memory(label, member, sent_bytes[member], deadline);
}

Status NcclMover::meet_for_memory(const Label& label, int member, int64_t sent_bytes,
                                  absl::Time deadline) {
  uint32_t seq = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_.ok()) return lost_;
    seq = ++ranks_[member].met_for_memory;
  }
  const host::Rendezvous::Op op = {.seq = seq,
                                   .member = member,
                                   .label = &label,
                                   .detail_field = "memory",
                                   .signature = ends_at_arrival(),
                                   .holds_device = false,
                                   .start = steady_now(),
                                   .deadline = deadline};
  const auto meet = [&]() -> Status {
    if (!memory_.wait_free(seq, deadline)) return memory_.describe_missing(op);
    Packing& packing = packing_[member];
    if (packing.sent == nullptr || packing.sent->size_bytes() < sent_bytes) {
      packing.sent = nullptr;
      packing.most_sent_bytes = std::max(packing.most_sent_bytes, sent_bytes);
      StatusOr<std::shared_ptr<Buffer>> sent =
          Buffer::allocate(devices_[member]->memory(), sent_bytes);
      if (!sent.ok()) {
        const Status verdict = memory_.settle(seq, host::VerdictKind::kError,
                                              host::Rendezvous::From::kOpen, sent.status());
        return verdict.ok() ? sent.status() : verdict;
      }
      packing.sent = *std::move(sent);
    }
    host::MemberEntry& entry = memory_.entry(seq, member);
    entry.signature = {};
    label.copy_to(absl::MakeSpan(entry.label));
    TESSERA_RETURN_IF_ERROR(memory_.arrive(op));
    return memory_.wait_arrived(op);
  };
  const Status met = meet();
  if (met.ok()) {
    memory_.leave(seq, member);
  } else {
    memory_.acknowledge(seq);
  }
  return met;
}

NcclMover::Board::Registered NcclMover::register_memory(const Collective& collective,
                                                        const Arguments& arguments, int member,
                                                        Communicator& communicator) const {
  if (!options_.registers_memory) return Board::Registered::kNo;
  const cuda::SlabPool& pool = *devices_[member]->slabs();
  // Memory that the operation does not use has no bytes here: it may be any.
  const int64_t size = dtype_size(collective.dtype());
  const bool is_of_pool = pool.contains(arguments.in, collective.in_count().value_or(0) * size) &&
                          pool.contains(arguments.out, collective.out_count().value_or(0) * size);
  if (is_of_pool && communicator.register_memory()) return Board::Registered::kYes;
  // One that ends takes nothing; the next one may.
  return communicator.is_failed() ? Board::Registered::kNotYet : Board::Registered::kNo;
}

StatusOr<NcclMover::Board> NcclMover::agree(const Label& label, Members members) const {
  Board all = {};
  for (size_t member = 0; member < members.size(); ++member) {
    Board board = {};
    std::memcpy(&board, members[member].board, sizeof(board));
    if (member == 0) {
      all.sums = board.sums;
      all.sums_in_place = board.sums_in_place;
    }
    if (board.sums != all.sums) {
      const auto has = [&](size_t k, Sums sums) {
        return absl::StrCat("client ", clients_[k], " has ",
                            sums == Sums::kNccl ? "\"nccl\"" : "\"auto\"");
      };
      return absl::InvalidArgumentError(
          absl::StrCat(label.to_string(), ": backend differs between clients: ", has(0, all.sums),
                       ", ", has(member, board.sums), "; give all clients of a job the same"));
    }
    all.generation = std::max(all.generation, board.generation);
    all.registered = std::max(all.registered, board.registered);
    // NCCL does not look for memory of a sum in place among what is registered.
    if (board.sums_in_place != all.sums_in_place) all.registered = Board::Registered::kNo;
  }
  return all;
}

Status NcclMover::move(const Collective& collective, const Arguments& arguments, uint32_t seq,
                       int member, Members members) {
  const OpKind kind = collective.kind();
  const Label& label = arguments.label;
  if (kind == OpKind::kSendRecv) {
    const Status received = receive(collective, arguments, seq, members);
    return received.ok() ? received : labelled(received, label);
  }
  const Status part = check_part(collective, label, members);
  // Wrong pulls are an error of that member alone; wrong counts are an error of all.
  if (!part.ok() && kind != OpKind::kExchange && kind != OpKind::kReduceBoxes) return part;
  TESSERA_ASSIGN_OR_RETURN(const Board board, agree(label, members));
  const absl::Time deadline = deadline_of(arguments, options_.timeout);
  const absl::Cleanup release = [&] { packing_[member].own = packing_[member].sent = nullptr; };
  const Status taken = take_sent_packing(collective, label, member, members, deadline);
  if (!taken.ok()) return labelled(taken, label);
  const StatusOr<std::shared_ptr<Communicator>> found =
      this->communicator(label, seq, member, board.generation, deadline);
  if (!found.ok()) return labelled(found.status(), label);
  const std::shared_ptr<Communicator>& communicator = *found;
  const Status status = give(collective, arguments, member, members, board, communicator, deadline);
  // The others wait for what does not come.
  if (!status.ok()) return labelled(communicator->fail(status), label);
  return part;
}

Status NcclMover::give(const Collective& collective, const Arguments& arguments, int member,
                       Members members, const Board& board,
                       const std::shared_ptr<Communicator>& communicator, absl::Time deadline) {
  using Registered = Board::Registered;
  if (board.registered == Registered::kNo) {
    TESSERA_RETURN_IF_ERROR(communicator->stop_registering(deadline));
  }
  const PackingPools pools = {std::make_shared<PackingPool>(packing_[member].own),
                              std::make_shared<PackingPool>(packing_[member].sent)};
  TESSERA_ASSIGN_OR_RETURN(const Schedule schedule,
                           make_schedule(collective, members, board.sums, pools));
  // Packed data may be in a new slab.
  if (board.registered == Registered::kYes && !communicator->register_memory()) {
    return absl::InternalError("NCCL did not register memory, as it did before");
  }
  return run(arguments, member, schedule, communicator, deadline);
}

StatusOr<std::shared_ptr<Communicator>> NcclMover::communicator(const Label& label, uint32_t seq,
                                                                int member, uint32_t generation,
                                                                absl::Time deadline) {
  std::shared_ptr<Communicator> communicator;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Rank& rank = ranks_[member];
    rank.begun = seq;
    if (rank.generation == generation && rank.communicator != nullptr) {
      if (rank.communicator->is_failed()) return rank.communicator->fail(absl::AbortedError(""));
      return rank.communicator;
    }
    if (rank.communicator != nullptr) {
      // Another member knows of its end already.
      rank.communicator->fail(absl::AbortedError("the communicator was given up")).IgnoreError();
    }
    // One that it has made the watch leaves for it.
    const uint32_t first = rank.communicator == nullptr ? rank.generation : rank.generation + 1;
    for (uint32_t old = std::max(1u, first); old < generation; ++old) {
      generations_.acknowledge(old);
    }
    communicator = std::make_shared<Communicator>(
        (*watch_)->api(), (*watch_)->lane(devices_[member]), generations_, generation);
    if (!lost_.ok()) return lost_;
    rank.generation = generation;
    rank.communicator = nullptr;
  }
  TESSERA_RETURN_IF_ERROR(meet(label, member, generation, deadline));
  UniqueId id;
  std::memcpy(id.data(), generations_.entry(generation, 0).inlined, id.size());
  (*watch_)->add(communicator);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ranks_[member].communicator = communicator;
  }
  const Status made = communicator->init(id, member, deadline);
  if (!made.ok()) return communicator->fail(made);
  return communicator;
}

// The members of a generation meet, and learn its unique id from the first one.
Status NcclMover::meet(const Label& label, int member, uint32_t generation, absl::Time deadline) {
  const host::Rendezvous::Op op = {.seq = generation,
                                   .member = member,
                                   .label = &label,
                                   .detail_field = "generation",
                                   .holds_device = false,
                                   .start = steady_now(),
                                   .deadline = deadline};
  const auto fail = [&](const Status& error) {
    const Status verdict = generations_.settle(generation, host::VerdictKind::kError,
                                               host::Rendezvous::From::kRunning, error);
    return verdict.ok() ? error : verdict;
  };
  if (!generations_.wait_free(generation, deadline)) {
    return generations_.describe_missing(op);
  }
  host::MemberEntry& entry = generations_.entry(generation, member);
  entry.signature = {};
  label.copy_to(absl::MakeSpan(entry.label));
  if (member == 0) {
    const StatusOr<UniqueId> id = (*watch_)->api().get_unique_id();
    if (!id.ok()) return fail(id.status());
    std::memcpy(entry.inlined, id->data(), id->size());
  }
  TESSERA_RETURN_IF_ERROR(generations_.arrive(op));
  return generations_.wait_arrived(op);
}

Status NcclMover::run(const Arguments& arguments, int member, const Schedule& schedule,
                      const std::shared_ptr<Communicator>& communicator, absl::Time deadline) {
  cuda::CudaDevice& device = *devices_[member];
  Watch& watch = **watch_;
  const bool is_silent = std::all_of(schedule.rounds.begin(), schedule.rounds.end(),
                                     [](const Round& round) { return round.is_silent(); });
  if (is_silent) {
    for (const Round& round : schedule.rounds) {
      TESSERA_RETURN_IF_ERROR(run_round(round, device, *communicator, deadline));
    }
    return absl::OkStatus();
  }
  Watch::Flight flight;
  flight.communicator = communicator;
  flight.label = arguments.label.to_string();
  flight.timeout = arguments.timeout.value_or(options_.timeout);
  flight.deadline = arguments.deadline.value_or(absl::InfiniteFuture());
  TESSERA_ASSIGN_OR_RETURN(const uint64_t id, watch.begin(std::move(flight)));
  TESSERA_ASSIGN_OR_RETURN(cuda::Event begun, device.queue().record());
  for (const Round& round : schedule.rounds) {
    TESSERA_RETURN_IF_ERROR(run_round(round, device, *communicator, deadline));
  }
  TESSERA_ASSIGN_OR_RETURN(cuda::Event ended, device.queue().record());
  watch.given(id, std::move(begun), std::move(ended));
  return absl::OkStatus();
}

Status NcclMover::run_round(const Round& round, cuda::CudaDevice& device,
                            Communicator& communicator, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(device.copy(round.before));
  if (!round.is_silent()) {
    const auto calls = [&](CommHandle comm) {
      return call_nccl(round, (*watch_)->api(), comm, device.queue().handle());
    };
    TESSERA_RETURN_IF_ERROR(communicator.issue(calls, deadline));
  }
  TESSERA_RETURN_IF_ERROR(device.reduce(round.reduces));
  return device.copy(round.after);
}

// No member reads the memory of another device: there is nothing to wait for.
Status NcclMover::leave(uint32_t /*seq*/, int /*member*/) { return absl::OkStatus(); }

Status NcclMover::wait_done(int member, absl::Time deadline) {
  return devices_[member]->queue().wait_done(deadline);
}

void NcclMover::fail(uint32_t seq, int member, const Status& error) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Rank& rank = ranks_[member];
  // Of a group of messages, which asks for no communicator.
  if (rank.begun == 0 && member < 2) given_up_[member] = {seq, error};
  if (rank.begun < seq) return;
  generations_
      .settle(rank.generation, host::VerdictKind::kError, host::Rendezvous::From::kRunning, error)
      .IgnoreError();
}

void NcclMover::lose(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  lost_.Update(reason);
  for (const Rank& rank : ranks_) {
    if (rank.communicator != nullptr) rank.communicator->set_member_lost();
    if (rank.met_for_memory != 0) {
      memory_
          .settle(rank.met_for_memory, host::VerdictKind::kError, host::Rendezvous::From::kOpen,
                  reason)
          .IgnoreError();
    }
    if (rank.generation == 0) continue;
    generations_
        .settle(rank.generation, host::VerdictKind::kError, host::Rendezvous::From::kRunning,
                reason)
        .IgnoreError();
  }
}

void NcclMover::close(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_.Update(reason);
}

Status NcclMover::message_error(uint32_t seq, int member) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(lost_);
  TESSERA_RETURN_IF_ERROR(closed_);
  return given_up_[member].seq == seq ? given_up_[member].error : absl::OkStatus();
}

StatusOr<cuda::CudaQueue*> NcclMover::message_queue(uint32_t seq, int member, absl::Time deadline) {
  cuda::CudaQueue* queue = nullptr;
  cuda::Event arrived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message_queues_[member] == nullptr) {
      const cuda::CudaQueue& own = devices_[member]->queue();
      TESSERA_ASSIGN_OR_RETURN(message_queues_[member],
                               cuda::CudaQueue::create(own.api(), own.gpu()));
    }
    queue = message_queues_[member].get();
    // Messages come in the order of their numbers.
    std::map<uint32_t, cuda::Event>& places = arrived_[member];
    const auto place = places.find(seq);
    if (place != places.end()) arrived = place->second;
    places.erase(places.begin(), places.upper_bound(seq));
  }
  if (arrived == nullptr) return queue;
  while (true) {
    const Status status =
        queue->wait(arrived, std::min(deadline, steady_now() + kMessageCheckInterval));
    if (status.ok()) return queue;
    if (!absl::IsDeadlineExceeded(status) || steady_now() >= deadline) return status;
    TESSERA_RETURN_IF_ERROR(message_error(seq, member));
  }
}

Status NcclMover::copy_message(cuda::CudaQueue& queue, std::byte* to, const std::byte* from,
                               int64_t num_bytes, const std::shared_ptr<Buffer>& pinned) {
  TESSERA_RETURN_IF_ERROR(queue.api()->set_device(queue.gpu()));
  TESSERA_RETURN_IF_ERROR(
      queue.api()->copy(to, from, static_cast<uint64_t>(num_bytes), queue.handle()));
  // Nothing is before it in its queue.
  const Status status = queue.wait_done(steady_now() + kMessageCopyLimit);
  if (!status.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(pinned);
  }
  return status;
}

Status NcclMover::fetch(const Collective& collective, const Arguments& arguments, uint32_t seq,
                        std::byte* to) {
  const int64_t num_bytes = collective.count() * dtype_size(collective.dtype());
  TESSERA_ASSIGN_OR_RETURN(cuda::CudaQueue* const queue,
                           message_queue(seq, 0, deadline_of(arguments, options_.timeout)));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> pinned,
                           Buffer::allocate(devices_[0]->pinned(), num_bytes));
  TESSERA_RETURN_IF_ERROR(
      copy_message(*queue, pinned->mutable_data(), arguments.in, num_bytes, pinned));
  std::memcpy(to, pinned->data(), static_cast<size_t>(num_bytes));
  return absl::OkStatus();
}

Status NcclMover::receive(const Collective& collective, const Arguments& arguments, uint32_t seq,
                          Members members) {
  const int64_t num_bytes = collective.count() * dtype_size(collective.dtype());
  if (num_bytes == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(cuda::CudaQueue* const queue,
                           message_queue(seq, 1, deadline_of(arguments, options_.timeout)));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> pinned,
                           Buffer::allocate(devices_[1]->pinned(), num_bytes));
  std::memcpy(pinned->mutable_data(), members[0].in, static_cast<size_t>(num_bytes));
  return copy_message(*queue, members[1].out, pinned->data(), num_bytes, pinned);
}

}  // namespace tessera::nccl
