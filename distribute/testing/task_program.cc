// SPDX-License-Identifier: Apache-2.0
//
// One task of a test's cluster, by TF_CONFIG: a Server with the functions below, or a chief that
// schedules until it is killed. At its end it writes the code and the message of its last Status
// to the file that is its first argument. A second argument is the name of one more function.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/host_array.h"
#include "base/status.h"
#include "distribute/coordinator.h"
#include "distribute/server.h"
#include "dtensor/dtensor.h"
#include "job/cluster.h"
#include "layout/layout.h"

namespace tessera::distribute {
namespace {

using Args = absl::Span<const Argument>;
using Results = StatusOr<std::vector<DTensor>>;

StatusOr<Layout> whole(const WorkerContext& context, const Shape& shape) {
  return Layout::replicated(context.mesh(), static_cast<int>(shape.size()));
}

StatusOr<float> number(const Argument& argument) {
  const auto* const array = std::get_if<HostArray>(&argument);
  if (array == nullptr || array->view<float>().size() != 1) {
    return absl::InvalidArgumentError("the argument must be one f32");
  }
  return array->view<float>()[0];
}

DTensor filled(const WorkerContext& context, const Shape& shape, float value) {
  return full<float>(shape, value, whole(context, shape));
}

// Pushes x to each variable; returns the first element of the first before that, plus x.
Results add(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float x, number(args[0]));
  float before = 0;
  for (size_t i = args.size() - 1; i >= 1; --i) {
    const auto& v = std::get<RemoteVariable>(args[i]);
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value, context.pull(v).to_host<float>());
    before = value.data[0];
    TESSERA_RETURN_IF_ERROR(context.push_add(v, filled(context, v.shape(), x)));
  }
  return std::vector<DTensor>{filled(context, {}, before + x)};
}

// args: milliseconds, then those of add.
Results slow_add(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float ms, number(args[0]));
  absl::SleepFor(absl::Milliseconds(ms));  // sleep: a function that takes this long
  return add(context, args.subspan(1));
}

Results wait(WorkerContext&, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float ms, number(args[0]));
  absl::SleepFor(absl::Milliseconds(ms));  // sleep: a function that takes this long
  return std::vector<DTensor>();
}

// Waits, then fails.
Results fail(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(wait(context, args).status());
  return absl::InvalidArgumentError("boom");
}

// Kills its process in the attempts up to args[0]; then as add.
Results die(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float attempts, number(args[0]));
  if (context.attempt() <= attempts) kill(getpid(), SIGKILL);
  return add(context, args.subspan(1));
}

// Stops its process in the first attempt; then as add.
Results stop(WorkerContext& context, Args args) {
  if (context.attempt() == 1) kill(getpid(), SIGSTOP);
  return add(context, args);
}

// Which worker runs it, and in which attempt.
Results where(WorkerContext& context, Args) {
  return std::vector<DTensor>{filled(context, {}, static_cast<float>(context.worker_index())),
                              filled(context, {}, static_cast<float>(context.attempt()))};
}

Results pull(WorkerContext& context, Args args) {
  return std::vector<DTensor>{context.pull(std::get<RemoteVariable>(args[0]))};
}

// args: a variable and its new value; twice, so that the last one counts.
Results assign(WorkerContext& context, Args args) {
  const auto& v = std::get<RemoteVariable>(args[0]);
  TESSERA_ASSIGN_OR_RETURN(const float x, number(args[1]));
  TESSERA_RETURN_IF_ERROR(context.push(v, filled(context, v.shape(), 100)));
  TESSERA_RETURN_IF_ERROR(context.push(v, filled(context, v.shape(), x)));
  return std::vector<DTensor>{context.pull(v)};
}

// Pushes a scalar f32, whatever the variable is.
Results push_scalar(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(
      context.push_add(std::get<RemoteVariable>(args[0]), filled(context, {}, 1)));
  return std::vector<DTensor>();
}

Results raise(WorkerContext&, Args) {
  std::vector<int>().at(7);  // std::out_of_range
  return std::vector<DTensor>();
}

StatusOr<FunctionRegistry> functions(const std::string& one_more) {
  FunctionRegistry registry;
  for (auto& [name, fn] :
       std::vector<std::pair<std::string, FunctionRegistry::Function>>{{"add", add},
                                                                       {"slow_add", slow_add},
                                                                       {"wait", wait},
                                                                       {"fail", fail},
                                                                       {"die", die},
                                                                       {"stop", stop},
                                                                       {"where", where},
                                                                       {"pull", pull},
                                                                       {"assign", assign},
                                                                       {"push_scalar", push_scalar},
                                                                       {"raise", raise}}) {
    TESSERA_RETURN_IF_ERROR(registry.add(name, fn));
  }
  if (!one_more.empty()) TESSERA_RETURN_IF_ERROR(registry.add(one_more, wait));
  return registry;
}

Status lead(const cluster::Cluster& cluster) {
  TESSERA_ASSIGN_OR_RETURN(ClusterCoordinator coordinator, ClusterCoordinator::create(cluster));
  TESSERA_ASSIGN_OR_RETURN(const RemoteVariable v,
                           coordinator.variable("v", HostArray::scalar(0.0f)));
  while (true) {
    coordinator.schedule("add", {HostArray::scalar(1.0f), v});
    TESSERA_RETURN_IF_ERROR(coordinator.join());
  }
}

Status run(const std::string& one_more) {
  TESSERA_ASSIGN_OR_RETURN(const cluster::Cluster cluster,
                           cluster::tf_config([](const char* name) { return std::getenv(name); }));
  if (cluster.task_type == "chief") return lead(cluster);
  TESSERA_ASSIGN_OR_RETURN(FunctionRegistry registry, functions(one_more));
  TESSERA_ASSIGN_OR_RETURN(Server server, Server::start(cluster, std::move(registry)));
  return server.join();
}

}  // namespace
}  // namespace tessera::distribute

int main(int argc, char** argv) {
  const absl::Status status = tessera::distribute::run(argc > 2 ? argv[2] : "");
  std::ofstream(argv[1]) << static_cast<int>(status.code()) << " " << status.message();
  // A function that was given up may still run.
  _exit(status.ok() ? 0 : 1);
}
