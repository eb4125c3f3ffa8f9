// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/collectives.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "benchmarks/gpu/bare_communicator.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/issued.h"
#include "collectives/group.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/open_api.h"
#include "device/cuda/kernel_plan.h"
#include "dtensor/client.h"
#include "tests/support/shared.h"

namespace tessera::benchmarks {
namespace {

constexpr int kMostRounds = 100;
constexpr double kMostMicrosecondsOver = 5;

// The contestants: an all_gather and a broadcast, each bare and by a group.
constexpr const char* kNames[] = {"ncclAllGather", "Group::all_gather", "ncclBroadcast",
                                  "Group::broadcast"};

// The measurements of client 0, in memory shared with the other process.
struct Results {
  nccl::UniqueId id;
  std::array<std::array<double, kMostRounds>, 4> given;
  std::array<std::array<double, kMostRounds>, 4> done;
};

class Contest {
 public:
  static StatusOr<std::unique_ptr<Contest>> create(Client& client, std::shared_ptr<nccl::Api> nccl,
                                                   Results& results, int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<BareCommunicator> bare,
                             BareCommunicator::create(client, std::move(nccl), results.id, bytes));
    std::unique_ptr<Contest> self(new Contest(client, std::move(bare)));
    TESSERA_RETURN_IF_ERROR(self->fill(self->bare_->in(), client.client_id() + 1));
    return self;
  }

  Status check();
  // The time per operation for `repeats` consecutive operations, until the last is submitted to the
  // stream, or until the GPU has done all.
  StatusOr<absl::Duration> time(int contestant, int repeats, bool until_done);
  Status meet() { return bare_->meet(); }

 private:
  Contest(Client& client, std::unique_ptr<BareCommunicator> bare)
      : client_(client), bare_(std::move(bare)) {}

  Status fill(absl::Span<uint8_t> memory, int value);
  Status give(int contestant);
  static bool is_bare(int contestant) { return contestant % 2 == 0; }

  Client& client_;
  const std::unique_ptr<BareCommunicator> bare_;
  std::vector<Work> works_;  // of the group, under way
};

Status Contest::fill(absl::Span<uint8_t> memory, int value) {
  const auto element = static_cast<uint8_t>(value);
  Gpu& gpu = bare_->gpu();
  TESSERA_RETURN_IF_ERROR(gpu.use());
  TESSERA_RETURN_IF_ERROR(gpu.api().launch(
      cuda::plan_fill(DType::kUint8, &element, reinterpret_cast<std::byte*>(memory.data()),
                      static_cast<int64_t>(memory.size())),
      gpu.stream()));
  return gpu.wait();
}

Status Contest::give(int contestant) {
  const absl::Span<const uint8_t> in = bare_->in();
  const absl::Span<uint8_t> out = bare_->out();
  switch (contestant) {
    case 0:
      return bare_->all_gather();
    case 1:
      works_.push_back(bare_->group().all_gather(in, out));
      return absl::OkStatus();
    case 2:
      return bare_->broadcast();
    default:
      works_.push_back(bare_->group().broadcast(in, out.first(in.size()), 0));
      return absl::OkStatus();
  }
}

StatusOr<absl::Duration> Contest::time(int contestant, int repeats, bool until_done) {
  TESSERA_RETURN_IF_ERROR(meet());
  TESSERA_RETURN_IF_ERROR(bare_->gpu().use());
  works_.reserve(static_cast<size_t>(repeats));
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) TESSERA_RETURN_IF_ERROR(give(contestant));
  absl::Time end = absl::Now();
  if (!is_bare(contestant)) {
    TESSERA_ASSIGN_OR_RETURN(end, wait_issued(client_));
    TESSERA_RETURN_IF_ERROR(wait_done(client_, bare_->gpu()));
  } else {
    TESSERA_RETURN_IF_ERROR(bare_->gpu().wait());
  }
  if (until_done) end = absl::Now();
  for (const Work& work : works_) TESSERA_RETURN_IF_ERROR(work.await());
  works_.clear();
  return (end - start) / repeats;
}

Status Contest::check() {
  const auto bytes = static_cast<int64_t>(bare_->in().size());
  for (int contestant = 0; contestant < 4; ++contestant) {
    TESSERA_RETURN_IF_ERROR(fill(bare_->out(), 0));
    TESSERA_RETURN_IF_ERROR(time(contestant, 1, true).status());
    const int64_t parts = contestant < 2 ? BareCommunicator::kClients : 1;
    TESSERA_ASSIGN_OR_RETURN(
        const std::vector<std::byte> held,
        bare_->gpu().read(reinterpret_cast<const std::byte*>(bare_->out().data()), parts * bytes));
    for (int64_t i = 0; i < parts * bytes; ++i) {
      if (std::to_integer<int64_t>(held[i]) == i / bytes + 1) continue;
      return absl::InternalError(
          absl::StrCat(kNames[contestant], ": byte ", i, " is ", std::to_integer<int>(held[i])));
    }
  }
  return absl::OkStatus();
}

Status run_client(Client& client, const std::shared_ptr<nccl::Api>& given,
                  const CollectiveSizes& sizes, Results& results) {
  std::shared_ptr<nccl::Api> nccl = given;
  if (nccl == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(nccl, nccl::open_api());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Contest> contest,
                           Contest::create(client, nccl, results, sizes.bytes));
  TESSERA_RETURN_IF_ERROR(contest->check());
  for (const bool until_done : {false, true}) {
    const int repeats = until_done ? 1 : sizes.repeats;
    std::vector<Contestant> contestants;
    for (int k = 0; k < 4; ++k) {
      contestants.push_back({kNames[k], [&contest, k, repeats, until_done] {
                               return contest->time(k, repeats, until_done);
                             }});
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Times> times,
                             measure_in_turn(contestants, sizes.rounds));
    if (client.client_id() > 0) continue;
    for (size_t k = 0; k < times.size(); ++k) {
      std::copy(times[k].begin(), times[k].end(),
                (until_done ? results.done : results.given)[k].begin());
    }
  }
  return contest->meet();
}

}  // namespace

Status measure_collectives(testing::JobSpec job, const CollectiveSizes& sizes, Report* report) {
  if (sizes.rounds > kMostRounds) {
    return absl::InvalidArgumentError(
        absl::StrCat(sizes.rounds, " rounds; give at most ", kMostRounds));
  }
  job.num_clients = BareCommunicator::kClients;
  job.devices_per_client = 1;
  job.options.device_type = DeviceType::kCuda;
  testing::Shared<Results> results;
  TESSERA_RETURN_IF_ERROR(testing::run_clients(
      job, [&](Client& client) { return run_client(client, job.hooks.nccl, sizes, *results); }));
  const auto times = [&](const auto& of, int k) {
    return Times(of[k].begin(), of[k].begin() + sizes.rounds);
  };
  for (int k = 0; k < 4; k += 2) {
    const Times bare = times(results->given, k);
    const Times own = times(results->given, k + 1);
    const std::string what = absl::StrCat(" of ", sizes.bytes, " B, to give it to a stream");
    const double over = median(own) - median(bare);
    report->rows.push_back({"dispatch", kNames[k] + what, bare, "", "", {}});
    report->rows.push_back({"dispatch", kNames[k + 1] + what, own, "",
                            absl::StrFormat("%.2f us over the bare call", over), bare});
    if (k > 0) continue;
    report->goals.push_back({"an all_gather of a group, at most 5 us over the bare call of NCCL",
                             absl::StrFormat("%.2f us", over), true,
                             over <= kMostMicrosecondsOver});
  }
  for (int k = 0; k < 4; ++k) {
    report->rows.push_back(
        {"dispatch",
         absl::StrCat(kNames[k], " of ", sizes.bytes, " B, alone, until the GPU has done it"),
         times(results->done, k),
         "",
         "",
         {}});
  }
  return absl::OkStatus();
}

}  // namespace tessera::benchmarks
