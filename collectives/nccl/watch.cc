// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/watch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/format.h"
#include "device/completion.h"

namespace tessera::nccl {
namespace {

// How often operations under way are looked at.
constexpr absl::Duration kInterval = absl::Milliseconds(1);

}  // namespace

Watch::Watch(std::shared_ptr<Api> api, const WatchOptions& options)
    : api_(std::move(api)), options_(options) {}

StatusOr<std::unique_ptr<Watch>> Watch::create(std::shared_ptr<Api> api,
                                               absl::Span<cuda::CudaDevice* const> devices,
                                               const WatchOptions& options) {
  std::unique_ptr<Watch> watch(new Watch(std::move(api), options));
  for (cuda::CudaDevice* const device : devices) {
    watch->lanes_.push_back(std::make_unique<Lane>());
    watch->lanes_.back()->device = device;
  }
  TESSERA_ASSIGN_OR_RETURN(
      watch->thread_, start_thread("the watch over NCCL", [self = watch.get()] { self->run(); }));
  for (cuda::CudaDevice* const device : devices) {
    device->stream().set_gate([self = watch.get()] { return self->check(); });
  }
  return watch;
}

Watch::~Watch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Lane& Watch::lane(const cuda::CudaDevice* device) {
  return **std::find_if(lanes_.begin(), lanes_.end(),
                        [&](const auto& lane) { return lane->device == device; });
}

void Watch::add(std::shared_ptr<Communicator> communicator) {
  std::lock_guard<std::mutex> lock(mutex_);
  communicators_.push_back(std::move(communicator));
  changed_.notify_all();
}

StatusOr<uint64_t> Watch::begin(Flight flight) {
  std::unique_lock<std::mutex> lock(mutex_);
  // The task may have used work that failed: then it goes no further.
  TESSERA_RETURN_IF_ERROR(flight.communicator->lane().device->stream().task_error());
  if (flight.communicator->is_failed()) {
    lock.unlock();
    return flight.communicator->verdict();
  }
  under_way_.push_back({next_id_, std::move(flight)});
  changed_.notify_all();
  return next_id_++;
}

void Watch::given(uint64_t id, cuda::Event begun, cuda::Event ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Entry& entry : under_way_) {
    if (entry.id != id) continue;
    entry.flight.begun = std::move(begun);
    entry.flight.ended = std::move(ended);
  }
}

StatusOr<bool> Watch::is_through(Entry& entry) {
  Flight& flight = entry.flight;
  Communicator& communicator = *flight.communicator;
  const cuda::CudaQueue& queue = communicator.lane().device->queue();
  const auto is_done = [&](const cuda::Event& event) -> StatusOr<bool> {
    if (event == nullptr) return false;
    return queue.is_done(event);
  };
  // Read before the verdict: a later verdict does not concern finished work.
  const StatusOr<bool> done = is_done(flight.ended);
  if (communicator.is_failed()) return false;
  Status error = done.status();  // of the GPU: the peers' would wait for it
  error.Update(communicator.try_async_error());
  TESSERA_RETURN_IF_ERROR(error);
  if (*done) return true;
  if (flight.timeout != absl::InfiniteDuration() && is_done(flight.begun).value_or(false)) {
    flight.deadline = std::min(flight.deadline, steady_now() + flight.timeout);
    flight.begun = nullptr;
  }
  if (steady_now() < flight.deadline) return false;
  const std::string limit = flight.timeout == absl::InfiniteDuration()
                                ? ""
                                : absl::StrCat(" (", format_duration(flight.timeout), ")");
  return absl::DeadlineExceededError(
      absl::StrCat("GPU ", communicator.lane().device->gpu(), " was not through with ",
                   flight.label, " in time", limit, ", though all members had arrived"));
}

Watch::Communicators Watch::communicators_under_way() {
  std::lock_guard<std::mutex> lock(mutex_);
  Communicators communicators;
  for (const Entry& entry : under_way_) {
    const auto& communicator = entry.flight.communicator;
    if (std::find(communicators.begin(), communicators.end(), communicator) ==
        communicators.end()) {
      communicators.push_back(communicator);
    }
  }
  return communicators;
}

bool Watch::is_under_way(const Communicator& communicator) const {
  return std::any_of(under_way_.begin(), under_way_.end(), [&](const Entry& entry) {
    return entry.flight.communicator.get() == &communicator;
  });
}

Status Watch::check() {
  for (const auto& communicator : communicators_under_way()) {
    if (!communicator->is_failed()) {
      const Status error = communicator->async_error();
      if (error.ok() && !communicator->is_failed()) continue;
      if (!error.ok()) communicator->fail(error).IgnoreError();
    }
    uint64_t epoch;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // Work that was done by the time of the verdict does not fail.
      if (!is_under_way(*communicator)) continue;
      epoch = num_failures_;
    }
    return fail_all(*communicator, epoch);
  }
  return absl::OkStatus();
}

// Operations that begin meanwhile are also ended: it may have been given to a stream whose work
// fails. All of them have one limit, so that the number of communicators does not count.
Status Watch::fail_all(Communicator& failed, uint64_t epoch) {
  const Status verdict = failed.verdict();
  const absl::Time limit = steady_now() + options_.verdict_limit;
  Communicators told;
  const auto find_untold = [&]() -> std::shared_ptr<Communicator> {
    for (const Entry& entry : under_way_) {
      const auto& communicator = entry.flight.communicator;
      const bool is_told = std::find(told.begin(), told.end(), communicator) != told.end();
      if (!is_told && !communicator->is_failed()) return communicator;
    }
    return nullptr;
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (num_failures_ == epoch) {
    if (const std::shared_ptr<Communicator> untold = find_untold()) {
      told.push_back(untold);
      lock.unlock();
      untold->end(verdict, limit);
      lock.lock();
    } else {
      end_given(verdict);
    }
  }
  return verdict;
}

void Watch::end_given(const Status& verdict) {
  for (const Entry& entry : under_way_) {
    const auto& communicator = entry.flight.communicator;
    if (std::find(failed_.begin(), failed_.end(), communicator) == failed_.end()) {
      failed_.push_back(communicator);
    }
  }
  under_way_.clear();
  ++num_failures_;
  for (const auto& lane : lanes_) lane->device->stream().fail_given(verdict);
  changed_.notify_all();
}

std::shared_ptr<Communicator> Watch::find_failed() const {
  const auto failed = std::find_if(under_way_.begin(), under_way_.end(), [](const Entry& entry) {
    return entry.flight.communicator->is_failed();
  });
  return failed == under_way_.end() ? nullptr : failed->flight.communicator;
}

// Looks at all that is under way, and ends it where anything of it has failed.
void Watch::look(std::unique_lock<std::mutex>& lock) {
  const uint64_t epoch = num_failures_;
  std::vector<std::pair<std::shared_ptr<Communicator>, Status>> errors;
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    const StatusOr<bool> through = is_through(*it);
    if (!through.ok()) errors.emplace_back(it->flight.communicator, through.status());
    it = through.value_or(false) ? under_way_.erase(it) : std::next(it);
  }
  if (!errors.empty()) {
    lock.unlock();
    const absl::Time limit = steady_now() + options_.verdict_limit;
    for (const auto& [communicator, error] : errors) communicator->end(error, limit);
    lock.lock();
  }
  if (const std::shared_ptr<Communicator> failed = find_failed()) {
    lock.unlock();
    fail_all(*failed, epoch).IgnoreError();
    lock.lock();
  }
}

void Watch::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    look(lock);
    // Communicators with nothing under way end too, once there is a verdict. Another client may
    // have made a verdict since look(): where something is under way the next look() ends it, once.
    for (const auto& communicator : communicators_) {
      if (!is_under_way(*communicator) && communicator->is_failed() &&
          std::find(failed_.begin(), failed_.end(), communicator) == failed_.end()) {
        failed_.push_back(communicator);
      }
    }
    if (!failed_.empty()) {
      Communicators failed = std::exchange(failed_, {});
      std::erase_if(communicators_, [&](const auto& c) {
        return std::find(failed.begin(), failed.end(), c) != failed.end();
      });
      start_end(std::move(failed), lock);
    }
    // An idle client polls for the verdicts of others a hundred times less often.
    const absl::Duration nap = under_way_.empty() ? 100 * kInterval : kInterval;
    if (communicators_.empty()) {
      changed_.wait(lock, [this] { return stopping_ || !communicators_.empty(); });
    } else {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(nap));
    }
  }
  // The ending threads hand back communicators that they could not end.
  changed_.wait(lock, [this] { return num_ending_ == 0; });
  Communicators left = std::exchange(communicators_, {});
  lock.unlock();
  const auto failed =
      std::partition(left.begin(), left.end(), [](const auto& c) { return !c->is_failed(); });
  end({failed, left.end()});
  finalize({left.begin(), failed});
}

bool Watch::settle(absl::Span<const std::shared_ptr<Communicator>> communicators,
                   absl::Time deadline) {
  bool all = true;
  for (const auto& communicator : communicators) {
    cuda::CudaDevice& device = *communicator->lane().device;
    if (!device.queue().api()->set_device(device.gpu()).ok()) return false;
    while (true) {
      const StatusOr<bool> settled = communicator->poll();
      if (settled.ok() && *settled) break;
      if (!settled.ok() || steady_now() >= deadline) {
        all = false;
        break;
      }
      absl::SleepFor(kInterval);  // sleep: NCCL wakes no thread
    }
  }
  return all;
}

bool Watch::drain(absl::Span<const std::shared_ptr<Communicator>> communicators,
                  absl::Time deadline) {
  bool all = true;
  for (const auto& communicator : communicators) {
    all &= communicator->lane().device->queue().wait_done(deadline).ok();
  }
  return all;
}

void Watch::wait_until_left(absl::Span<const std::shared_ptr<Communicator>> communicators) {
  const absl::Time begin = steady_now();
  for (const auto& communicator : communicators) {
    while (!stopping_ && !communicator->have_all_left()) {
      const absl::Duration limit =
          communicator->is_member_lost() ? options_.lost_limit : options_.revoke_limit;
      if (steady_now() - begin >= limit) break;
      absl::SleepFor(kInterval);  // sleep: it is the other members' time
    }
  }
}

void Watch::start_end(Communicators communicators, std::unique_lock<std::mutex>& lock) {
  StatusOr<Thread> ender =
      start_thread("the end of what NCCL failed", [this, failed = communicators]() mutable {
        end(std::move(failed));
        std::lock_guard<std::mutex> own_lock(mutex_);
        --num_ending_;
        changed_.notify_all();
      });
  if (ender.ok()) {
    ++num_ending_;  // the thread takes the lock before it counts
    return ender->detach();
  }
  lock.unlock();
  end(std::move(communicators));
  lock.lock();
}

void Watch::wait_until_through(const Completion& done) {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t next = next_id_;
  while (!stopping_ && !done.done() && !under_way_.empty() && under_way_.front().id < next) {
    changed_.wait_for(lock, absl::ToChronoNanoseconds(kInterval));
  }
}

void Watch::end(Communicators communicators) {
  if (communicators.empty()) return;
  Communicators revoked;
  Communicators aborted;
  const absl::Time deadline = steady_now() + options_.revoke_limit;
  for (const auto& communicator : communicators) {
    switch (communicator->begin_end(deadline)) {
      case Communicator::End::kNothing:
        communicator->leave();
        break;
      case Communicator::End::kRevoke:
        revoked.push_back(communicator);
        break;
      case Communicator::End::kAbort:
        aborted.push_back(communicator);
        break;
      case Communicator::End::kStuck:
        lose(absl::MakeConstSpan(&communicator, 1), options_.revoke_limit);
        add(communicator);  // to be tried again
        break;
    }
  }
  const auto leave = [](const Communicators& which) {
    for (const auto& communicator : which) communicator->leave();
  };
  const bool is_revoked = revoke(revoked);
  // Only now: to free memory CUDA waits for all that runs. And not later: the failed call may have
  // given the GPU work, which only the abort ends.
  const std::shared_ptr<Calls> freeing = start_free(aborted, &Api::comm_abort);
  if (!is_revoked) {
    wait_free(aborted, freeing, How::kAlone);
    return leave(aborted);
  }
  settle(revoked, steady_now() + options_.revoke_limit);
  const bool drained = drain(revoked, steady_now() + options_.revoke_limit);
  leave(revoked);
  // Other groups are waited for where the GPU still finishes work.
  const How how = drained ? How::kBesideOthers : How::kAlone;
  wait_free(aborted, freeing, how);
  leave(aborted);
  wait_until_left(revoked);
  wait_free(revoked, start_free(revoked, &Api::comm_abort), how);
}

void Watch::finalize(Communicators communicators) {
  bool all = drain(communicators, steady_now() + options_.revoke_limit);
  if (all) {
    for (const auto& communicator : communicators) {
      const cuda::CudaQueue& queue = communicator->lane().device->queue();
      all &= queue.api()->set_device(queue.gpu()).ok() && communicator->finalize().ok();
    }
    all &= settle(communicators, steady_now() + options_.revoke_limit);
  }
  const auto call = all ? &Api::comm_destroy : &Api::comm_abort;
  wait_free(communicators, start_free(communicators, call), How::kAlone);
}

struct Watch::Calls {
  std::vector<Communicator::Released> communicators;
  Completion done;
};

// Calls of NCCL that may not return, each with the GPU of its communicator current. All that they
// use is kept until they return.
std::shared_ptr<Watch::Calls> Watch::start_calls(std::vector<Communicator::Released> communicators,
                                                 Status (Api::*call)(CommHandle)) {
  const auto calls = std::make_shared<Calls>();
  calls->communicators = std::move(communicators);
  StatusOr<Thread> caller = start_thread("the end of what NCCL failed", [api = api_, calls, call] {
    const bool in_group = call != &Api::comm_revoke;
    if (in_group) api->group_start().IgnoreError();
    for (const Communicator::Released& released : calls->communicators) {
      released.cuda->set_device(released.gpu).IgnoreError();
      (api.get()->*call)(released.handle).IgnoreError();
    }
    // All in one group: the end of one communicator alone may wait for the end of another one.
    if (in_group) api->group_end().IgnoreError();
    calls->done.set(absl::OkStatus());
  });
  if (!caller.ok()) return nullptr;
  caller->detach();
  return calls;
}

bool Watch::revoke(const Communicators& communicators) {
  if (communicators.empty()) return true;
  std::vector<Communicator::Released> handles;
  for (const auto& communicator : communicators) handles.push_back(communicator->to_revoke());
  const auto calls = start_calls(std::move(handles), &Api::comm_revoke);
  if (calls != nullptr && calls->done.wait_until(steady_now() + options_.revoke_limit)) return true;
  lose(communicators, options_.revoke_limit);
  return false;
}

std::shared_ptr<Watch::Calls> Watch::start_free(const Communicators& communicators,
                                                Status (Api::*call)(CommHandle)) {
  std::vector<Communicator::Released> handles;
  for (const auto& communicator : communicators) {
    std::optional<Communicator::Released> released =
        communicator->release(steady_now() + options_.abort_limit);
    if (!released.has_value()) {
      lose(absl::MakeConstSpan(&communicator, 1), options_.abort_limit);
    } else if (released->handle != nullptr) {
      handles.push_back(*std::move(released));
    }
  }
  if (handles.empty()) {
    const auto nothing = std::make_shared<Calls>();
    nothing->done.set(absl::OkStatus());
    return nothing;
  }
  return start_calls(std::move(handles), call);
}

void Watch::wait_free(const Communicators& communicators, const std::shared_ptr<Calls>& calls,
                      How how) {
  if (calls != nullptr && how == How::kBesideOthers) wait_until_through(calls->done);
  if (calls != nullptr && calls->done.wait_until(steady_now() + options_.abort_limit)) return;
  lose(communicators, options_.abort_limit);
}

void Watch::lose(absl::Span<const std::shared_ptr<Communicator>> communicators,
                 absl::Duration limit) {
  for (const auto& communicator : communicators) {
    Lane& lane = communicator->lane();
    const Status lost = absl::UnavailableError(
        absl::StrCat("GPU ", lane.device->gpu(), " is lost: NCCL did not end what failed on it in ",
                     format_duration(limit), "; start the client anew"));
    lane.lose(lost);
    lane.device->stream().lose(lost);
  }
}

}  // namespace tessera::nccl
