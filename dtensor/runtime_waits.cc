// SPDX-License-Identifier: Apache-2.0
//
// A Runtime's reports of its long waits. The waits of devices are those of DeviceWaits.
#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/wait_reports.h"
#include "dtensor/client_waits.h"
#include "dtensor/runtime.h"
#include "job/coordinator/coordinator.h"

namespace tessera {
namespace {

// How long the coordinator has to say what a call waits for.
constexpr absl::Duration kAnswerLimit = absl::Seconds(1);

}  // namespace

Status Runtime::start_reports(int client_id) {
  WaitReports::Options options = {.subject = absl::StrCat("client ", client_id),
                                  .sink = options_.on_wait};
  if (hooks_.wait_report_unit > absl::ZeroDuration()) options.unit = hooks_.wait_report_unit;
  reports_ = std::make_unique<WaitReports>(std::move(options));
  return reports_->start();
}

WaitReports::Missing Runtime::awaited(AwaitedCall::Kind kind, absl::string_view value) const {
  for (const AwaitedCall& call : coordinator_->awaited(steady_now() + kAnswerLimit)) {
    if (call.kind != kind || call.text != value || call.missing.empty()) continue;
    WaitReports::Missing missing = client_devices_->describe_clients(call.missing, call.silent);
    missing.text = absl::StrCat(call.num_clients - call.missing.size(), " of ", call.num_clients,
                                " clients arrived; missing ", missing.text);
    return missing;
  }
  return {};
}

// The clients are not connected among each other yet: their names are all that is known.
WaitReports::Missing Runtime::awaited_by_connect() const {
  std::set<int> missing, silent;
  for (const AwaitedCall& call : coordinator_->awaited(steady_now() + kAnswerLimit)) {
    missing.insert(call.missing.begin(), call.missing.end());
    silent.insert(call.silent.begin(), call.silent.end());
  }
  if (missing.empty()) return {};
  const auto name = [&](std::string* out, int client) {
    absl::StrAppend(out, coordinator_->members()[client].to_string(),
                    silent.count(client) > 0 ? ", does not answer" : "");
  };
  return {absl::StrCat("missing ", absl::StrJoin(missing, "; ", name)),
          {missing.begin(), missing.end()}};
}

WaitReports* internal::wait_reports_of(const Client& client) {
  return runtime_of(client)->reports();
}

}  // namespace tessera
