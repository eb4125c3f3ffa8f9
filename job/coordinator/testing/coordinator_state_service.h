// SPDX-License-Identifier: Apache-2.0
//
// StateService: the coordinator's state machine for tests, which advance its time.
//
//   const auto service = StateService::complete(3);
//   const AnswerPtr a = service->check_in(0, "b", "v");
//   EXPECT_THAT(a, Waits());
//   service->lose(2);
//   EXPECT_THAT(a, Says(StatusIs(StatusCode::kUnavailable)));
#ifndef TESSERA_JOB_COORDINATOR_TESTING_COORDINATOR_STATE_SERVICE_H_
#define TESSERA_JOB_COORDINATOR_TESTING_COORDINATOR_STATE_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "job/coordinator/coordinator_state.h"

namespace tessera::testing {

inline constexpr absl::Duration kInterval = absl::Milliseconds(500);

inline MemberInfo member(int client_id) {
  MemberInfo info;
  info.client_id = client_id;
  info.host = absl::StrCat("host-", client_id);
  info.pid = 100 + client_id;
  info.num_local_devices = 1;
  return info;
}

// The answer to one call.
struct Answer {
  int count = 0;
  Status status;
  bool came() const { return count > 0; }
};
using AnswerPtr = std::shared_ptr<Answer>;

// A state of a job of `num_clients`, which runs its callbacks after each call.
class StateService {
 public:
  explicit StateService(int num_clients, const std::string& host_id = "")
      : state({.num_clients = num_clients,
               .address = "host-0:1234",
               .heartbeat_interval = kInterval,
               .host_id = host_id}),
        size_(num_clients) {
    state.set_loss_listener([this](const std::vector<CoordinatorState::Loss>& lost) {
      ++num_loss_events;
      for (const auto& loss : lost) {
        loss.clients.for_each(
            [&](int client) { losses.emplace_back(client, std::string(loss.reason.message())); });
      }
    });
  }

  // With all clients registered.
  static std::unique_ptr<StateService> complete(int num_clients) {
    auto service = std::make_unique<StateService>(num_clients);
    for (int i = 0; i < num_clients; ++i) service->register_client(i);
    return service;
  }

  AnswerPtr register_client(int client_id, absl::Duration timeout = absl::Seconds(60)) {
    CoordinatorState::Registration registration = {member(client_id), size()};
    registration.connect_timeout = timeout;
    return register_as(connection_of(client_id), registration, timeout);
  }
  AnswerPtr register_as(CoordinatorState::Connection connection,
                        const CoordinatorState::Registration& registration,
                        absl::Duration timeout = absl::Seconds(60)) {
    return ask([&](CoordinatorState::Done done) {
      state.register_client(connection, registration, now, now + timeout, std::move(done));
    });
  }
  // The connection of a client that registered by register_client().
  static CoordinatorState::Connection connection_of(int client_id) { return 1000 + client_id; }
  AnswerPtr check_in(int client, const std::string& name, const std::string& value,
                     absl::Duration timeout = absl::Seconds(60),
                     std::vector<int> participants = {}) {
    if (participants.empty()) participants = everyone();
    return ask([&](CoordinatorState::Done done) {
      state.check_ins().check_in({client, name, value, IdRanges::of(participants), now + timeout},
                                 now, std::move(done));
    });
  }
  AnswerPtr leave(int client, absl::Duration timeout = absl::Seconds(60)) {
    return ask([&](CoordinatorState::Done done) {
      state.leave(client, now, now + timeout, std::move(done));
    });
  }
  // The value found is in last_found.
  AnswerPtr get(const std::string& key, absl::Duration timeout = absl::Seconds(60), int setter = 0,
                int client = 0) {
    auto answer = std::make_shared<Answer>();
    state.key_values().get(client, key, setter, now + timeout, found_in(answer));
    run();
    return answer;
  }
  AnswerPtr get_proposal(const std::string& series, uint32_t number, int setter) {
    auto answer = std::make_shared<Answer>();
    state.key_values().get_proposal(/*client=*/0, series, number, setter, now + absl::Seconds(60),
                                    found_in(answer));
    run();
    return answer;
  }
  void lose(int client) {
    state.disconnected(connection_of(client));
    run();
  }
  void heartbeat(const std::vector<int>& clients) {
    for (const int client : clients) state.heartbeat(connection_of(client));
    run();
  }
  void pass(absl::Duration time) {
    now += time;
    state.advance(now);
    run();
  }
  void stop() {
    state.stop();
    run();
  }
  void run() {
    for (const auto& callback : state.take_callbacks()) callback();
  }
  std::vector<int> everyone() const {
    std::vector<int> all;
    for (int i = 0; i < size(); ++i) all.push_back(i);
    return all;
  }
  int size() const { return size_; }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  CoordinatorState state;
  std::vector<std::pair<int, std::string>> losses;
  int num_loss_events = 0;
  std::string last_found;

 private:
  KeyValues::Found found_in(const AnswerPtr& answer) {
    return [this, answer](const StatusOr<std::string>& found) {
      ++answer->count;
      answer->status = found.status();
      if (found.ok()) last_found = *found;
    };
  }
  template <class Call>
  AnswerPtr ask(const Call& call) {
    auto answer = std::make_shared<Answer>();
    call([answer](const Status& status) {
      ++answer->count;
      answer->status = status;
    });
    run();
    return answer;
  }

  const int size_;
};

MATCHER(Waits, "has no answer yet") { return arg->count == 0; }
template <class StatusMatcher>
auto Says(StatusMatcher matcher) {
  return ::testing::AllOf(
      ::testing::ResultOf([](const AnswerPtr& a) { return a->count; }, ::testing::Eq(1)),
      ::testing::ResultOf([](const AnswerPtr& a) { return a->status; }, matcher));
}

}  // namespace tessera::testing

#endif  // TESSERA_JOB_COORDINATOR_TESTING_COORDINATOR_STATE_SERVICE_H_
