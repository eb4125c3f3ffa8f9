// SPDX-License-Identifier: Apache-2.0
//
// Boards: the state of the runs of a group over several hosts, as one client knows it, by their
// numbers: a Board of each run that its members have not all retired, and the verdicts of the last
// failed runs.
//
//   boards.at(12).note_entry(3, entry)     a letter has arrived: member 3 has arrived in run 12
//   boards.keep_failure(12, call, verdict)
//   boards.retire(12)                      once by each member of this client, in order of its runs
//   boards.is_over(12)                     all members of this client have retired it
//
// Numbers follow each other by seq_after(): they begin again after 2^32 runs, and are compared
// within half of that.
//
// Invariants:
//   1. there is no board of a run that is over, whatever letters arrive late;
//   2. a verdict belongs to the run that has its number now, not to a run 2^32 runs ago.
//
// Not thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_BOARDS_H_
#define TESSERA_COLLECTIVES_SPAN_BOARDS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status.h"
#include "collectives/host/member_texts.h"
#include "collectives/signature.h"
#include "collectives/span/wants.h"

namespace tessera::span {

// The news of one run from letters.
struct Board {
  // A member's arrival, as its letter says.
  struct Entry {
    host::Statement statement;  // without the member's name
    int64_t in_count = 0;
    std::vector<int64_t> counts;     // own_counts()
    std::vector<std::byte> inlined;  // the input, of a run whose inputs are in the entries
    Status error;                    // error of the member
    std::optional<int> sender;       // the client whose letter brought it; nothing: it was posted
  };
  struct Asked {
    int from;
    Request request;
  };

  // Compares the call of a member with earlier calls.
  void note_call(const Signature& call);
  // Stores the arrival of a member on another host, and compares it. The first arrival of a member
  // stays, because a run may be reading it.
  void note_entry(int member, Entry entry);
  // Forgets the entries from letters of a client. Returns whether there were any.
  bool drop_entries_of(int sender);

  std::map<int, Entry> entries;  // of members on other hosts
  // Entries that this client is to post for its host when the record is free (Postings).
  std::vector<std::byte> to_post;
  // The number of bytes that this client has read of another client's postings.
  size_t num_read = 0;
  // Links::num_breaks() before a break that has lost entries: the run fails as if it had begun
  // before the break.
  uint64_t breaks_before = UINT64_MAX;
  // The call that entries of other hosts and members of this client have in common. Each is
  // compared once, on arrival.
  std::optional<Signature> call;                 // the first one
  bool has_differences = false;                  // another one differs from it
  bool has_errors = false;                       // an entry of another host brings an error
  std::map<int, std::deque<Asked>> requests[2];  // by member here; first and second step
  std::optional<Status> verdict;
  std::map<int, std::string> doing;  // of members that were asked
  std::set<int> coming;              // the asked members whose entry or verdict is on the way
  std::set<int> have_arrived;        // the asked members that have said that they have arrived
  // Members of this client that have arrived; and members about which others asked before they had
  // arrived, with the call of the member that asked first.
  std::set<int> arrived;
  std::map<int, Signature> late;
  int num_retired = 0;  // members of this client that do not need it any more
};

class Boards {
 public:
  struct Failed {
    uint32_t seq;
    Signature call;
    Status verdict;
    // Whether it is also the verdict for a member that arrives late with this call. Where the
    // members disagreed it is, for any call.
    bool is_of(const Signature& other) const {
      return call == other || absl::IsInvalidArgument(verdict);
    }
  };
  // The number of verdicts that are kept for late members.
  static constexpr size_t kMostFailed = 64;

  // `num_members`: of this client.
  explicit Boards(int num_members) : num_members_(num_members) {}

  // Makes the board where it does not exist. Requires that the run is not over.
  Board& at(uint32_t seq) { return boards_[seq]; }
  // Null where there is none.
  const Board* find(uint32_t seq) const;
  // Calls `use` with each board.
  void for_each(absl::FunctionRef<void(Board&)> use);
  size_t num_boards() const { return boards_.size(); }

  bool is_over(uint32_t seq) const;
  // A member of this client is done with the run, or skips its number.
  void retire(uint32_t seq);

  // The first verdict of a run stays.
  void keep_failure(uint32_t seq, const Signature& call, const Status& verdict);
  // Null where no verdict is kept.
  const Failed* find_failure(uint32_t seq) const;
  // Oldest first.
  const std::deque<Failed>& failures() const { return failures_; }

 private:
  const int num_members_;
  std::map<uint32_t, Board> boards_;  // by number
  std::deque<Failed> failures_;
  uint32_t last_over_ = 0;  // 0: none
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_BOARDS_H_
