// SPDX-License-Identifier: Apache-2.0
//
// The numerics of a backend that adds in an order of its own: every dtype, reduction and operation
// against the terms added in ascending order, as exact as one table says.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"

namespace tessera::conformance {
namespace {

constexpr int kNumericsGroups[] = {2, 3, 8};

// The tolerance around the result of ascending order. P terms; e is one ulp of 1 in the type.
enum class Bound {
  kSame,     // the same bits, NaN as NaN
  kZeros,    // the same, except the sign of a zero
  kSum,      // of two terms the same; else P e (|x0| + |x1| + ...)
  kProduct,  // of two terms the same; else P e |x0 x1 ...|
  kAverage,  // (P + 2) e (|x0| + |x1| + ...) / P
};

enum class Kind { kBool, kInteger, kFloat };

struct Row {
  Kind kind;
  ReduceOp op;
  Bound bound;
};
// docs/gpu.md, "Numerics".
constexpr Row kNumerics[] = {
    {Kind::kBool, ReduceOp::kMin, Bound::kSame},
    {Kind::kBool, ReduceOp::kMax, Bound::kSame},
    {Kind::kInteger, ReduceOp::kSum, Bound::kSame},
    {Kind::kInteger, ReduceOp::kProd, Bound::kSame},
    {Kind::kInteger, ReduceOp::kMin, Bound::kSame},
    {Kind::kInteger, ReduceOp::kMax, Bound::kSame},
    {Kind::kFloat, ReduceOp::kSum, Bound::kSum},
    {Kind::kFloat, ReduceOp::kProd, Bound::kProduct},
    {Kind::kFloat, ReduceOp::kMin, Bound::kZeros},
    {Kind::kFloat, ReduceOp::kMax, Bound::kZeros},
    {Kind::kFloat, ReduceOp::kAvg, Bound::kAverage},
};

template <class T>
constexpr Kind kind_of() {
  if (std::is_same_v<T, bool>) return Kind::kBool;
  return std::is_integral_v<T> ? Kind::kInteger : Kind::kFloat;
}

// Null where there is none.
const Row* find_row(Kind kind, ReduceOp op) {
  const auto* const row = std::find_if(std::begin(kNumerics), std::end(kNumerics),
                                       [&](const Row& r) { return r.kind == kind && r.op == op; });
  return row == std::end(kNumerics) ? nullptr : row;
}

// As value_of(), but no product of some of the terms leaves the range of any type.
template <class T>
T term_of(ReduceOp op, uint64_t seed, int member, int64_t i) {
  const T value = value_of<T>(seed, member, i);
  if constexpr (!std::is_integral_v<T>) {
    const auto wide = static_cast<double>(value);
    if (op == ReduceOp::kProd && std::isfinite(wide) && wide != 0) {
      int exponent = 0;
      return static_cast<T>(2 * std::frexp(wide, &exponent));
    }
  }
  return value;
}

template <class T>
long double tolerance(Bound bound, const std::vector<T>& terms, T want) {
  if constexpr (std::is_integral_v<T>) {
    return 0;
  } else {
    const auto num_terms = static_cast<long double>(terms.size());
    const bool rounds_once = terms.size() == 2 && bound != Bound::kAverage;
    if (bound == Bound::kSame || bound == Bound::kZeros || rounds_once) return 0;
    // Not epsilon(), which Eigen 3.4 has wrong for half.
    const long double ulp = std::ldexp(1.0L, 1 - std::numeric_limits<T>::digits);
    // Products may be too small for all their digits.
    const auto least = static_cast<long double>(std::numeric_limits<T>::denorm_min());
    if (bound == Bound::kProduct) {
      return num_terms * (ulp * std::fabs(static_cast<long double>(want)) + least);
    }
    long double magnitude = 0;
    for (const T term : terms) magnitude += std::fabs(static_cast<long double>(term));
    if (bound == Bound::kSum) return num_terms * ulp * magnitude;
    return (num_terms + 2) * (ulp * magnitude / num_terms + least);
  }
}

template <class T>
bool within(Bound bound, const std::vector<T>& terms, T got, T want) {
  if (same(got, want)) return true;
  if (bound == Bound::kSame || is_nan(got) || is_nan(want)) return false;
  const auto a = static_cast<long double>(got);
  const auto b = static_cast<long double>(want);
  if (!std::isfinite(a) || !std::isfinite(b)) return false;
  return std::fabs(a - b) <= tolerance(bound, terms, want);
}

// One reduction of values that all members can compute.
template <class T>
struct Problem {
  ReduceOp op;
  Bound bound;
  uint64_t seed;
  int num_members;

  Values<T> input(int member, int64_t count) const {
    Values<T> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = term_of<T>(op, seed, member, i);
    return values;
  }
  // That these are the reduced elements from `first` on.
  Status expect_near(absl::Span<const T> got, int64_t first, Bound bound_of_op,
                     absl::string_view what) const {
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      std::vector<T> terms;
      for (int m = 0; m < num_members; ++m) terms.push_back(term_of<T>(op, seed, m, first + i));
      const T want = reduce_scalars(op, terms);
      if (within(bound_of_op, terms, got[i], want)) continue;
      return absl::InternalError(absl::StrCat(
          what, " ", reduce_op_name(op), ": element ", first + i, " is ", show(got[i]),
          ", in ascending order ", show(want), ", which is beyond the table of numerics"));
    }
    return absl::OkStatus();
  }
};

// Bits as text, to compare them among members.
template <class T>
std::string bits_of(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
Status check_numerics(const Member& m, const Row& row, int64_t size, int root) {
  const Group& g = m.group;
  const int n = g.size();
  const Problem<T> problem = {row.op, row.bound, mix(static_cast<uint64_t>(size)), n};
  const Values<T> in = problem.input(m.position, size);
  Values<T> out(size), in_place = problem.input(m.position, size), rooted(size, T(1));
  TESSERA_RETURN_IF_ERROR(g.all_reduce<T>(in.in(), out.out(), row.op).await());
  TESSERA_RETURN_IF_ERROR(problem.expect_near(out.in(), 0, row.bound, "all_reduce"));
  TESSERA_RETURN_IF_ERROR(expect_same_text(g, bits_of(out.in())));
  TESSERA_RETURN_IF_ERROR(g.all_reduce<T>(in_place.in(), in_place.out(), row.op).await());
  TESSERA_RETURN_IF_ERROR(problem.expect_near(in_place.in(), 0, row.bound, "all_reduce in place"));
  TESSERA_RETURN_IF_ERROR(g.reduce<T>(in.in(), rooted.out(), row.op, root).await());
  if (m.position == root) {
    TESSERA_RETURN_IF_ERROR(problem.expect_near(rooted.in(), 0, row.bound, "reduce"));
  } else {
    TESSERA_RETURN_IF_ERROR(expect_equal<T>(rooted.in(), Values<T>(size, T(1)), "other outputs"));
  }

  const int64_t part = size / n;
  Values<T> own(part), whole = problem.input(m.position, part * n);
  TESSERA_RETURN_IF_ERROR(g.reduce_scatter<T>(whole.in(), own.out(), row.op).await());
  TESSERA_RETURN_IF_ERROR(
      problem.expect_near(own.in(), part * m.position, row.bound, "reduce_scatter"));
  const absl::Span<T> target = whole.out().subspan(part * m.position, part);
  TESSERA_RETURN_IF_ERROR(g.reduce_scatter<T>(whole.in(), target, row.op).await());
  TESSERA_RETURN_IF_ERROR(
      problem.expect_near(target, part * m.position, row.bound, "reduce_scatter in place"));

  // Parts that are not equal are added in ascending order by all backends.
  std::vector<int64_t> counts(n, part);
  counts[root] += size - part * n + 1;
  const Values<T> uneven_in = problem.input(m.position, size + 1);
  Values<T> uneven(counts[m.position]);
  TESSERA_RETURN_IF_ERROR(
      g.reduce_scatter<T>(uneven_in.in(), uneven.out(), row.op, counts).await());
  TESSERA_RETURN_IF_ERROR(problem.expect_near(uneven.in(), before(counts, m.position), Bound::kSame,
                                              "reduce_scatter of unequal parts"));
  return expect_equal<T>(in.in(), problem.input(m.position, size), "in is not written");
}

template <class T>
Status check_dtype(const Member& m) {
  for (int op_number = 0; op_number < kNumReduceOps; ++op_number) {
    const auto op = static_cast<ReduceOp>(op_number);
    const Row* const row = find_row(kind_of<T>(), op);
    TESSERA_RETURN_IF_ERROR(expect((row != nullptr) == validate_reduction(op, dtype_of<T>()).ok(),
                                   "the table of numerics has a row for what is allowed"));
    if (row == nullptr) continue;
    int root = op_number;
    for (const int64_t size : {0, 1, 5, 997}) {
      TESSERA_RETURN_IF_ERROR(check_numerics<T>(m, *row, size, root++ % m.group.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Case> numerics_cases() {
  std::vector<Case> cases;
  for (const int n : kNumericsGroups) {
    for (int dtype_number = 0; dtype_number < kNumDTypes; ++dtype_number) {
      const auto dtype = static_cast<DType>(dtype_number);
      cases.push_back(
          {absl::StrCat("numerics_", dtype_name(dtype), "_", n), n, [dtype](const Member& m) {
             return visit_dtype(dtype, [&]<class T>() { return check_dtype<T>(m); });
           }});
    }
  }
  return cases;
}

bool is_of_ascending_order(const Case& c) {
  static constexpr absl::string_view kNames[] = {
      "sum_f64_ascending", "sum_bf16_rounds_once",           "sum_f32_stays_f32", "avg_f32",
      "avg_f16",           "reduce_scatter_then_all_gather",
  };
  static constexpr absl::string_view kPrefixes[] = {"reductions_f", "reductions_bf", "random_"};
  return absl::c_linear_search(kNames, c.name) ||
         absl::c_any_of(kPrefixes, [&](auto prefix) { return absl::StartsWith(c.name, prefix); });
}

}  // namespace tessera::conformance
