// SPDX-License-Identifier: Apache-2.0
//
// SpanMove: the moves of a member of a group over several hosts once all members have met: by
// SpanExchange between hosts, and by copies and additions of the CPU.
//
//   run()    members_: memory here, and data from the entries of other hosts
//     | of inputs in the entries      copied or added
//     | else  pull() or reduce()      in one step or two, each an exchange() with other members
//     | on a device                   by its mover
//
// Used by the running thread. The run keeps the memory until its transfers have ended.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_MOVE_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_MOVE_H_

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/move.h"
#include "collectives/span/span_exchange.h"
#include "collectives/span/span_state.h"
#include "collectives/span/span_wait.h"

namespace tessera::span {

// Whether the members of this host fetch a part each, and write it to all of them.
bool divides(const Collective& collective, const SpanState& state);

class SpanMove {
 public:
  // The run must outlive it.
  explicit SpanMove(SpanWait& run) : run_(run), span_(run.span()) {}

  // An error is the verdict of the run.
  Status run();
  // The error of this member alone; the run still ends in order for the others.
  const Status& own_error() const { return own_error_; }

 private:
  Status find_members();
  // For devices whose memory is not the host's.
  Status move_on_device();
  Status pull();
  Status reduce();
  Status fetch_sums(const std::byte* own_sum);
  // Waits for the wants of a step and serves the others.
  Status exchange(const SpanExchange::Step& step);

  SpanWait& run_;
  SpanState& span_;
  std::vector<MemberMemory> members_;
  Status own_error_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_MOVE_H_
