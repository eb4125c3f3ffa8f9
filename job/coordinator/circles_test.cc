// SPDX-License-Identifier: Apache-2.0
//
// Simulated jobs: devices that call runs of groups in any order, entries, reports and steps that
// arrive in any order, and waits that end at deadlines. The oracle sees all devices at once.
#include "job/coordinator/circles.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "job/coordinator/deadline_queue.h"
#include "job/coordinator/device_wait.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A job of clients with a device each. Device d belongs to client d.
struct Job {
  std::vector<int> hosts;                  // by device
  std::vector<std::vector<int>> groups;    // the ids of their devices
  std::vector<std::vector<int>> calls;     // by device: the groups of its runs, in order
  std::vector<uint64_t> name_hashes = {};  // by group; empty: none has a name
  bool has_deadlines = false;              // waits end at any moment
};

class Simulation {
 public:
  Simulation(const Job& job, unsigned seed) : job_(job), random_(seed) {
    clients_.resize(job_.calls.size());
    devices_.resize(job_.calls.size());
    ended_.resize(job_.groups.size());
  }

  // Until every device is through its calls. The number of circles that were ended.
  int run() {
    // More than any job of these needs; a circle that is not found would stay for ever.
    for (int round = 0; round < 50 && !is_through(); ++round) {
      settle();
      // A search, and then open reports end, and every client reports anew.
      advance(absl::ToInt64Milliseconds(Circles::kSearchPause));
      advance(kReportTicks);
      for (size_t d = 0; d < devices_.size(); ++d) report(static_cast<int>(d));
      settle();
      end_circles_of_one_host();
    }
    settle();
    EXPECT_TRUE(is_through()) << describe();
    return num_circles_;
  }

  // Whether each run of a circle that was found was ended, and none was done.
  bool have_all_ended() const {
    return std::includes(ended_in_circles_.begin(), ended_in_circles_.end(), in_circles_.begin(),
                         in_circles_.end());
  }

 private:
  struct Device {
    size_t next = 0;  // of its calls
    bool waits = false;
    int began = 0;
    bool is_held = false;
    std::map<int, std::pair<int, int>> waited;  // by group: from and to
  };

  // The knowledge of client d, and its call of the coordinator.
  struct Client {
    std::set<std::pair<int, int>> entries;  // group and device, of other hosts
    bool is_reporting = false;
    bool is_in_circle = false;
    WaitsReport reply;  // to its last step
  };
  static constexpr int kReportTicks = 1000;

  absl::Time time() const { return absl::UnixEpoch() + absl::Milliseconds(now_); }
  void advance(int64_t ticks) {
    now_ += static_cast<int>(ticks);
    deadlines_.advance(time());
    run_callbacks();
    settle();
  }
  void run_callbacks() {
    while (!callbacks_.empty()) {
      for (const std::function<void()>& callback : std::exchange(callbacks_, {})) callback();
    }
  }

  std::optional<DeviceWait> wait_of(int device) const {
    const Device& self = devices_[device];
    if (!self.waits) return std::nullopt;
    const int group = group_of(device);
    std::vector<int> missing;
    for (const int other : job_.groups[group]) {
      const bool is_near = job_.hosts[other] == job_.hosts[device];
      const bool has_come =
          is_near ? has_arrived(other, group) : clients_[device].entries.count({group, other}) > 0;
      if (!has_come) missing.push_back(other);
    }
    if (missing.empty()) return std::nullopt;
    return DeviceWait{.device = device,
                      .run = {.group = static_cast<uint64_t>(group), .seq = 1},
                      .spans_hosts = spans_hosts(group),
                      .name_hash = job_.name_hashes.empty() ? 0 : job_.name_hashes[group],
                      .label = absl::StrCat("run ", group),
                      .group = IdRanges::list_of(job_.groups[group]),
                      .missing = IdRanges::of(missing)};
  }
  // As LongWaits, of any age.
  void report(int device) {
    Client& client = clients_[device];
    if (client.is_reporting) return;
    WaitsReport report = std::exchange(client.reply, {});
    if (const std::optional<DeviceWait> wait = wait_of(device)) report.waits = {*wait};
    if (report.waits.empty() && !client.is_in_circle) return;
    client.is_reporting = true;
    events_.push_back([this, device, report] {
      circles_.report(device, report, time(), time() + absl::Milliseconds(kReportTicks),
                      [this, device](const StatusOr<CircleStep>& step) {
                        events_.push_back([this, device, step = *step] { take(device, step); });
                      });
      run_callbacks();
    });
  }
  void take(int device, const CircleStep& step) {
    Client& client = clients_[device];
    client.is_reporting = false;
    if (step.kind == CircleStep::kConfirm) {
      const bool holds = confirms(
          step.waits,
          [&](int own) -> std::optional<RunId> {
            EXPECT_EQ(own, device);
            const std::optional<DeviceWait> wait = wait_of(own);
            if (!wait.has_value()) return std::nullopt;
            return wait->run;
          },
          [&](int own, const RunId& run) { return has_arrived(own, static_cast<int>(run.group)); });
      client.reply = {.waits = {}, .circle = step.number, .at = step.at, .is_done = holds};
    } else if (step.kind == CircleStep::kEnd) {
      const bool is_first = step.at == 1;
      if (is_first) check_circle(step.named);
      end(step.waits.at(1), is_first);
      client.reply = {.waits = {}, .circle = step.number, .at = step.at, .is_done = true};
    } else if (step.kind == CircleStep::kRelease && !step.waits.empty()) {
      devices_[step.waits.at(1).device].is_held = false;
    }
    client.is_in_circle = step.kind == CircleStep::kConfirm || step.kind == CircleStep::kEnd;
    if (client.is_in_circle) report(device);
  }
  void end(const DeviceWait& wait, bool is_held) {
    Device& self = devices_[wait.device];
    const int group = static_cast<int>(wait.run.group);
    if (is_held) self.is_held = true;
    if (!self.waits || group_of(wait.device) != group) return;
    ended_in_circles_.insert(group);
    end_run(group);
  }

  int group_of(int device) const { return job_.calls[device][devices_[device].next]; }
  bool spans_hosts(int group) const {
    const std::vector<int>& members = job_.groups[group];
    return std::any_of(members.begin(), members.end(),
                       [&](int member) { return job_.hosts[member] != job_.hosts[members[0]]; });
  }
  size_t place_of(int device, int group) const {
    const std::vector<int>& calls = job_.calls[device];
    return std::find(calls.begin(), calls.end(), group) - calls.begin();
  }
  bool has_arrived(int device, int group) const {
    const size_t place = place_of(device, group);
    const Device& self = devices_[device];
    return self.next > place || (self.next == place && self.waits);
  }
  bool is_through() const {
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d].next < job_.calls[d].size()) return false;
    }
    return true;
  }
  std::string describe() const {
    std::string text;
    for (size_t d = 0; d < devices_.size(); ++d) {
      absl::StrAppend(&text, "device ", d, " on host ", job_.hosts[d], " at ", devices_[d].next,
                      " of");
      for (const int group : job_.calls[d]) absl::StrAppend(&text, " ", group);
      absl::StrAppend(&text, "\n");
    }
    return text;
  }

  // Whatever can happen, in any order, until nothing can.
  void settle() {
    int num_reports = 10;
    while (true) {
      std::vector<std::function<void()>> next;
      for (size_t d = 0; d < devices_.size(); ++d) {
        const int device = static_cast<int>(d);
        if (can_arrive(device)) next.emplace_back([this, device] { arrive(device); });
        if (devices_[d].waits && !wait_of(device).has_value()) {
          next.emplace_back([this, device] { leave(device); });
        }
        if (job_.has_deadlines && devices_[d].waits && random_() % 20 == 0) {
          next.emplace_back([this, device] { end_run(group_of(device)); });
        }
        if (devices_[d].waits && num_reports > 0 && random_() % 8 == 0) {
          next.emplace_back([&, this, device] {
            --num_reports;
            report(device);
          });
        }
      }
      const bool has_arrivals = next.size() > 0;
      if (!events_.empty() && (!has_arrivals || random_() % 2 == 0)) {
        const size_t at = random_() % events_.size();
        const std::function<void()> event = std::move(events_[at]);
        events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(at));
        event();
      } else if (has_arrivals) {
        next[random_() % next.size()]();
      } else {
        return;
      }
      // Searches come while letters are under way, too.
      now_ += 1 + static_cast<int>(random_() % 8);
      deadlines_.advance(time());
      run_callbacks();
    }
  }
  bool can_arrive(int device) const {
    const Device& self = devices_[device];
    return !self.waits && !self.is_held && self.next < job_.calls[device].size();
  }
  void arrive(int device) {
    Device& self = devices_[device];
    self.waits = true;
    self.began = now_;
    const int group = group_of(device);
    const std::vector<int>& members = job_.groups[group];
    for (const int other : members) {
      if (job_.hosts[other] == job_.hosts[device]) continue;
      events_.push_back([=, this] { clients_[other].entries.insert({group, device}); });
    }
    if (ended_[group]) leave(device);
  }
  void leave(int device) {
    Device& self = devices_[device];
    self.waited[group_of(device)] = {self.began, now_};
    self.waits = false;
    ++self.next;
  }
  // Fails the run: its members go on, and members that arrive later find it ended. The members of a
  // run that is done leave it one by one, as they learn that all have arrived.
  void end_run(int group) {
    ended_[group] = true;
    for (const int member : job_.groups[group]) {
      if (devices_[member].waits && group_of(member) == group) leave(member);
    }
  }
  // Replaces the clients of a host, which end circles within the host through shared memory.
  void end_circles_of_one_host() {
    const size_t n = devices_.size();
    std::vector<std::vector<bool>> waits_for(n, std::vector<bool>(n));
    const auto waits_here = [&](int d) { return devices_[d].waits && !spans_hosts(group_of(d)); };
    for (size_t d = 0; d < n; ++d) {
      if (!waits_here(static_cast<int>(d))) continue;
      const int group = group_of(static_cast<int>(d));
      for (const int m : job_.groups[group]) {
        waits_for[d][m] = waits_here(m) && !has_arrived(m, group);
      }
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          if (waits_for[i][k] && waits_for[k][j]) waits_for[i][j] = true;
        }
      }
    }
    for (size_t d = 0; d < n; ++d) {
      if (waits_for[d][d]) return end_run(group_of(static_cast<int>(d)));
    }
  }
  // Invariant 1.
  void check_circle(const std::vector<DeviceWait>& circle) {
    ++num_circles_;
    ASSERT_GE(circle.size(), 2);
    int last_began = 0;
    int first_ended = now_ + 1;
    for (size_t k = 0; k < circle.size(); ++k) {
      const DeviceWait& wait = circle[k];
      in_circles_.insert(static_cast<int>(wait.run.group));
      const DeviceWait& next = circle[(k + 1) % circle.size()];
      const int group = static_cast<int>(wait.run.group);
      const Device& self = devices_[wait.device];
      const bool still = self.waits && group_of(wait.device) == group;
      ASSERT_TRUE(still || self.waited.count(group) > 0) << "it never waited there";
      last_began = std::max(last_began, still ? self.began : self.waited.at(group).first);
      first_ended = std::min(first_ended, still ? now_ + 1 : self.waited.at(group).second);
      // The next device joins this run after the run in which it waits, if it is a member.
      const bool is_pair = wait.name_hash != 0 && wait.name_hash == next.name_hash;
      const std::vector<int>& members = job_.groups[group];
      const bool is_member = std::count(members.begin(), members.end(), next.device) > 0;
      ASSERT_TRUE(is_member || is_pair);
      if (!is_member) continue;
      EXPECT_GT(place_of(next.device, group),
                place_of(next.device, static_cast<int>(next.run.group)));
    }
    EXPECT_LT(last_began, first_ended) << "not all of them waited at one moment\n" << describe();
  }

  const Job job_;
  std::mt19937 random_;
  std::vector<Client> clients_;
  std::vector<Device> devices_;
  std::vector<bool> ended_;                    // by group
  std::vector<std::function<void()>> events_;  // that are under way
  DeadlineQueue deadlines_;
  std::vector<std::function<void()>> callbacks_;
  Circles circles_{deadlines_, callbacks_};
  int now_ = 0;
  int num_circles_ = 0;
  std::set<int> in_circles_;        // groups
  std::set<int> ended_in_circles_;  // the same
};

// All assignments of `count` devices to hosts, numbered in the order of their first devices.
std::vector<std::vector<int>> placements(int count) {
  std::vector<std::vector<int>> all = {{}};
  for (int d = 0; d < count; ++d) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& hosts : all) {
      const int num_hosts = hosts.empty() ? 0 : *std::max_element(hosts.begin(), hosts.end()) + 1;
      for (int host = 0; host <= num_hosts; ++host) {
        longer.push_back(hosts);
        longer.back().push_back(host);
      }
    }
    all = std::move(longer);
  }
  // On one host the clients find circles in the memory that they share.
  std::erase_if(all, [](const std::vector<int>& hosts) {
    return *std::max_element(hosts.begin(), hosts.end()) == 0;
  });
  return all;
}

// By device, the groups that it is in, in the order `orders` numbers.
std::vector<std::vector<int>> calls_of(int num_devices, const std::vector<std::vector<int>>& groups,
                                       std::mt19937& random) {
  std::vector<std::vector<int>> calls(num_devices);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int member : groups[g]) calls[member].push_back(static_cast<int>(g));
  }
  for (std::vector<int>& own : calls) std::shuffle(own.begin(), own.end(), random);
  return calls;
}

// Three devices in three pairs: every order of their calls, on all placements.
TEST(CirclesTest, EveryOrderOfThreePairsEnds) {
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 2}, {2, 0}};
  for (const std::vector<int>& hosts : placements(3)) {
    int num_with_circles = 0;
    for (unsigned orders = 0; orders < 8; ++orders) {
      // Device d is in groups d and d + 2.
      std::vector<std::vector<int>> calls;
      for (int d = 0; d < 3; ++d) {
        calls.push_back({d, (d + 2) % 3});
        if ((orders >> d) & 1u) std::swap(calls[d][0], calls[d][1]);
      }
      int num_circles = 0;
      for (unsigned seed = 0; seed < 20; ++seed) {
        Simulation job({hosts, groups, calls}, seed);
        num_circles += job.run();
        // Invariant 3.
        EXPECT_TRUE(job.have_all_ended());
      }
      num_with_circles += num_circles > 0;
    }
    EXPECT_EQ(num_with_circles, 2) << "both ways around, and no other order";
  }
}

TEST(CirclesTest, AnyOrderOfAnyGroupsEnds) {
  std::mt19937 random(1);
  int num_circles = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    const int num_devices = 3 + static_cast<int>(random() % 4);
    const std::vector<std::vector<int>> all_hosts = placements(num_devices);
    Job job;
    job.hosts = all_hosts[random() % all_hosts.size()];
    job.has_deadlines = seed % 3 == 0;
    for (unsigned g = 2 + random() % 6; g > 0; --g) {
      std::vector<int> ids(num_devices);
      std::iota(ids.begin(), ids.end(), 0);
      std::shuffle(ids.begin(), ids.end(), random);
      ids.resize(2 + random() % (num_devices - 1));
      job.groups.push_back(std::move(ids));
    }
    job.calls = calls_of(num_devices, job.groups, random);
    num_circles += Simulation(job, seed).run();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_circles, 500);
}

// {0, 1} and {1, 2} have a barrier of one name, and device 2 waits in none.
TEST(CirclesTest, OneNameInTwoGroupsIsACircle) {
  const Job job = {.hosts = {0, 1, 1},
                   .groups = {{0, 1}, {1, 2}, {2, 0}},
                   .calls = {{0}, {1}, {}},
                   .name_hashes = {7, 7, 0}};
  for (unsigned seed = 0; seed < 20; ++seed) EXPECT_EQ(Simulation(job, seed).run(), 1);
}

// A client checks two conditions again before it confirms.
TEST(ConfirmsTest, TheDeviceWaitsThereAndHasNotArrivedInTheRunBefore) {
  const std::vector<DeviceWait> pairs = {{.device = 1, .run = {.group = 1, .seq = 5}},
                                         {.device = 2, .run = {.group = 2, .seq = 7}}};
  const auto holds = [&](const std::optional<RunId>& now, bool has_arrived) {
    return confirms(
        pairs, [&](int device) { return device == 2 ? now : std::nullopt; },
        [&](int device, const RunId& run) {
          return device == 2 && run == pairs[0].run && has_arrived;
        });
  };
  EXPECT_TRUE(holds(RunId{2, 7}, false));
  EXPECT_FALSE(holds(RunId{2, 7}, true));
  EXPECT_FALSE(holds(RunId{2, 8}, false));
  EXPECT_FALSE(holds(std::nullopt, false));
  EXPECT_TRUE(confirms(
      {}, [](int) { return std::nullopt; }, [](int, const RunId&) { return true; }));
}

// The answers to the clients of a job, for which the test reports.
class CirclesStepsTest : public ::testing::Test {
 protected:
  void report(int client, WaitsReport report) {
    circles_.report(client, std::move(report), now_, now_ + absl::Hours(1),
                    [this, client](const StatusOr<CircleStep>& step) {
                      ASSERT_TRUE(step.ok());
                      steps_[client].push_back(*step);
                    });
    run_callbacks();
  }
  void advance(absl::Duration time) {
    now_ += time;
    deadlines_.advance(now_);
    run_callbacks();
  }
  void run_callbacks() {
    for (const std::function<void()>& callback : std::exchange(callbacks_, {})) callback();
  }
  // The kinds of the steps since the last call.
  std::vector<CircleStep::Kind> kinds(int client) {
    std::vector<CircleStep::Kind> kinds;
    for (const CircleStep& step : steps_[client]) kinds.push_back(step.kind);
    if (!steps_[client].empty()) last_[client] = steps_[client].back();
    steps_[client].clear();
    return kinds;
  }
  // The client has done its last step.
  void reply(int client, std::vector<DeviceWait> waits, bool is_done = true) {
    report(client, {.waits = std::move(waits),
                    .circle = last_[client].number,
                    .at = last_[client].at,
                    .is_done = is_done});
  }
  // Device d waits in the run of group d for the next device in a ring of n.
  static DeviceWait wait_in_ring(int device, int n) {
    return {.device = device,
            .run = {.group = static_cast<uint64_t>(device), .seq = 1},
            .spans_hosts = true,
            .name_hash = 0,
            .label = absl::StrCat("run ", device),
            .group = IdRanges::list_of({device, (device + 1) % n}),
            .missing = IdRanges::of({(device + 1) % n})};
  }
  // Up to the moment when both have confirmed.
  void begin_ring_of_two() {
    for (int client = 0; client < 2; ++client) report(client, {.waits = {wait_in_ring(client, 2)}});
    advance(Circles::kSearchPause);
    for (int client = 0; client < 2; ++client) {
      ASSERT_THAT(kinds(client), ElementsAre(CircleStep::kConfirm));
      reply(client, {wait_in_ring(client, 2)});
    }
    first_ = kinds(0).empty() ? 1 : 0;
    last_[first_].at = 1;
  }

  DeadlineQueue deadlines_;
  std::vector<std::function<void()>> callbacks_;
  Circles circles_{deadlines_, callbacks_};
  absl::Time now_ = absl::UnixEpoch();
  std::map<int, std::vector<CircleStep>> steps_;
  std::map<int, CircleStep> last_;
  int first_ = 0;  // the client of the first run
};

TEST_F(CirclesStepsTest, AClientThatIsGoneEndsTheCircle) {
  for (int client = 0; client < 2; ++client) report(client, {.waits = {wait_in_ring(client, 2)}});
  advance(Circles::kSearchPause);
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kConfirm));
  reply(0, {wait_in_ring(0, 2)});
  circles_.client_gone(1);
  run_callbacks();
  // Its wait goes on: no run has ended.
  EXPECT_THAT(kinds(0), IsEmpty());
  report(0, {});
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kNone, CircleStep::kNone));
}

TEST_F(CirclesStepsTest, AHeldDeviceIsLetGoWhereTheOtherClientIsGone) {
  begin_ring_of_two();
  reply(first_, {});
  circles_.client_gone(1 - first_);
  run_callbacks();
  EXPECT_THAT(kinds(first_), ElementsAre(CircleStep::kRelease));
  EXPECT_THAT(last_[first_].waits, SizeIs(2));
}

TEST_F(CirclesStepsTest, AHeldDeviceIsLetGoWhereTheOtherClientTakesTooLong) {
  begin_ring_of_two();
  reply(first_, {});
  EXPECT_THAT(kinds(1 - first_), ElementsAre(CircleStep::kEnd));
  advance(Circles::kStepLimit);
  EXPECT_THAT(kinds(first_), ElementsAre(CircleStep::kRelease));
  // Its reply is too late, and it is told that too.
  reply(1 - first_, {});
  EXPECT_THAT(kinds(1 - first_), ElementsAre(CircleStep::kRelease));
}

TEST_F(CirclesStepsTest, AReplyThatComesAgainChangesNothing) {
  begin_ring_of_two();
  const CircleStep confirmed = {.number = last_[first_].number, .at = 0};
  report(first_, {.waits = {}, .circle = confirmed.number, .at = 0, .is_done = true});
  EXPECT_THAT(kinds(1 - first_), IsEmpty());
  EXPECT_THAT(kinds(first_), IsEmpty());
  last_[first_].number = confirmed.number;
  last_[first_].at = 1;
  reply(first_, {});
  EXPECT_THAT(kinds(first_), ElementsAre(CircleStep::kNone));
  EXPECT_THAT(kinds(1 - first_), ElementsAre(CircleStep::kEnd));
}

TEST_F(CirclesStepsTest, AWaitThatHasEndedEndsTheCircle) {
  for (int client = 0; client < 2; ++client) report(client, {.waits = {wait_in_ring(client, 2)}});
  advance(Circles::kSearchPause);
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kConfirm));
  EXPECT_THAT(kinds(1), ElementsAre(CircleStep::kConfirm));
  reply(0, {wait_in_ring(0, 2)});
  reply(1, {wait_in_ring(1, 2)}, /*is_done=*/false);
  // Replies are no reason to search again; a plain report is.
  advance(absl::Seconds(1));
  EXPECT_THAT(kinds(0), IsEmpty());
  report(0, {.waits = {wait_in_ring(0, 2)}});
  advance(Circles::kSearchPause);
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kNone, CircleStep::kConfirm));
}

// Devices 0 and 1 are of client 0, device 2 is of client 2.
TEST_F(CirclesStepsTest, AClientMayHaveSeveralWaitsOfACircle) {
  const std::vector<DeviceWait> own = {wait_in_ring(0, 3), wait_in_ring(1, 3)};
  report(0, {.waits = own});
  report(2, {.waits = {wait_in_ring(2, 3)}});
  advance(Circles::kSearchPause);
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kConfirm));
  EXPECT_THAT(last_[0].waits, SizeIs(4));
  EXPECT_THAT(kinds(2), ElementsAre(CircleStep::kConfirm));
  reply(0, own);
  reply(2, {wait_in_ring(2, 3)});
  std::vector<int> ended;
  for (int step = 0; step < 3; ++step) {
    const int client = steps_[0].empty() ? 2 : 0;
    ASSERT_THAT(kinds(client), ElementsAre(CircleStep::kEnd));
    EXPECT_EQ(last_[client].at, static_cast<uint32_t>(step + 1));
    EXPECT_THAT(last_[client].named, SizeIs(3));
    ended.push_back(last_[client].waits.at(1).device);
    reply(client, {});
  }
  EXPECT_EQ((ended[0] + 1) % 3, ended[1]);
  EXPECT_EQ((ended[1] + 1) % 3, ended[2]);
  EXPECT_THAT(kinds(0), ElementsAre(CircleStep::kRelease));
  EXPECT_THAT(kinds(2), ElementsAre(CircleStep::kRelease));
}

// 4,000 clients that wait for one client, half of them that wait for the other half, a chain of
// them, and a name on many groups that do not overlap: nothing is found, and each call is answered
// once, in a time that a search from each of them would not take.
TEST_F(CirclesStepsTest, ManyThatWaitAreInNoCircle) {
  constexpr int kClients = 4000;
  const auto expect_none = [&](const std::function<std::optional<DeviceWait>(int client)>& wait) {
    int num_reports = 0;
    for (int round = 0; round < 2; ++round) {
      for (int client = 0; client < kClients; ++client) {
        const std::optional<DeviceWait> own = wait(client);
        if (!own.has_value()) continue;
        report(client, {.waits = {*own}});
        ++num_reports;
      }
      advance(Circles::kSearchPause);
    }
    advance(absl::Hours(1));
    int num_answers = 0;
    for (auto& [client, steps] : steps_) {
      for (const CircleStep& step : steps) EXPECT_EQ(step.kind, CircleStep::kNone);
      num_answers += static_cast<int>(steps.size());
    }
    EXPECT_EQ(num_answers, num_reports);
    steps_.clear();
  };
  const auto wait_for = [](int client, uint64_t group, uint64_t name, IdRanges missing) {
    return DeviceWait{.device = client,
                      .run = {.group = group, .seq = 1},
                      .spans_hosts = true,
                      .name_hash = name,
                      .label = "barrier epoch",
                      .group = {{0, kClients}},
                      .missing = std::move(missing)};
  };
  expect_none([&](int client) -> std::optional<DeviceWait> {
    if (client == 0) return std::nullopt;
    return wait_for(client, 1, 3, IdRanges::of({0}));
  });
  const IdRanges::Range half = {0, kClients / 2};
  expect_none([&](int client) -> std::optional<DeviceWait> {
    if (client >= half.end) return wait_for(client, 1, 3, IdRanges::of_ranges({half}));
    return wait_for(client, 10 + client, 0, IdRanges::of({kClients + client}));
  });
  expect_none([&](int client) -> std::optional<DeviceWait> {
    return wait_for(client, 10 + client, 0, IdRanges::of({client + 1}));
  });
  expect_none([&](int client) -> std::optional<DeviceWait> {
    if (client % 8 == 0) return std::nullopt;
    return wait_for(client, 10 + client / 8, 3, IdRanges::of({client / 8 * 8}));
  });
}

// Two clients that report one device: what the state cannot be, and must not break it.
TEST_F(CirclesStepsTest, ADeviceOfTwoClientsBreaksNothing) {
  DeviceWait twice = wait_in_ring(0, 2);
  report(0, {.waits = {twice}});
  twice.name_hash = 3;
  report(1, {.waits = {twice, wait_in_ring(1, 2)}});
  advance(Circles::kSearchPause);
  report(1, {});
  report(0, {});
  EXPECT_FALSE(steps_[0].empty());
}

}  // namespace
}  // namespace tessera
