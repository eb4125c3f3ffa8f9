// SPDX-License-Identifier: Apache-2.0
//
// The protocol of closure_scheduler.h in every order of events. The test runs the real scheduler
// and the real ledgers of two parameter servers; two workers are modelled in a few lines.
//
// - Each closure pushes once to each parameter server, and reads one batch of a per-worker data
//   set. The push carries the batch.
// - At the end the pushes that count have read the first batches of each worker, each once, and the
//   position of the worker follows them.
// - Faults: a worker may be killed at any moment, or stopped, given up and resumed later. The
//   answer to any message may be lost, so that the message is sent again. A push may arrive at any
//   later time. A function may fail. Each fault happens a few times in one run.
// - All reachable states are visited once.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "servers/closure_scheduler.h"
#include "servers/push_ledger.h"
#include "tests/support/matchers.h"

namespace tessera::distribute {
namespace {

using ::tessera::testing::IsOk;

constexpr int kNumPs = 2;
constexpr int kNumWorkers = 2;

// The maximum number of each fault.
struct Faults {
  int kills = 0;
  int stops = 0;
  int lost_answers = 0;
  int late_pushes = 0;
  int failures = 0;
};

// A run on a worker. Step k < kNumPs stages its push on ps k; step kNumPs answers.
struct Job {
  RunKey run;
  ClosureId closure = 0;
  std::string position = {};  // one letter per batch read
  int step = 0;

  std::string to_string() const {
    return absl::StrCat(run.to_string(), " closure ", closure, " at ", position, " step ", step);
  }
};

struct LatePush {
  int ps;
  RunKey run;
  std::string bytes;
};

class Model {
 public:
  Model(int num_closures, const Faults& faults)
      : chief_({.workers = {"worker 0", "worker 1"}, .num_ps = kNumPs}),
        num_closures_(num_closures),
        faults_(faults) {
    chief_.add_dataset();
    for (int i = 0; i < kNumWorkers; ++i) chief_.worker_up(i, chief_.new_session(i));
    for (int i = 0; i < num_closures; ++i) chief_.add("add", absl::InfinitePast());
    settle();
  }

  // Calls `visit` with the name and the state of each successor.
  void for_each_successor(const std::function<void(const std::string&, Model)>& visit) const {
    const auto step = [&](const std::string& name, const std::function<void(Model&)>& change) {
      Model next = *this;
      change(next);
      next.settle();
      visit(name, std::move(next));
    };
    for (int i = 0; i < kNumWorkers; ++i) {
      const std::string worker = absl::StrCat("worker ", i);
      for_each_end_of_worker(i, step);
      if (jobs_[i].has_value()) {
        step(worker + " steps", [i](Model& m) { m.step_job(&*m.jobs_[i], true); });
        if (faults_.lost_answers > 0) {
          step(worker + " steps, answer lost", [i](Model& m) {
            --m.faults_.lost_answers;
            m.step_job(&*m.jobs_[i], false);
          });
        }
        if (faults_.failures > 0 && jobs_[i]->step < kNumPs) {
          step(worker + " fails", [i](Model& m) {
            --m.faults_.failures;
            m.chief_.run_finished(m.jobs_[i]->run, absl::InternalError("it fails"), {},
                                  {{0, m.jobs_[i]->position + "a"}});
            m.jobs_[i].reset();
          });
        }
        if (faults_.late_pushes > 0 && jobs_[i]->step < kNumPs) {
          step(worker + " sends a push that comes again late", [i](Model& m) {
            --m.faults_.late_pushes;
            m.late_.push_back({m.jobs_[i]->step, m.jobs_[i]->run, m.bytes_of(*m.jobs_[i])});
            m.step_job(&*m.jobs_[i], true);
          });
        }
      }
    }
    for (size_t i = 0; i < given_up_.size(); ++i) {
      step("a run that was given up steps", [i](Model& m) {
        m.step_job(&m.given_up_[i], true);
        if (m.given_up_[i].step > kNumPs) m.given_up_.erase(m.given_up_.begin() + i);
      });
    }
    for (size_t i = 0; i < late_.size(); ++i) {
      step("a late push arrives", [i](Model& m) {
        const LatePush late = m.late_[i];
        m.late_.erase(m.late_.begin() + i);
        (void)m.ledgers_[late.ps].stage(late.run, 0, {.bytes = late.bytes});
      });
    }
    for (int ps = 0; ps < kNumPs; ++ps) {
      Model probe = *this;
      if (probe.chief_.update(ps) == nullptr) continue;
      step(absl::StrCat("ps ", ps, " is updated"), [ps](Model& m) { m.update(ps, true); });
      if (faults_.lost_answers == 0) continue;
      step(absl::StrCat("ps ", ps, " is updated, answer lost"), [ps](Model& m) {
        --m.faults_.lost_answers;
        m.update(ps, false);
      });
    }
  }

  // The violated invariant, or an empty string.
  std::string violation() const {
    if (!violation_.empty()) return violation_;
    for (int ps = 0; ps < kNumPs; ++ps) {
      for (const auto& [closure, runs] : counted_[ps]) {
        if (runs.size() > 1) return absl::StrCat("closure ", closure, " counts twice on ps ", ps);
      }
    }
    if (!chief_.is_idle()) return "";
    std::set<std::string> batches;
    for (ClosureId closure = 0; closure < num_closures_; ++closure) {
      const auto outcome = outcomes_.find(closure);
      if (outcome == outcomes_.end()) return "a closure is not over";
      const bool is_ok = outcome->second.ok();
      if (!is_ok && !chief_.has_error()) return "a closure failed";
      std::set<std::string> runs;
      for (int ps = 0; ps < kNumPs; ++ps) {
        const auto it = counted_[ps].find(closure);
        if (is_ok != (it != counted_[ps].end())) {
          return absl::StrCat("closure ", closure, " is ", outcome->second.ToString(),
                              " and on ps ", ps, is_ok ? " does not count" : " counts");
        }
        if (is_ok) runs.insert(it->second.begin(), it->second.end());
      }
      if (!is_ok) continue;
      if (runs.size() != 1) return absl::StrCat("two runs of closure ", closure, " count");
      if (!batches.insert(batch_of(*runs.begin())).second) return "a batch counts twice";
    }
    return violation_of(batches);
  }
  bool is_idle() const { return chief_.is_idle(); }

  std::string to_string() const {
    std::string text = chief_.to_string();
    for (const PushLedger& ledger : ledgers_) absl::StrAppend(&text, ledger.to_string(), "\n");
    for (int i = 0; i < kNumWorkers; ++i) {
      absl::StrAppend(&text, is_alive_[i], is_up_[i], jobs_[i] ? jobs_[i]->to_string() : "", "\n");
    }
    for (const Job& job : given_up_) absl::StrAppend(&text, "given up ", job.to_string(), "\n");
    for (const LatePush& late : late_) absl::StrAppend(&text, "late ", late.ps, late.bytes, "\n");
    for (int ps = 0; ps < kNumPs; ++ps) {
      for (const auto& [closure, runs] : counted_[ps]) {
        absl::StrAppend(&text, "ps ", ps, " ", absl::StrJoin(runs, ","), "\n");
      }
    }
    absl::StrAppend(&text, faults_.kills, faults_.stops, faults_.lost_answers, faults_.late_pushes,
                    faults_.failures);
    return text;
  }

 private:
  using Step = std::function<void(const std::string&, const std::function<void(Model&)>&)>;

  void for_each_end_of_worker(int i, const Step& step) const {
    const std::string worker = absl::StrCat("worker ", i);
    if (is_alive_[i] && is_up_[i] && faults_.kills > 0) {
      step(worker + " is killed", [i](Model& m) {
        --m.faults_.kills;
        m.is_alive_[i] = false;
        m.jobs_[i].reset();
      });
    }
    if (is_alive_[i] && is_up_[i] && faults_.stops > 0) {
      step(worker + " is stopped and given up", [i](Model& m) {
        --m.faults_.stops;
        if (m.jobs_[i].has_value()) m.given_up_.push_back(*std::exchange(m.jobs_[i], {}));
        m.lose(i);
      });
    }
    if (!is_alive_[i] && is_up_[i]) {
      step(worker + " is missed", [i](Model& m) { m.lose(i); });
    }
    if (!is_up_[i]) {
      step(worker + " is back", [i](Model& m) {
        m.is_alive_[i] = m.is_up_[i] = true;
        m.chief_.worker_up(i, m.chief_.new_session(i));
      });
    }
  }

  static std::string bytes_of(const Job& job) {
    return absl::StrCat(job.closure, " by ", job.run.to_string(), ", batch ", job.run.worker, "/",
                        job.position);
  }
  // The worker and the batch in the bytes of a push: "1/aa".
  static std::string batch_of(const std::string& bytes) {
    return bytes.substr(bytes.rfind(' ') + 1);
  }
  // The batches that count must be the batches before the position of each worker.
  std::string violation_of(const std::set<std::string>& batches) const {
    size_t num_before = 0;
    for (int worker = 0; worker < kNumWorkers; ++worker) {
      for (std::string before = chief_.position(0, worker); !before.empty(); ++num_before) {
        before.pop_back();
        if (batches.count(absl::StrCat(worker, "/", before)) > 0) continue;
        return absl::StrCat("batch ", before.size(), " of worker ", worker, " is left out");
      }
    }
    return num_before == batches.size() ? "" : "a position does not follow what counts";
  }

  // Sends one message of a run. If it is answered, the worker continues; else it sends the same
  // again.
  void step_job(Job* job, bool is_answered) {
    const bool is_current = chief_.is_current(job->run);
    if (job->step < kNumPs) {
      const Status staged = ledgers_[job->step].stage(job->run, 0, {.bytes = bytes_of(*job)});
      if (!staged.ok() && is_current) violation_ = "a push of a current run is refused";
    } else {
      chief_.run_finished(job->run, absl::OkStatus(), {1, 1}, {{0, job->position + "a"}});
    }
    if (is_answered) ++job->step;
  }

  void lose(int worker) {
    is_up_[worker] = false;
    chief_.worker_lost(worker, absl::UnavailableError("lost"), absl::InfinitePast());
  }

  void update(int ps, bool is_answered) {
    const ServerUpdate update = *chief_.update(ps);
    const StatusOr<std::vector<Push>> pushes = ledgers_[ps].update(update);
    if (!pushes.ok()) {
      violation_ = std::string(pushes.status().message());
      return;
    }
    for (const Push& push : *pushes) {
      counted_[ps][push.bytes[0] - '0'].push_back(push.bytes);
    }
    if (is_answered) chief_.update_applied(ps, update.number);
  }

  // The chief's own actions after an event. Runs sent to a dead worker are lost.
  void settle() {
    for (int i = 0; i < kNumWorkers; ++i) {
      if (jobs_[i].has_value() && jobs_[i]->step > kNumPs) jobs_[i].reset();
    }
    for (const ClosureScheduler::Dispatch& dispatch : chief_.take_dispatches()) {
      const int worker = dispatch.run.worker;
      if (!is_alive_[worker]) continue;
      jobs_[worker] = Job{dispatch.run, dispatch.closure, chief_.position(0, worker)};
    }
    for (ClosureScheduler::Settled& settled : chief_.take_settled()) {
      if (!outcomes_.emplace(settled.closure, std::move(settled.status)).second) {
        violation_ = "a closure is over twice";
      }
    }
  }

  ClosureScheduler chief_;
  PushLedger ledgers_[kNumPs];
  std::map<ClosureId, std::vector<std::string>> counted_[kNumPs];  // the runs of each closure
  std::map<ClosureId, Status> outcomes_;
  std::optional<Job> jobs_[kNumWorkers];
  bool is_alive_[kNumWorkers] = {true, true};
  bool is_up_[kNumWorkers] = {true, true};  // as the chief sees it
  std::vector<Job> given_up_;
  std::vector<LatePush> late_;
  int num_closures_;
  Faults faults_;
  std::string violation_;
};

// Visits every reachable state. Returns their number. A violation fails the test, with the events
// that led to it.
int64_t visit_all(int num_closures, const Faults& faults) {
  std::vector<std::pair<int64_t, std::string>> history = {{-1, "start"}};
  std::vector<std::pair<Model, int64_t>> open = {{Model(num_closures, faults), 0}};
  std::unordered_set<size_t> seen;
  int64_t num_idle = 0;
  while (!open.empty()) {
    const auto [model, number] = std::move(open.back());
    open.pop_back();
    bool is_stuck = true;
    std::string problem = model.violation();
    model.for_each_successor([&, number = number](const std::string& event, Model next) {
      is_stuck = false;
      if (!seen.insert(std::hash<std::string>()(next.to_string())).second) return;
      history.emplace_back(number, event);
      open.emplace_back(std::move(next), static_cast<int64_t>(history.size()) - 1);
    });
    num_idle += model.is_idle() ? 1 : 0;
    if (problem.empty() && is_stuck && !model.is_idle()) problem = "nothing can happen";
    if (problem.empty()) continue;
    std::string events;
    for (int64_t at = number; at >= 0; at = history[at].first) {
      events = absl::StrCat(history[at].second, "\n", events);
    }
    ADD_FAILURE() << problem << " after\n" << events << model.to_string();
    return 0;
  }
  EXPECT_GT(num_idle, 0);
  return static_cast<int64_t>(seen.size());
}

struct Case {
  const char* name;
  int num_closures;
  Faults faults;
  int64_t least_states;
};

const Case kCases[] = {
    {"no_faults", 2, {}, 50},
    {"killed_between_two_pushes", 2, {.kills = 2}, 500},
    {"given_up_and_awake_later", 1, {.stops = 2}, 200},
    {"answers_lost", 2, {.lost_answers = 2}, 500},
    {"late_pushes", 2, {.late_pushes = 2}, 500},
    {"killed_and_stopped", 2, {.kills = 1, .stops = 1}, 1000},
    {"killed_with_lost_answers", 2, {.kills = 1, .lost_answers = 1}, 5000},
    {"stopped_with_late_pushes", 2, {.stops = 1, .late_pushes = 1}, 5000},
    {"killed_with_both", 1, {.kills = 1, .lost_answers = 1, .late_pushes = 1}, 1000},
    {"stopped_with_both", 1, {.stops = 1, .lost_answers = 1, .late_pushes = 1}, 1000},
    {"three_closures", 3, {.kills = 1, .lost_answers = 1}, 10000},
    {"failed", 3, {.failures = 2}, 100},
    {"failed_and_killed", 3, {.kills = 1, .failures = 1}, 1000},
    {"failed_with_late_pushes", 2, {.late_pushes = 1, .failures = 1}, 400},
};

class ProtocolModelTest : public ::testing::TestWithParam<Case> {};

TEST_P(ProtocolModelTest, EachClosureCountsOnceInEveryOrderOfEvents) {
  const int64_t num_states = visit_all(GetParam().num_closures, GetParam().faults);
  EXPECT_GT(num_states, GetParam().least_states);
  RecordProperty("states", std::to_string(num_states));
}

INSTANTIATE_TEST_SUITE_P(Cases, ProtocolModelTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::distribute
