// SPDX-License-Identifier: Apache-2.0
//
// Shardy's order of collectives, on prime digits, after its tests and the prose of
// shardy/dialect/sdy/transforms/export/reshard_to_collectives.cc; see baselines.h.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "benchmarks/atoms.h"
#include "benchmarks/baselines.h"

namespace tessera::benchmarks {
namespace {

class ShardyOrder {
 public:
  ShardyOrder(const Atoms& atoms, const Shape& shape)
      : atoms_(atoms), shape_(shape), now_(atoms.from), rank_(static_cast<int>(shape.size())) {}

  Sequence run() {
    step();
    for (int round = 0; round < 2 && now_ != atoms_.to; ++round) {
      slice();
      permute();
      all_to_alls();
      gather();
    }
    // Two rounds do for everything that was tried; if not, the last resort.
    if (now_ != atoms_.to) {
      now_.assign(rank_, {});
      step();
      now_ = atoms_.to;
      step();
    }
    return std::move(sequence_);
  }

 private:
  void step() { sequence_.push_back(atoms_.layout(now_)); }

  bool is_free(int atom) const { return dim_of(now_, atom) < 0; }
  bool splits_evenly(int dim, int atom) const {
    int64_t size = atoms_.prime(atom);
    for (const int other : now_[dim]) size *= atoms_.prime(other);
    return shape_[dim] % size == 0;
  }
  // How many more digits of this prime the new layout has on a dim.
  int64_t room(int dim, int64_t prime) const {
    const auto is_prime = [&](int atom) { return atoms_.prime(atom) == prime; };
    return std::count_if(atoms_.to[dim].begin(), atoms_.to[dim].end(), is_prime) -
           std::count_if(now_[dim].begin(), now_[dim].end(), is_prime);
  }

  // Free axes go where an all-to-all will take them along, else where they belong, else where a
  // permute can exchange them, never past the number of digits that the dim will have.
  void slice() {
    const AtomLists before = now_;
    for (int dim = 0; dim < rank_; ++dim) slice_behind_movers(dim);
    for (int dim = 0; dim < rank_; ++dim) {
      for (const int atom : atoms_.to[dim]) {
        if (is_free(atom) && room(dim, atoms_.prime(atom)) > 0) now_[dim].push_back(atom);
      }
    }
    for (int dim = 0; dim < rank_; ++dim) {
      for (const int atom : atoms_.to[dim]) {
        const int partner = is_free(atom) ? swap_partner(dim, atoms_.prime(atom)) : -1;
        if (partner >= 0) now_[partner].push_back(atom);
      }
    }
    if (now_ != before) step();
  }

  // A dim with room for this prime whose own axis is still on `dim`: the two are exchanged later.
  int swap_partner(int dim, int64_t prime) const {
    for (const int other : now_[dim]) {
      const int home = dim_of(atoms_.to, other);
      if (home >= 0 && home != dim && atoms_.prime(other) == prime && room(home, prime) > 0) {
        return home;
      }
    }
    return -1;
  }

  // Where the next axes of `target` are the last ones of another dim, the free axes after them are
  // sliced there, if it divides evenly by all of them.
  void slice_behind_movers(int target) {
    const std::vector<int>& wanted = atoms_.to[target];
    if (!is_prefix(now_[target], wanted)) return;
    size_t i = now_[target].size();
    while (i < wanted.size() && !is_free(wanted[i])) {
      const int source = dim_of(now_, wanted[i]);
      if (source == target || !ends_in_run(source, wanted, i)) return;
      while (i < wanted.size() && dim_of(now_, wanted[i]) == source) ++i;
      const std::vector<int> before = now_[source];
      for (; i < wanted.size() && is_free(wanted[i]); ++i) {
        if (!splits_evenly(source, wanted[i])) {
          now_[source] = before;
          return;
        }
        now_[source].push_back(wanted[i]);
      }
    }
  }

  // Whether the last axes of a dim are wanted[i], wanted[i + 1], ...
  bool ends_in_run(int dim, const std::vector<int>& wanted, size_t i) const {
    const auto first = std::find(now_[dim].begin(), now_[dim].end(), wanted[i]);
    const auto length = now_[dim].end() - first;
    return length > 0 && length <= static_cast<int64_t>(wanted.size() - i) &&
           std::equal(first, now_[dim].end(), wanted.begin() + static_cast<int64_t>(i));
  }

  // Brings the axes in the order that the all-to-alls and gathers want, unless those do without.
  void permute() {
    ShardyOrder without = *this;
    without.all_to_alls(Targets::kInOrder);
    without.gather();
    if (without.now_ == atoms_.to && !movers_out_of_order()) return;
    AtomLists wanted = permuted();
    if (wanted == now_) return;
    now_ = std::move(wanted);
    step();
  }

  // Whether neighbours on one dim go to another together, in the other order.
  bool movers_out_of_order() const {
    for (int dim = 0; dim < rank_; ++dim) {
      for (size_t i = 1; i < now_[dim].size(); ++i) {
        const int target = dim_of(atoms_.to, now_[dim][i]);
        if (target < 0 || target == dim || dim_of(atoms_.to, now_[dim][i - 1]) != target) continue;
        const std::vector<int>& wanted = atoms_.to[target];
        const auto place = [&](int atom) { return std::find(wanted.begin(), wanted.end(), atom); };
        if (place(now_[dim][i]) < place(now_[dim][i - 1])) return true;
      }
    }
    return false;
  }

  // As many digits of each prime on each dim as now: first what the new layout begins with, then
  // what is going to be gathered, then what moves on, in the order of its targets.
  AtomLists permuted() const {
    std::vector<std::map<int64_t, int64_t>> left(rank_);
    for (int dim = 0; dim < rank_; ++dim) {
      for (const int atom : now_[dim]) ++left[dim][atoms_.prime(atom)];
    }
    AtomLists result(rank_);
    for (int dim = 0; dim < rank_; ++dim) {
      for (const int atom : atoms_.to[dim]) {
        if (left[dim][atoms_.prime(atom)] == 0) break;
        --left[dim][atoms_.prime(atom)];
        result[dim].push_back(atom);
      }
    }
    AtomLists movers(rank_);
    for (const std::vector<int>& wanted : atoms_.to) {
      for (const int atom : wanted) {
        for (int dim = 0; dim < rank_ && !is_free(atom); ++dim) {
          if (dim_of(result, atom) >= 0 || dim_of(movers, atom) >= 0) break;
          if (left[dim][atoms_.prime(atom)] == 0) continue;
          --left[dim][atoms_.prime(atom)];
          movers[dim].push_back(atom);
        }
      }
    }
    for (int dim = 0; dim < rank_; ++dim) add_gathered(dim, &left[dim], &result);
    for (int dim = 0; dim < rank_; ++dim) {
      result[dim].insert(result[dim].end(), movers[dim].begin(), movers[dim].end());
    }
    return result;
  }

  // Fills what is left of a dim with axes that the new layout does not have, from its end: those
  // are the ones that may stay where they are.
  void add_gathered(int dim, std::map<int64_t, int64_t>* left, AtomLists* result) const {
    const auto at = static_cast<int64_t>((*result)[dim].size());
    for (size_t i = now_[dim].size(); i-- > 0;) {
      const int atom = now_[dim][i];
      if (dim_of(atoms_.to, atom) >= 0 || (*left)[atoms_.prime(atom)] == 0) continue;
      --(*left)[atoms_.prime(atom)];
      (*result)[dim].insert((*result)[dim].begin() + at, atom);
    }
  }

  enum class Targets { kInOrder, kAny };
  void all_to_alls() {
    all_to_alls(Targets::kInOrder);
    all_to_alls(Targets::kAny);
  }
  // Runs of axes at the end of one dim that belong to another go to the end of that.
  void all_to_alls(Targets targets) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int target = 0; target < rank_; ++target) {
        for (int source = 0; source < rank_; ++source) {
          if (source != target && move_run(source, target, targets)) moved = true;
        }
      }
    }
  }
  bool move_run(int source, int target, Targets targets) {
    std::vector<int>& list = now_[source];
    size_t first = list.size();
    while (first > 0 && dim_of(atoms_.to, list[first - 1]) == target) --first;
    const bool in_order = targets == Targets::kInOrder;
    for (; first < list.size(); ++first) {
      std::vector<int> joined = now_[target];
      joined.insert(joined.end(), list.begin() + static_cast<int64_t>(first), list.end());
      if (in_order && !is_prefix(joined, atoms_.to[target])) continue;
      now_[target] = std::move(joined);
      list.resize(first);
      step();
      return true;
    }
    return false;
  }

  // What no dim wants, as far as it is at the end.
  void gather() {
    const AtomLists before = now_;
    for (std::vector<int>& list : now_) {
      while (!list.empty() && dim_of(atoms_.to, list.back()) < 0) list.pop_back();
    }
    if (now_ != before) step();
  }

  const Atoms& atoms_;
  const Shape& shape_;
  AtomLists now_;
  int rank_;
  Sequence sequence_;
};

}  // namespace

StatusOr<Sequence> shardy_order(const Layout& from, const Layout& to, const Shape& shape) {
  TESSERA_ASSIGN_OR_RETURN(const Atoms atoms, Atoms::create(from, to));
  return ShardyOrder(atoms, shape).run();
}

}  // namespace tessera::benchmarks
