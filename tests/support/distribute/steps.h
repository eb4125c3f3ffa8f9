// SPDX-License-Identifier: Apache-2.0
//
// Checks of the steps of data sets of strategies.
//
// Steps are texts of i64 elements by replica: parse_steps("0 1 / 2; 3 / -") has two steps of two
// replicas.
#ifndef TESSERA_TESTS_SUPPORT_DISTRIBUTE_STEPS_H_
#define TESSERA_TESTS_SUPPORT_DISTRIBUTE_STEPS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "distribute/dataset.h"
#include "distribute/strategy.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "input/iterator_state.h"
#include "tests/support/clients.h"
#include "tests/support/distribute/replicas.h"
#include "tests/support/distribute/splits.h"
#include "tests/support/expect_error.h"
#include "tests/support/matchers.h"

namespace tessera::testing {

// The values of a tensor on the local replicas, by their ids: "0 1". Every shard of a replica holds
// them.
inline StatusOr<std::vector<std::string>> texts_of(const distribute::Strategy& strategy,
                                                   const distribute::DistributedValues& values) {
  std::vector<std::string> texts(strategy.num_replicas_in_sync());
  const std::vector<DTensor> parts = strategy.local_results(values);
  for (size_t i = 0; i < parts.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(parts[i].status());
    for (int shard = 0; shard < parts[i].num_local_shards(); ++shard) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<int64_t> view, parts[i].shard<int64_t>(shard));
      const std::string text = text_of(view.data);
      std::string& held = texts[strategy.local_replicas()[i]];
      TESSERA_REQUIRE(shard == 0 || held == text, held, " and ", text);
      held = text;
    }
  }
  return texts;
}

inline int64_t num_elements_in(const std::vector<std::string>& by_replica) {
  int64_t count = 0;
  for (const std::string& text : by_replica) {
    if (text != "-") count += 1 + std::count(text.begin(), text.end(), ' ');
  }
  return count;
}

using Steps = std::vector<std::vector<std::string>>;  // by step and replica

// The next step, by the local replicas.
inline Status expect_step(const distribute::Strategy& strategy,
                          distribute::DistributedIterator& iterator,
                          const std::vector<std::string>& expected, int64_t number) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<distribute::DistributedBatch> batch,
                           iterator.next());
  TESSERA_REQUIRE(batch.has_value(), "no step ", number);
  TESSERA_REQUIRE(batch->step == number, batch->step, " is not ", number);
  TESSERA_REQUIRE(batch->size == num_elements_in(expected), "step ", number, " has size ",
                  batch->size);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> held,
                           texts_of(strategy, batch->values[0]));
  for (const int replica : strategy.local_replicas()) {
    TESSERA_REQUIRE(held[replica] == expected[replica], "step ", number, ": replica ", replica,
                    " holds ", held[replica]);
  }
  return absl::OkStatus();
}

inline Status expect_end(distribute::DistributedIterator& iterator) {
  for (int again = 0; again < 2; ++again) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<distribute::DistributedBatch> batch,
                             iterator.next());
    TESSERA_REQUIRE(!batch.has_value());
  }
  return absl::OkStatus();
}

// Checks that there are exactly these steps, then the end. Iterators from the state before each
// step give the later steps, and the states after these are equal.
inline Status expect_steps(const distribute::Strategy& strategy,
                           const distribute::DistributedDataset& dataset, const Steps& steps) {
  std::vector<input::IteratorState> states;
  TESSERA_ASSIGN_OR_RETURN(distribute::DistributedIterator iterator, dataset.iterate());
  for (const std::vector<std::string>& step : steps) {
    states.push_back(iterator.state());
    TESSERA_RETURN_IF_ERROR(
        expect_step(strategy, iterator, step, static_cast<int64_t>(states.size()) - 1));
  }
  states.push_back(iterator.state());
  TESSERA_RETURN_IF_ERROR(expect_end(iterator));

  constexpr size_t kStepsFromEach = 2;
  for (size_t first = 1; first < states.size(); ++first) {
    TESSERA_ASSIGN_OR_RETURN(const input::IteratorState state,
                             input::IteratorState::parse(states[first].to_string()));
    TESSERA_REQUIRE(state == states[first]);
    TESSERA_ASSIGN_OR_RETURN(distribute::DistributedIterator rest, dataset.iterate(state));
    for (size_t k = first; k < steps.size() && k < first + kStepsFromEach; ++k) {
      TESSERA_REQUIRE(rest.state() == states[k], rest.state().to_string());
      TESSERA_RETURN_IF_ERROR(
          with_context(expect_step(strategy, rest, steps[k], static_cast<int64_t>(k)),
                       absl::StrCat("from ", state.to_string())));
    }
    if (first + kStepsFromEach > steps.size()) TESSERA_RETURN_IF_ERROR(expect_end(rest));
  }
  return absl::OkStatus();
}

inline distribute::InputOptions under(distribute::AutoShardPolicy policy,
                                      distribute::AtEnd at_end = distribute::AtEnd::kAll) {
  return {.auto_shard = policy, .at_end = at_end};
}

// Runs the body on clients of so many devices each, as threads and as processes.
struct ClientsForm {
  int num_clients;
  int devices_per_client = 1;
};
inline void expect_on(const ClientsForm& form, const ReplicaBody& body) {
  for (const Setting setting : {Setting::kThreads, Setting::kProcesses}) {
    if (setting == Setting::kProcesses && form.num_clients == 1) continue;
    EXPECT_THAT(run_clients({.setting = setting,
                             .num_clients = form.num_clients,
                             .devices_per_client = form.devices_per_client},
                            [&](Client& client) -> Status {
                              TESSERA_ASSIGN_OR_RETURN(
                                  const distribute::Strategy strategy,
                                  distribute::multi_worker_mirrored_strategy(client));
                              return body(client, strategy);
                            }),
                IsOk())
        << setting;
  }
}

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_DISTRIBUTE_STEPS_H_
