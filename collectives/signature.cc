// SPDX-License-Identifier: Apache-2.0
#include "collectives/signature.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter ||
         kind == OpKind::kReduceBoxes;
}

}  // namespace

std::string default_label(OpKind kind, DType dtype, ReduceOp reduction, int64_t count,
                          absl::Span<const int> device_ids) {
  std::string label(op_kind_name(kind));
  if (reduces(kind)) absl::StrAppend(&label, " ", reduce_op_name(reduction));
  if (kind != OpKind::kBarrier) absl::StrAppend(&label, " ", dtype_name(dtype));
  if (count > 0) absl::StrAppend(&label, " of ", count, " elements");
  absl::StrAppend(&label, " on devices ", absl::StrJoin(device_ids, ", "));
  return label;
}

}  // namespace tessera
