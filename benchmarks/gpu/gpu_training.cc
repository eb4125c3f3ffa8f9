// SPDX-License-Identifier: Apache-2.0
//
// Training steps and small additions on a GPU, as a contestant of training_contest.py, which
// describes the measurements. Commands are lines of stdin; each is answered by a line of JSON:
//
//   prepare NETWORK WIDTH BLOCKS PIECES CONTEXT f32|bf16     a transformer, and five steps of it
//   prepare small DEVICES                                    x + y of 256 floats for each device
//   go N                                                     N steps, or N additions
//   trace LIBRARY FILE N                                     like go, traced by kernel_times.cc
//
//   gpu_training [cpu]       cpu: on devices of the host, to try it without a GPU
//
// "ms" is the time per step until the GPU has done all steps. "waited_ms" is the time of a step if
// the program waits for its result before the next step.
#include <dlfcn.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmarks/training.h"
#include "tessera/tessera.h"

namespace tessera::bench {
namespace {

constexpr int kWarmUpSteps = 5;

double cpu_seconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The work that a command repeats.
struct Case {
  std::function<Status(int)> steps;  // N steps; returns when the devices have done them
  std::function<Status()> one;       // one step, and waits for it
  std::function<StatusOr<float>()> value;
};

StatusOr<Client> connect(DeviceType device_type, int num_devices) {
  ClientOptions options;
  options.device_type = device_type;
  options.num_local_devices = num_devices;
  return Client::connect(options);
}

StatusOr<Case> training(const Client& client, const TransformerSize& size) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 1}, {"model", 1}}));
  auto training = std::make_shared<Training>(mesh, size);
  const auto steps = [training](int count) -> Status {
    // Each step waits for the loss of the step before, as programs do. Otherwise tensors of many
    // steps would be in memory at once.
    for (int i = 0; i < count; ++i) {
      const std::optional<DTensor> before = training->last_loss();
      TESSERA_RETURN_IF_ERROR(training->start_step());
      if (before.has_value()) TESSERA_RETURN_IF_ERROR(before->await());
    }
    return training->await();
  };
  return Case{steps, [training] { return training->step(); },
              [training] { return training->loss(); }};
}

StatusOr<Case> additions(const Client& client, int num_devices) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", num_devices}}));
  const Shape shape = {num_devices, 256};
  const StatusOr<Layout> rows = Layout::parse(mesh, "[x, -]");
  const DTensor x = noise_tensor(1, shape, rows);
  const DTensor y = noise_tensor(2, shape, rows);
  auto sum = std::make_shared<DTensor>(x + y);
  const auto steps = [=](int count) {
    for (int i = 0; i < count; ++i) *sum = x + y;
    return sum->await();
  };
  const auto value = [sum]() -> StatusOr<float> {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> host, sum->to_host<float>());
    return host.data[0];
  };
  return Case{steps, [steps] { return steps(1); }, value};
}

Status trace(const Case& of, const char* library, const char* file, int count) {
  void* const handle = dlopen(library, RTLD_NOW);
  if (handle == nullptr) return absl::NotFoundError(dlerror());
  const auto begin = reinterpret_cast<int (*)()>(dlsym(handle, "kernel_times_begin"));
  const auto end = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "kernel_times_end"));
  int error = begin();
  TESSERA_RETURN_IF_ERROR(of.steps(count));
  if (error == 0) error = end(file);
  absl::PrintF("{\"error\": %d}\n", error);
  return absl::OkStatus();
}

Status go(const Case& of, int count) {
  const double cpu = cpu_seconds();
  const absl::Time start = absl::Now();
  TESSERA_RETURN_IF_ERROR(of.steps(count));
  const double ms = absl::ToDoubleMilliseconds(absl::Now() - start) / count;
  const double cpu_ms = 1000 * (cpu_seconds() - cpu) / count;
  const absl::Time start_waiting = absl::Now();
  for (int i = 0; i < count; ++i) TESSERA_RETURN_IF_ERROR(of.one());
  absl::PrintF("{\"ms\": %.6f, \"cpu_ms\": %.6f, \"waited_ms\": %.6f}\n", ms, cpu_ms,
               absl::ToDoubleMilliseconds(absl::Now() - start_waiting) / count);
  return absl::OkStatus();
}

Status serve(DeviceType device_type) {
  std::optional<Client> client;
  std::optional<Case> of;
  std::string line;
  while (std::getline(std::cin, line)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto number = [&](size_t i) { return std::stoll(words.at(i)); };
    if (words[0] == "prepare" && words[1] == "small") {
      const auto num_devices = static_cast<int>(number(2));
      TESSERA_ASSIGN_OR_RETURN(client, connect(device_type, num_devices));
      TESSERA_ASSIGN_OR_RETURN(of, additions(*client, num_devices));
    } else if (words[0] == "prepare") {
      TESSERA_ASSIGN_OR_RETURN(client, connect(device_type, 1));
      TESSERA_ASSIGN_OR_RETURN(
          of,
          training(*client, {.pieces = number(4),
                             .context = number(5),
                             .width = number(2),
                             .blocks = number(3),
                             .dtype = words.at(6) == "bf16" ? DType::kBFloat16 : DType::kFloat32}));
    }
    if (words[0] == "prepare") {
      TESSERA_RETURN_IF_ERROR(of->steps(kWarmUpSteps));
      TESSERA_ASSIGN_OR_RETURN(const float value, of->value());
      absl::PrintF("{\"value\": %.9g}\n", value);
    } else if (words[0] == "trace") {
      TESSERA_RETURN_IF_ERROR(
          trace(*of, words.at(1).c_str(), words.at(2).c_str(), static_cast<int>(number(3))));
    } else {
      TESSERA_RETURN_IF_ERROR(go(*of, static_cast<int>(number(1))));
    }
    std::fflush(stdout);
  }
  of.reset();
  return client.has_value() ? client->shutdown() : absl::OkStatus();
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  const bool is_on_cpu = argc > 1 && absl::string_view(argv[1]) == "cpu";
  const tessera::Status status =
      tessera::bench::serve(is_on_cpu ? tessera::DeviceType::kCpu : tessera::DeviceType::kCuda);
  if (!status.ok()) std::fprintf(stderr, "gpu_training: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
