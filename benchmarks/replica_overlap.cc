// SPDX-License-Identifier: Apache-2.0
//
// Training steps of two replicas, one on each of two hosts. Gradients travel after the backward
// pass, or during it on devices of their own (all_reduce_on()). tools/bench_overlap starts the
// program on two hosts of this machine, with a limit on the network:
//
//   tools/bench_overlap --rate 1gbit --layers=8 --width=512 --rows=256
//
// Each client has two devices, of which the second is for communication. The numbers are medians of
// interleaved rounds, in milliseconds per step.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tessera/tessera.h"

ABSL_FLAG(int64_t, layers, 8, "layers, each a square matrix");
ABSL_FLAG(int64_t, width, 512, "rows and columns of these");
ABSL_FLAG(int64_t, rows, 256, "rows of a replica's batch");
ABSL_FLAG(int, rounds, 9, "rounds");

namespace tessera::bench {
namespace {

using distribute::PerReplica;
using distribute::ReplicaContext;
using distribute::Strategy;

// The i-th device of each client.
StatusOr<Mesh> mesh_of_devices(const Client& client, int ordinal) {
  std::vector<int> ids;
  for (const Device& device : client.devices()) {
    if (device.ordinal == ordinal) ids.push_back(device.id);
  }
  return create_mesh(client, {{"replica", static_cast<int64_t>(ids.size())}}, ids);
}

// How the gradients of a step are reduced.
using Reduction = std::function<std::vector<DTensor>(
    ReplicaContext& replica, Tape& tape, const DTensor& loss, absl::Span<const DTensor> weights)>;

class Network {
 public:
  explicit Network(const Mesh& mesh) {
    const int64_t width = absl::GetFlag(FLAGS_width);
    const StatusOr<Layout> whole = Layout::replicated(mesh, 2);
    const random::Key key = random::Key::from_seed(1);
    for (int64_t i = 0; i < absl::GetFlag(FLAGS_layers); ++i) {
      weights_.push_back(random::normal<float>(key.fold_in(i), {width, width}, whole) * 0.02);
    }
    const int64_t rows = absl::GetFlag(FLAGS_rows) * mesh.size();
    batch_ = random::normal<float>(key.fold_in(1000), {rows, width},
                                   Layout::batch_sharded(mesh, "replica", 2));
  }

  // Seconds of a step, up to the gradients.
  StatusOr<double> step(const Strategy& strategy, const Reduction& reduction) const {
    TESSERA_RETURN_IF_ERROR(strategy.mesh().barrier("step", absl::Minutes(1)));
    const absl::Time start = absl::Now();
    const std::vector<PerReplica> results = strategy.run(
        [&](ReplicaContext& replica, const DTensor& x) {
          Tape tape;
          std::vector<DTensor> w;
          const std::vector<DTensor> own = values(strategy, replica);
          for (const DTensor& each : own) w.push_back(tape.watch(each));
          DTensor hidden = x;
          for (const DTensor& each : w) hidden = ops::tanh(ops::matmul(hidden, each));
          return reduction(replica, tape, ops::mean(ops::square(hidden)), w);
        },
        *batch_);
    for (const PerReplica& each : results) TESSERA_RETURN_IF_ERROR(each.await());
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

 private:
  std::vector<DTensor> values(const Strategy& strategy, ReplicaContext& replica) const {
    std::vector<DTensor> own;
    for (const DTensor& weight : weights_) {
      const PerReplica parts = strategy.to_per_replica(weight);
      const absl::Span<const int> ids = strategy.local_replicas();
      const auto place = std::find(ids.begin(), ids.end(), replica.replica_id_in_sync_group());
      own.push_back(parts.local(static_cast<int>(place - ids.begin())));
    }
    return own;
  }

  std::vector<DTensor> weights_;
  std::optional<DTensor> batch_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

Status measure(const Client& client) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, mesh_of_devices(client, 0));
  TESSERA_ASSIGN_OR_RETURN(const Mesh beside, mesh_of_devices(client, 1));
  TESSERA_ASSIGN_OR_RETURN(const Strategy plain, Strategy::create(client, mesh, {"replica"}));
  distribute::StrategyOptions options;
  options.cross_device_ops = distribute::all_reduce_on(beside);
  TESSERA_ASSIGN_OR_RETURN(const Strategy overlapping,
                           Strategy::create(client, mesh, {"replica"}, options));
  const Reduction none = [](ReplicaContext&, Tape& tape, const DTensor& loss,
                            absl::Span<const DTensor> w) { return tape.gradient(loss, w); };
  const Reduction only = [](ReplicaContext& replica, Tape&, const DTensor&,
                            absl::Span<const DTensor> w) {
    return replica.all_reduce(ReduceOp::kSum, w);
  };
  const Reduction reduced = [](ReplicaContext& replica, Tape& tape, const DTensor& loss,
                               absl::Span<const DTensor> w) {
    return replica.gradient(tape, loss, w);
  };
  struct Row {
    const char* text;
    const Strategy* strategy;
    const Reduction* reduction;
    std::vector<double> seconds = {};
  };
  Row rows[] = {{"gradients alone", &plain, &none},
                {"forward pass and reduction alone", &plain, &only},
                {"reduced after the backward pass", &plain, &reduced},
                {"reduced on devices of their own", &overlapping, &reduced}};
  const Network network(mesh);
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (Row& row : rows) {
      TESSERA_ASSIGN_OR_RETURN(const double seconds, network.step(*row.strategy, *row.reduction));
      if (round >= 0) row.seconds.push_back(seconds);
    }
  }
  if (client.client_id() != 0) return absl::OkStatus();
  for (const Row& row : rows) std::printf("%-34s %8.2f ms\n", row.text, 1e3 * median(row.seconds));
  std::printf("%-34s %8.2f\n", "after / on devices of their own",
              median(rows[2].seconds) / median(rows[3].seconds));
  return absl::OkStatus();
}

Status run() {
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect());
  TESSERA_RETURN_IF_ERROR(measure(client));
  return client.shutdown();
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const tessera::Status status = tessera::bench::run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
