// SPDX-License-Identifier: Apache-2.0
//
// OpKind: the operations that a group runs. The functions of Group say what each means.
#ifndef TESSERA_COLLECTIVES_OP_KIND_H_
#define TESSERA_COLLECTIVES_OP_KIND_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

enum class OpKind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSendRecv,     // both ends of one message: the group is {sender, receiver}
  kBarrier,      // an all-reduce of one element, with a name
  kExchange,     // each member pulls boxes from the others
  kReduceBoxes,  // each member reduces one box of the boxes that all hold
};
inline constexpr int kNumOpKinds = 12;
// "all_reduce", "reduce", ...
absl::string_view op_kind_name(OpKind kind);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_OP_KIND_H_
