// SPDX-License-Identifier: Apache-2.0
//
// SpanRun: one member's run of a collective of a group over several hosts, or its end of a message.
// It uses the machinery of one host (collectives/host) among the members here, and letters and an
// Engine between hosts.
//
//   placed(): numbered
//     | fills its entry, arrives on its host. In a run with its inputs in the entries the last
//     | member there sends the entries of all to one client of each other host, which posts them
//     | for the others of its host (Postings); else each member sends its own to all clients of
//     | other hosts
//     | the entries of all members are here, and agree; small inputs are in them: then the
//     | run needs nothing else of other hosts, and no loss there can fail it
//   first step    requests the boxes or terms it lacks, and serves the requests of the others
//     | copies, or adds all terms in ascending order (SpanMove)
//   second step   serves and requests sums that members make for others
//     | all members on this host have finished
//   retired
//
// Devices whose memory is not the host's meet in the same way: the board that their DeviceMover
// fills is in the entry, in the place of an input. Then the mover moves the bytes, instead of both
// steps. A message between such devices goes through memory of the host, and then by the steps.
//
// Numbers. A call takes its member's next number when it is enqueued, without waiting.
// - It skips the number of a run that the others have given up if that was another call, as its
//   signature says. So a member that left out a call does not take the verdict of that call for the
//   verdict of its next one.
// - The verdict itself may still be on its way, so the member also looks at the record of its host,
//   and at the questions that it was asked.
//
// Invariants:
//   1. no byte of a tensor moves before the member has the entries of all members;
//   2. the member that holds the memory serves a member, while it is in the same run;
//   3. memory that a peer may still write or read is kept: by the run, which the engine's calls
//      own.
//
// Threads: as CollectiveRun.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_RUN_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_RUN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/span/span_state.h"
#include "collectives/span/span_wait.h"
#include "shm/control.h"

namespace tessera::span {

class SpanRun final : public SpanWait {
 public:
  SpanRun(SpanState& state, int member, Collective::Ptr collective, Arguments&& arguments);

  // Takes the member's next number. Idempotent: a sent message is placed twice.
  void placed() override;
  Status run() override { return end_task(execute()); }

 private:
  // A waiter has no part in the order of messages, so it cannot run one.
  bool may_run_here() const override { return !span().is_for_messages; }
  Status give_up(shm::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) override;
  void end_late(shm::DeviceActivity::Kind, absl::Time called, absl::Time deadline) override;

  // Whether others have given up the run with this number, and it was another call than this one.
  // Requires the mutex.
  bool skips(uint32_t seq) const;
  Status execute();
  Status meet_and_move();
  // Performs the steps up to the entries of all. The error is not settled yet.
  Status meet(Status own);
  // Errors that only this member can detect. Waits for its device; an error of this wait is a
  // DeadlineExceeded.
  Status check_own(Status& own);
  // Fills the entry, and adds the run to the runs that letters reach. Returns the entry for other
  // hosts.
  std::vector<std::byte> fill_entry(Status own);
  // False where another member's deadline has passed before this member arrived.
  bool note_arrival();
  // The entry that the member sends to other hosts.
  std::vector<std::byte> encode_entry(const Status& own) const;
  // Publishes the member's arrival. Sends it to other hosts, now or together with arrivals within
  // kFirstLook, and posts the received entries for the other clients of this host.
  Status tell_arrival(const std::vector<std::byte>& encoded);
  // Waits for the entries of the other hosts, or for a difference among the entries that have
  // arrived.
  Status wait_for_entries();
  // Waits until its entries have been sent.
  Status wait_for_own_letters();
  // Whether all members, which must have arrived, have the same call and no error.
  bool agree();
  // The error of the arrived members: the error of a member, or a disagreement.
  Status compare_entries();
  void retire();
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_RUN_H_
