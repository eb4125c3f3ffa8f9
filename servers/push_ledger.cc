// SPDX-License-Identifier: Apache-2.0
#include "servers/push_ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::distribute {
namespace {

std::pair<uint64_t, uint64_t> order_of(const RunKey& run) { return {run.session, run.run}; }

}  // namespace

std::string RunKey::to_string() const {
  return absl::StrCat("run ", run, " of session ", session, " of worker ", worker);
}

Status PushLedger::stage(const RunKey& run, int index, Push push) {
  Worker& worker = workers_[run.worker];
  if (run.session < worker.least_session || order_of(run) < order_of(worker.newest) ||
      (run == worker.newest && worker.is_committed)) {
    return absl::CancelledError(
        absl::StrCat(run.to_string(), " is over or was given up; its pushes do not count"));
  }
  if (run != worker.newest) {
    worker.newest = run;
    worker.is_committed = false;
    worker.pushes.clear();
  }
  worker.pushes[index] = std::move(push);
  return absl::OkStatus();
}

StatusOr<std::vector<Push>> PushLedger::update(const ServerUpdate& update) {
  std::vector<Push> result;
  if (update.number <= last_number_) return result;
  if (update.number != last_number_ + 1) {
    return absl::InternalError(absl::StrCat("update ", update.number, " of the chief follows ",
                                            last_number_, "; one between them is missing"));
  }
  for (const ServerUpdate::Commit& commit : update.commits) {
    const Worker& worker = workers_[commit.run.worker];
    const auto num_staged = static_cast<int>(worker.pushes.size());
    if (commit.run != worker.newest || worker.is_committed || num_staged != commit.num_pushes) {
      return absl::InternalError(absl::StrCat(
          "the chief commits ", commit.num_pushes, " pushes of ", commit.run.to_string(), "; ",
          num_staged, " pushes of ", worker.newest.to_string(), " are here"));
    }
  }
  for (const ServerUpdate::Commit& commit : update.commits) {
    Worker& worker = workers_[commit.run.worker];
    for (auto& [index, push] : worker.pushes) result.push_back(std::move(push));
    worker.pushes.clear();
    worker.is_committed = true;
  }
  for (const ServerUpdate::Closed& closed : update.closed) {
    Worker& worker = workers_[closed.worker];
    worker.least_session = std::max(worker.least_session, closed.session + 1);
    if (worker.newest.session <= closed.session) worker.pushes.clear();
  }
  last_number_ = update.number;
  return result;
}

std::string PushLedger::to_string() const {
  std::string text = absl::StrCat("after update ", last_number_);
  for (const auto& [number, worker] : workers_) {
    absl::StrAppend(&text, "; from session ", worker.least_session, " on, ",
                    worker.newest.to_string(), worker.is_committed ? " committed" : "", " with");
    for (const auto& [index, push] : worker.pushes) {
      absl::StrAppend(&text, " ", index, "=", push.bytes);
    }
  }
  return text;
}

}  // namespace tessera::distribute
