// SPDX-License-Identifier: Apache-2.0
//
// Simulated jobs: devices that call runs of groups in any order, entries and letters that arrive in
// any order, and waits that end at deadlines. The oracle sees all devices at once.
#include "collectives/network/circles.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace tessera::network {
namespace {

// A job of clients with a device each. Device d is of client d.
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
    for (size_t d = 0; d < job_.calls.size(); ++d) {
      clients_.push_back(std::make_unique<Client>(*this, static_cast<int>(d)));
    }
    devices_.resize(job_.calls.size());
    ended_.resize(job_.groups.size());
  }

  // Until every device is through its calls. The number of circles that were ended.
  int run() {
    // More than any job of these needs; a circle that is not found would stay for ever.
    for (int round = 0; round < 50 && !is_through(); ++round) {
      settle();
      for (size_t g = 0; g < job_.groups.size(); ++g) search_in(static_cast<int>(g));
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

  // What client d knows and does.
  class Client final : public CircleSite {
   public:
    Client(Simulation& job, int device) : circles(*this), job_(job), device_(device) {}

    std::optional<CircleWait> wait_of(int device) override {
      EXPECT_EQ(device, device_);
      const Device& self = job_.devices_[device];
      if (!self.waits) return std::nullopt;
      const int group = job_.group_of(device);
      CircleWait wait = {
          .hop = job_.hop_of(device), .spans_hosts = job_.spans_hosts(group), .missing = {}};
      for (const int other : job_.job_.groups[group]) {
        const bool is_near = job_.job_.hosts[other] == job_.job_.hosts[device];
        const bool has_come =
            is_near ? job_.has_arrived(other, group) : entries.count({group, other}) > 0;
        if (!has_come) wait.missing.push_back(other);
      }
      if (wait.missing.empty()) return std::nullopt;
      return wait;
    }
    bool has_arrived(int device, const RunId& run) override {
      return job_.has_arrived(device, static_cast<int>(run.group));
    }
    void send(int device, const CircleLetter& letter) override {
      const std::optional<CircleLetter> read = decode_circle(encode(letter));
      ASSERT_TRUE(read.has_value());
      job_.events_.push_back(
          [this, device, read = *read] { job_.clients_[device]->circles.read(device, read); });
    }
    void end(const CircleHop& hop, const std::vector<CircleHop>& circle, bool is_held,
             std::function<void()> next) override {
      EXPECT_EQ(hop.device, device_);
      if (is_held) job_.check_circle(circle);
      if (is_held) job_.devices_[device_].is_held = true;
      const int group = static_cast<int>(hop.run.group);
      if (job_.devices_[device_].waits && job_.group_of(device_) == group) {
        job_.ended_in_circles_.insert(group);
        job_.end_run(group);
      }
      next();
    }
    void release(const CircleHop& hop) override { job_.devices_[hop.device].is_held = false; }

    std::set<std::pair<int, int>> entries;  // group and device, of other hosts
    Circles circles;

   private:
    Simulation& job_;
    const int device_;
  };

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
  CircleHop hop_of(int device) const {
    const int group = group_of(device);
    return {.device = device,
            .run = {.group = static_cast<uint64_t>(group), .seq = 1},
            .name_hash = job_.name_hashes.empty() ? 0 : job_.name_hashes[group],
            .label = absl::StrCat("run ", group),
            .group = job_.groups[group]};
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
    int num_searches = 10;
    while (true) {
      std::vector<std::function<void()>> next;
      for (size_t d = 0; d < devices_.size(); ++d) {
        const int device = static_cast<int>(d);
        if (can_arrive(device)) next.emplace_back([this, device] { arrive(device); });
        if (job_.has_deadlines && devices_[d].waits && random_() % 20 == 0) {
          next.emplace_back([this, device] { end_run(group_of(device)); });
        }
        if (devices_[d].waits && num_searches > 0 && random_() % 8 == 0) {
          next.emplace_back([&, this, device] {
            --num_searches;
            search_in(group_of(device));
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
      ++now_;
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
      events_.push_back([=, this] { clients_[other]->entries.insert({group, device}); });
    }
    const bool is_complete = std::all_of(members.begin(), members.end(),
                                         [&](int member) { return has_arrived(member, group); });
    if (ended_[group]) leave(device);
    if (is_complete) end_run(group);
  }
  void leave(int device) {
    Device& self = devices_[device];
    self.waited[group_of(device)] = {self.began, now_};
    self.waits = false;
    ++self.next;
  }
  // Ends the run, done or failed: its members go on, and members that arrive later find it ended.
  void end_run(int group) {
    ended_[group] = true;
    for (const int member : job_.groups[group]) {
      if (devices_[member].waits && group_of(member) == group) leave(member);
    }
  }
  // Starts the search of the first arrived member, in a run over several hosts.
  void search_in(int group) {
    if (!spans_hosts(group)) return;
    for (const int member : job_.groups[group]) {
      if (!devices_[member].waits || group_of(member) != group) continue;
      clients_[member]->circles.search(member);
      return;
    }
  }
  // Does what the clients of a host do by the memory that they share.
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
  void check_circle(const std::vector<CircleHop>& circle) {
    ++num_circles_;
    ASSERT_GE(circle.size(), 2);
    int last_began = 0;
    int first_ended = now_ + 1;
    for (size_t k = 0; k < circle.size(); ++k) {
      const CircleHop& hop = circle[k];
      in_circles_.insert(static_cast<int>(hop.run.group));
      const CircleHop& next = circle[(k + 1) % circle.size()];
      const int group = static_cast<int>(hop.run.group);
      const Device& self = devices_[hop.device];
      const bool still = self.waits && group_of(hop.device) == group;
      ASSERT_TRUE(still || self.waited.count(group) > 0) << "it never waited there";
      last_began = std::max(last_began, still ? self.began : self.waited.at(group).first);
      first_ended = std::min(first_ended, still ? now_ + 1 : self.waited.at(group).second);
      // The next device joins this run after the run in which it waits, if it is a member.
      const bool is_pair = hop.name_hash != 0 && hop.name_hash == next.name_hash;
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
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Device> devices_;
  std::vector<bool> ended_;                    // by group
  std::vector<std::function<void()>> events_;  // that are under way
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
                   .calls = {{0, 2}, {1, 0}, {2, 1}},
                   .name_hashes = {7, 7, 0}};
  int num_circles = 0;
  for (unsigned seed = 0; seed < 20; ++seed) num_circles += Simulation(job, seed).run();
  EXPECT_GT(num_circles, 0);
}

TEST(CirclesTest, ADamagedLetterIsRefused) {
  const CircleLetter letter = {
      .round = CircleLetter::Round::kConfirm,
      .number = 3,
      .at = 1,
      .hops = {{.device = 4, .run = {7, 8}, .name_hash = 9, .label = "a", .group = {4, 5}},
               {.device = 5, .run = {6, 1}, .name_hash = 0, .label = "", .group = {}}}};
  const std::vector<std::byte> good = encode(letter);
  ASSERT_TRUE(decode_circle(good).has_value());
  EXPECT_EQ(encode(*decode_circle(good)), good);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_circle(absl::MakeConstSpan(good).first(size)).has_value()) << size;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] = std::byte{255};
    // Read or refused, without a fault.
    (void)decode_circle(bad);
  }
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_circle(longer).has_value());
}

}  // namespace
}  // namespace tessera::network
