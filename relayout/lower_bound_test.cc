// SPDX-License-Identifier: Apache-2.0
//
// The lower bound against all that devices could say to each other. The oracle knows nothing of
// plans: a value starts as terms on devices, a message tells its receiver all that its sender has
// been told, and every sequence of messages is tried.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "gtest/gtest.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"

namespace tessera {
namespace {

constexpr int kMostDevices = 4;
// The terms that have reached each device, as bits.
using Reach = std::array<unsigned, kMostDevices>;
// How many messages each device has received.
using Loads = std::array<int, kMostDevices>;

// A value before the first message. Each device holds one term or none.
struct Start {
  int num_devices;
  int num_terms;
  std::array<int, kMostDevices> term_of = {-1, -1, -1, -1};

  unsigned all_terms() const { return (1u << num_terms) - 1; }
  Reach reach() const {
    Reach reach = {};
    for (int device = 0; device < num_devices; ++device) {
      if (term_of[device] >= 0) reach[device] = 1u << term_of[device];
    }
    return reach;
  }
  friend bool operator<(const Start& a, const Start& b) {
    return std::tie(a.num_devices, a.num_terms, a.term_of) <
           std::tie(b.num_devices, b.num_terms, b.term_of);
  }
};

int total(const Loads& loads) {
  int sum = 0;
  for (const int load : loads) sum += load;
  return sum;
}

bool dominates(const Loads& a, const Loads& b) {
  for (int device = 0; device < kMostDevices; ++device) {
    if (a[device] > b[device]) return false;
  }
  return true;
}

// Adds loads that none of those there dominates.
bool add(const Loads& loads, std::vector<Loads>* front) {
  for (const Loads& other : *front) {
    if (dominates(other, loads)) return false;
  }
  std::erase_if(*front, [&](const Loads& other) { return dominates(loads, other); });
  front->push_back(loads);
  return true;
}

// Every way to spread a value, as the loads of the devices: for each set of devices (bits) that all
// terms have reached, the loads that no other load equals or beats in every place.
std::map<unsigned, std::vector<Loads>> every_outcome(const Start& start) {
  std::map<Reach, std::vector<Loads>> seen = {{start.reach(), {Loads{}}}};
  std::vector<std::pair<Reach, Loads>> todo = {{start.reach(), Loads{}}};
  while (!todo.empty()) {  // After k rounds: the states after k messages.
    std::vector<std::pair<Reach, Loads>> next;
    for (const auto& [reach, loads] : todo) {
      for (int to = 0; to < start.num_devices; ++to) {
        for (int from = 0; from < start.num_devices; ++from) {
          if ((reach[from] & ~reach[to]) == 0) continue;
          Reach told = reach;
          told[to] |= reach[from];
          Loads more = loads;
          ++more[to];
          if (add(more, &seen[told])) next.push_back({told, more});
        }
      }
    }
    todo = std::move(next);
  }
  std::map<unsigned, std::vector<Loads>> result;
  for (const auto& [reach, front] : seen) {
    unsigned full = 0;
    for (int device = 0; device < start.num_devices; ++device) {
      if (reach[device] == start.all_terms()) full |= 1u << device;
    }
    for (unsigned wanted = 1; wanted < 1u << start.num_devices; ++wanted) {
      if ((wanted & ~full) != 0) continue;
      for (const Loads& loads : front) add(loads, &result[wanted]);
    }
  }
  return result;
}

// Calls fn for each way to deal `num_terms` terms, all of them, to the devices.
template <class Fn>
void for_each_start(int num_devices, int num_terms, Fn fn) {
  int num_candidates = 1;
  for (int device = 0; device < num_devices; ++device) num_candidates *= num_terms + 1;
  for (int candidate = 0; candidate < num_candidates; ++candidate) {
    Start start = {num_devices, num_terms};
    unsigned dealt = 0;
    for (int device = 0, rest = candidate; device < num_devices; ++device, rest /= num_terms + 1) {
      start.term_of[device] = rest % (num_terms + 1) - 1;
      dealt |= start.reach()[device];
    }
    if (dealt == start.all_terms()) fn(start);
  }
}

// Steps 1 to 4 of the proof, for each start and each set of devices that want the value.
TEST(LowerBoundTest, MessagesAboutOneValueAreAsTheProofSays) {
  const int most_devices = testing::kSanitized ? kMostDevices - 1 : kMostDevices;
  int64_t checked = 0;
  for (int num_devices = 2; num_devices <= most_devices; ++num_devices) {
    for (int num_terms = 2; num_terms <= num_devices; ++num_terms) {
      for_each_start(num_devices, num_terms, [&](const Start& start) {
        for (const auto& [wanted, front] : every_outcome(start)) {
          int num_wanting = 0;
          bool meet = false;
          for (int device = 0; device < num_devices; ++device) {
            if ((wanted >> device & 1) == 0) continue;
            ++num_wanting;
            meet |= start.term_of[device] >= 0;
            for (const Loads& loads : front) ASSERT_GE(loads[device], 1);
          }
          int fewest = total(front[0]);
          for (const Loads& loads : front) fewest = std::min(fewest, total(loads));
          ASSERT_EQ(fewest, num_wanting + num_terms - 2 + (meet ? 0 : 1));
          ++checked;
        }
      });
    }
  }
  // Sets of devices, times surjections of some devices to 2, 3, 4 terms.
  const int64_t of_four = testing::kSanitized ? 0 : 15 * (50 + 60 + 24);
  EXPECT_EQ(checked, 3 * 2 + 7 * (12 + 6) + of_four);
}

// The values of a relayout, and the least that the most loaded device must receive.
class Optimum {
 public:
  // Requires a plan without an expansion.
  int64_t of(const RelayoutPlan& plan) {
    std::vector<const std::vector<Loads>*> choices;
    for (int64_t kept = 0; kept < plan.to().num_partial_terms(); ++kept) {
      for (int64_t element = 0; element < num_elements(plan.shape()); ++element) {
        choices.push_back(&choices_of(plan, kept, element));
      }
    }
    for (int64_t most = 0;; ++most) {
      if (is_possible(choices, most)) return most;
    }
  }

 private:
  // Requires device ids below kMostDevices.
  const std::vector<Loads>& choices_of(const RelayoutPlan& plan, int64_t kept, int64_t element) {
    Start start = {0, 0};
    std::map<int64_t, int> terms;
    unsigned wanted = 0;
    for (int id = 0; id < kMostDevices; ++id) {
      const auto old_position = plan.from().mesh().position_of_device(id);
      const auto new_position = plan.to().mesh().position_of_device(id);
      if (!old_position.has_value() && !new_position.has_value()) continue;
      const int device = start.num_devices++;
      if (plan.to().is_partial() && plan.to().partial_index(*new_position) != kept) continue;
      if (new_position.has_value() &&
          has(plan.to().box(plan.shape(), *new_position), plan.shape(), element)) {
        wanted |= 1u << device;
      }
      if (!old_position.has_value() ||
          !has(plan.from().box(plan.shape(), *old_position), plan.shape(), element)) {
        continue;
      }
      const int64_t term = plan.from().partial_index(*old_position);
      start.term_of[device] = terms.emplace(term, terms.size()).first->second;
    }
    start.num_terms = static_cast<int>(terms.size());
    const auto [found, is_new] = outcomes_.try_emplace(start);
    if (is_new) found->second = every_outcome(start);
    return found->second.at(wanted);
  }

  static bool has(const Box& box, const Shape& shape, int64_t element) {
    for (int dim = static_cast<int>(shape.size()) - 1; dim >= 0; --dim) {
      const int64_t at = element % shape[dim] - box.offsets[dim];
      if (at < 0 || at >= box.sizes[dim]) return false;
      element /= shape[dim];
    }
    return true;
  }

  // Whether one choice for each value gives no device more than `most`.
  static bool is_possible(const std::vector<const std::vector<Loads>*>& choices, int64_t most) {
    std::vector<Loads> sums = {Loads{}};
    for (const std::vector<Loads>* front : choices) {
      std::vector<Loads> next;
      for (const Loads& sum : sums) {
        for (Loads loads : *front) {
          bool fits = true;
          for (int device = 0; device < kMostDevices; ++device) {
            loads[device] += sum[device];
            fits &= loads[device] <= most;
          }
          if (fits) add(loads, &next);
        }
      }
      sums = std::move(next);
    }
    return !sums.empty();
  }

  std::map<Start, std::map<unsigned, std::vector<Loads>>> outcomes_;
};

struct Tightness {
  int64_t pairs = 0;
  int64_t bound_is_optimum = 0;
  int64_t plan_is_optimum = 0;
};

// Compares for each pair of layouts of which the first is reduced, wholly or in part.
void check_pairs(const Mesh& old_mesh, const Mesh& new_mesh, const Shape& shape, Optimum* optimum,
                 Tightness* tightness) {
  const int rank = static_cast<int>(shape.size());
  const std::vector<Layout> targets = testing::every_layout(new_mesh, rank, {ReduceOp::kSum});
  for (const Layout& from : testing::every_layout(old_mesh, rank, {ReduceOp::kSum})) {
    for (const Layout& to : targets) {
      if (!from.is_partial()) continue;
      TESSERA_ASSERT_OK_AND_ASSIGN(const RelayoutPlan plan,
                                   plan_relayout(from, to, shape, DType::kInt8));
      if (plan.steps().empty() || plan.steps().back().kind() == StepKind::kExpand) continue;
      SCOPED_TRACE(absl::StrCat(from.to_string_with_mesh(), " shape ", shape_to_string(shape), " ",
                                plan.to_string()));
      const int64_t best = optimum->of(plan);
      ASSERT_LE(plan.lower_bound_bytes(), best);
      ASSERT_LE(best, plan.max_received_bytes());
      ++tightness->pairs;
      tightness->bound_is_optimum += plan.lower_bound_bytes() == best ? 1 : 0;
      tightness->plan_is_optimum += plan.max_received_bytes() == best ? 1 : 0;
    }
  }
}

struct MeshPair {
  const char* from;
  const char* to;
  bool same_devices;
};

TEST(LowerBoundTest, NoMessagesDoBetter) {
  const MeshPair pairs[] = {
      {"{x=2}", "{x=2}", true},
      {"{x=3}", "{x=3}", true},
      {"{x=4}", "{x=4}", true},
      {"{x=2, y=2}", "{x=2, y=2}", true},
      {"{x=2, y=2} on 3,1,0,2", "{x=4}", true},
      {"{x=2}", "{x=2} on 1,2", false},
      {"{x=2}", "{x=2} on 2,3", false},
      {"{x=2}", "{x=2, y=2}", false},
      {"{x=2, y=2}", "{x=2} on 3,1", false},
      {"{x=3}", "{x=2, y=2}", false},
      {"{x=4}", "{x=1} on 2", false},
      {"{x=3}", "{x=1} on 3", false},
  };
  Optimum optimum;
  for (const auto& [old_text, new_text, same_devices] : pairs) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh old_mesh, Mesh::parse(old_text));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Mesh new_mesh, Mesh::parse(new_text));
    Tightness tightness;
    for (const Shape& shape :
         std::vector<Shape>{{}, {0}, {1}, {2}, {3}, {4}, {5}, {2, 2}, {2, 3}}) {
      check_pairs(old_mesh, new_mesh, shape, &optimum, &tightness);
      if (HasFatalFailure()) return;
    }
    std::cout << old_text << " to " << new_text << ": " << tightness.pairs
              << " relayouts, the bound can be reached in " << tightness.bound_is_optimum
              << ", the plan is best in " << tightness.plan_is_optimum << "\n";
    EXPECT_GT(tightness.pairs, 0);
    // As tight as can be.
    if (same_devices) {
      EXPECT_EQ(tightness.bound_is_optimum, tightness.pairs);
    }
  }
}

}  // namespace
}  // namespace tessera
