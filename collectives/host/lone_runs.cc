// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/lone_runs.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/format.h"
#include "shm/activity.h"

namespace tessera::host {

LoneRun::LoneRun(LoneRuns& runs, int member, Collective::Ptr collective, Arguments&& run_arguments)
    : Run(runs.shared_from_this(), member, std::move(collective), std::move(run_arguments),
          Clock::kTick),
      runs_(runs) {}

Status LoneRun::run() {
  Status status;
  if (run_stage().begin()) {
    char text[shm::kLabelBytes];
    const size_t size = arguments().label.copy_to(absl::MakeSpan(text));
    shm::Activity running = activity_of(collective(), shm::DeviceActivity::kRunning);
    shm::publish_activity(runs_.activity(member()), running, {text, size});
    status = execute();
    finish(status);
  } else {
    status = completion().wait();
  }
  return end_task(status);
}

Status LoneRun::execute() {
  TESSERA_RETURN_IF_ERROR(labelled(collective().error()));
  TESSERA_RETURN_IF_ERROR(find_input());
  TESSERA_RETURN_IF_ERROR(take_output());
  TESSERA_RETURN_IF_ERROR(
      labelled(wait_for_device(arguments().deadline.value_or(absl::InfiniteFuture()))));
  std::vector<int64_t> counts;
  if (collective().needs_peer_counts()) counts = own_counts(collective());
  const MemberMemory own = {arguments().in, collective().in_count().value_or(0), arguments().out,
                            counts.data()};
  return move(/*seq=*/0, absl::MakeConstSpan(&own, 1));
}

Status LoneRun::give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) {
  return absl::DeadlineExceededError(absl::StrCat(label(), ": ",
                                                  not_in_time("not done", deadline - called), "; ",
                                                  runs_.describe_holdup(member(), device)));
}

Work LoneRuns::start(Collective::Ptr collective, Arguments arguments) {
  if (collective->kind() == OpKind::kSendRecv) {
    return start_message(std::move(collective), std::move(arguments));
  }
  const int member = collective->place().position;
  const Caller caller(*this, member);
  if (const Status status = check_start(caller, *collective, arguments); !status.ok()) {
    return failed(arguments, status);
  }
  auto run = std::make_shared<LoneRun>(*this, member, std::move(collective), std::move(arguments));
  return Run::enqueue(std::move(run));
}

}  // namespace tessera::host
