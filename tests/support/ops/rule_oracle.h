// SPDX-License-Identifier: Apache-2.0
//
// Rules as random numbers choose them, with random layouts of the operands, and check_inference():
// what infer() promises of each (ops/infer.h), against a search of all assignments of whole axes.
//
//   const RuleCase random = make_rule_case([&](int n) { return generator() % n; }, true);
//   EXPECT_THAT(check_inference(random), IsOk()) << random.to_string();
#ifndef TESSERA_TESTS_SUPPORT_OPS_RULE_ORACLE_H_
#define TESSERA_TESTS_SUPPORT_OPS_RULE_ORACLE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/rule.h"

namespace tessera::testing {

struct RuleCase {
  ops::Rule rule;
  std::vector<Layout> layouts;  // of the operands, on one mesh
  std::vector<Shape> shapes;
  Shape result_shape;
  std::optional<Layout> out;

  std::string to_string() const;
};

// below(n) is in [0, n). `is_searched`: on a mesh whose axes have prime sizes, with layouts by
// whole axes, so that check_inference() can compare with all assignments.
RuleCase make_rule_case(absl::FunctionRef<int(int)> below, bool is_searched);
// Adds layouts to a given rule, which accepts these shapes.
RuleCase add_layouts(const ops::Rule& rule, std::vector<Shape> shapes, Shape result_shape,
                     absl::FunctionRef<int(int)> below, bool is_searched);

// The results of the search, for tests that count.
struct InferenceReport {
  bool is_contested = false;
  int num_feasible = 0;
};

// Checks in any case: infer() succeeds, gives layouts of the right ranks, equal ones when called
// twice, and splits only by axes that split an operand or `out`. In a searched case also: the
// assignment gives each factor one list of axes; it is contested exactly where operands disagree;
// operands that agree receive no bytes; and no feasible assignment takes less predicted time.
StatusOr<InferenceReport> check_inference(const RuleCase& given, bool is_searched);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_RULE_ORACLE_H_
