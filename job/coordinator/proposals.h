// SPDX-License-Identifier: Apache-2.0
//
// Proposals: values by series and number, of which the first one counts. The coordinator keeps in
// them the verdicts on the runs of a group between hosts, and the ids of its communicators.
//
//   propose("verdict of 3f", 7, "4:late")    "4:late"
//   propose("verdict of 3f", 7, "14:lost")   "4:late": the first one
//   ... 64 later numbers ...
//   propose("verdict of 3f", 7, "14:lost")   "14:lost": forgotten; the value that the caller has
//
// A series lasts as long as the job, and its numbers ascend. A client asks for a number that the
// others ask for at about the same time: a client that is kMostOfSeries failures of one group
// behind the others has missed the deadlines of them all.
//
// Invariants:
//   1. every caller gets one value for a number that is kept;
//   2. a series keeps its last kMostOfSeries proposals, so that no other series displaces them,
//      unless all series together exceed kMostBytes. Then the oldest proposal that is not the last
//      of its series is removed, or where there is none, the oldest of all. So a busy series does
//      not displace the last proposal of another;
//   3. a number that is forgotten stays forgotten. A caller that waits for it gets an error.
//
// Not thread-safe.
#ifndef TESSERA_JOB_COORDINATOR_PROPOSALS_H_
#define TESSERA_JOB_COORDINATOR_PROPOSALS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

class Proposals {
 public:
  static constexpr size_t kMostOfSeries = 64;
  static constexpr size_t kMostSeries = 65'536;
  static constexpr int64_t kMostBytes = 16 << 20;  // of values, and of kBytesOfProposal for each

  // The first value of the number. `is_new`: whether that is `value`, stored by this call.
  std::string propose(absl::string_view series, uint32_t number, absl::string_view value,
                      bool* is_new);
  // Null where there is none, or it is forgotten.
  const std::string* find(absl::string_view series, uint32_t number) const;
  // Whether the value existed and is forgotten, or will not be stored.
  bool is_forgotten(absl::string_view series, uint32_t number) const;

  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Series;
  using Order = std::list<Series*>;  // of proposals, the oldest first

  static constexpr int64_t kBytesOfProposal = 128;
  struct Kept {
    uint32_t number;
    std::string value;
    Order::iterator place;
  };
  struct Series {
    std::deque<Kept> kept;              // the oldest first
    std::optional<uint32_t> forgotten;  // the latest number
    const Kept* find(uint32_t number) const;
    bool has_forgotten(uint32_t number) const;
  };

  void forget_oldest(Series& series);

  std::map<std::string, Series, std::less<>> series_;
  Order last_;     // the last proposal of each series
  Order earlier_;  // all others, in the order in which their series replaced them as the last
  int64_t num_bytes_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_COORDINATOR_PROPOSALS_H_
