// SPDX-License-Identifier: Apache-2.0
//
// Communicators from their making to their end; what tests ask of the fake, and its faults.
#include "collectives/nccl/fake/fake_nccl.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/nccl/errors.h"
#include "collectives/nccl/fake/fake_nccl_state.h"

namespace tessera::nccl {

std::shared_ptr<FakeNccl> FakeNccl::create(std::shared_ptr<cuda::FakeCuda> cuda) {
  return create(std::move(cuda), Options());
}

std::shared_ptr<FakeNccl> FakeNccl::create(std::shared_ptr<cuda::FakeCuda> cuda,
                                           const Options& options) {
  return std::shared_ptr<FakeNccl>(new FakeNccl(std::move(cuda), options));
}

FakeNccl::~FakeNccl() {
  cuda_->release();
  std::unique_lock<std::mutex> lock(mutex_);
  for (auto& [number, world] : worlds_) {
    for (auto& [rank, comm] : world->ranks) {
      comm->ended = true;
      comm->deferred.clear();  // which hold the communicator
    }
  }
  changed_.notify_all();
  changed_.wait(lock, [this] { return num_queued_ == 0; });
  for (auto& [number, world] : worlds_) world->ranks.clear();
}

std::vector<std::string> FakeNccl::misuses() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return misuses_;
}

int FakeNccl::num_calls(absl::string_view function) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = calls_.find(std::string(function));
  return it == calls_.end() ? 0 : it->second;
}

int FakeNccl::num_communicators() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(comms_.size());
}

int FakeNccl::num_allocations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int>(allocations_.size());
}

void FakeNccl::stall(absl::string_view function, int num_calls, int num_polls) {
  std::lock_guard<std::mutex> lock(mutex_);
  stalls_[std::string(function)] = {num_calls, num_polls};
}

void FakeNccl::break_link(int nth, Status error) {
  std::lock_guard<std::mutex> lock(mutex_);
  broken_links_[num_operations_ + nth] = std::move(error);
}

void FakeNccl::hang_inits() {
  std::lock_guard<std::mutex> lock(mutex_);
  inits_hang_ = true;
}

void FakeNccl::release_inits() {
  std::lock_guard<std::mutex> lock(mutex_);
  inits_hang_ = false;
  changed_.notify_all();
}

void FakeNccl::hang_aborts() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_hang_ = true;
}

void FakeNccl::release_aborts() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborts_hang_ = false;
  changed_.notify_all();
}

void FakeNccl::hang_revokes() {
  std::lock_guard<std::mutex> lock(mutex_);
  revokes_hang_ = true;
}

void FakeNccl::release_revokes() {
  std::lock_guard<std::mutex> lock(mutex_);
  revokes_hang_ = false;
  changed_.notify_all();
}

bool FakeNccl::has_shm() const {
  return !options_.shares_gpus || (comms_.size() + 1) * kShmBytesOfRank <= options_.shm_bytes;
}

Status FakeNccl::misuse(std::string what) {
  misuses_.push_back(std::move(what));
  return absl::InternalError(absl::StrCat("the fake of NCCL: ", misuses_.back()));
}

StatusOr<std::shared_ptr<FakeNccl::Comm>> FakeNccl::enter(absl::string_view function,
                                                          CommHandle comm) {
  ++calls_[std::string(function)];
  const auto it = comms_.find(comm);
  if (it == comms_.end()) {
    return misuse(absl::StrCat(function, ": a communicator that is not there, or no longer"));
  }
  return it->second;
}

StatusOr<std::shared_ptr<FakeNccl::Comm>> FakeNccl::enter_for_work(absl::string_view function,
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

void FakeNccl::take_stall(absl::string_view function, Comm& comm) {
  const auto it = stalls_.find(std::string(function));
  if (it == stalls_.end()) return;
  comm.stalled_polls += it->second.second;
  if (--it->second.first <= 0) stalls_.erase(it);
}

int FakeNccl::seat_of(int gpu) {
  if (!options_.shares_gpus) return gpu;
  const auto next = static_cast<int>(seats_.size());
  return seats_.try_emplace({gpu, std::this_thread::get_id()}, next).first->second;
}

StatusOr<UniqueId> FakeNccl::get_unique_id() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++calls_["get_unique_id"];
  auto world = std::make_shared<World>();
  world->number = next_id_++;
  UniqueId id = {};
  std::memcpy(id.data(), &world->number, sizeof(world->number));
  worlds_[world->number] = std::move(world);
  return id;
}

StatusOr<CommHandle> FakeNccl::comm_init_rank(int num_ranks, const UniqueId& id, int rank) {
  cuda_->expect_device("comm_init_rank");
  std::unique_lock<std::mutex> lock(mutex_);
  ++calls_["comm_init_rank"];
  changed_.wait(lock, [this] { return !inits_hang_; });
  uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof(number));
  const auto it = worlds_.find(number);
  if (it == worlds_.end()) return misuse("comm_init_rank: an unknown unique id");
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
  if (!has_shm()) {
    comm->error = error_of(absl::StatusCode::kInternal, "NCCL", "unhandled system error",
                           absl::StrCat("Error while creating shared memory segment "
                                        "/dev/shm/nccl-0 (size ",
                                        kShmBytesOfRank, "), error: No space left on device (28)"));
  }
  world.ranks[rank] = comm;
  const auto handle = reinterpret_cast<CommHandle>(next_handle_++);
  comms_[handle] = std::move(comm);
  return handle;
}

StatusOr<bool> FakeNccl::poll(CommHandle comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("poll", comm));
  if (found->state == Comm::State::kRevoked) {
    // An error stays, and poll() cannot tell then when the revoke is done.
    if (found->error.has_value()) return *found->error;
    if (found->stalled_polls > 0) --found->stalled_polls;
    return found->stalled_polls == 0 && found->running == 0;
  }
  if (found->error.has_value()) return *found->error;
  if (found->stalled_polls > 0) {
    if (--found->stalled_polls == 0) launch_deferred(*found);
    return false;
  }
  if (found->state == Comm::State::kMaking) {
    if (static_cast<int>(found->world->ranks.size()) < found->world->num_ranks) return false;
    found->state = Comm::State::kReady;
  }
  if (found->state == Comm::State::kFinalized) return found->queued == 0;
  return true;
}

// Launches as NCCL's own thread does, on the GPU of the communicator.
void FakeNccl::launch_deferred(Comm& comm) {
  std::vector<Call> calls = std::exchange(comm.deferred, {});
  if (calls.empty()) return;
  const int current = cuda_->current_device();
  cuda_->set_device(comm.gpu).IgnoreError();
  const Status status = launch(std::move(calls));
  cuda_->set_device(current).IgnoreError();
  if (!status.ok()) comm.error = status;
}

Status FakeNccl::comm_revoke(CommHandle comm) {
  cuda_->expect_device("comm_revoke");
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_revoke", comm));
  if (found->state == Comm::State::kRevoked) return misuse("comm_revoke: revoked already");
  const bool in_progress = found->state == Comm::State::kMaking || found->stalled_polls > 0;
  if (in_progress && found->queued == 0) {
    return misuse("comm_revoke: the last call is in progress, and no earlier work in flight");
  }
  found->deferred.clear();
  changed_.wait(lock, [this] { return !revokes_hang_; });
  found->state = Comm::State::kRevoked;
  found->stalled_polls = 0;
  take_stall("comm_revoke", *found);
  found->ended = true;
  forget_meetings(*found->world);
  changed_.notify_all();
  return absl::OkStatus();
}

Status FakeNccl::comm_finalize(CommHandle comm) {
  cuda_->expect_device("comm_finalize");
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_finalize", comm));
  if (found->state != Comm::State::kReady) {
    return misuse("comm_finalize: a communicator that is not in use");
  }
  found->state = Comm::State::kFinalized;
  return absl::OkStatus();
}

Status FakeNccl::comm_destroy(CommHandle comm) {
  cuda_->expect_device("comm_destroy");
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_destroy", comm));
  if (found->state != Comm::State::kFinalized && found->state != Comm::State::kRevoked) {
    return misuse("comm_destroy: a communicator that was neither finalized nor revoked");
  }
  if (found->queued > 0) return misuse("comm_destroy: work of it is in flight");
  comms_.erase(comm);
  lock.unlock();
  wait_to_free(found->gpu);
  return absl::OkStatus();
}

Status FakeNccl::comm_abort(CommHandle comm) {
  cuda_->expect_device("comm_abort");
  std::unique_lock<std::mutex> lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<Comm> found, enter("comm_abort", comm));
  changed_.wait(lock, [this] { return !aborts_hang_; });
  found->ended = true;
  found->deferred.clear();
  forget_meetings(*found->world);
  comms_.erase(comm);
  changed_.notify_all();
  lock.unlock();
  wait_to_free(found->gpu);
  return absl::OkStatus();
}

}  // namespace tessera::nccl
