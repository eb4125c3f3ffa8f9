// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/rule_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/reduce_op.h"
#include "ops/infer.h"
#include "relayout/plan.h"
#include "relayout/topology.h"
#include "tests/support/forked.h"
#include "tests/support/ops/every_layout.h"

namespace tessera::testing {
namespace {

using ops::Assignment;
using ops::FactorKind;
using ops::Linearity;
using ops::Rule;
using ops::RuleDim;
using ops::RuleDims;

constexpr DType kDType = DType::kFloat32;

// ---- Random rules

Rule make_factors(absl::FunctionRef<int(int)> below) {
  constexpr FactorKind kKinds[] = {
      FactorKind::kPassed, FactorKind::kPassed,     FactorKind::kPassed,     FactorKind::kPassed,
      FactorKind::kPassed, FactorKind::kContracted, FactorKind::kContracted, FactorKind::kWhole};
  constexpr int64_t kSizes[] = {6, 4, 5, 2, 3, 9, 1, 0};
  Rule rule;
  for (int left = 1 + below(4); left > 0; --left) {
    const FactorKind kind = kKinds[below(static_cast<int>(std::size(kKinds)))];
    rule.add_factor(kSizes[below(static_cast<int>(std::size(kSizes)))], kind);
  }
  constexpr ReduceOp kContractions[] = {ReduceOp::kSum, ReduceOp::kSum, ReduceOp::kMax,
                                        ReduceOp::kProd};
  rule.contraction = kContractions[below(4)];
  rule.linearity = static_cast<Linearity>(below(3));
  rule.reductions = below(2) == 0 ? ops::kSums : ops::kAllReductions;
  return rule;
}

// Some of the factors, in any order, as dims of one factor each, or of two that are passed or
// contracted; and perhaps a dim of none.
RuleDims make_dims(std::vector<int> factors, absl::FunctionRef<int(int)> below) {
  for (size_t k = factors.size(); k > 1; --k) {
    std::swap(factors[k - 1], factors[below(static_cast<int>(k))]);
  }
  RuleDims dims;
  for (const int factor : factors) {
    if (!dims.empty() && below(5) == 0) {
      dims.back().push_back(factor);
    } else {
      dims.push_back({factor});
    }
  }
  if (below(8) == 0) dims.emplace_back();
  return dims;
}

// A dim without factors has size 1.
Shape make_shape(const Rule& rule, const RuleDims& dims) {
  Shape shape;
  for (const RuleDim& dim : dims) {
    int64_t size = 1;
    for (const int factor : dim) size *= rule.factors[factor].size;
    shape.push_back(size);
  }
  return shape;
}

ops::Reach make_reach(int64_t size, absl::FunctionRef<int(int)> below) {
  ops::Reach reach;
  reach.first = below(9) - 4;
  reach.last = reach.first + (below(2) == 0 ? 0 : below(4));
  switch (below(6)) {
    case 0:
      reach.scale = 2;
      break;
    case 1:
      reach = {-1, size - 1, size - 1};
      break;
    case 2:
      reach.is_periodic = true;
      break;
    case 3:
      reach.divisor = 2;
      break;
    case 4:
      reach = ops::Reach::all(size);
      break;
    default:
      break;
  }
  return reach;
}

// Moves some of the dims of the last operand, which then have any size.
void move_dims(Rule& rule, Shape& shape, absl::FunctionRef<int(int)> below) {
  const int operand = static_cast<int>(rule.operands.size()) - 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const RuleDim& factors = rule.operands[operand][dim];
    const bool may_move =
        factors.size() == 1 && rule.factors[factors[0]].kind != FactorKind::kWhole;
    if (!may_move || below(4) != 0) continue;
    shape[dim] = below(8);
    rule.moved.push_back({operand, static_cast<int>(dim), make_reach(shape[dim], below)});
  }
}

Mesh pick_mesh(absl::FunctionRef<int(int)> below, bool is_searched) {
  constexpr const char* kPrimeMeshes[] = {"{x=2, y=3}", "{x=2, y=2}", "{x=3}", "{x=2, y=2, z=2}"};
  constexpr const char* kOtherMeshes[] = {"{x=6}", "{x=8}", "{x=4, y=2}", "{x=2, y=6}"};
  return *Mesh::parse((is_searched ? kPrimeMeshes : kOtherMeshes)[below(4)]);
}

Layout pick(const Mesh& mesh, size_t rank, bool whole_axes, bool may_be_partial,
            absl::FunctionRef<int(int)> below) {
  static auto* const known = new std::map<std::pair<std::string, size_t>, std::vector<Layout>>();
  std::vector<Layout>& all = (*known)[{mesh.to_string(), rank}];
  if (all.empty()) all = every_layout(mesh, static_cast<int>(rank), kDType);
  const auto fits = [&](const Layout& layout) {
    if (layout.is_partial() && !may_be_partial) return false;
    return !whole_axes || layout.to_string().find(':') == std::string::npos;
  };
  // Two bytes: there are more than 256.
  const size_t first = static_cast<size_t>(below(256)) * 256 + static_cast<size_t>(below(256));
  for (size_t k = 0;; ++k) {
    const Layout& layout = all[(first + k) % all.size()];
    if (fits(layout)) return layout;
  }
}

// ---- The search: lists of axes by their names

using Axes = std::vector<std::string>;

struct Chosen {
  std::vector<Axes> factors;
  std::vector<Axes> partial;  // by operand
};

bool is_prefix_of(const Axes& prefix, const Axes& list) {
  return prefix.size() <= list.size() && std::equal(prefix.begin(), prefix.end(), list.begin());
}

class Search {
 public:
  explicit Search(const RuleCase& given) : given_(given), mesh_(given.layouts[0].mesh()) {
    const Rule& rule = given_.rule;
    wanted_.resize(rule.factors.size());
    wanted_by_.resize(rule.operands.size(), std::vector<Axes>(rule.factors.size()));
    for (size_t i = 0; i < rule.operands.size(); ++i) {
      deal(rule.operands[i], given_.layouts[i], wanted_by_[i]);
      partial_.push_back(passes(i) ? partial_axes(given_.layouts[i]) : Axes());
    }
    std::vector<Axes> by_out(rule.factors.size());
    if (given_.out.has_value()) deal(rule.result, *given_.out, by_out);
    for (const Axes& partial : partial_) {
      for (const std::string& axis : partial) {
        if (std::find(joint_.begin(), joint_.end(), axis) == joint_.end()) joint_.push_back(axis);
      }
    }
  }

  bool has_long_dims() const {
    const auto is_long = [](const RuleDim& dim) { return dim.size() > 1; };
    const auto has_long = [&](const RuleDims& dims) {
      return std::any_of(dims.begin(), dims.end(), is_long);
    };
    return has_long(given_.rule.result) ||
           std::any_of(given_.rule.operands.begin(), given_.rule.operands.end(), has_long);
  }

  // Whether operands agree, with dims of one factor each: one list of a factor is the beginning of
  // another, a contracted dim is split alike by all, carriers of a joint rule have the same partial
  // axes, and no axis has two uses.
  bool agrees() const {
    Chosen longest = {std::vector<Axes>(wanted_.size()), partial_};
    for (size_t f = 0; f < wanted_.size(); ++f) {
      for (const Axes& list : wanted_[f]) {
        if (list.size() > longest.factors[f].size()) longest.factors[f] = list;
      }
      for (const Axes& list : wanted_[f]) {
        if (!is_prefix_of(list, longest.factors[f])) return false;
      }
      if (given_.rule.factors[f].kind != FactorKind::kContracted) continue;
      for (size_t i = 0; i < wanted_by_.size(); ++i) {
        if (has_part_of(i, f) && wanted_by_[i][f] != longest.factors[f]) return false;
      }
    }
    if (given_.rule.linearity == Linearity::kJoint) {
      for (const Axes& partial : partial_) {
        if (!partial.empty() && partial.size() != joint_.size()) return false;
      }
      set_joint(longest, joint_);
    }
    if (!has_one_use_each(longest)) return false;
    return !given_.out.has_value() || result_of(longest) == *given_.out;
  }

  // Whether an operand is needed whole along what splits it, or has to be reduced.
  bool must_move(size_t operand) const {
    const Layout& layout = given_.layouts[operand];
    if (layout.is_partial() && partial_[operand].empty()) return true;
    for (int dim = 0; dim < layout.rank(); ++dim) {
      const RuleDim& factors = given_.rule.operands[operand][dim];
      const bool is_split = !layout.dims()[dim].empty();
      if (!is_split) continue;
      if (factors.empty()) return true;
      if (given_.rule.factors[factors[0]].kind == FactorKind::kWhole) return true;
    }
    return false;
  }

  // Calls fn with every feasible assignment: what the operands are moved to, the result, and the
  // predicted time.
  void for_each(const std::function<void(const std::vector<Layout>&, const Layout&, double)>& fn) {
    fn_ = &fn;
    Chosen chosen = {std::vector<Axes>(wanted_.size()), std::vector<Axes>(partial_.size())};
    choose_factor(0, chosen);
  }

 private:
  static Axes partial_axes(const Layout& layout) {
    Axes axes;
    for (const SubAxis& axis : layout.partial_axes()) {
      axes.push_back(layout.mesh().axes()[axis.axis].name);
    }
    return axes;
  }
  int64_t size_of(const Axes& axes) const {
    int64_t size = 1;
    for (const std::string& axis : axes) size *= *mesh_.axis_size(axis);
    return size;
  }
  bool is_moved(size_t operand, size_t dim) const {
    return given_.rule.reach(static_cast<int>(operand), static_cast<int>(dim)) != nullptr;
  }
  // Whether the operand is split as the factor is.
  bool has_part_of(size_t operand, size_t factor) const {
    const RuleDims& dims = given_.rule.operands[operand];
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const bool has = std::count(dims[dim].begin(), dims[dim].end(), static_cast<int>(factor)) > 0;
      if (has && !is_moved(operand, dim)) return true;
    }
    return false;
  }

  // The axes that split each factor of a dim. The last factor takes all axes that are left. An
  // earlier factor takes an axis that divides its remaining size, and passes the next axes on where
  // nothing remains. Any other axis ends the deal: axes of prime sizes have no parts.
  void deal(const RuleDims& dims, const Layout& layout, std::vector<Axes>& lists) {
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const RuleDim& factors = dims[dim];
      if (factors.empty()) continue;
      size_t k = 0;
      int64_t left = given_.rule.factors[factors[0]].size;
      for (const std::string& axis : layout.dims()[dim]) {
        while (k + 1 < factors.size() && left == 1) left = given_.rule.factors[factors[++k]].size;
        const int64_t size = *mesh_.axis_size(axis);
        if (k + 1 < factors.size() && left % size != 0) break;
        lists[factors[k]].push_back(axis);
        left /= size;
      }
    }
    for (size_t f = 0; f < lists.size(); ++f) {
      if (given_.rule.factors[f].kind == FactorKind::kWhole) lists[f].clear();
      if (!lists[f].empty()) wanted_[f].push_back(lists[f]);
    }
  }

  // The reduction that passes is the first carrier's that is partial by a permitted reduction.
  bool passes(size_t operand) const {
    const Rule& rule = given_.rule;
    std::optional<ReduceOp> first;
    for (size_t i = 0; i < given_.layouts.size() && !first.has_value(); ++i) {
      const std::optional<ReduceOp> op = given_.layouts[i].partial_op();
      if (op.has_value() && rule.may_carry(static_cast<int>(i)) && rule.passes(*op)) first = op;
    }
    const std::optional<ReduceOp> op = given_.layouts[operand].partial_op();
    if (!op.has_value() || !rule.may_carry(static_cast<int>(operand)) || op != first) return false;
    const bool contracts = std::any_of(
        rule.factors.begin(), rule.factors.end(),
        [](const ops::Factor& factor) { return factor.kind == FactorKind::kContracted; });
    return !contracts || *op == rule.contraction;
  }
  std::optional<ReduceOp> reduction() const {
    for (size_t i = 0; i < partial_.size(); ++i) {
      if (!partial_[i].empty()) return given_.layouts[i].partial_op();
    }
    return std::nullopt;
  }

  void set_joint(Chosen& chosen, const Axes& axes) const {
    for (size_t i = 0; i < partial_.size(); ++i) {
      chosen.partial[i] = given_.rule.may_carry(static_cast<int>(i)) ? axes : Axes();
    }
  }

  bool has_one_use_each(const Chosen& chosen) const {
    Axes all;
    for (const Axes& list : chosen.factors) all.insert(all.end(), list.begin(), list.end());
    bool has_joint = false;
    for (const Axes& list : chosen.partial) {
      if (has_joint && given_.rule.linearity == Linearity::kJoint) continue;
      has_joint = has_joint || !list.empty();
      all.insert(all.end(), list.begin(), list.end());
    }
    std::sort(all.begin(), all.end());
    return std::adjacent_find(all.begin(), all.end()) == all.end();
  }

  // Whether each dim can be split by its factors one after the other.
  bool fits(const RuleDims& dims, const Chosen& chosen) const {
    for (const RuleDim& dim : dims) {
      bool may_split = true;
      for (size_t k = 0; k < dim.size(); ++k) {
        const int64_t parts = size_of(chosen.factors[dim[k]]);
        const int64_t size = given_.rule.factors[dim[k]].size;
        const bool is_split = !chosen.factors[dim[k]].empty();
        if (is_split && !may_split) return false;
        if (is_split && k + 1 < dim.size() && size % parts != 0) return false;
        may_split = may_split && parts == size;
      }
    }
    return true;
  }

  // Tries for the factor every ordered list of axes that is a prefix of a wanted list.
  void choose_factor(size_t factor, Chosen& chosen) {
    if (factor == wanted_.size()) return choose_partial(0, chosen);
    Axes names;
    for (const MeshAxis& axis : mesh_.axes()) names.push_back(axis.name);
    std::sort(names.begin(), names.end());
    std::vector<Axes> lists = {{}};
    do {
      for (size_t length = 1; length <= names.size(); ++length) {
        const Axes list(names.begin(), names.begin() + static_cast<int64_t>(length));
        const bool is_wanted =
            std::any_of(wanted_[factor].begin(), wanted_[factor].end(),
                        [&](const Axes& wanted) { return is_prefix_of(list, wanted); });
        if (is_wanted && std::find(lists.begin(), lists.end(), list) == lists.end()) {
          lists.push_back(list);
        }
      }
    } while (std::next_permutation(names.begin(), names.end()));
    for (const Axes& list : lists) {
      chosen.factors[factor] = list;
      choose_factor(factor + 1, chosen);
    }
    chosen.factors[factor].clear();
  }
  void choose_partial(size_t operand, Chosen& chosen) {
    if (given_.rule.linearity == Linearity::kJoint) {
      std::vector<Axes> options = partial_;
      options.push_back(joint_);
      options.emplace_back();
      for (const Axes& option : options) {
        set_joint(chosen, option);
        consider(chosen);
      }
      return;
    }
    if (operand == partial_.size()) return consider(chosen);
    chosen.partial[operand] = partial_[operand];
    choose_partial(operand + 1, chosen);
    if (partial_[operand].empty()) return;
    chosen.partial[operand].clear();
    choose_partial(operand + 1, chosen);
  }

  void consider(const Chosen& chosen) {
    if (!has_one_use_each(chosen) || !fits(given_.rule.result, chosen)) return;
    for (const RuleDims& dims : given_.rule.operands) {
      if (!fits(dims, chosen)) return;
    }
    double seconds = given_.rule.seconds_per_point;
    for (size_t f = 0; f < wanted_.size(); ++f) {
      const int64_t parts = size_of(chosen.factors[f]);
      seconds *= static_cast<double>((given_.rule.factors[f].size + parts - 1) / parts);
    }
    std::vector<Layout> operands;
    for (size_t i = 0; i < partial_.size(); ++i) {
      operands.push_back(operand_of(chosen, i));
      seconds += time_of(given_.layouts[i], operands[i], given_.shapes[i]);
      seconds += fetch_time(chosen, i, operands[i]);
    }
    const Layout result = result_of(chosen);
    Layout end = given_.out.value_or(result);
    if (!given_.out.has_value() && result.is_partial()) {
      end = result.without_partial();
      if (result.rank() > 0) {
        std::vector<DimSharding> dims(result.dims().begin(), result.dims().end());
        const Axes terms = partial_axes(result);
        dims[0].insert(dims[0].end(), terms.begin(), terms.end());
        end = *Layout::create(mesh_, dims);
      }
    }
    (*fn_)(operands, result, seconds + time_of(result, end, given_.result_shape));
  }

  double time_of(const Layout& from, const Layout& to, const Shape& shape) {
    if (from == to) return 0;
    const std::string key = absl::StrCat(from.to_string(), to.to_string(), shape_to_string(shape));
    const auto known = times_.find(key);
    if (known != times_.end()) return known->second;
    const double time =
        absl::ToDoubleSeconds(plan_relayout(from, to, shape, kDType)->predicted_time());
    return times_[key] = time;
  }

  // The indices of a moved dim that a device needs: from the first to the last that its part of the
  // factor names, or none; where the dim is periodic perhaps outside of it.
  static std::pair<int64_t, int64_t> range_of(const ops::Reach& reach, int64_t begin, int64_t end,
                                              int64_t size) {
    std::vector<int64_t> indices;
    for (int64_t i = begin; i < end && size > 0; ++i) {
      const auto rounded_down = [&](int64_t numerator) {
        return static_cast<int64_t>(
            std::floor(static_cast<double>(numerator) / static_cast<double>(reach.divisor)));
      };
      for (int64_t k = rounded_down(i * reach.scale + reach.first);
           k <= rounded_down(i * reach.scale + reach.last); ++k) {
        indices.push_back(k);
      }
    }
    if (indices.empty()) return {0, 0};
    const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
    if (!reach.is_periodic) {
      const int64_t first = std::max<int64_t>(*least, 0);
      const int64_t end = std::min(*most + 1, size);
      return first < end ? std::pair(first, end) : std::pair<int64_t, int64_t>(0, 0);
    }
    if (*most - *least + 1 >= size) return {0, size};
    return {*least, *most + 1};
  }
  // By the links of the default topology, of one host.
  double fetch_time(const Chosen& chosen, size_t operand, const Layout& layout) const {
    const RuleDims& dims = given_.rule.operands[operand];
    const Shape& shape = given_.shapes[operand];
    bool is_split = false;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      is_split = is_split || (is_moved(operand, dim) && !layout.dims()[dim].empty());
    }
    if (!is_split) return 0;
    int64_t most = 0;
    for (int64_t position = 0; position < mesh_.size(); ++position) {
      const Box own = layout.box(shape, position);
      // The number of elements needed, and how many of them the device has.
      int64_t needed = 1;
      int64_t kept = 1;
      bool is_inside = true;
      for (size_t dim = 0; dim < dims.size(); ++dim) {
        int64_t first = own.offsets[dim];
        int64_t end = first + own.sizes[dim];
        const ops::Reach* const reach =
            given_.rule.reach(static_cast<int>(operand), static_cast<int>(dim));
        if (reach != nullptr && !(reach->is_periodic && layout.dims()[dim].empty())) {
          const int factor = dims[dim][0];
          const Layout part = *Layout::create(mesh_, {chosen.factors[factor]});
          const Box box = part.box({given_.rule.factors[factor].size}, position);
          std::tie(first, end) =
              range_of(*reach, box.offsets[0], box.offsets[0] + box.sizes[0], shape[dim]);
        }
        int64_t has = 0;
        for (int64_t i = first; i < end; ++i) {
          const int64_t element = (i % shape[dim] + shape[dim]) % shape[dim];
          const bool is_own =
              element >= own.offsets[dim] && element < own.offsets[dim] + own.sizes[dim];
          has += is_own ? 1 : 0;
          is_inside = is_inside && is_own && element == i;
        }
        needed *= end - first;
        kept *= has;
      }
      if (needed > 0 && !is_inside) most = std::max(most, needed - kept);
    }
    if (most == 0) return 0;
    const LinkCost link = Topology().cost(LinkClass::kHost);
    return link.latency_s + static_cast<double>(most * dtype_size(kDType)) * link.seconds_per_byte;
  }

  // A moved dim keeps its own axes, up to an axis that the operand uses for something else.
  Layout operand_of(const Chosen& chosen, size_t operand) const {
    const RuleDims& dims = given_.rule.operands[operand];
    std::vector<DimSharding> lists = lists_of(dims, chosen);
    Axes used = chosen.partial[operand];
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (!is_moved(operand, dim)) used.insert(used.end(), lists[dim].begin(), lists[dim].end());
    }
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (!is_moved(operand, dim)) continue;
      lists[dim].clear();
      for (const std::string& axis : given_.layouts[operand].dims()[dim]) {
        if (std::count(used.begin(), used.end(), axis) > 0) break;
        lists[dim].push_back(axis);
      }
    }
    const Layout layout = *Layout::create(mesh_, lists);
    if (chosen.partial[operand].empty()) return layout;
    return *layout.with_partial(chosen.partial[operand], *reduction());
  }
  static std::vector<DimSharding> lists_of(const RuleDims& dims, const Chosen& chosen) {
    std::vector<DimSharding> lists;
    for (const RuleDim& dim : dims) {
      DimSharding& list = lists.emplace_back();
      for (const int factor : dim) {
        const Axes& more = chosen.factors[factor];
        list.insert(list.end(), more.begin(), more.end());
      }
    }
    return lists;
  }
  Layout result_of(const Chosen& chosen) const {
    Axes terms;
    std::optional<ReduceOp> op;
    for (size_t f = 0; f < wanted_.size(); ++f) {
      if (given_.rule.factors[f].kind != FactorKind::kContracted) continue;
      terms.insert(terms.end(), chosen.factors[f].begin(), chosen.factors[f].end());
      op = given_.rule.contraction;
    }
    for (const Axes& partial : chosen.partial) {
      for (const std::string& axis : partial) {
        if (std::find(terms.begin(), terms.end(), axis) == terms.end()) terms.push_back(axis);
        op = reduction();
      }
    }
    const Layout layout = *Layout::create(mesh_, lists_of(given_.rule.result, chosen));
    return terms.empty() ? layout : *layout.with_partial(terms, *op);
  }

  const RuleCase& given_;
  const Mesh mesh_;
  std::vector<std::vector<Axes>> wanted_;     // by factor
  std::vector<std::vector<Axes>> wanted_by_;  // by operand and factor
  std::vector<Axes> partial_;                 // by operand: what may stay partial
  Axes joint_;
  const std::function<void(const std::vector<Layout>&, const Layout&, double)>* fn_ = nullptr;
  std::map<std::string, double> times_;
};

StatusOr<Assignment> infer(const RuleCase& given) {
  std::vector<ops::Operand> operands;
  for (size_t i = 0; i < given.layouts.size(); ++i) {
    operands.push_back({given.layouts[i], given.shapes[i], kDType});
  }
  return ops::infer(given.rule, operands, given.result_shape, kDType, given.out);
}

Status check_any(const RuleCase& given, const Assignment& found) {
  TESSERA_ASSIGN_OR_RETURN(const Assignment again, infer(given));
  TESSERA_REQUIRE(again.operands == found.operands && again.result == found.result,
                  "another answer the second time");
  TESSERA_REQUIRE(found.operands.size() == given.layouts.size());
  std::vector<Layout> sources = given.layouts;
  if (given.out.has_value()) sources.push_back(*given.out);
  for (size_t i = 0; i < found.operands.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(found.operands[i].validate_shape(given.shapes[i]));
    TESSERA_RETURN_IF_ERROR(check_only_split_as(sources, found.operands[i]));
  }
  TESSERA_RETURN_IF_ERROR(found.result.validate_shape(given.result_shape));
  return check_only_split_as(sources, found.result);
}

Status check_searched(const RuleCase& given, const Assignment& found, InferenceReport& report) {
  Search search(given);
  double least = -1;
  bool is_feasible = false;
  search.for_each([&](const std::vector<Layout>& operands, const Layout& result, double seconds) {
    ++report.num_feasible;
    is_feasible = is_feasible || (operands == found.operands && result == found.result);
    if (least < 0 || seconds < least) least = seconds;
  });
  TESSERA_REQUIRE(is_feasible, "no assignment of axes to factors gives these layouts");
  if (found.is_contested) {
    const double seconds = absl::ToDoubleSeconds(found.predicted_time);
    TESSERA_REQUIRE(std::abs(seconds - least) < 1e-9, "predicted ", seconds, " s, the best takes ",
                    least);
  }
  if (search.has_long_dims()) return absl::OkStatus();
  TESSERA_REQUIRE(found.is_contested == !search.agrees(), "contested: ", found.is_contested);
  for (size_t i = 0; i < given.layouts.size() && !found.is_contested; ++i) {
    if (search.must_move(i)) continue;
    TESSERA_ASSIGN_OR_RETURN(
        const RelayoutPlan plan,
        plan_relayout(given.layouts[i], found.operands[i], given.shapes[i], kDType));
    TESSERA_REQUIRE(plan.max_received_bytes() == 0, "operand ", i, " agrees, and receives ",
                    plan.max_received_bytes(), " bytes");
  }
  return absl::OkStatus();
}

}  // namespace

std::string RuleCase::to_string() const {
  std::string text = absl::StrCat(
      rule.to_string(), "; linearity ", static_cast<int>(rule.linearity), ", reductions ",
      static_cast<int>(rule.reductions), "; on ", layouts[0].mesh().to_string(), ":");
  for (size_t i = 0; i < layouts.size(); ++i) {
    absl::StrAppend(&text, " ", shape_to_string(shapes[i]), " ", layouts[i].to_string(),
                    rule.may_carry(static_cast<int>(i)) ? ";" : " (no carrier);");
  }
  absl::StrAppend(&text, " -> ", shape_to_string(result_shape));
  return out.has_value() ? absl::StrCat(text, " ", out->to_string()) : text;
}

RuleCase make_rule_case(absl::FunctionRef<int(int)> below, bool is_searched) {
  const Mesh mesh = pick_mesh(below, is_searched);
  RuleCase made = {make_factors(below), {}, {}, {}, std::nullopt};
  Rule& rule = made.rule;
  const int num_factors = static_cast<int>(rule.factors.size());
  const int num_operands = 1 + below(3);
  std::vector<bool> is_used(num_factors, false);
  for (int i = 0; i < num_operands; ++i) {
    std::vector<int> some;
    for (int f = 0; f < num_factors && some.size() < 3; ++f) {
      if (below(4) == 0) continue;
      some.push_back(f);
      is_used[f] = true;
    }
    rule.operands.push_back(make_dims(some, below));
    made.shapes.push_back(make_shape(rule, rule.operands.back()));
    move_dims(rule, made.shapes.back(), below);
    made.layouts.push_back(pick(mesh, made.shapes.back().size(), is_searched, true, below));
    if (below(4) == 0) {
      rule.carriers.resize(num_operands, true);
      rule.carriers[i] = false;
    }
  }
  std::vector<int> kept;
  for (int f = 0; f < num_factors; ++f) {
    const FactorKind kind = rule.factors[f].kind;
    if (kind == FactorKind::kContracted) continue;
    if (kind == FactorKind::kWhole ? below(2) == 0 : is_used[f]) kept.push_back(f);
  }
  rule.result = make_dims(kept, below);
  made.result_shape = make_shape(rule, rule.result);
  if (below(4) == 0) made.out = pick(mesh, made.result_shape.size(), is_searched, false, below);
  return made;
}

RuleCase add_layouts(const ops::Rule& rule, std::vector<Shape> shapes, Shape result_shape,
                     absl::FunctionRef<int(int)> below, bool is_searched) {
  const Mesh mesh = pick_mesh(below, is_searched);
  RuleCase made = {rule, {}, std::move(shapes), std::move(result_shape), std::nullopt};
  for (const Shape& shape : made.shapes) {
    made.layouts.push_back(pick(mesh, shape.size(), is_searched, true, below));
  }
  if (below(4) == 0) made.out = pick(mesh, made.result_shape.size(), is_searched, false, below);
  return made;
}

StatusOr<InferenceReport> check_inference(const RuleCase& given, bool is_searched) {
  TESSERA_RETURN_IF_ERROR(given.rule.validate(given.shapes, given.result_shape));
  TESSERA_ASSIGN_OR_RETURN(const Assignment found, infer(given));
  InferenceReport report = {found.is_contested, 0};
  const auto with_found = [&](const Status& status) {
    std::string text = absl::StrCat("found");
    for (const Layout& layout : found.operands) absl::StrAppend(&text, " ", layout.to_string());
    return with_context(status, absl::StrCat(text, " -> ", found.result.to_string()));
  };
  TESSERA_RETURN_IF_ERROR(with_found(check_any(given, found)));
  if (is_searched) TESSERA_RETURN_IF_ERROR(with_found(check_searched(given, found, report)));
  return report;
}

}  // namespace tessera::testing
