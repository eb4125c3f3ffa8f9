// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/local_coordinator.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "job/coordinator/id_ranges.h"

namespace tessera {

LocalCoordinator::LocalCoordinator(const MemberInfo& self)
    : members_{self},
      state_({.num_clients = 1,
              .address = "this process",
              .heartbeat_interval = absl::InfiniteDuration()}) {
  state_.register_client(1, {.member = self}, steady_now(), absl::InfiniteFuture(),
                         [this](const Status& status) { registered_ = status; });
  run_callbacks();
}

Status LocalCoordinator::put(absl::string_view key, absl::string_view value) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Status status = state_.key_values().put(key, value);
  run_callbacks();
  return status;
}

StatusOr<std::string> LocalCoordinator::get(absl::string_view key, int setter,
                                            absl::Time deadline) {
  return await(deadline, [&](KeyValues::Found found) {
    state_.key_values().get(0, key, setter, deadline, std::move(found));
  });
}

StatusOr<std::string> LocalCoordinator::propose(absl::string_view series, uint32_t number,
                                                absl::string_view value, absl::Time) {
  std::lock_guard<std::mutex> lock(mutex_);
  const StatusOr<std::string> first = state_.key_values().propose(series, number, value);
  run_callbacks();
  return first;
}

StatusOr<std::string> LocalCoordinator::get_proposal(absl::string_view series, uint32_t number,
                                                     int setter, absl::Time deadline) {
  return await(deadline, [&](KeyValues::Found found) {
    state_.key_values().get_proposal(0, series, number, setter, deadline, std::move(found));
  });
}

StatusOr<std::string> LocalCoordinator::await(absl::Time deadline,
                                              absl::FunctionRef<void(KeyValues::Found)> start) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::optional<StatusOr<std::string>> result;
  start([&](const StatusOr<std::string>& value) { result = value; });
  run_callbacks();
  while (!result.has_value()) {
    if (deadline == absl::InfiniteFuture()) {
      changed_.wait(lock);
    } else if (changed_.wait_until(lock, to_chrono_steady(deadline)) == std::cv_status::timeout) {
      state_.advance(std::max(deadline, steady_now()));
      run_callbacks();
    }
  }
  return *result;
}

Status LocalCoordinator::check_in(absl::string_view name, absl::string_view value,
                                  absl::Span<const int> participants, absl::Time deadline) {
  std::lock_guard<std::mutex> lock(mutex_);
  Status result;
  state_.check_ins().check_in(
      {0, std::string(name), std::string(value), IdRanges::of(participants), deadline},
      steady_now(), [&](const Status& status) { result = status; });
  run_callbacks();
  return result;
}

void LocalCoordinator::run_callbacks() {
  for (const std::function<void()>& callback : state_.take_callbacks()) callback();
  changed_.notify_all();
}

}  // namespace tessera
