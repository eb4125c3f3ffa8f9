// SPDX-License-Identifier: Apache-2.0
//
// The oracle of operations: the result of a row's operation for whole operands, by its definition
// in tests/facts/ops.md.
//
// Each result is written as a function of the index of an element, in loops over doubles, and
// shares no code with ops/. Values of integer dtypes are exact in a double, so nothing wraps; f32
// is not rounded.
#ifndef TESSERA_TESTS_SUPPORT_OPS_ORACLE_H_
#define TESSERA_TESTS_SUPPORT_OPS_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "tests/support/ops/cases.h"

namespace tessera::testing {

// A whole tensor, row-major.
struct Dense {
  DType dtype = DType::kFloat64;
  Shape shape;
  std::vector<double> data;
};

// The values that the formula of the operand gives.
StatusOr<Dense> dense_operand(const OpOperand& operand);

// The operations by their names. Requires attributes and operands that the operation accepts.
using Oracle = std::function<Dense(const OpCase& row, absl::Span<const Dense> x)>;
const std::map<std::string, Oracle>& op_oracle();

// ---- For the oracle's own files

namespace oracle {

using Index = std::vector<int64_t>;
using Values = std::vector<double>;

// Calls fn with every index of the shape, in row-major order.
void for_each_index(const Shape& shape, const std::function<void(const Index&)>& fn);
double at(const Dense& x, const Index& index);
// The element that NumPy's broadcasting uses for an index of the result.
double at_broadcast(const Dense& x, const Index& index);
Dense make(DType dtype, const Shape& shape, const std::function<double(const Index&)>& element);
// A dim counted from the end where it is negative.
int64_t dim_of(int64_t dim, size_t rank);
// The elements along the dim through an index.
Values line(const Dense& x, int64_t dim, Index index);
// The index with another coordinate.
Index with(Index index, int64_t dim, int64_t coordinate);
Shape broadcast_shape(const Shape& a, const Shape& b);

std::map<std::string, Oracle> pointwise();
std::map<std::string, Oracle> reductions();
std::map<std::string, Oracle> movements();
std::map<std::string, Oracle> functions();
std::map<std::string, Oracle> products();
std::map<std::string, Oracle> networks();

}  // namespace oracle

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_OPS_ORACLE_H_
