// SPDX-License-Identifier: Apache-2.0
//
// One task of a test's cluster, by TF_CONFIG: a Server with the functions below, or a chief that
// schedules until it is killed. At its end it writes the code and the message of its last Status to
// the file in its first argument. The second argument names one more function, or after "data set "
// one more data set.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "base/status.h"
#include "dtensor/dtensor.h"
#include "input/dataset.h"
#include "input/input_context.h"
#include "input/loader.h"
#include "job/cluster/cluster.h"
#include "layout/layout.h"
#include "servers/cluster_coordinator.h"
#include "servers/function_registry.h"
#include "servers/remote_dataset.h"
#include "servers/server.h"
#include "servers/worker_context.h"

namespace tessera::distribute {
namespace {

using Args = absl::Span<const Argument>;
using Results = StatusOr<std::vector<DTensor>>;

StatusOr<Layout> whole(const WorkerContext& context, const Shape& shape) {
  return Layout::replicated(context.mesh(), static_cast<int>(shape.size()));
}

StatusOr<float> number(const Argument& argument) {
  const auto* const array = std::get_if<HostArray>(&argument);
  if (array == nullptr || array->dtype != DType::kFloat32 || num_elements(array->shape) != 1) {
    return absl::InvalidArgumentError("the argument must be one f32");
  }
  return array->view<float>()[0];
}

DTensor filled(const WorkerContext& context, const Shape& shape, float value) {
  return full<float>(shape, value, whole(context, shape));
}

// Pushes x to each variable. Returns the earlier first element of the first variable, plus x.
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

// args: milliseconds, then the arguments of add.
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

// Kills its process in the attempts up to args[0]; later acts like add.
Results die(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float attempts, number(args[0]));
  if (context.attempt() <= attempts) kill(getpid(), SIGKILL);
  return add(context, args.subspan(1));
}

// Stops its process in the first attempt; then acts like add.
Results stop(WorkerContext& context, Args args) {
  if (context.attempt() == 1) kill(getpid(), SIGSTOP);
  return add(context, args);
}

// Returns its worker and its attempt.
Results where(WorkerContext& context, Args) {
  return std::vector<DTensor>{filled(context, {}, static_cast<float>(context.worker_index())),
                              filled(context, {}, static_cast<float>(context.attempt()))};
}

Results pull(WorkerContext& context, Args args) {
  return std::vector<DTensor>{context.pull(std::get<RemoteVariable>(args[0]))};
}

// args: a variable and its new value. Assigns twice, so that the last value counts.
Results assign(WorkerContext& context, Args args) {
  const auto& v = std::get<RemoteVariable>(args[0]);
  TESSERA_ASSIGN_OR_RETURN(const float x, number(args[1]));
  TESSERA_RETURN_IF_ERROR(context.push(v, filled(context, v.shape(), 100)));
  TESSERA_RETURN_IF_ERROR(context.push(v, filled(context, v.shape(), x)));
  return std::vector<DTensor>{context.pull(v)};
}

// args: variables of any dtype and size. Adds each value to its variable; one call makes all
// pushes.
Results double_all(WorkerContext& context, Args args) {
  for (const Argument& argument : args) {
    const auto& v = std::get<RemoteVariable>(argument);
    TESSERA_RETURN_IF_ERROR(context.push_add(v, context.pull(v)));
  }
  return std::vector<DTensor>();
}

// args: milliseconds to wait, then f32 variables. Adds 1 to each without a pull; returns the
// attempt.
Results push_late(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(wait(context, args).status());
  for (const Argument& argument : args.subspan(1)) {
    const auto& v = std::get<RemoteVariable>(argument);
    TESSERA_RETURN_IF_ERROR(context.push_add(v, filled(context, v.shape(), 1)));
  }
  return std::vector<DTensor>{filled(context, {}, static_cast<float>(context.attempt()))};
}

// args: as for push_late. Pulls each; returns the attempt.
Results pull_all(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(wait(context, args).status());
  for (const Argument& argument : args.subspan(1)) {
    const auto& v = std::get<RemoteVariable>(argument);
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<float> value, context.pull(v).to_host<float>());
    for (const float element : value.data) {
      if (element != value.data[0]) return absl::DataLossError("a pull has mixed two values");
    }
  }
  return std::vector<DTensor>{filled(context, {}, static_cast<float>(context.attempt()))};
}

// Returns the value of args[0] as many times as args[1] says.
Results repeat(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float count, number(args[1]));
  return std::vector<DTensor>(static_cast<size_t>(count),
                              context.pull(std::get<RemoteVariable>(args[0])));
}

// Pushes a scalar f32 to a variable of any type.
Results push_scalar(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(
      context.push_add(std::get<RemoteVariable>(args[0]), filled(context, {}, 1)));
  return std::vector<DTensor>();
}

// The next batch of a data set with one i64 tensor.
StatusOr<std::optional<DTensor>> next(WorkerContext& context, const RemoteDataset& dataset) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<input::Batch> batch, context.next(dataset));
  if (!batch.has_value()) return std::nullopt;
  const DTensor& tensor = batch->tensors[0];
  TESSERA_ASSIGN_OR_RETURN(const Layout rows, Layout::batch_sharded(context.mesh(), "device", 1));
  if (tensor.layout() != rows || tensor.shape() != Shape{batch->size}) {
    return absl::InternalError(absl::StrCat("the batch is ", tensor.layout().to_string(), ", of ",
                                            shape_to_string(tensor.shape())));
  }
  return tensor;
}

// Returns its worker and the next batch of each data set, while there is one. The argument after
// the data sets is a wait in milliseconds.
Results read(WorkerContext& context, Args args) {
  std::vector<DTensor> results = {filled(context, {}, static_cast<float>(context.worker_index()))};
  for (const Argument& argument : args) {
    if (std::holds_alternative<HostArray>(argument)) {
      TESSERA_RETURN_IF_ERROR(wait(context, {&argument, 1}).status());
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(std::optional<DTensor> batch,
                             next(context, std::get<RemoteDataset>(argument)));
    if (batch.has_value()) results.push_back(*std::move(batch));
  }
  return results;
}

// Reads all batches up to the end, or to an error, which it ignores.
Results read_quietly(WorkerContext& context, Args args) {
  std::vector<DTensor> results = {filled(context, {}, static_cast<float>(context.worker_index()))};
  while (true) {
    const auto batch = next(context, std::get<RemoteDataset>(args[0]));
    if (!batch.ok() && next(context, std::get<RemoteDataset>(args[0])).status() != batch.status()) {
      return absl::InternalError("an error of a data set does not stay");
    }
    if (!batch.ok() || !batch->has_value()) return results;
    results.push_back(**batch);
  }
}

// Reads like `read`, and fails.
Results read_and_fail(WorkerContext& context, Args args) {
  TESSERA_RETURN_IF_ERROR(read(context, args).status());
  return absl::OutOfRangeError("enough");
}
// Reads, and kills or stops its process in the first attempt.
Results read_and_die(WorkerContext& context, Args args) {
  Results results = read(context, args);
  if (context.attempt() == 1) kill(getpid(), SIGKILL);
  return results;
}
Results read_and_stop(WorkerContext& context, Args args) {
  Results results = read(context, args);
  if (context.attempt() == 1) kill(getpid(), SIGSTOP);
  return results;
}

// Reads from a data set kept by an earlier call, or keeps its own.
Results read_kept(WorkerContext& context, Args args) {
  static std::optional<RemoteDataset> kept;
  if (args.empty()) return read(context, {Argument(*kept)});
  kept = std::get<RemoteDataset>(args[0]);
  return std::vector<DTensor>();
}

// args: milliseconds, the number of batches, a data set, a table with a row for each worker,
// variables. Adds 1 to the variables, and to the elements of this worker's row that it has read.
Results train(WorkerContext& context, Args args) {
  TESSERA_ASSIGN_OR_RETURN(const float num_batches, number(args[1]));
  const auto& table = std::get<RemoteVariable>(args[3]);
  std::vector<float> delta(table.shape()[0] * table.shape()[1]);
  for (int i = 0; i < num_batches; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<DTensor> batch,
                             next(context, std::get<RemoteDataset>(args[2])));
    if (!batch.has_value()) return absl::OutOfRangeError("the data set is too short");
    TESSERA_ASSIGN_OR_RETURN(const HostTensor<int64_t> elements, batch->to_host<int64_t>());
    for (const int64_t element : elements.data) {
      delta[context.worker_index() * table.shape()[1] + element] += 1;
    }
  }
  TESSERA_RETURN_IF_ERROR(wait(context, args).status());
  TESSERA_RETURN_IF_ERROR(
      context.push_add(table, from_host<float>(delta, table.shape(), whole(context, {0, 0}))));
  for (const Argument& argument : args.subspan(4)) {
    const auto& v = std::get<RemoteVariable>(argument);
    TESSERA_RETURN_IF_ERROR(context.push_add(v, filled(context, v.shape(), 1)));
  }
  return std::vector<DTensor>();
}

Results raise(WorkerContext&, Args) {
  std::vector<int>().at(7);  // std::out_of_range
  return std::vector<DTensor>();
}

// The number of calls of pairs() in this process.
int num_calls_of_pairs = 0;

Results calls_of_pairs(WorkerContext& context, Args) {
  return std::vector<DTensor>{filled(context, {}, static_cast<float>(context.worker_index())),
                              filled(context, {}, static_cast<float>(num_calls_of_pairs))};
}

using Made = StatusOr<input::Dataset>;

Made pairs(const InputContext&) {
  ++num_calls_of_pairs;
  return input::Dataset::range(10).batch(2);
}
// A stream.
Made odd(const InputContext&) {
  return input::Dataset::range(10)
      .filter([](const input::Element& e) { return e[0].view<int64_t>()[0] % 2 == 1; })
      .batch(2);
}
// The elements of this worker alone.
Made sharded(const InputContext& context) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t batch, context.get_per_replica_batch_size(3));
  return input::Dataset::range(10)
      .shard(context.num_input_pipelines, context.input_pipeline_id)
      .batch(batch);
}
Made long_range(const InputContext&) { return input::Dataset::range(1000).batch(2); }
Made broken(const InputContext&) {
  return input::Dataset::range(8)
      .map([](input::Element e) -> StatusOr<input::Element> {
        if (e[0].view<int64_t>()[0] == 5) return absl::DataLossError("it is damaged");
        return e;
      })
      .batch(2);
}
Made no_elements(const InputContext&) {
  return input::Dataset::range(0).map([](input::Element e) { return e; }).batch(2);
}
Made unbatched(const InputContext&) { return input::Dataset::range(8); }
Made carries_an_error(const InputContext&) { return input::Dataset::range(-1).batch(2); }
Made fails(const InputContext&) { return absl::NotFoundError("no such file"); }
Made raises(const InputContext&) {
  std::vector<int>().at(7);  // std::out_of_range
  return input::Dataset::range(8);
}
// Different elements on each worker: of different sizes, and of different dtypes.
Made sizes_differ(const InputContext& context) {
  const std::vector<float> row(context.input_pipeline_id + 1);
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset one,
                           input::Dataset::from_slices(
                               {HostArray::of<float>(row, {1, static_cast<int64_t>(row.size())})}));
  return one.batch(4, input::Remainder::kDrop);
}
Made dtypes_differ(const InputContext& context) {
  if (context.input_pipeline_id == 0) return pairs(context);
  return sizes_differ(context);
}

Status add_datasets(FunctionRegistry* registry) {
  for (auto& [name, fn] : std::map<std::string, FunctionRegistry::DatasetFunction>{
           {"pairs", pairs},
           {"odd", odd},
           {"sharded", sharded},
           {"long_range", long_range},
           {"broken", broken},
           {"no_elements", no_elements},
           {"unbatched", unbatched},
           {"carries_an_error", carries_an_error},
           {"fails", fails},
           {"raises", raises},
           {"sizes_differ", sizes_differ},
           {"dtypes_differ", dtypes_differ}}) {
    TESSERA_RETURN_IF_ERROR(registry->add_dataset(name, fn));
  }
  return absl::OkStatus();
}

StatusOr<FunctionRegistry> functions(const std::string& one_more) {
  FunctionRegistry registry;
  for (auto& [name, fn] :
       std::map<std::string, FunctionRegistry::Function>{{"add", add},
                                                         {"slow_add", slow_add},
                                                         {"wait", wait},
                                                         {"fail", fail},
                                                         {"die", die},
                                                         {"stop", stop},
                                                         {"where", where},
                                                         {"pull", pull},
                                                         {"assign", assign},
                                                         {"repeat", repeat},
                                                         {"push_scalar", push_scalar},
                                                         {"double_all", double_all},
                                                         {"push_late", push_late},
                                                         {"pull_all", pull_all},
                                                         {"read", read},
                                                         {"read_quietly", read_quietly},
                                                         {"read_and_fail", read_and_fail},
                                                         {"read_and_die", read_and_die},
                                                         {"read_and_stop", read_and_stop},
                                                         {"read_kept", read_kept},
                                                         {"calls_of_pairs", calls_of_pairs},
                                                         {"train", train},
                                                         {"raise", raise}}) {
    TESSERA_RETURN_IF_ERROR(registry.add(name, fn));
  }
  TESSERA_RETURN_IF_ERROR(add_datasets(&registry));
  absl::string_view name = one_more;
  if (absl::ConsumePrefix(&name, "data set ")) {
    TESSERA_RETURN_IF_ERROR(registry.add_dataset(std::string(name), pairs));
  } else if (!name.empty()) {
    TESSERA_RETURN_IF_ERROR(registry.add(one_more, wait));
  }
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
  // A function that was given up may still be running.
  _exit(status.ok() ? 0 : 1);
}
