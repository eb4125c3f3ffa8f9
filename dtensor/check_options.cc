// SPDX-License-Identifier: Apache-2.0
#include "dtensor/check_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "job/environment/address.h"

namespace tessera {
namespace {

struct BackendName {
  Backend backend;
  absl::string_view name;
};
constexpr BackendName kBackendNames[] = {
    {Backend::kAuto, "auto"}, {Backend::kHost, "host"}, {Backend::kUcx, "ucx"},
    {Backend::kMpi, "mpi"},   {Backend::kGloo, "gloo"}, {Backend::kNccl, "nccl"},
};

Status check_backend(const ClientOptions& options) {
  switch (options.backend) {
    case Backend::kAuto:
    case Backend::kHost:
    case Backend::kUcx:
    case Backend::kGloo:
      return absl::OkStatus();
    case Backend::kMpi:
      if (options.mpi != nullptr) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "backend \"mpi\" needs a communicator; connect with the options of "
          "tessera::mpi::adopt(MPI_COMM_WORLD), from tessera/mpi.h");
    case Backend::kNccl:
      if (options.device_type == DeviceType::kCuda) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "backend \"nccl\" is of GPUs; use DeviceType::kCuda with it, or \"auto\" or \"host\"");
  }
  return absl::InvalidArgumentError(absl::StrCat("backend is ", static_cast<int>(options.backend),
                                                 ", which is not a value of Backend"));
}

Status check_timeout(absl::string_view option, absl::Duration timeout) {
  if (timeout >= absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is ", absl::FormatDuration(timeout), "; give 0 or more"));
}

}  // namespace

absl::string_view backend_name(Backend backend) {
  for (const BackendName& known : kBackendNames) {
    if (known.backend == backend) return known.name;
  }
  return "unknown";
}

StatusOr<Backend> parse_backend(absl::string_view text) {
  for (const BackendName& known : kBackendNames) {
    if (known.name == text) return known.backend;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("backend ", in_quotes(text),
                   " is unknown; use \"auto\", \"host\", \"ucx\", \"mpi\", \"gloo\" or \"nccl\""));
}

Status check_options(const ClientOptions& options) {
  if (options.device_type != DeviceType::kCpu && options.device_type != DeviceType::kCuda) {
    return absl::InvalidArgumentError(absl::StrCat("device_type is ",
                                                   static_cast<int>(options.device_type),
                                                   ", which is not a value of DeviceType"));
  }
  TESSERA_RETURN_IF_ERROR(check_backend(options));
  if (options.num_local_devices < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_local_devices is ", options.num_local_devices, "; give 1 or more, or 0 for default"));
  }
  TESSERA_RETURN_IF_ERROR(check_timeout("connect_timeout", options.connect_timeout));
  TESSERA_RETURN_IF_ERROR(check_timeout(
      "collective_timeout", options.collective_timeout.value_or(absl::InfiniteDuration())));
  const absl::Duration interval = options.heartbeat_interval.value_or(kMostHeartbeatInterval);
  if (interval < kLeastHeartbeatInterval || interval > kMostHeartbeatInterval) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval is ",
                                                   absl::FormatDuration(interval),
                                                   "; give 1 ms to 1 h, the same on all clients"));
  }
  return absl::OkStatus();
}

Status check_address(const JobEnvironment& job) {
  if (job.num_clients == 1 || parse_address(job.coordinator).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the coordinator's address is ", in_quotes(job.coordinator),
                   "; it must be HOST:PORT, as in host-a:4000, the same on all clients"));
}

}  // namespace tessera
