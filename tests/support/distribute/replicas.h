// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests of distribute/: values of replicas and their checks.
//
//   PerReplica values = values_of<float>(client, strategy, [](int r) { ... });
//   DTensor sum = strategy.reduce(ReduceOp::kSum, values);
//   TESSERA_RETURN_IF_ERROR(expect_values<float>(sum, {3}, {1, 2, 3}));
#ifndef TESSERA_TESTS_SUPPORT_DISTRIBUTE_REPLICAS_H_
#define TESSERA_TESTS_SUPPORT_DISTRIBUTE_REPLICAS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"

namespace tessera::testing {

template <class T>
struct Values {
  Shape shape;
  std::vector<T> data;
};

// A vector of these elements.
template <class T>
Values<T> vector_of(std::vector<T> data) {
  return {{static_cast<int64_t>(data.size())}, std::move(data)};
}

template <class T>
DTensor on_mesh(const Mesh& mesh, const Values<T>& values) {
  return from_function<T>(values.shape,
                          Layout::replicated(mesh, static_cast<int>(values.shape.size())),
                          [&](const Box&, absl::Span<T> out) {
                            std::copy(values.data.begin(), values.data.end(), out.begin());
                          });
}

// A value for each replica, made on the first device of this client.
template <class T>
distribute::PerReplica values_of(const Client& client, const distribute::Strategy& strategy,
                                 const std::function<Values<T>(int replica)>& value) {
  const StatusOr<Mesh> here =
      create_mesh(client, {{"here", 1}}, std::vector<int>{client.local_devices()[0].id});
  return strategy.values_from_function([&](const distribute::ValueContext& context) {
    return on_mesh(*here, value(context.replica_id_in_sync_group));
  });
}

// Every local shard holds all of these values.
template <class T>
Status expect_values(const DTensor& tensor, const Shape& shape, const std::vector<T>& expected) {
  TESSERA_RETURN_IF_ERROR(tensor.await());
  TESSERA_REQUIRE(tensor.dtype() == dtype_of<T>(), dtype_name(tensor.dtype()));
  TESSERA_REQUIRE(tensor.shape() == shape, shape_to_string(tensor.shape()));
  TESSERA_REQUIRE(tensor.num_local_shards() > 0);
  for (int i = 0; i < tensor.num_local_shards(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, tensor.shard<T>(i));
    TESSERA_REQUIRE(shard.data.size() == expected.size(), shard.data.size());
    for (size_t k = 0; k < expected.size(); ++k) {
      const auto got = static_cast<double>(shard.data[k]);
      const auto want = static_cast<double>(expected[k]);
      const bool same = std::isnan(want)   ? std::isnan(got)
                        : std::isinf(want) ? got == want
                                           : std::fabs(got - want) <= 1e-6 * std::fabs(want);
      TESSERA_REQUIRE(same, "shard ", i, ", element ", k, " is ", got, ", not ", want);
    }
  }
  return absl::OkStatus();
}

// The local values of a PerReplica.
template <class T>
Status expect_local(const distribute::PerReplica& value,
                    const std::function<Values<T>(int replica)>& expected) {
  TESSERA_RETURN_IF_ERROR(value.await());
  const absl::Span<const int> replicas = value.local_replicas();
  for (size_t i = 0; i < replicas.size(); ++i) {
    const Values<T> want = expected(replicas[i]);
    TESSERA_RETURN_IF_ERROR(
        with_context(expect_values<T>(value.local(static_cast<int>(i)), want.shape, want.data),
                     absl::StrCat("replica ", replicas[i])));
  }
  return absl::OkStatus();
}

// A scalar of a replica.
inline DTensor scalar(distribute::ReplicaContext& replica, float value) {
  return full<float>({}, value, Layout::replicated(replica.mesh(), 0));
}
inline DTensor scalar_of_id(distribute::ReplicaContext& replica) {
  return scalar(replica, static_cast<float>(replica.replica_id_in_sync_group()));
}
inline Values<float> scalar_value(float value) { return {{}, {value}}; }

// How replicas are dealt to clients.
struct ReplicaForm {
  const char* name;
  bool is_one_client;
  bool is_host_each = false;  // clients have no memory in common
};
inline constexpr ReplicaForm kReplicaForms[] = {
    {"OneClient", true},
    {"AClientEach", false},
    {"AHostEach", false, true},
};

using ReplicaBody =
    std::function<Status(const Client& client, const distribute::Strategy& strategy)>;

// Runs the body with so many replicas of one device each.
inline Status run_replicas(const ReplicaForm& form, int num_replicas, const ReplicaBody& body,
                           distribute::StrategyOptions options = {}) {
  JobSpec spec = {.num_clients = form.is_one_client ? 1 : num_replicas,
                  .devices_per_client = form.is_one_client ? num_replicas : 1};
  if (form.is_host_each) spec.hooks.host_ids = on_hosts(num_replicas, num_replicas);
  return run_clients(spec, [&](Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const distribute::Strategy strategy,
                             distribute::multi_worker_mirrored_strategy(client, options));
    return body(client, strategy);
  });
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_DISTRIBUTE_REPLICAS_H_
