// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/collectives.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "benchmarks/gpu/gpu.h"
#include "benchmarks/gpu/issued.h"
#include "collectives/group.h"
#include "collectives/nccl/api.h"
#include "collectives/nccl/open_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel_plan.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "dtensor/runtime.h"
#include "tests/support/shared.h"

namespace tessera::benchmarks {
namespace {

constexpr int kClients = 2;
constexpr int kMostRounds = 100;
constexpr double kMostMicrosecondsOver = 5;

// The contestants: an all_gather and a broadcast, each bare and by a group.
constexpr const char* kNames[] = {"ncclAllGather", "Group::all_gather", "ncclBroadcast",
                                  "Group::broadcast"};

// The measurements of client 0, in memory that the other process shares.
struct Results {
  nccl::UniqueId id;
  std::array<std::array<double, kMostRounds>, 4> given;
  std::array<std::array<double, kMostRounds>, 4> done;
};

class Contest {
 public:
  static StatusOr<std::unique_ptr<Contest>> create(Client& client, std::shared_ptr<nccl::Api> nccl,
                                                   Results& results, int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(const Group group, client.group({0, 1}));
    const cuda::CudaQueue& queue =
        dynamic_cast<cuda::CudaDevice&>(internal::runtime_of(client)->device(0)).queue();
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu, Gpu::create(queue.api(), queue.gpu()));
    std::unique_ptr<Contest> self(
        new Contest(client, std::move(nccl), group, std::move(gpu), bytes));
    TESSERA_RETURN_IF_ERROR(self->prepare(results));
    return self;
  }
  ~Contest() {
    gpu_->use().IgnoreError();
    if (comm_ != nullptr) nccl_->comm_abort(comm_).IgnoreError();
  }

  Status check();
  // Each of `repeats` in a row: until the last has been given to the stream, or the GPU has done
  // them all.
  StatusOr<absl::Duration> time(int contestant, int repeats, bool until_done);
  Status meet() { return group_.barrier().await(); }

 private:
  Contest(Client& client, std::shared_ptr<nccl::Api> nccl, Group group, std::unique_ptr<Gpu> gpu,
          int64_t bytes)
      : client_(client),
        nccl_(std::move(nccl)),
        group_(std::move(group)),
        gpu_(std::move(gpu)),
        bytes_(bytes) {}

  Status prepare(Results& results);
  Status fill(std::byte* memory, int64_t size, int value);
  Status settle();
  Status give(int contestant);
  static bool is_bare(int contestant) { return contestant % 2 == 0; }

  Client& client_;
  const std::shared_ptr<nccl::Api> nccl_;
  const Group group_;
  const std::unique_ptr<Gpu> gpu_;
  const int64_t bytes_;
  nccl::CommHandle comm_ = nullptr;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  std::vector<Work> works_;  // of the group, under way
};

Status Contest::prepare(Results& results) {
  TESSERA_ASSIGN_OR_RETURN(in_, gpu_->allocate(bytes_));
  TESSERA_ASSIGN_OR_RETURN(out_, gpu_->allocate(kClients * bytes_));
  TESSERA_RETURN_IF_ERROR(fill(in_, bytes_, client_.client_id() + 1));
  if (client_.client_id() == 0) {
    TESSERA_ASSIGN_OR_RETURN(results.id, nccl_->get_unique_id());
  }
  TESSERA_RETURN_IF_ERROR(meet());
  TESSERA_RETURN_IF_ERROR(gpu_->use());
  TESSERA_ASSIGN_OR_RETURN(comm_, nccl_->comm_init_rank(kClients, results.id, client_.client_id()));
  return settle();
}

Status Contest::fill(std::byte* memory, int64_t size, int value) {
  const auto element = static_cast<uint8_t>(value);
  TESSERA_RETURN_IF_ERROR(gpu_->use());
  TESSERA_RETURN_IF_ERROR(
      gpu_->api().launch(cuda::plan_fill(DType::kUint8, &element, memory, size), gpu_->stream()));
  return gpu_->wait();
}

// A communicator that does not block takes no call before it is through with the last one; that it
// has given the stream its work is certain of a group alone.
Status Contest::settle() {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool through, nccl_->poll(comm_));
    if (through) return absl::OkStatus();
    std::this_thread::yield();
  }
}

Status Contest::give(int contestant) {
  const auto size = static_cast<size_t>(bytes_);
  const absl::Span<const uint8_t> in(reinterpret_cast<const uint8_t*>(in_), size);
  uint8_t* const out = reinterpret_cast<uint8_t*>(out_);
  switch (contestant) {
    case 0:
      TESSERA_RETURN_IF_ERROR(nccl_->group_start());
      TESSERA_RETURN_IF_ERROR(nccl_->all_gather(in_, out_, size, comm_, gpu_->stream()));
      TESSERA_RETURN_IF_ERROR(nccl_->group_end());
      return settle();
    case 1:
      works_.push_back(group_.all_gather<uint8_t>(in, {out, kClients * size}));
      return absl::OkStatus();
    case 2:
      TESSERA_RETURN_IF_ERROR(nccl_->group_start());
      TESSERA_RETURN_IF_ERROR(nccl_->broadcast(in_, out_, size, 0, comm_, gpu_->stream()));
      TESSERA_RETURN_IF_ERROR(nccl_->group_end());
      return settle();
    default:
      works_.push_back(group_.broadcast<uint8_t>(in, {out, size}, 0));
      return absl::OkStatus();
  }
}

StatusOr<absl::Duration> Contest::time(int contestant, int repeats, bool until_done) {
  TESSERA_RETURN_IF_ERROR(meet());
  TESSERA_RETURN_IF_ERROR(gpu_->use());
  works_.reserve(static_cast<size_t>(repeats));
  const absl::Time start = absl::Now();
  for (int i = 0; i < repeats; ++i) TESSERA_RETURN_IF_ERROR(give(contestant));
  absl::Time end = absl::Now();
  if (!is_bare(contestant)) {
    TESSERA_ASSIGN_OR_RETURN(end, wait_issued(client_));
    TESSERA_RETURN_IF_ERROR(wait_done(client_, *gpu_));
  } else {
    TESSERA_RETURN_IF_ERROR(gpu_->wait());
  }
  if (until_done) end = absl::Now();
  for (const Work& work : works_) TESSERA_RETURN_IF_ERROR(work.await());
  works_.clear();
  return (end - start) / repeats;
}

Status Contest::check() {
  for (int contestant = 0; contestant < 4; ++contestant) {
    TESSERA_RETURN_IF_ERROR(fill(out_, kClients * bytes_, 0));
    TESSERA_RETURN_IF_ERROR(time(contestant, 1, true).status());
    const int64_t parts = contestant < 2 ? kClients : 1;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> held, gpu_->read(out_, parts * bytes_));
    for (int64_t i = 0; i < parts * bytes_; ++i) {
      if (std::to_integer<int64_t>(held[i]) == i / bytes_ + 1) continue;
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
  job.num_clients = kClients;
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
