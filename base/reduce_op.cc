// SPDX-License-Identifier: Apache-2.0
#include "base/reduce_op.h"

#include <cstring>
#include <limits>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

bool is_known(ReduceOp op) { return static_cast<int>(op) < kNumReduceOps; }

}  // namespace

absl::string_view reduce_op_name(ReduceOp op) {
  static constexpr absl::string_view kNames[kNumReduceOps] = {"sum", "prod", "min", "max", "avg"};
  return is_known(op) ? kNames[static_cast<int>(op)] : "unknown";
}

absl::string_view reduction_order_name(ReductionOrder order) {
  return order == ReductionOrder::kByHost ? "by_host" : "flat";
}

bool may_add_by_host(ReduceOp op, DType dtype) {
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const bool only_selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
  return op != ReduceOp::kAvg && (only_selects || !is_half);
}

Status validate_reduce_op(ReduceOp op) {
  if (is_known(op)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ReduceOp(", static_cast<int>(op),
                   ") is not a reduction; use an enumerator of ReduceOp, kSum (0) to kAvg (",
                   kNumReduceOps - 1, ")"));
}

Status validate_reduction(ReduceOp op, DType dtype) {
  TESSERA_RETURN_IF_ERROR(validate_reduce_op(op));
  TESSERA_RETURN_IF_ERROR(validate_dtype(dtype));
  if (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(reduce_op_name(op),
                     " is not defined for bool; use min (and) or max (or), or another dtype"));
  }
  if (op == ReduceOp::kAvg && !is_floating_point(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("avg is not defined for integers, and the dtype is ", dtype_name(dtype),
                     "; use sum, or a floating-point dtype"));
  }
  return absl::OkStatus();
}

std::array<std::byte, 8> identity_element(ReduceOp op, DType dtype) {
  std::array<std::byte, 8> bytes = {};
  visit_dtype(dtype, [&]<class T>() {
    using Limits = std::numeric_limits<T>;
    T identity = T(0);
    if (op == ReduceOp::kProd) identity = T(1);
    if (op == ReduceOp::kMin) identity = Limits::max();
    if (op == ReduceOp::kMax) identity = Limits::lowest();
    const bool selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
    if (selects && Limits::has_quiet_NaN) identity = Limits::quiet_NaN();
    std::memcpy(bytes.data(), &identity, sizeof identity);
  });
  return bytes;
}

}  // namespace tessera
