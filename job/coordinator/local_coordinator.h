// SPDX-License-Identifier: Apache-2.0
//
// LocalCoordinator: the coordinator of a job of one client, whose state is in this process, without
// a service. Thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_LOCAL_COORDINATOR_H_
#define TESSERA_JOB_COORDINATOR_LOCAL_COORDINATOR_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"
#include "job/coordinator/coordinator_state.h"

namespace tessera {

class LocalCoordinator final : public Coordinator {
 public:
  explicit LocalCoordinator(const MemberInfo& self);
  // OK if the state has accepted the client's registration.
  const Status& registered() const { return registered_; }

  int client_id() const override { return 0; }
  absl::Span<const MemberInfo> members() const override { return members_; }
  void set_lost_callback(LostCallback) override {}

  Status put(absl::string_view key, absl::string_view value) override;
  StatusOr<std::string> get(absl::string_view key, int setter, absl::Time deadline) override;
  StatusOr<std::string> propose(absl::string_view series, uint32_t number, absl::string_view value,
                                absl::Time deadline) override;
  StatusOr<std::string> get_proposal(absl::string_view series, uint32_t number, int setter,
                                     absl::Time deadline) override;
  Status check_in(absl::string_view name, absl::string_view value,
                  absl::Span<const int> participants, absl::Time deadline) override;
  Status leave(absl::Time) override { return absl::OkStatus(); }
  StatusOr<CircleStep> report_waits(const WaitsReport&, absl::Time) override {
    return CircleStep();
  }

 private:
  // Starts a get by `start`, and waits for its answer.
  StatusOr<std::string> await(absl::Time deadline, absl::FunctionRef<void(KeyValues::Found)> start);
  void run_callbacks();

  const std::vector<MemberInfo> members_;
  Status registered_;
  std::mutex mutex_;  // guards state_
  std::condition_variable changed_;
  CoordinatorState state_;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_LOCAL_COORDINATOR_H_
