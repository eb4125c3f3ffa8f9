// SPDX-License-Identifier: Apache-2.0
//
// Signature: the facts on which all members of an operation must agree.
//
// Members write it to memory that they share and compare it there, as bytes. Its layout is part of
// the protocol between clients.
#ifndef TESSERA_COLLECTIVES_SIGNATURE_H_
#define TESSERA_COLLECTIVES_SIGNATURE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "collectives/op_kind.h"

namespace tessera {

// Without padding: compared as bytes.
struct Signature {
  OpKind kind;
  DType dtype;
  ReduceOp reduction;
  // Whether the input is in the entry. Follows from the other fields, except where outputs are
  // shared.
  bool inlined = false;
  ReductionOrder order = ReductionOrder::kFlat;
  uint8_t zeros[7] = {};
  int32_t root;
  int64_t count;
  uint64_t detail_hash;

  friend bool operator==(const Signature& a, const Signature& b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<Signature>);

// "all_reduce sum f32 of 8 elements on devices 0, 1".
std::string default_label(OpKind kind, DType dtype, ReduceOp reduction, int64_t count,
                          absl::Span<const int> device_ids);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_SIGNATURE_H_
