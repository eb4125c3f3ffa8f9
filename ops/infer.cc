// SPDX-License-Identifier: Apache-2.0
#include "ops/infer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "relayout/sub_axes.h"

namespace tessera::ops {
namespace {

using internal::Cuts;
using internal::SubAxes;

// Which axes split each factor, and which stay partial.
struct Choice {
  std::vector<SubAxes> factors;  // by factor
  std::vector<SubAxes> partial;  // by operand; equal for all carriers of a joint rule
};

// The lists that operands have for a factor, or for their partial axes, without repetitions.
void add_once(std::vector<SubAxes>& lists, SubAxes list) {
  if (std::find(lists.begin(), lists.end(), list) == lists.end()) lists.push_back(std::move(list));
}

// Each list and its prefixes, the longest first; the empty one last.
std::vector<SubAxes> with_prefixes(const std::vector<SubAxes>& lists) {
  std::vector<SubAxes> options;
  for (SubAxes list : lists) {
    for (; !list.empty(); list.pop_back()) add_once(options, list);
  }
  options.emplace_back();
  return options;
}

bool overlap(const SubAxes& a, const SubAxes& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](const SubAxis& part) { return internal::overlaps_any(part, b); });
}

int64_t num_parts(const SubAxes& list) {
  int64_t parts = 1;
  for (const SubAxis& part : list) parts *= part.size;
  return parts;
}

void append(SubAxes& list, const SubAxes& more) {
  list.insert(list.end(), more.begin(), more.end());
}

// Deals the axes of a dim to its factors, from the major one: a factor takes the axes that divide
// it, and the next factor the axes left when it is split into single indices. Axes that do not
// divide are left out. Where an axis is too large for a factor, its major part is taken, and noted
// in `splits`.
void deal(const Rule& rule, const RuleDim& dim, const SubAxes& axes, std::vector<SubAxes>& lists,
          SubAxes& splits) {
  if (dim.empty()) return;
  size_t next = 0;
  int64_t left = rule.factors[dim[0]].size;
  for (SubAxis part : axes) {
    while (part.size > 1) {
      while (next + 1 < dim.size() && left == 1) left = rule.factors[dim[++next]].size;
      if (next + 1 == dim.size() || left % part.size == 0) {
        lists[dim[next]].push_back(part);
        left /= part.size;
        break;
      }
      if (part.size % left != 0) return;
      const SubAxis major = {part.axis, part.pre, left};
      lists[dim[next]].push_back(major);
      if (!internal::contains_sub_axis(splits, major)) splits.push_back(major);
      part = {part.axis, part.pre * left, part.size / left};
      left = 1;
    }
  }
}

// Shortens the lists of the factors of a dim until the dim can be split by them one after the
// other. Returns whether there was anything to shorten.
bool fit(const Rule& rule, const RuleDim& dim, std::vector<SubAxes>& lists) {
  bool has_changed = false;
  bool may_split = true;
  for (size_t k = 0; k < dim.size(); ++k) {
    SubAxes& list = lists[dim[k]];
    const int64_t size = rule.factors[dim[k]].size;
    while (!list.empty() && (!may_split || (k + 1 < dim.size() && size % num_parts(list) != 0))) {
      list.pop_back();
      has_changed = true;
    }
    may_split = may_split && num_parts(list) == size;
  }
  return has_changed;
}

class Inference {
 public:
  Inference(const Rule& rule, absl::Span<const Operand> operands, const Shape& result_shape,
            DType result_dtype, const std::optional<Layout>& out, const PlanOptions& options,
            absl::string_view call)
      : rule_(rule),
        operands_(operands),
        result_shape_(result_shape),
        result_dtype_(result_dtype),
        out_(out),
        options_(options),
        call_(call),
        mesh_(operands[0].layout.mesh()),
        moved_(operands.size()),
        fetched_(operands.size()) {}

  StatusOr<Assignment> run() {
    collect();
    Choice agreed;
    bool is_contested = !agree(agreed);
    if (!is_contested && out_.has_value()) is_contested = result_layout(agreed) != *out_;
    if (!is_contested) return assignment(agreed);
    current_.factors.resize(rule_.factors.size());
    current_.partial.resize(operands_.size());
    choose_factor(0);
    if (is_limited_) improve();
    if (!best_.has_value()) return first_error_;
    Assignment result = assignment(*best_);
    result.is_contested = true;
    result.num_alternatives = num_alternatives_;
    result.is_limited = is_limited_;
    result.predicted_time = absl::Seconds(best_seconds_);
    return result;
  }

 private:
  // Collects the axes that the operands want for each factor, cut into atoms common to all
  // operands.
  void collect() {
    SubAxes parts;
    for (const Operand& operand : operands_) add_parts(operand.layout, parts);
    if (out_.has_value()) add_parts(*out_, parts);
    for (size_t known = parts.size() + 1; known != parts.size();) {
      known = parts.size();
      const Cuts cuts(operands_[0].layout, operands_[0].layout, parts);
      wants_.assign(rule_.factors.size(), {});
      wants_of_.clear();
      for (size_t i = 0; i < operands_.size(); ++i) {
        wants_of_.push_back(deal_all(cuts, rule_.operands[i], operands_[i].layout, parts));
      }
      if (out_.has_value()) deal_all(cuts, rule_.result, *out_, parts);
      partial_.clear();
      for (size_t i = 0; i < operands_.size(); ++i) {
        const Layout& layout = operands_[i].layout;
        partial_.push_back(passes(static_cast<int>(i)) ? cuts.cut(layout.partial_axes())
                                                       : SubAxes());
      }
    }
  }

  static void add_parts(const Layout& layout, SubAxes& parts) {
    for (const std::vector<SubAxis>& dim : layout.dim_axes()) append(parts, dim);
    parts.insert(parts.end(), layout.partial_axes().begin(), layout.partial_axes().end());
  }

  std::vector<SubAxes> deal_all(const Cuts& cuts, const RuleDims& dims, const Layout& layout,
                                SubAxes& splits) {
    std::vector<SubAxes> lists(rule_.factors.size());
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      deal(rule_, dims[dim], cuts.cut(layout.dim_axes()[dim]), lists, splits);
    }
    for (size_t f = 0; f < lists.size(); ++f) {
      if (rule_.factors[f].kind == FactorKind::kWhole) lists[f].clear();
      if (!lists[f].empty()) add_once(wants_[f], lists[f]);
    }
    return lists;
  }

  // Whether terms of an operand may stay terms. Where carriers have different reductions, only
  // terms of the first carrier's reduction pass.
  bool passes(int operand) const {
    const Layout& layout = operands_[operand].layout;
    if (!layout.is_partial() || !rule_.may_carry(operand)) return false;
    const ReduceOp op = *layout.partial_op();
    if (!rule_.passes(op)) return false;
    for (const Factor& factor : rule_.factors) {
      if (factor.kind == FactorKind::kContracted && op != rule_.contraction) return false;
    }
    return op == *reduction();
  }
  // The reduction of the partial operands that may stay so.
  std::optional<ReduceOp> reduction() const {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const std::optional<ReduceOp> op = operands_[i].layout.partial_op();
      if (op.has_value() && rule_.may_carry(static_cast<int>(i)) && rule_.passes(*op)) return op;
    }
    return std::nullopt;
  }

  // Sets the axes that the operands agree on; false where they disagree.
  bool agree(Choice& choice) const {
    bool agreed = true;
    choice.factors.resize(rule_.factors.size());
    for (size_t f = 0; f < rule_.factors.size(); ++f) {
      SubAxes& longest = choice.factors[f];
      for (const SubAxes& list : wants_[f]) {
        if (list.size() > longest.size()) longest = list;
      }
      for (const SubAxes& list : wants_[f]) agreed &= internal::is_prefix(list, longest);
      if (rule_.factors[f].kind == FactorKind::kContracted) {
        for (size_t i = 0; i < operands_.size(); ++i) {
          agreed &= !has_part_of(i, static_cast<int>(f)) || wants_of_[i][f] == longest;
        }
      }
    }
    fit_all(choice.factors);
    choice.partial = partial_;
    if (rule_.linearity == Linearity::kJoint) {
      const SubAxes joint = union_of_partials();
      for (size_t i = 0; i < operands_.size(); ++i) {
        agreed &= partial_[i].empty() || partial_[i].size() == joint.size();
        choice.partial[i] = rule_.may_carry(static_cast<int>(i)) ? joint : SubAxes();
      }
    }
    return agreed && is_disjoint(choice);
  }

  // Whether the operand has a dim of the factor that is not moved.
  bool has_part_of(size_t operand, int factor) const {
    const RuleDims& dims = rule_.operands[operand];
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      const bool has = std::find(dims[dim].begin(), dims[dim].end(), factor) != dims[dim].end();
      if (has && reach(operand, dim) == nullptr) return true;
    }
    return false;
  }
  const Reach* reach(size_t operand, size_t dim) const {
    return rule_.moved.empty() ? nullptr
                               : rule_.reach(static_cast<int>(operand), static_cast<int>(dim));
  }

  SubAxes union_of_partials() const {
    SubAxes all;
    for (const SubAxes& list : partial_) {
      for (const SubAxis& part : list) {
        if (!internal::contains_sub_axis(all, part)) all.push_back(part);
      }
    }
    return all;
  }

  // Shortens lists until every dim can be split by them. Returns whether any was too long.
  bool fit_all(std::vector<SubAxes>& lists) const {
    bool has_changed = false;
    for (bool again = true; again;) {
      again = false;
      for (const RuleDims& dims : rule_.operands) again |= fit_dims(dims, lists);
      again |= fit_dims(rule_.result, lists);
      has_changed |= again;
    }
    return has_changed;
  }
  bool fit_dims(const RuleDims& dims, std::vector<SubAxes>& lists) const {
    bool has_changed = false;
    for (const RuleDim& dim : dims) {
      if (dim.size() > 1) has_changed |= fit(rule_, dim, lists);
    }
    return has_changed;
  }

  // Whether no axis has two uses. Under a joint rule the carriers share their partial axes.
  bool is_disjoint(const Choice& choice) const {
    std::vector<const SubAxes*> lists;
    for (const SubAxes& list : choice.factors) lists.push_back(&list);
    const bool is_joint = rule_.linearity == Linearity::kJoint;
    bool has_joint = false;
    for (const SubAxes& list : choice.partial) {
      if (list.empty() || (is_joint && has_joint)) continue;
      has_joint = true;
      lists.push_back(&list);
    }
    for (size_t a = 0; a < lists.size(); ++a) {
      // Joint partial axes may be halves of one operand and thirds of another.
      for (size_t k = 1; k < lists[a]->size(); ++k) {
        const absl::Span<const SubAxis> before(lists[a]->data(), k);
        if (internal::overlaps_any((*lists[a])[k], before)) return false;
      }
      for (size_t b = a + 1; b < lists.size(); ++b) {
        if (overlap(*lists[a], *lists[b])) return false;
      }
    }
    return true;
  }

  // All assignments of axes to factors, and then all uses of partial axes.
  void choose_factor(size_t f) {
    if (is_limited_) return;
    if (f == rule_.factors.size()) {
      std::vector<SubAxes> lists = current_.factors;
      if (fit_all(lists)) return;
      if (rule_.linearity == Linearity::kJoint) return choose_joint();
      return choose_partial(0);
    }
    for (const SubAxes& option : with_prefixes(wants_[f])) {
      const bool is_taken = std::any_of(current_.factors.begin(), current_.factors.begin() + f,
                                        [&](const SubAxes& list) { return overlap(list, option); });
      if (is_taken) continue;
      current_.factors[f] = option;
      choose_factor(f + 1);
    }
    current_.factors[f].clear();
  }
  void choose_joint() {
    std::vector<SubAxes> options = {union_of_partials()};
    for (const SubAxes& list : partial_) add_once(options, list);
    add_once(options, {});
    for (const SubAxes& option : options) {
      for (size_t i = 0; i < operands_.size(); ++i) {
        current_.partial[i] = rule_.may_carry(static_cast<int>(i)) ? option : SubAxes();
      }
      consider();
    }
  }
  void choose_partial(size_t operand) {
    if (is_limited_) return;
    if (operand == operands_.size()) return consider();
    current_.partial[operand] = partial_[operand];
    choose_partial(operand + 1);
    if (partial_[operand].empty()) return;
    current_.partial[operand].clear();
    choose_partial(operand + 1);
  }

  void consider() {
    if (is_limited_ || !is_disjoint(current_)) return;
    is_limited_ = num_alternatives_ >= most_alternatives(operands_.size());
    if (!is_limited_) compare();
  }
  void compare() {
    StatusOr<double> seconds = predict(current_);
    if (!seconds.ok()) return first_error_.Update(seconds.status());
    ++num_alternatives_;
    if (best_.has_value() && *seconds >= best_seconds_) return;
    best_ = current_;
    best_seconds_ = *seconds;
  }

  // Changes one factor of the best choice, or the partial axes of one operand, as long as that is
  // better. Other factors give up what the one takes.
  void improve() {
    for (bool again = true; again && best_.has_value();) {
      const double before = best_seconds_;
      for (size_t f = 0; f < rule_.factors.size(); ++f) {
        for (const SubAxes& option : with_prefixes(wants_[f])) {
          current_ = *best_;
          for (SubAxes& list : current_.factors) {
            while (overlap(list, option)) list.pop_back();
          }
          current_.factors[f] = option;
          fit_all(current_.factors);
          if (is_disjoint(current_)) compare();
        }
      }
      for (size_t i = 0; rule_.linearity != Linearity::kJoint && i < operands_.size(); ++i) {
        if (partial_[i].empty()) continue;
        current_ = *best_;
        current_.partial[i] = current_.partial[i].empty() ? partial_[i] : SubAxes();
        if (is_disjoint(current_)) compare();
      }
      again = best_seconds_ < before;
    }
  }

  StatusOr<double> predict(const Choice& choice) {
    double seconds = rule_.seconds_per_point;
    for (size_t f = 0; f < rule_.factors.size(); ++f) {
      const int64_t parts = num_parts(choice.factors[f]);
      seconds *= static_cast<double>((rule_.factors[f].size + parts - 1) / parts);
    }
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& operand = operands_[i];
      const Layout to = operand_layout(choice, static_cast<int>(i));
      seconds += fetch_seconds(choice, i, to);
      if (to == operand.layout) continue;
      const auto known = moved_[i].find(to);
      if (known != moved_[i].end()) {
        seconds += known->second;
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(const double moving,
                               relayout_seconds(operand.layout, to, operand.shape, operand.dtype));
      moved_[i].emplace(to, moving);
      seconds += moving;
    }
    const Layout result = result_layout(choice);
    const Layout wanted = out_.has_value() ? *out_ : reduced_to_shards(result);
    if (wanted == result) return seconds;
    const auto known = reduced_.find(result);
    if (known != reduced_.end()) return seconds + known->second;
    TESSERA_ASSIGN_OR_RETURN(const double reducing,
                             relayout_seconds(result, wanted, result_shape_, result_dtype_));
    reduced_.emplace(result, reducing);
    return seconds + reducing;
  }
  double fetch_seconds(const Choice& choice, size_t operand, const Layout& layout) {
    if (rule_.moved.empty()) return 0;
    std::pair<Layout, std::vector<SubAxes>> key = {layout, {}};
    for (const MovedDim& each : rule_.moved) {
      if (each.operand != static_cast<int>(operand)) continue;
      key.second.push_back(choice.factors[rule_.operands[operand][each.dim][0]]);
    }
    const auto known = fetched_[operand].find(key);
    if (known != fetched_[operand].end()) return known->second;
    const std::shared_ptr<const Fetch> fetch = fetch_of(choice, operand, layout);
    const double seconds = fetch == nullptr ? 0 : absl::ToDoubleSeconds(fetch->predicted_time());
    fetched_[operand].emplace(std::move(key), seconds);
    return seconds;
  }

  StatusOr<double> relayout_seconds(const Layout& from, const Layout& to, const Shape& shape,
                                    DType dtype) const {
    TESSERA_ASSIGN_OR_RETURN(const RelayoutPlan plan,
                             plan_relayout(from, to, shape, dtype, options_));
    return absl::ToDoubleSeconds(plan.predicted_time());
  }

  // The axes along which the layout is partial split its first dim instead.
  Layout reduced_to_shards(const Layout& layout) const {
    if (!layout.is_partial()) return layout;
    std::vector<SubAxes> dims = internal::dims_of(layout);
    if (dims.empty()) return layout.without_partial();
    dims[0].insert(dims[0].end(), layout.partial_axes().begin(), layout.partial_axes().end());
    return internal::make_layout(mesh_, dims, {}, std::nullopt);
  }

  std::vector<SubAxes> dims_of_choice(const Choice& choice, const RuleDims& dims) const {
    std::vector<SubAxes> lists(dims.size());
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      for (const int factor : dims[dim]) append(lists[dim], choice.factors[factor]);
    }
    return lists;
  }
  Layout operand_layout(const Choice& choice, int operand) const {
    const RuleDims& rule_dims = rule_.operands[operand];
    std::vector<SubAxes> dims = dims_of_choice(choice, rule_dims);
    const SubAxes& partial = choice.partial[operand];
    // A moved dim keeps its own axes, up to the first axis with another use.
    SubAxes used = partial;
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (reach(operand, dim) == nullptr) append(used, dims[dim]);
    }
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (reach(operand, dim) == nullptr) continue;
      dims[dim].clear();
      for (const SubAxis& part : wants_of_[operand][rule_dims[dim][0]]) {
        if (internal::overlaps_any(part, used)) break;
        dims[dim].push_back(part);
      }
    }
    return internal::make_layout(mesh_, dims, partial,
                                 partial.empty() ? std::nullopt : reduction());
  }
  // The fetch of an operand in this layout; null where each device has the elements it needs.
  std::shared_ptr<const Fetch> fetch_of(const Choice& choice, size_t operand,
                                        const Layout& layout) const {
    std::vector<MovedDim> moved;
    bool is_split = false;
    for (const MovedDim& each : rule_.moved) {
      if (each.operand != static_cast<int>(operand)) continue;
      const bool splits = layout.num_shards(each.dim) > 1;
      is_split = is_split || splits;
      // Each device has all of a dim that is not split, wherever that begins.
      if (splits || !each.reach.is_periodic) moved.push_back(each);
    }
    if (!is_split) return nullptr;
    // For each moved dim, the part of its factor that a device computes.
    Shape sizes;
    std::vector<SubAxes> lists;
    for (const MovedDim& each : moved) {
      const int factor = rule_.operands[operand][each.dim][0];
      sizes.push_back(rule_.factors[factor].size);
      lists.push_back(choice.factors[factor]);
    }
    const Layout parts = internal::make_layout(mesh_, lists, {}, std::nullopt);
    const Shape& shape = operands_[operand].shape;
    Fetch::Needs needs = [layout, shape, moved = std::move(moved), parts,
                          sizes = std::move(sizes)](int64_t position) {
      Box box = layout.box(shape, position);
      const Box part = parts.box(sizes, position);
      for (size_t k = 0; k < moved.size(); ++k) {
        const int dim = moved[k].dim;
        const auto [first, end] =
            moved[k].reach.of(part.offsets[k], part.offsets[k] + part.sizes[k], shape[dim]);
        box.offsets[dim] = first;
        box.sizes[dim] = end - first;
      }
      return box;
    };
    auto fetch = std::make_shared<const Fetch>(
        layout, shape, operands_[operand].dtype, std::move(needs), options_.topology,
        absl::StrCat(call_, " of operand ", operand, ", ", shape_to_string(shape), " under ",
                     layout.to_string(), ", for parts ", parts.to_string_with_mesh()));
    return fetch->is_idle() ? nullptr : fetch;
  }
  Layout result_layout(const Choice& choice) const {
    SubAxes partial;
    for (size_t f = 0; f < rule_.factors.size(); ++f) {
      if (rule_.factors[f].kind == FactorKind::kContracted) append(partial, choice.factors[f]);
    }
    std::optional<ReduceOp> op;
    if (!partial.empty()) op = rule_.contraction;
    for (const SubAxes& list : choice.partial) {
      for (const SubAxis& part : list) {
        if (!internal::contains_sub_axis(partial, part)) partial.push_back(part);
        op = reduction();
      }
    }
    return internal::make_layout(mesh_, dims_of_choice(choice, rule_.result), partial, op);
  }
  Assignment assignment(const Choice& choice) const {
    std::vector<Layout> layouts;
    std::vector<std::shared_ptr<const Fetch>> fetches;
    for (size_t i = 0; i < operands_.size(); ++i) {
      layouts.push_back(operand_layout(choice, static_cast<int>(i)));
      fetches.push_back(fetch_of(choice, i, layouts.back()));
    }
    return {std::move(layouts),  std::move(fetches), result_layout(choice), false, 1, false,
            absl::ZeroDuration()};
  }

  const Rule& rule_;
  const absl::Span<const Operand> operands_;
  const Shape& result_shape_;
  const DType result_dtype_;
  const std::optional<Layout>& out_;
  const PlanOptions& options_;
  const absl::string_view call_;
  const Mesh& mesh_;
  std::vector<std::vector<SubAxes>> wants_;     // by factor: the lists that split it somewhere
  std::vector<std::vector<SubAxes>> wants_of_;  // by operand and factor
  std::vector<SubAxes> partial_;                // by operand: what may stay partial

  // The search.
  Choice current_;
  std::optional<Choice> best_;
  double best_seconds_ = 0;
  int num_alternatives_ = 0;
  bool is_limited_ = false;
  Status first_error_;
  // Predicted times: of moves to a layout, by operand; of fetches of a layout for parts; and of the
  // reduction of a result.
  std::vector<absl::flat_hash_map<Layout, double>> moved_;
  std::vector<absl::flat_hash_map<std::pair<Layout, std::vector<SubAxes>>, double>> fetched_;
  absl::flat_hash_map<Layout, double> reduced_;
};

}  // namespace

StatusOr<Assignment> infer(const Rule& rule, absl::Span<const Operand> operands,
                           const Shape& result_shape, DType result_dtype,
                           const std::optional<Layout>& out, const PlanOptions& options,
                           absl::string_view call) {
  return Inference(rule, operands, result_shape, result_dtype, out, options, call).run();
}

}  // namespace tessera::ops
