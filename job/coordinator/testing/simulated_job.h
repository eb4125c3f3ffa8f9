// SPDX-License-Identifier: Apache-2.0
//
// SimulatedJob: the life of a job of many clients at the coordinator's state machine, in one
// process, with a number of answers of each kind that every part must give. The scale test runs it
// and bounds its memory; the test of steps counts what each part does; the benchmark prints the
// time of each part.
//
//   for (const SimulatedJob::Part& part : SimulatedJob(10'000).run()) ... part.is_right
//
// Clients come eight to a host. A scan per client would make each part quadratic.
#ifndef TESSERA_JOB_COORDINATOR_TESTING_SIMULATED_JOB_H_
#define TESSERA_JOB_COORDINATOR_TESTING_SIMULATED_JOB_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "job/coordinator/coordinator_state.h"
#include "job/coordinator/id_ranges.h"

namespace tessera::testing {

class SimulatedJob {
 public:
  static constexpr int kClientsPerHost = 8;

  struct Part {
    std::string name;
    double cost;            // of the meter
    bool is_right;          // each call got its answer, with the code that it should have
    size_t num_ranges = 1;  // of clients that a call names
  };

  // The amount spent so far, of time or anything else.
  using Meter = std::function<double()>;
  static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // `num_clients` is a multiple of 2 * kClientsPerHost.
  explicit SimulatedJob(int num_clients, Meter meter = seconds)
      : num_clients_(num_clients),
        meter_(std::move(meter)),
        state_({.num_clients = num_clients, .address = "host-0:1234"}),
        everyone_(IdRanges::of_ranges({{{0, num_clients}}})),
        living_(every_other_host(num_clients)) {}

  std::vector<Part> run() {
    run_start();
    run_calls();
    run_losses();
    run_end();
    return std::move(parts_);
  }

 private:
  using Answers = std::map<absl::StatusCode, int>;

  void run_start() {
    part("a start that fails for one client", [&] {
      for (int i = 1; i < num_clients_; ++i) register_client(first_connection_ + i, i);
      pass(absl::Minutes(2));
      return take({{absl::StatusCode::kDeadlineExceeded, num_clients_ - 1}});
    });
    part("its clients try again before they end", [&] {
      for (int i = 1; i < num_clients_; ++i) register_client(-first_connection_ - i, i);
      for (int i = 1; i < num_clients_; ++i) state_.disconnected(-first_connection_ - i);
      for (int i = 1; i < num_clients_; ++i) state_.disconnected(first_connection_ + i);
      first_connection_ += num_clients_;
      return take({{absl::StatusCode::kDeadlineExceeded, num_clients_ - 1}});
    });
    part("all register twice", [&] {
      for (int i = 1; i < num_clients_; ++i) register_client(first_connection_ + i, i);
      for (int i = 1; i < num_clients_; ++i) register_client(-first_connection_ - i, i);
      for (int i = num_clients_ - 1; i > 0; --i) state_.disconnected(-first_connection_ - i);
      register_client(first_connection_, 0);
      return take({{absl::StatusCode::kCancelled, num_clients_ - 1},
                   {absl::StatusCode::kOk, num_clients_}});
    });
  }
  void run_calls() {
    part("a barrier", [&] {
      for (int i = 0; i < num_clients_; ++i) check_in(i, "barrier", "epoch 1", everyone_);
      return take({{absl::StatusCode::kOk, num_clients_}});
    });
    part("create_mesh", [&] {
      for (int i = 0; i < num_clients_; ++i) {
        check_in(i, "create_mesh", "{x=80000} of devices [0-79999]", everyone_);
      }
      return take({{absl::StatusCode::kOk, num_clients_}});
    });
    part("100 heartbeats each", [&] {
      for (int i = 0; i < 100; ++i) {
        beat(everyone_);
        pass(absl::Seconds(1));
      }
      return take({});
    });
    part("each waits for client 0, which calls half", [&] {
      for (int i = 1; i < num_clients_; ++i) check_in(i, "pair", "v", IdRanges::of({0, i}));
      for (int i = 1; i <= num_pairs() / 2; ++i) check_in(0, "pair", "v", IdRanges::of({0, i}));
      return take({{absl::StatusCode::kOk, num_pairs() / 2 * 2}});
    });
  }
  void run_losses() {
    part("all wait for each other, and a host is lost", [&] {
      for (int i = kClientsPerHost; i < num_clients_; ++i) check_in(i, "b", "v", everyone_);
      for (int i = 0; i < num_clients_; ++i) get(i, (i + 1) % num_clients_);
      for (int i = 0; i < kClientsPerHost; ++i) state_.disconnected(first_connection_ + i);
      // The failed calls: pairs, the barrier, and keys that the host would have set.
      return take({{absl::StatusCode::kUnavailable, num_pairs() - num_pairs() / 2 + num_clients_ -
                                                        kClientsPerHost + kClientsPerHost}});
    });
    part("every other host falls silent", [&] {
      for (int i = 0; i <= kMissedHeartbeats; ++i) {
        beat(living_);
        pass(absl::Seconds(1));
      }
      return take({{absl::StatusCode::kUnavailable, num_lost_ - kClientsPerHost}});
    });
    part("the survivors call with the lost clients", [&] {
      living_.for_each([&](int i) { check_in(i, "b", "v", everyone_); });
      return take({{absl::StatusCode::kUnavailable, num_clients_ - num_lost_}});
    });
    const auto make_mesh = [&] {
      living_.for_each([&](int i) { check_in(i, "create_mesh", "survivors", living_); });
      return take({{absl::StatusCode::kOk, num_clients_ - num_lost_}});
    };
    part("the survivors make a mesh", make_mesh, living_.ranges().size());
    const auto miss_deadline = [&] {
      int number = 0;
      living_.for_each([&](int i) {
        if (++number % 2 == 0) check_in(i, "late", "v", living_);
      });
      beat(living_);
      pass(absl::Minutes(2));
      return take({{absl::StatusCode::kDeadlineExceeded, (num_clients_ - num_lost_) / 2}});
    };
    part("a deadline that half of them miss", miss_deadline, living_.ranges().size());
  }
  void run_end() {
    part("half of them leave and give up, then all leave", [&] {
      int number = 0;
      living_.for_each([&](int i) {
        if (++number % 2 == 0) leave(i);
      });
      const int num_left = (num_clients_ - num_lost_) / 2;
      pass(absl::Minutes(2));
      number = 0;
      living_.for_each([&](int i) {
        if (++number % 2 != 0) leave(i);
      });
      // Unavailable: keys that a client has left without setting.
      return take({{absl::StatusCode::kDeadlineExceeded, num_left},
                   {absl::StatusCode::kOk, num_left},
                   {absl::StatusCode::kUnavailable, 2 * num_left}});
    });
  }

  int num_pairs() const { return num_clients_ - 1; }
  void part(const std::string& name, const std::function<bool()>& body, size_t num_ranges = 1) {
    const double start = meter_();
    const bool is_right = body();
    parts_.push_back({name, meter_() - start, is_right, num_ranges});
  }

  CoordinatorState::Done count() {
    return [this](const Status& status) { ++answers_[status.code()]; };
  }
  void register_client(int64_t connection, int client) {
    CoordinatorState::Registration registration;
    registration.member.client_id = client;
    registration.member.host = absl::StrCat("host-", client / kClientsPerHost);
    registration.member.pid = 1000 + client;
    registration.member.num_local_devices = 8;
    registration.num_clients = num_clients_;
    state_.register_client(static_cast<CoordinatorState::Connection>(connection), registration,
                           now_, now_ + absl::Minutes(1), count());
  }
  void check_in(int client, const std::string& name, const std::string& value,
                const IdRanges& participants) {
    state_.check_ins().check_in({client, name, value, participants, now_ + absl::Minutes(1)}, now_,
                                count());
  }
  void get(int client, int setter) {
    state_.key_values().get(
        client, absl::StrCat("key of ", setter), setter, absl::InfiniteFuture(),
        [this](const StatusOr<std::string>& value) { ++answers_[value.status().code()]; });
  }
  void leave(int client) { state_.leave(client, now_, now_ + absl::Minutes(1), count()); }
  void beat(const IdRanges& clients) {
    clients.for_each([&](int i) { state_.heartbeat(first_connection_ + i); });
  }
  void pass(absl::Duration time) {
    now_ += time;
    state_.advance(now_);
  }
  static IdRanges every_other_host(int num_clients) {
    std::vector<int> clients;
    for (int i = 0; i < num_clients; ++i) {
      if (i / kClientsPerHost % 2 != 0) clients.push_back(i);
    }
    return IdRanges::of(clients);
  }
  // Whether the answers since the last call are these.
  bool take(const Answers& expected) {
    for (const std::function<void()>& callback : state_.take_callbacks()) callback();
    return std::exchange(answers_, {}) == expected;
  }

  const int num_clients_;
  const Meter meter_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  CoordinatorState state_;
  const IdRanges everyone_;
  const IdRanges living_;  // after the losses
  const int num_lost_ = num_clients_ / 2;
  int64_t first_connection_ = 1'000'000;
  Answers answers_;
  std::vector<Part> parts_;
};

}  // namespace tessera::testing

#endif  // TESSERA_JOB_COORDINATOR_TESTING_SIMULATED_JOB_H_
