// SPDX-License-Identifier: Apache-2.0
//
// Rink's normal form, after arXiv 2112.01075, sections 4 to 6; see baselines.h.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "benchmarks/atoms.h"
#include "benchmarks/baselines.h"

namespace tessera::benchmarks {
namespace {

// How often each prime splits each dim, [prime][dim]; and how far in the normal form.
struct WeakType {
  std::vector<std::vector<int>> splits;
  int phase = 0;  // 0 slices, 1 all-to-alls, 2 gathers
  friend auto operator<=>(const WeakType&, const WeakType&) = default;
};

// `count` digits of a prime leave dim `source` (-1: they were free) for `target` (-1: gathered).
struct Edge {
  int prime;
  int source;
  int target;
  int count;
};

class NormalForm {
 public:
  explicit NormalForm(const Atoms& atoms)
      : atoms_(atoms), rank_(static_cast<int>(atoms.from.size())) {
    std::map<int64_t, int> numbers;
    for (const SubAxis& part : atoms.parts) numbers.emplace(part.size, 0);
    for (auto& [prime, number] : numbers) {
      number = static_cast<int>(primes_.size());
      primes_.push_back(prime);
    }
    for (const SubAxis& part : atoms.parts) number_of_.push_back(numbers[part.size]);
  }

  // Of the cheapest paths, one whose axes need the least permuting.
  Sequence run() {
    search();
    for (const WeakType& goal : goals_) follow(goal);
    Sequence sequence;
    for (const AtomLists& lists : best_) sequence.push_back(atoms_.layout(lists));
    return sequence;
  }

 private:
  WeakType weak(const AtomLists& lists, int phase) const {
    WeakType type = {std::vector<std::vector<int>>(primes_.size(), std::vector<int>(rank_)), phase};
    for (int dim = 0; dim < rank_; ++dim) {
      for (const int atom : lists[dim]) ++type.splits[number_of_[atom]][dim];
    }
    return type;
  }

  // Which share of the tensor a device holds.
  double local_share(const WeakType& type) const {
    double share = 1;
    for (size_t p = 0; p < primes_.size(); ++p) {
      for (const int count : type.splits[p]) {
        for (int i = 0; i < count; ++i) share /= static_cast<double>(primes_[p]);
      }
    }
    return share;
  }

  // Dijkstra. Costs are shares of the tensor that a device receives.
  void search() {
    using Entry = std::pair<double, WeakType>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
    const WeakType start = weak(atoms_.from, 0);
    reached_[start] = {0, {}, false};
    queue.emplace(0, start);
    const std::vector<std::vector<int>> goal = weak(atoms_.to, 0).splits;
    while (!queue.empty()) {
      const WeakType type = queue.top().second;
      queue.pop();
      Reached& here = reached_.at(type);
      if (std::exchange(here.settled, true)) continue;
      const double cost = here.cost;
      // In each phase that is as cheap.
      if (!goals_.empty() && cost > reached_.at(goals_[0]).cost + kRounding) return;
      if (type.splits == goal) {
        goals_.push_back(type);
        continue;
      }
      for_each_edge(type, [&](const Edge& edge, const WeakType& next, double more) {
        const auto [found, added] = reached_.try_emplace(next, Reached{cost + more, {}, false});
        Reached& there = found->second;
        if (!added && cost + more > there.cost + kRounding) return;
        if (added || cost + more < there.cost - kRounding) {
          there.cost = cost + more;
          there.ways.clear();
          queue.emplace(there.cost, next);
        }
        there.ways.emplace_back(type, edge);
      });
    }
  }

  // Realises the cheapest paths to `type`, which go on as path_ does, and keeps the best.
  void follow(const WeakType& type) {
    const Reached& here = reached_.at(type);
    if (here.ways.empty()) {
      realise();
      return;
    }
    for (const auto& [before, edge] : here.ways) {
      if (num_realised_ >= kMaxPaths) return;
      path_.push_back(edge);
      follow(before);
      path_.pop_back();
    }
  }

  template <class Fn>
  void for_each_edge(const WeakType& type, Fn fn) const {
    const double local = local_share(type);
    for (int p = 0; p < static_cast<int>(primes_.size()); ++p) {
      const int total = static_cast<int>(std::count(number_of_.begin(), number_of_.end(), p));
      int used = 0;
      for (const int count : type.splits[p]) used += count;
      const auto go = [&](const Edge& edge, int phase, double cost) {
        WeakType next = {type.splits, phase};
        if (edge.source >= 0) next.splits[p][edge.source] -= edge.count;
        if (edge.target >= 0) next.splits[p][edge.target] += edge.count;
        fn(edge, next, cost);
      };
      for (int dim = 0; dim < rank_; ++dim) {
        if (type.phase == 0 && used < total) go({p, -1, dim, 1}, 0, 0);
        double group = 1;
        for (int count = 1; count <= type.splits[p][dim]; ++count) {
          group *= static_cast<double>(primes_[p]);
          go({p, dim, -1, count}, 2, local * (group - 1));
          for (int target = 0; target < rank_ && type.phase < 2; ++target) {
            if (target != dim) go({p, dim, target, count}, 1, local * (1 - 1 / group));
          }
        }
      }
    }
  }

  // path_ with axes: slices take those that belong there, all-to-alls the last of the dim; the
  // permute, where one is needed, comes before the first gather, where the tensor is smallest.
  void realise() {
    ++num_realised_;
    std::vector<AtomLists> sequence = {atoms_.from};
    AtomLists now = atoms_.from;
    double permute_cost = 0;
    const auto permute = [&] {
      AtomLists wanted = before_gathers(now);
      if (wanted == now) return;
      permute_cost += local_share(weak(now, 0));
      now = std::move(wanted);
      sequence.push_back(now);
    };
    bool gathers = false;
    for (auto edge = path_.rbegin(); edge != path_.rend(); ++edge) {
      if (edge->target < 0 && !std::exchange(gathers, true)) permute();
      for (int i = 0; i < edge->count; ++i) move_one(*edge, i, &now);
      sequence.push_back(now);
    }
    if (!gathers) permute();
    if (!best_.empty() && best_permute_cost_ <= permute_cost) return;
    best_ = std::move(sequence);
    best_permute_cost_ = permute_cost;
  }

  // The new layout, each dim followed by what will be gathered from it: as far as possible axes
  // that are there already.
  AtomLists before_gathers(const AtomLists& now) const {
    AtomLists result = atoms_.to;
    const auto is_taken = [&](int atom) { return dim_of(result, atom) >= 0; };
    const std::vector<std::vector<int>> splits = weak(now, 0).splits;
    for (int dim = 0; dim < rank_; ++dim) {
      for (size_t i = result[dim].size(); i < now[dim].size(); ++i) {
        const int stays = now[dim][i];
        const int p = number_of_[stays];
        if (!is_taken(stays) && weak(result, 0).splits[p][dim] < splits[p][dim]) {
          result[dim].push_back(stays);
        }
      }
      for (int atom = 0; atom < atoms_.count(); ++atom) {
        const int p = number_of_[atom];
        if (!is_taken(atom) && weak(result, 0).splits[p][dim] < splits[p][dim]) {
          result[dim].push_back(atom);
        }
      }
    }
    return result;
  }

  void move_one(const Edge& edge, int already, AtomLists* now) const {
    int atom = -1;
    if (edge.source < 0) {
      atom = atom_to_slice(edge, *now);
    } else {
      std::vector<int>& list = (*now)[edge.source];
      const auto last = std::find_if(list.rbegin(), list.rend(), [&](int candidate) {
        return number_of_[candidate] == edge.prime;
      });
      atom = *last;
      list.erase(std::next(last).base());
    }
    // A group keeps its order.
    if (edge.target >= 0) {
      std::vector<int>& list = (*now)[edge.target];
      list.insert(list.end() - already, atom);
    }
  }

  // The next axis that belongs there, if it is free, else any free one of the prime.
  int atom_to_slice(const Edge& edge, const AtomLists& now) const {
    const auto fits = [&](int atom) {
      return number_of_[atom] == edge.prime && dim_of(now, atom) < 0;
    };
    for (const int atom : atoms_.to[edge.target]) {
      if (fits(atom)) return atom;
    }
    int atom = 0;
    while (!fits(atom)) ++atom;
    return atom;
  }

  struct Reached {
    double cost;
    std::vector<std::pair<WeakType, Edge>> ways;  // The last edges of the cheapest paths.
    bool settled;
  };

  static constexpr double kRounding = 1e-12;
  static constexpr int kMaxPaths = 200;

  const Atoms& atoms_;
  const int rank_;
  std::vector<int64_t> primes_;
  std::vector<int> number_of_;  // The number of the prime of each atom.
  std::map<WeakType, Reached> reached_;
  std::vector<WeakType> goals_;
  std::vector<Edge> path_;  // Last edge first.
  int num_realised_ = 0;
  std::vector<AtomLists> best_;
  double best_permute_cost_ = 0;
};

}  // namespace

StatusOr<Sequence> rink_normal_form(const Layout& from, const Layout& to, const Shape&) {
  TESSERA_ASSIGN_OR_RETURN(const Atoms atoms, Atoms::create(from, to));
  return NormalForm(atoms).run();
}

}  // namespace tessera::benchmarks
