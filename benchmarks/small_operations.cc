// SPDX-License-Identifier: Apache-2.0
//
// The cost of a small operation: the time from call to result, and processor time.
//
//   small_operations [CLIENTS,CLIENTS,... [CALLS [OPERATION]]]         "1,2,4,8", 3000, all
//
// Each line has an operation and a number of clients with one device each. The numbers are means of
// CALLS consecutive calls: the time on client 0, then for an average client the processor time (all
// threads), the part in the kernel, the number of sleeps, the number of yields, and memory
// allocations. "20 barriers" makes a fifth as many calls, 20 after each sleep of 10 ms.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tessera/tessera.h"
#include "tests/support/allocations.h"

namespace tessera {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// The resources used by this process so far.
using Usage = std::array<double, 5>;
Usage usage_now() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const double kernel = seconds_of(usage.ru_stime);
  return {seconds_of(usage.ru_utime) + kernel, kernel, static_cast<double>(usage.ru_nvcsw),
          static_cast<double>(usage.ru_nivcsw), static_cast<double>(testing::num_allocations())};
}

struct Operation {
  const char* name;
  std::function<Status()> call;
  // If more than 0: that many calls at a time, after a pause.
  int burst = 0;
};

// Adds the resources that the calls use to `taken`, and returns their microseconds.
StatusOr<double> run_calls(const Operation& operation, const Group& group, int num_calls,
                           Usage& taken) {
  TESSERA_RETURN_IF_ERROR(group.barrier().await());
  const Usage before = usage_now();
  const absl::Time start = absl::Now();
  for (int i = 0; i < num_calls; ++i) TESSERA_RETURN_IF_ERROR(operation.call());
  const double microseconds = absl::ToDoubleMicroseconds(absl::Now() - start);
  const Usage after = usage_now();
  for (size_t i = 0; i < taken.size(); ++i) taken[i] += after[i] - before[i];
  return microseconds;
}

Status measure(const Operation& operation, const Group& group, int num_calls) {
  Usage taken = {};
  double microseconds = 0;
  if (operation.burst == 0) {
    for (int i = 0; i < num_calls / 10; ++i) TESSERA_RETURN_IF_ERROR(operation.call());
    TESSERA_ASSIGN_OR_RETURN(microseconds, run_calls(operation, group, num_calls, taken));
    microseconds /= num_calls;
  } else {
    num_calls = std::max(num_calls / 100, 1) * operation.burst;
    for (int i = 0; i < num_calls; i += operation.burst) {
      absl::SleepFor(absl::Milliseconds(10));  // sleep: the calls after it are measured
      TESSERA_ASSIGN_OR_RETURN(const double time,
                               run_calls(operation, group, operation.burst, taken));
      microseconds += time / num_calls;
    }
  }
  Usage sum;
  TESSERA_RETURN_IF_ERROR(group.all_reduce(taken, sum, ReduceOp::kSum).await());
  if (group.position() != 0) return absl::OkStatus();
  const double calls = static_cast<double>(num_calls) * group.size();
  std::printf("%-16s %7d %9.2f %9.2f %9.2f %8.2f %8.2f %8.2f\n", operation.name, group.size(),
              microseconds, sum[0] / calls * 1e6, sum[1] / calls * 1e6, sum[2] / calls,
              sum[3] / calls, sum[4] / calls);
  std::fflush(stdout);
  return absl::OkStatus();
}

Status run_client(const Client& client, int num_calls, absl::string_view only) {
  std::vector<int> ids(client.num_clients());
  std::iota(ids.begin(), ids.end(), 0);
  TESSERA_ASSIGN_OR_RETURN(const Group group, client.group(ids));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"all", client.num_clients()}}));
  std::vector<float> in(4096, 1);
  std::vector<float> out(in.size() * static_cast<size_t>(client.num_clients()));
  const auto all_reduce = [&](size_t bytes) {
    return group
        .all_reduce(absl::MakeConstSpan(in).first(bytes / 4), absl::MakeSpan(out).first(bytes / 4),
                    ReduceOp::kSum)
        .await();
  };
  const DTensor rows = full<float>({16, 16}, 1, Layout::parse(mesh, "[all, -]"));
  const DTensor more_rows = full<float>({64, 64}, 1, Layout::parse(mesh, "[all, -]"));
  TESSERA_ASSIGN_OR_RETURN(const Layout columns, Layout::parse(mesh, "[-, all]"));
  const Operation operations[] = {
      {"barrier", [&] { return group.barrier().await(); }},
      {"20 barriers", [&] { return group.barrier().await(); }, 20},
      {"all_reduce 8 B", [&] { return all_reduce(8); }},
      {"all_reduce 1 KiB", [&] { return all_reduce(1024); }},
      {"all_reduce 2 KiB", [&] { return all_reduce(2048); }},
      {"all_reduce 16 KiB", [&] { return all_reduce(16384); }},
      {"all_gather 8 B",
       [&] {
         return group
             .all_gather(absl::MakeConstSpan(in).first(2),
                         absl::MakeSpan(out).first(2 * group.size()))
             .await();
       }},
      {"all_to_all 8 B",  // to each
       [&] {
         return group
             .all_to_all(absl::MakeConstSpan(in).first(2 * group.size()),
                         absl::MakeSpan(out).first(2 * group.size()))
             .await();
       }},
      {"all_gather 16 KiB",
       [&] {
         return group
             .all_gather(absl::MakeConstSpan(in).first(4096),
                         absl::MakeSpan(out).first(4096 * group.size()))
             .await();
       }},
      {"all_to_all 16 KiB",
       [&] {
         return group
             .all_to_all(absl::MakeConstSpan(in).first(4096), absl::MakeSpan(out).first(4096))
             .await();
       }},
      {"broadcast 16 KiB",
       [&] {
         return group
             .broadcast(absl::MakeConstSpan(in).first(4096), absl::MakeSpan(out).first(4096),
                        /*root=*/0)
             .await();
       }},
      {"mesh.barrier", [&] { return mesh.barrier("step"); }},
      {"relayout 1 KiB", [&] { return relayout(rows, columns).await(); }},
      {"relayout 16 KiB", [&] { return relayout(more_rows, columns).await(); }},
  };
  for (const Operation& operation : operations) {
    if (!only.empty() && operation.name != only) continue;
    TESSERA_RETURN_IF_ERROR(measure(operation, group, num_calls));
  }
  return absl::OkStatus();
}

int run(const std::string& clients, int num_calls, absl::string_view only) {
  std::printf("%-16s %7s %9s %9s %9s %8s %8s %8s\n", "operation", "clients", "us", "cpu us",
              "kernel us", "sleeps", "yields", "allocs");
  std::fflush(stdout);
  for (const absl::string_view text : absl::StrSplit(clients, ',')) {
    int num_clients = 0;
    if (!absl::SimpleAtoi(text, &num_clients) || num_clients < 1 || num_calls < 10) {
      std::fprintf(stderr, "usage: small_operations [CLIENTS,CLIENTS,... [CALLS [OPERATION]]]\n");
      return 2;
    }
    const Status status = spawn(
        num_clients, [&](const Client& client) { return run_client(client, num_calls, only); });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run(argc > 1 ? argv[1] : "1,2,4,8", argc > 2 ? std::atoi(argv[2]) : 3000,
                      argc > 3 ? argv[3] : "");
}
