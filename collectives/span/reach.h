// SPDX-License-Identifier: Apache-2.0
//
// Reach: which clients on other hosts answer, from the view of one client. The coordinator finds
// lost clients. Reach finds hosts that are cut off from each other but not from the coordinator: no
// stream between them breaks for minutes.
//
//   Reach reach(heartbeat_interval)
//   reach.note_contact(2, now)           bytes from client 2 have arrived, or it has received some
//   reach.to_ask({2, 3}, now) -> {3}     to be asked now whether it answers
//   reach.silent({2, 3})      -> {}      clients that have not answered several times in a row
//
// Invariants:
//   1. A client is asked when there was no contact with it for an interval, and then once per
//      interval.
//   2. It is silent after more than kMostUnanswered questions in a row: later than the coordinator
//      needs to find that a client is lost.
//   3. Questions are counted and not time: after a stop of this client, however long, only one more
//      question is unanswered.
//
// Pure: without a clock, a transport or threads. Not thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_REACH_H_
#define TESSERA_COLLECTIVES_SPAN_REACH_H_

#include <map>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "job/coordinator/coordinator.h"

namespace tessera::span {

class Reach {
 public:
  static constexpr int kMostUnanswered = 2 * (kMissedHeartbeats + 1);
  // Lower limit for short heartbeat intervals: an answer needs time on a machine under load.
  static constexpr absl::Duration kShortestInterval = absl::Milliseconds(250);

  explicit Reach(absl::Duration heartbeat_interval);

  void note_contact(int client, absl::Time now);
  // The clients among these to ask now. The first time that a client is named counts as a contact.
  std::vector<int> to_ask(absl::Span<const int> clients, absl::Time now);
  // In the order of `clients`.
  std::vector<int> silent(absl::Span<const int> clients) const;
  // How long a client has been asked in vain when it is silent.
  absl::Duration limit() const { return interval_ * kMostUnanswered; }

 private:
  struct Contact {
    absl::Time last;         // of the last contact or question
    int num_unanswered = 0;  // questions
  };

  const absl::Duration interval_;
  std::map<int, Contact> contacts_;  // by client
};

// Unavailable: the hosts of `silent`, which is not empty, cannot be reached from the host of
// `self`.
Status describe_unreachable(const MemberInfo& self, absl::Span<const MemberInfo> silent,
                            absl::Duration limit);

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_REACH_H_
