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
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/verdicts.h"
#include "device/cuda/kernels.h"
#include "device/memory_pool.h"

namespace tessera::nccl {
namespace {

using Members = absl::Span<const MemberMemory>;

// Distinguishes meetings of members that lacked memory from the group's operations, messages and
// generations. Such meetings are rare, and there are never two at the same time.
constexpr uint32_t kMemoryRecords = 2;
constexpr uint64_t kMemorySalt = 3;

// How often a message that waits for its GPU looks whether it is still wanted.
constexpr absl::Duration kMessageCheckInterval = absl::Milliseconds(20);
// How long the copy of a message may take once its GPU has reached it.
constexpr absl::Duration kMessageCopyLimit = absl::Seconds(30);

// Cuts one block of memory into pieces. Used by one thread.
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

// Makes the calls of NCCL of a round.
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

// The signature of a meeting of which only the entries are used.
Signature ends_at_arrival() {
  Signature signature;
  signature.inlined = true;
  return signature;
}

}  // namespace

StatusOr<std::unique_ptr<NcclMover>> NcclMover::create(StatusOr<Watch*> watch, shm::HostLink& link,
                                                       std::vector<shm::GroupMember> members,
                                                       std::vector<cuda::CudaDevice*> devices,
                                                       const Options& options,
                                                       std::shared_ptr<span::Network> network) {
  Places places;
  std::vector<shm::GroupMember> here;
  for (size_t position = 0; position < members.size(); ++position) {
    const shm::GroupMember& member = members[position];
    places.clients.push_back(member.client_id);
    if (!link.members().is_on_host(member.client_id)) continue;
    here.push_back(member);
    places.positions.push_back(static_cast<int>(position));
    places.devices.push_back(devices[position]);
  }
  if (here.size() < members.size()) {
    places.others = std::make_shared<OtherHosts>(std::move(network), members);
  }
  TESSERA_ASSIGN_OR_RETURN(Generations generations, Generations::open(link, here, places.others));
  // Groups that differ on other hosts may have the same members on this one.
  const uint64_t salt = places.others == nullptr ? kMemorySalt : ~places.others->name();
  TESSERA_ASSIGN_OR_RETURN(host::Rendezvous memory,
                           host::Rendezvous::open(link, std::move(here), kMemoryRecords, salt));
  return std::unique_ptr<NcclMover>(new NcclMover(std::move(watch), std::move(generations),
                                                  std::move(memory), std::move(places), options));
}

NcclMover::NcclMover(StatusOr<Watch*> watch, Generations generations, host::Rendezvous memory,
                     Places places, const Options& options)
    : watch_(std::move(watch)),
      generations_(std::move(generations)),
      memory_(std::move(memory)),
      places_(std::move(places)),
      options_(options),
      packing_(places_.devices.size()),
      ranks_(places_.devices.size()) {
  refusal_ = find_refusal();
}

Status NcclMover::find_refusal() const {
  TESSERA_RETURN_IF_ERROR(watch_.status());
  const size_t num_members = places_.clients.size();
  if (num_members > cuda::kMaxTerms) {
    return absl::UnimplementedError(absl::StrCat(
        "a group of ", num_members, " GPUs; groups of up to ", cuda::kMaxTerms, " are there"));
  }
  const std::vector<cuda::CudaDevice*>& devices = places_.devices;
  for (size_t a = 0; a < devices.size(); ++a) {
    for (size_t b = a + 1; b < devices.size(); ++b) {
      if (devices[a] == nullptr || devices[b] == nullptr) continue;
      if (devices[a]->gpu() != devices[b]->gpu()) continue;
      return absl::UnimplementedError(absl::StrCat(
          "members ", places_.positions[a], " and ", places_.positions[b], " share GPU ",
          devices[a]->gpu(),
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

Status NcclMover::arrive(const Collective& collective, const Arguments&, uint32_t seq, int member,
                         absl::Span<std::byte> board) {
  const bool is_message = collective.kind() == OpKind::kSendRecv;
  if (!is_message) TESSERA_RETURN_IF_ERROR(take_packing(collective, member));
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_message) {
    // The message follows the work enqueued so far, not work enqueued later.
    std::map<uint32_t, cuda::Event>& arrived = arrived_[collective.place().position];
    if (collective.count() == 0 || arrived.count(seq) > 0) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(arrived[seq], places_.devices[member]->queue().record());
    return absl::OkStatus();
  }
  const Rank& rank = ranks_[member];
  const bool is_usable = rank.communicator != nullptr && !rank.communicator->is_failed();
  Board own = {};
  own.generation = is_usable ? rank.generation : rank.generation + 1;
  own.sums = options_.sums;
  const std::shared_ptr<Buffer>& sent = packing_[member].sent;
  own.sent_bytes = sent == nullptr ? 0 : sent->size_bytes();
  std::memcpy(board.data(), &own, sizeof(own));
  return absl::OkStatus();
}

Status NcclMover::take_packing(const Collective& collective, int member) {
  Packing& packing = packing_[member];
  packing.own = packing.sent = nullptr;
  const std::shared_ptr<cuda::SlabPool>& pool = places_.devices[member]->slabs();
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

Status NcclMover::take_sent_packing(const Collective& collective, const Label& label, uint32_t seq,
                                    int member, Members members, absl::Time deadline) {
  const std::vector<int64_t> sent_bytes = sent_packing_bytes(collective, members);
  bool is_enough = true;
  for (size_t m = 0; m < members.size(); ++m) {
    Board board = {};
    std::memcpy(&board, members[m].board, sizeof(board));
    is_enough &= sent_bytes[m] <= board.sent_bytes;
  }
  if (is_enough) return absl::OkStatus();
  const Status met =
      meet_for_memory(label, member, sent_bytes[collective.place().position], deadline);
  return places_.others == nullptr ? met : places_.others->first_error(seq, met, deadline);
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
    if (!memory_.wait_free(seq, deadline)) return host::describe_missing(memory_.records(), op);
    Packing& packing = packing_[member];
    if (packing.sent == nullptr || packing.sent->size_bytes() < sent_bytes) {
      packing.sent = nullptr;
      packing.most_sent_bytes = std::max(packing.most_sent_bytes, sent_bytes);
      StatusOr<std::shared_ptr<Buffer>> sent =
          Buffer::allocate(places_.devices[member]->memory(), sent_bytes);
      if (!sent.ok()) {
        const Status verdict = memory_.settle(seq, host::VerdictKind::kError,
                                              host::Rendezvous::From::kOpen, sent.status(), &op);
        return verdict.ok() ? sent.status() : verdict;
      }
      packing.sent = *std::move(sent);
    }
    host::MemberEntry& entry = memory_.records().entry(seq, member);
    entry.signature = {};
    label.copy_to(absl::MakeSpan(entry.label));
    TESSERA_RETURN_IF_ERROR(memory_.arrive(op));
    return memory_.wait_arrived(op);
  };
  const Status met = meet();
  if (met.ok()) {
    memory_.records().leave(seq, member);
  } else {
    memory_.acknowledge(seq);
  }
  return met;
}

StatusOr<NcclMover::Board> NcclMover::agree(const Label& label, Members members) const {
  Board all = {};
  for (size_t member = 0; member < members.size(); ++member) {
    Board board = {};
    std::memcpy(&board, members[member].board, sizeof(board));
    if (member == 0) all.sums = board.sums;
    if (board.sums != all.sums) {
      const auto has = [&](size_t k, Sums sums) {
        return absl::StrCat("client ", places_.clients[k], " has ",
                            sums == Sums::kNccl ? "\"nccl\"" : "\"auto\"");
      };
      return absl::InvalidArgumentError(
          absl::StrCat(label.to_string(), ": backend differs between clients: ", has(0, all.sums),
                       ", ", has(member, board.sums), "; give all clients of a job the same"));
    }
    all.generation = std::max(all.generation, board.generation);
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
  const Status taken = take_sent_packing(collective, label, seq, member, members, deadline);
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
  const PackingPools pools = {std::make_shared<PackingPool>(packing_[member].own),
                              std::make_shared<PackingPool>(packing_[member].sent)};
  TESSERA_ASSIGN_OR_RETURN(const Schedule schedule,
                           make_schedule(collective, members, board.sums, pools));
  return run(arguments, member, schedule, communicator, deadline);
}

StatusOr<std::shared_ptr<Communicator>> NcclMover::communicator(const Label& label, uint32_t seq,
                                                                int member, uint32_t generation,
                                                                absl::Time deadline) {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Communicator> former;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    Rank& rank = ranks_[member];
    rank.begun = seq;
    if (rank.generation == generation && rank.communicator != nullptr) {
      if (!rank.communicator->is_failed()) return rank.communicator;
      communicator = rank.communicator;
      lock.unlock();
      return communicator->verdict();
    }
    // The watch acknowledges for the generations that this member did join.
    const uint32_t first = rank.communicator == nullptr ? rank.generation : rank.generation + 1;
    for (uint32_t old = std::max(1u, first); old < generation; ++old) {
      generations_.leave(old);
    }
    communicator = std::make_shared<Communicator>(
        (*watch_)->api(), (*watch_)->lane(places_.devices[member]), generations_, generation);
    if (!lost_.ok()) return lost_;
    rank.generation = generation;
    former = std::exchange(rank.communicator, nullptr);
  }
  if (former != nullptr) {
    // Another member knows of its end already.
    former->fail(absl::AbortedError("the communicator was given up")).IgnoreError();
  }
  TESSERA_ASSIGN_OR_RETURN(const UniqueId id,
                           generations_.meet(
                               label, member, generation,
                               [this] { return (*watch_)->api().get_unique_id(); }, deadline));
  (*watch_)->add(communicator);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ranks_[member].communicator = communicator;
  }
  const Status made = communicator->init(id, places_.positions[member], deadline);
  if (!made.ok()) return communicator->fail(made);
  return communicator;
}

Status NcclMover::run(const Arguments& arguments, int member, const Schedule& schedule,
                      const std::shared_ptr<Communicator>& communicator, absl::Time deadline) {
  cuda::CudaDevice& device = *places_.devices[member];
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
  return places_.devices[member]->queue().wait_done(deadline);
}

void NcclMover::fail(uint32_t seq, int member, const Status& error) {
  uint32_t generation = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Rank& rank = ranks_[member];
    // In a group of messages, which asks for no communicator.
    const int position = places_.positions[member];
    if (rank.begun == 0 && position < 2) given_up_[position] = {seq, error};
    if (rank.begun < seq) return;
    generation = rank.generation;
  }
  // Without the lock: it may wait for the coordinator.
  generations_.end(generation, error, steady_now() + OtherHosts::kVerdictLimit);
}

void NcclMover::lose(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  lost_.Update(reason);
  for (const Rank& rank : ranks_) {
    if (rank.communicator != nullptr) rank.communicator->set_member_lost();
    if (rank.met_for_memory != 0) {
      host::settle_at_once(memory_.records(), rank.met_for_memory, host::Rendezvous::From::kOpen,
                           reason);
    }
    if (rank.generation == 0) continue;
    generations_.lose(rank.generation, reason);
  }
}

void NcclMover::close(const Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_.Update(reason);
}

cuda::CudaDevice& NcclMover::end_of_message(int position) const {
  const std::vector<int>& positions = places_.positions;
  return *places_
              .devices[std::find(positions.begin(), positions.end(), position) - positions.begin()];
}

Status NcclMover::message_error(uint32_t seq, int position) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(lost_);
  TESSERA_RETURN_IF_ERROR(closed_);
  return given_up_[position].seq == seq ? given_up_[position].error : absl::OkStatus();
}

StatusOr<cuda::CudaQueue*> NcclMover::message_queue(uint32_t seq, int position,
                                                    absl::Time deadline) {
  cuda::CudaQueue* queue = nullptr;
  cuda::Event arrived;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message_queues_[position] == nullptr) {
      const cuda::CudaQueue& own = end_of_message(position).queue();
      TESSERA_ASSIGN_OR_RETURN(message_queues_[position],
                               cuda::CudaQueue::create(own.api(), own.gpu()));
    }
    queue = message_queues_[position].get();
    // Messages come in the order of their numbers.
    std::map<uint32_t, cuda::Event>& places = arrived_[position];
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
    TESSERA_RETURN_IF_ERROR(message_error(seq, position));
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
                           Buffer::allocate(end_of_message(0).pinned(), num_bytes));
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
                           Buffer::allocate(end_of_message(1).pinned(), num_bytes));
  std::memcpy(pinned->mutable_data(), members[0].in, static_cast<size_t>(num_bytes));
  return copy_message(*queue, members[1].out, pinned->data(), num_bytes, pinned);
}

}  // namespace tessera::nccl
