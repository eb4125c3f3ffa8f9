// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/timeline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/wait_policy.h"
#include "benchmarks/gpu/bare_communicator.h"
#include "benchmarks/gpu/call_log.h"
#include "benchmarks/gpu/call_report.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/issued.h"
#include "benchmarks/gpu/timed_apis.h"
#include "collectives/group.h"
#include "device/stream.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"
#include "tests/support/shared.h"

namespace tessera::benchmarks {
namespace {

constexpr int kMostRounds = 100;
constexpr int kMostEvents = 3;
// The timeout of one client in a meeting with the other.
constexpr absl::Duration kMeetingLimit = absl::Seconds(20);

// A bare call, with additional work that a group does.
struct Variant {
  const char* name;
  // Recorded as a group does: if there are several, one before the call and the rest after it.
  int num_events = 0;
  bool waits_event = false;
  // Meetings of the two clients per operation: one is before the call, a second one after it.
  int num_meetings = 0;
  // The pause between two queries of a finished event on another thread.
  std::optional<absl::Duration> poll_pause = {};
  bool is_group = false;
};

const Variant kVariants[] = {
    {.name = "bare"},
    {.name = "bare + 1 event", .num_events = 1},
    {.name = "bare + 2 events", .num_events = 2},
    {.name = "bare + 3 events", .num_events = 3},
    {.name = "bare + 3 events, 1 wait_event", .num_events = 3, .waits_event = true},
    {.name = "bare + a thread that polls without pause", .poll_pause = absl::ZeroDuration()},
    {.name = "bare + a thread that polls each 20 us", .poll_pause = absl::Microseconds(20)},
    {.name = "bare + a meeting before", .num_meetings = 1},
    {.name = "bare + a meeting before and after", .num_meetings = 2},
    {.name = "bare + 3 events, 2 meetings, polls each 20 us",
     .num_events = 3,
     .num_meetings = 2,
     .poll_pause = absl::Microseconds(20)},
    {.name = "group", .is_group = true},
};
constexpr size_t kNumVariants = std::size(kVariants);

// Shared by the clients. The measurements are client 0's.
struct Results {
  nccl::UniqueId id;
  std::atomic<int> num_arrivals;
  std::array<std::array<double, kMostRounds>, kNumVariants> given;
};

// Queries a finished event repeatedly, on its own thread, as long as it lives.
class Poller {
 public:
  Poller(Gpu& gpu, cuda::EventHandle event, absl::Duration pause, CallLog& log)
      : thread_([this, &gpu, event, pause, &log] {
          log.name_this_thread("polling thread");
          gpu.use().IgnoreError();
          while (!stopping_.load(std::memory_order_relaxed)) {
            gpu.api().query_event(event).IgnoreError();
            // sleep: the interval of the polls is measured
            if (pause > absl::ZeroDuration())
              absl::SleepFor(pause);  // sleep: the interval of the polls
          }
        }) {}
  ~Poller() {
    stopping_.store(true);
    thread_.join();
  }
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class Issuer {
 public:
  static StatusOr<std::unique_ptr<Issuer>> create(Client& client, std::shared_ptr<nccl::Api> nccl,
                                                  std::shared_ptr<CallLog> log, Results& results,
                                                  int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<BareCommunicator> bare,
                             BareCommunicator::create(client, std::move(nccl), results.id, bytes));
    std::unique_ptr<Issuer> self(new Issuer(client, std::move(log), results, std::move(bare)));
    TESSERA_RETURN_IF_ERROR(self->prepare());
    return self;
  }
  ~Issuer() {
    gpu().use().IgnoreError();
    for (const cuda::EventHandle event : events_) gpu().api().destroy_event(event).IgnoreError();
  }

  // The time per operation for `repeats` consecutive operations, until the last is submitted to the
  // stream.
  StatusOr<absl::Duration> time(const Variant& variant, int repeats);
  // Called by both clients; client 0 prints.
  Status trace(const Variant& variant, const TimelineSizes& sizes);
  Status meet() { return bare_->meet(); }

 private:
  Issuer(Client& client, std::shared_ptr<CallLog> log, Results& results,
         std::unique_ptr<BareCommunicator> bare)
      : client_(client), log_(std::move(log)), results_(results), bare_(std::move(bare)) {}

  Gpu& gpu() { return bare_->gpu(); }
  Status prepare();
  void name_threads();
  Status record(int event);
  // Returns when both clients have called it; spins.
  Status meet_by_spinning();
  Status give(const Variant& variant);
  Status give_bare(const Variant& variant);

  Client& client_;
  const std::shared_ptr<CallLog> log_;
  Results& results_;
  const std::unique_ptr<BareCommunicator> bare_;
  std::vector<cuda::EventHandle> events_;  // the last event is finished
  int num_meetings_ = 0;
  bool is_traced_ = false;
  std::vector<Work> works_;  // of the group, under way
};

Status Issuer::prepare() {
  for (int i = 0; i <= kMostEvents; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const cuda::EventHandle event, gpu().api().create_event());
    events_.push_back(event);
    TESSERA_RETURN_IF_ERROR(record(i));
  }
  TESSERA_RETURN_IF_ERROR(gpu().wait());
  if (client_.client_id() == 0) {
    log_->prepare();
    name_threads();
  }
  return meet();
}

// The thread without a name is the watch's (collectives/nccl/watch.h).
void Issuer::name_threads() {
  log_->name_this_thread("caller");
  Stream& stream = internal::runtime_of(client_)->device(0).stream();
  stream.enqueue("the names of threads", [log = log_, &stream] {
    log->name_this_thread("issuing thread");
    stream.when_done([log](const Status&) { log->name_this_thread("reaping thread"); });
    return absl::OkStatus();
  });
}

// Does the same as CudaQueue::record().
Status Issuer::record(int event) {
  TESSERA_RETURN_IF_ERROR(gpu().use());
  return gpu().api().record_event(events_[static_cast<size_t>(event)], gpu().stream());
}

Status Issuer::meet_by_spinning() {
  const CallLog::Timer timer(*log_, "(meeting)");
  constexpr int kSpins = 1000;
  num_meetings_ += 1;
  results_.num_arrivals.fetch_add(1);
  const auto have_all = [&] {
    return results_.num_arrivals.load() >= BareCommunicator::kClients * num_meetings_;
  };
  const absl::Time limit = absl::Now() + kMeetingLimit;
  while (!wait_briefly({.spins = kSpins, .yields = 1}, have_all)) {
    if (absl::Now() < limit) continue;
    return absl::DeadlineExceededError("the other client did not arrive at a meeting");
  }
  return absl::OkStatus();
}

Status Issuer::give_bare(const Variant& variant) {
  if (variant.num_meetings > 0) TESSERA_RETURN_IF_ERROR(meet_by_spinning());
  const int before = variant.num_events > 1 ? 1 : 0;
  if (before > 0) TESSERA_RETURN_IF_ERROR(record(0));
  TESSERA_RETURN_IF_ERROR(bare_->all_gather());
  if (variant.num_meetings > 1) TESSERA_RETURN_IF_ERROR(meet_by_spinning());
  for (int i = before; i < variant.num_events; ++i) TESSERA_RETURN_IF_ERROR(record(i));
  if (!variant.waits_event) return absl::OkStatus();
  return gpu().api().wait_event(gpu().stream(), events_[0]);
}

Status Issuer::give(const Variant& variant) {
  if (!variant.is_group) return give_bare(variant);
  const CallLog::Timer timer(*log_, "(Group::all_gather)");
  works_.push_back(bare_->group().all_gather(bare_->in(), bare_->out()));
  return absl::OkStatus();
}

StatusOr<absl::Duration> Issuer::time(const Variant& variant, int repeats) {
  TESSERA_RETURN_IF_ERROR(meet());
  TESSERA_RETURN_IF_ERROR(gpu().use());
  works_.reserve(static_cast<size_t>(repeats));
  std::optional<Poller> poller;
  if (variant.poll_pause.has_value())
    poller.emplace(gpu(), events_.back(), *variant.poll_pause, *log_);
  if (is_traced_) log_->turn_on();
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) TESSERA_RETURN_IF_ERROR(give(variant));
  absl::Time end = absl::Now();
  if (variant.is_group) {
    log_->mark("(the last call has returned)");
    TESSERA_ASSIGN_OR_RETURN(end, wait_issued(client_));
  }
  if (is_traced_) log_->turn_off();
  poller.reset();
  TESSERA_RETURN_IF_ERROR(variant.is_group ? wait_done(client_, gpu()) : gpu().wait());
  for (const Work& work : works_) TESSERA_RETURN_IF_ERROR(work.await());
  works_.clear();
  return (end - start) / repeats;
}

Status Issuer::trace(const Variant& variant, const TimelineSizes& sizes) {
  TESSERA_RETURN_IF_ERROR(time(variant, sizes.warm_up).status());
  is_traced_ = client_.client_id() == 0;
  const StatusOr<absl::Duration> each = time(variant, sizes.operations);
  const bool prints = std::exchange(is_traced_, false);
  TESSERA_RETURN_IF_ERROR(each.status());
  if (!prints) return absl::OkStatus();
  constexpr int kShown = 3;
  const std::vector<CallLog::Call> calls = log_->take();
  const std::string text = absl::StrFormat(
      "\n== %s: %d all_gathers of %d B in a row, %.2f us each; %d calls were dropped\n\n%s\n%s\n%s",
      variant.name, sizes.operations, sizes.bytes, absl::ToDoubleMicroseconds(*each),
      log_->num_dropped(), describe_calls(calls, *log_), describe_steps(calls),
      describe_operations(calls, *log_, kShown));
  std::fputs(text.c_str(), stderr);
  return absl::OkStatus();
}

Status run_client(Client& client, const std::shared_ptr<nccl::Api>& nccl,
                  const std::shared_ptr<CallLog>& log, const TimelineSizes& sizes,
                  Results& results) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Issuer> issuer,
                           Issuer::create(client, nccl, log, results, sizes.bytes));
  std::vector<Contestant> contestants;
  for (const Variant& variant : kVariants) {
    contestants.push_back({variant.name, [&issuer, &variant, &sizes] {
                             return issuer->time(variant, sizes.repeats);
                           }});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Times> times,
                           measure_in_turn(contestants, sizes.rounds));
  if (client.client_id() == 0) {
    for (size_t k = 0; k < times.size(); ++k) {
      std::copy(times[k].begin(), times[k].end(), results.given[k].begin());
    }
  }
  const auto is_shown = [](const Variant& variant) {
    return variant.is_group || variant.num_events == 0;
  };
  for (const Variant& variant : kVariants) {
    if (is_shown(variant)) TESSERA_RETURN_IF_ERROR(issuer->trace(variant, sizes));
  }
  return issuer->meet();
}

}  // namespace

Status measure_timeline(testing::JobSpec job, const OpenApis& open, const TimelineSizes& sizes,
                        Report* report) {
  if (sizes.rounds > kMostRounds) {
    return absl::InvalidArgumentError(
        absl::StrCat(sizes.rounds, " rounds; give at most ", kMostRounds));
  }
  job.num_clients = BareCommunicator::kClients;
  job.devices_per_client = 1;
  job.options.device_type = DeviceType::kCuda;
  const auto log = std::make_shared<CallLog>();
  job.hooks.cuda = timed_cuda(log, open.cuda);
  job.hooks.nccl = timed_nccl(log, open.nccl);
  testing::Shared<Results> results;
  TESSERA_RETURN_IF_ERROR(testing::run_clients(job, [&](Client& client) {
    return run_client(client, job.hooks.nccl, log, sizes, *results);
  }));
  const auto times = [&](size_t k) {
    return Times(results->given[k].begin(), results->given[k].begin() + sizes.rounds);
  };
  const Times bare = times(0);
  for (size_t k = 0; k < kNumVariants; ++k) {
    const Times own = times(k);
    const std::string over =
        k == 0 ? "" : absl::StrFormat("%.2f us over the bare call", median(own) - median(bare));
    report->rows.push_back({"timeline",
                            absl::StrCat("all_gather of ", sizes.bytes,
                                         " B, to give it to a stream: ", kVariants[k].name),
                            own, "", over, k == 0 ? Times() : bare});
  }
  return absl::OkStatus();
}

}  // namespace tessera::benchmarks
