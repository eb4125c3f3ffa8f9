// SPDX-License-Identifier: Apache-2.0
//
// Training with parameter servers. Each worker reads its own points, pulls weights and pushes
// gradients at its own pace. One worker is killed during the training; every step still counts
// exactly once.
//
//   bazel build //examples:10_parameter_server
//   bazel-bin/examples/10_parameter_server
//
// Without TF_CONFIG the program starts the other tasks of a cluster on this host. With TF_CONFIG it
// is one task of a cluster.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "tessera/tessera.h"

ABSL_FLAG(std::string, restore, "", "a checkpoint to begin with");
ABSL_FLAG(std::string, save, "", "a checkpoint to write at the end");

namespace {

using namespace tessera;
using namespace tessera::distribute;

constexpr int kNumSteps = 200;
constexpr int kNumPoints = 4096;
constexpr int kBatch = 64;
constexpr int kNumInputs = 4;

// Number i as an input x, and the value to learn for it, x times (0, 1, 2, 3).
StatusOr<input::Element> point(input::Element element) {
  std::mt19937 random(static_cast<uint32_t>(element[0].view<int64_t>()[0]));
  std::vector<float> x(kNumInputs);
  float y = 0;
  for (int i = 0; i < kNumInputs; ++i) {
    x[i] = std::uniform_real_distribution<float>(-1, 1)(random);
    y += static_cast<float>(i) * x[i];
  }
  return input::Element{HostArray::of<float>(x, {kNumInputs}),
                        HostArray::of<float>(std::vector<float>{y}, {1})};
}

// 1. The data set of one worker: its part of the points, repeated without end.
StatusOr<input::Dataset> points(const InputContext& context) {
  return input::Dataset::range(kNumPoints)
      .shard(context.num_input_pipelines, context.input_pipeline_id)
      .shuffle(/*seed=*/1)
      .map(point)
      .repeat()
      .batch(kBatch);
}

// 2. A step of training on the worker's next batch. Workers run it.
StatusOr<std::vector<DTensor>> step(WorkerContext& context, absl::Span<const Argument> args) {
  const auto& weights = std::get<RemoteVariable>(args[0]);
  const auto& count = std::get<RemoteVariable>(args[1]);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch,
                           context.next(std::get<RemoteDataset>(args[2])));
  if (!batch.has_value()) return absl::OutOfRangeError("the points have ended");
  const DTensor& x = batch->tensors[0];
  const DTensor& y = batch->tensors[1];

  Tape tape;
  const DTensor w = tape.watch(context.pull(weights));
  const DTensor loss = ops::mean(ops::square(ops::matmul(x, w) - y));
  const std::vector<DTensor> gradients = tape.gradient(loss, {w});

  // 3. When a step returns OK, all its pushes count, exactly once, and its reads too. Otherwise
  //    none of them counts.
  TESSERA_RETURN_IF_ERROR(context.push_add(weights, gradients[0] * -0.2));
  TESSERA_RETURN_IF_ERROR(
      context.push_add(count, ones<float>({}, Layout::replicated(context.mesh(), 0))));
  return std::vector<DTensor>{loss};
}

StatusOr<std::vector<DTensor>> read(WorkerContext& context, absl::Span<const Argument> args) {
  std::vector<DTensor> values;
  for (const Argument& arg : args) values.push_back(context.pull(std::get<RemoteVariable>(arg)));
  return values;
}

// 4. Workers and parameter servers: start and join.
Status serve(const cluster::Cluster& cluster) {
  FunctionRegistry functions;
  TESSERA_RETURN_IF_ERROR(functions.add("step", step));
  TESSERA_RETURN_IF_ERROR(functions.add("read", read));
  TESSERA_RETURN_IF_ERROR(functions.add_dataset("points", points));
  TESSERA_ASSIGN_OR_RETURN(Server server, Server::start(cluster, std::move(functions)));
  return server.join();
}

// 5. A checkpoint has the values of variables under their names. To write and to read it, the chief
//    is a job of one client.
StatusOr<Client> connect_chief() { return Client::connect({.client_id = 0, .num_clients = 1}); }

StatusOr<Mesh> mesh_of(const Client& client) {
  return create_mesh(client, {{"device", static_cast<int64_t>(client.devices().size())}});
}

Status save(const std::string& path, const std::vector<RemoteVariable>& variables,
            const std::vector<HostArray>& values) {
  TESSERA_ASSIGN_OR_RETURN(Client client, connect_chief());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of(client));
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < values.size(); ++i) {
    const Shape& shape = values[i].shape;
    const StatusOr<Layout> whole = Layout::replicated(mesh, static_cast<int>(shape.size()));
    tensors.push_back(
        {variables[i].name(), from_host<float>(values[i].view<float>(), shape, whole)});
  }
  TESSERA_RETURN_IF_ERROR(checkpoint::save(client, path, tensors, {.overwrite = true}));
  return client.shutdown();
}

// The weights and the count.
StatusOr<std::vector<HostArray>> restore(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(Client client, connect_chief());
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of(client));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> tensors,
                           checkpoint::restore(client, path,
                                               {{"weights", Layout::replicated(mesh, 2)},
                                                {"count", Layout::replicated(mesh, 0)}}));
  std::vector<HostArray> values;
  for (const DTensor& tensor : tensors) {
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value, tensor.to_host<float>());
    values.push_back(HostArray::of<float>(value.data, value.shape));
  }
  TESSERA_RETURN_IF_ERROR(client.shutdown());
  return values;
}

// 6. The chief makes variables and data sets, and schedules functions by name.
Status lead(const cluster::Cluster& cluster, pid_t victim) {
  TESSERA_ASSIGN_OR_RETURN(ClusterCoordinator coordinator,
                           ClusterCoordinator::create(cluster, fixed_shards(2)));
  std::printf("%d workers, %d parameter servers\n", coordinator.num_workers(),
              coordinator.num_ps());
  const std::vector<float> zeros(kNumInputs, 0);
  std::vector<HostArray> first = {HostArray::of<float>(zeros, {kNumInputs, 1}),
                                  HostArray::scalar(0.0f)};
  if (const std::string path = absl::GetFlag(FLAGS_restore); !path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(first, restore(path));
  }
  TESSERA_ASSIGN_OR_RETURN(const RemoteVariable weights, coordinator.variable("weights", first[0]));
  TESSERA_ASSIGN_OR_RETURN(const RemoteVariable count, coordinator.variable("count", first[1]));
  TESSERA_ASSIGN_OR_RETURN(const RemoteDataset data,
                           coordinator.create_per_worker_dataset("points"));
  std::vector<RemoteValue> losses;
  for (int number = 0; number < kNumSteps; ++number) {
    losses.push_back(coordinator.schedule("step", {weights, count, data}));
  }
  for (int number = 0; number < kNumSteps; number += 50) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> loss, losses[number].fetch());
    std::printf("step %3d  loss %.5f\n", number, loss[0].view<float>()[0]);
    if (number == 50 && victim != 0) {
      kill(victim, SIGKILL);
      std::printf("worker 1 is killed\n");
    }
  }
  // 7. Waits for all steps. The other worker repeats the steps of the lost worker.
  TESSERA_RETURN_IF_ERROR(coordinator.join());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HostArray> values,
                           coordinator.schedule("read", {weights, count}).fetch());
  std::printf("weights %s\n",
              absl::StrJoin(values[0].view<float>(), ", ", [](std::string* out, float weight) {
                absl::StrAppend(out, absl::Dec(lround(weight)));
              }).c_str());
  std::printf("%d steps, of which %.0f count\n", kNumSteps, values[1].view<float>()[0]);
  const std::string path = absl::GetFlag(FLAGS_save);
  return path.empty() ? absl::OkStatus() : save(path, {weights, count}, values);
}

// A free address of this host. The socket stays open and holds the port; with SO_REUSEADDR a server
// can still bind it.
std::string free_address() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  (void)bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

pid_t start_task(const cluster::ClusterSpec& spec, const std::string& job, int task) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const StatusOr<cluster::Cluster> cluster = cluster::simple(spec, job, task);
  const Status status = cluster.ok() ? serve(*cluster) : cluster.status();
  if (!status.ok())
    std::fprintf(stderr, "%s %d: %s\n", job.c_str(), task, status.ToString().c_str());
  std::_Exit(status.ok() ? 0 : 1);
}

Status run_on_this_host() {
  TESSERA_ASSIGN_OR_RETURN(
      const cluster::ClusterSpec spec,
      cluster::ClusterSpec::create({{"chief", {free_address()}},
                                    {"worker", {free_address(), free_address()}},
                                    {"ps", {free_address(), free_address()}}}));
  for (const int task : {0, 1}) start_task(spec, "ps", task);
  start_task(spec, "worker", 0);
  const pid_t victim = start_task(spec, "worker", 1);
  TESSERA_ASSIGN_OR_RETURN(const cluster::Cluster cluster, cluster::simple(spec, "chief", 0));
  const Status status = lead(cluster, victim);
  while (wait(nullptr) > 0) {
  }
  return status;
}

Status run() {
  if (std::getenv("TF_CONFIG") == nullptr) return run_on_this_host();
  TESSERA_ASSIGN_OR_RETURN(const cluster::Cluster cluster,
                           cluster::tf_config([](const char* name) { return std::getenv(name); }));
  return cluster.task_type == "chief" ? lead(cluster, 0) : serve(cluster);
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const Status status = run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
