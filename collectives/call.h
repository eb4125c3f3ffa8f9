// SPDX-License-Identifier: Apache-2.0
//
// CollectiveCall: what one member asks of its group, as a value that a backend executes.
//
// Group (group.h) turns the typed functions that users call into these; a backend never sees a
// type or a span. All sizes are in elements of `dtype` unless the name says bytes.
#ifndef TESSERA_COLLECTIVES_CALL_H_
#define TESSERA_COLLECTIVES_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/counts.h"
#include "collectives/label.h"
#include "collectives/op_kind.h"
#include "collectives/shared.h"
#include "collectives/signature.h"
#include "device/buffer.h"

namespace tessera {

struct CollectiveCall {
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduction = ReduceOp::kSum;
  int root = 0;  // position in the group
  // Elements, by the op's own notion; equal on all members. kExchange, kReduceBoxes: the most that
  // a member holds, or 0 where members do not know that of each other. kAllToAll: what each member
  // sends, where all parts are equal; else 0.
  int64_t count = 0;

  // Dense row-major memory. It must stay valid, and have no other writer, until the work is done.
  // Null where there are no elements.
  const std::byte* in = nullptr;
  int64_t in_count = 0;
  std::byte* out = nullptr;
  int64_t out_count = 0;
  // Where the memory belongs to Buffers, `in` and `out` become theirs when the op starts. They are
  // kept alive, an error of the input becomes the error of the op on all members, a deferred output
  // takes its memory, and the output is made ready when the op is done.
  std::shared_ptr<const Buffer> in_buffer;
  std::shared_ptr<Buffer> out_buffer;

  // Elements by member, where they vary: of each input (all_gather, gather), of each output
  // (reduce_scatter, scatter). all_to_all: what this member sends to each, and receives from each.
  Counts counts;
  Counts recv_counts;

  // kExchange: what `in` and `out` hold, and what to copy. kReduceBoxes: `out_box` is the box that
  // this member wants, and pulls[k].source_box what member k holds.
  Shared<Box> in_box;
  Shared<Box> out_box;
  BoxPulls pulls;
  // kExchange and kAllReduce with Buffers: the members, ascending and this one among them, that
  // want the same output and share one memory for it, which the first of them makes. Their pulls
  // together fill it, and do not overlap; of an all-reduce they are all members. Empty: memory of
  // its own.
  std::vector<int> replicas;

  // What must be equal on all members beside the fields above, as text: the barrier's name, the
  // layouts of a relayout; empty where `counts` says it all. `detail_field`, a literal, says what
  // it is: "name", "layouts", "counts".
  SharedText detail;
  absl::string_view detail_field;
  // The op in error messages: `barrier "ckpt" on {batch=4}`. Empty: the default_label(), which is
  // built when it is needed.
  Label label;
  // The caller waits for the op at once, and may run it on its own thread.
  bool caller_waits = false;
  // Wrong arguments found before the call: the op fails with it on all members.
  Status error;
  // What the fields above say, as movers execute it. prepare() makes it where it is null. Callers
  // that start copies of one call again and again prepare it once.
  Collective::Ptr collective;
  // From the start of the op on the device; unset: the default of the client.
  std::optional<absl::Duration> timeout;
  // The same as a point in time, over the whole wait; wins over `timeout`, which then says to
  // people how long that was.
  std::optional<absl::Time> deadline;
};

// False where no member reads the memory behind the input: not at the root of a broadcast or a
// scatter, or without elements. Requires a prepared call.
inline bool is_input_used(const CollectiveCall& call) {
  return call.in_count > 0 && call.collective->is_input_read();
}

// What a run of a Collective passes, as the fields of the same names above. in and out have the
// sizes that the Collective asks for.
struct Arguments {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::shared_ptr<const Buffer> in_buffer = nullptr;
  std::shared_ptr<Buffer> out_buffer = nullptr;
  SharedText detail = {};
  absl::string_view detail_field = {};
  Label label = {};
  bool caller_waits = false;
  std::optional<absl::Duration> timeout = std::nullopt;
  std::optional<absl::Time> deadline = std::nullopt;
};

// The call that runs the Collective.
CollectiveCall call_of(Collective::Ptr collective, Arguments arguments);

// Whether `counts` must be equal on all members: of all_gather, reduce_scatter, gather and scatter,
// unless `detail` says it all.
bool has_agreed_counts(const CollectiveCall& call);

// Fills in `collective`, or `error` where the fields describe none; does nothing where one of the
// two is there already.
void prepare(CollectiveCall& call, GroupPlace place);

// The same, and checks the memory against it; fills in `detail_field` where it is empty.
void validate(CollectiveCall& call, GroupPlace place);

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_CALL_H_
