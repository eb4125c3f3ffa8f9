// SPDX-License-Identifier: Apache-2.0
//
// SpanState: the state that the runs of a group over several hosts share on one client: the news of
// each run from letters (Boards), the runs that wait for them, and the answers to Links and
// LongWaits about the group.
//
//   a letter arrives:   board.note_entry(...); wake_waiters()
//   a run waits:        wait_for(lock, limit, is_ready)      woken once is_ready() holds
//   a run has failed:   decide(...) asks the coordinator, tell(...) sends it to the other hosts
//
// Threads: the engine's callbacks deliver letters. `mutex` guards their data, and all members after
// it. Members before it do not change, or are thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_STATE_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/host/group_records.h"
#include "collectives/host/host_group.h"
#include "collectives/host/meetings.h"
#include "collectives/host/rendezvous.h"
#include "collectives/signature.h"
#include "collectives/span/boards.h"
#include "collectives/span/letters.h"
#include "collectives/span/long_waits.h"
#include "collectives/span/network.h"
#include "collectives/span/postings.h"
#include "collectives/span/transfers.h"
#include "collectives/span/verdicts.h"
#include "collectives/span/wants.h"
#include "job/coordinator/device_wait.h"
#include "shm/control.h"
#include "transport/engine.h"

namespace tessera::span {

// The most bytes of the inputs of all members together that are sent in the letters.
inline constexpr int64_t kMostInlinedBytes = 64 * host::kInlineBytes;
// Whether inputs are in the letters. Equal on all members.
bool is_inlined(const Collective& collective);

inline LettersOf letters_of(bool is_for_messages) {
  return is_for_messages ? LettersOf::kMessages : LettersOf::kCollectives;
}

// The data that other threads set for a run of this client, and read of it. Guarded by
// SpanState::mutex.
struct RunNews {
  uint32_t seq = 0;  // does not change while the run is among SpanState::running
  // Whether another client of this host posts the entries of other hosts for this one. A run whose
  // inputs are not in the entries waits for letters in any case. Does not change.
  bool reads_posted = false;
  Transfers transfers;
  // The entries that it has sent for its host, until they are received.
  std::vector<std::byte> sent;
  // The start and the end of a waiter's wait that was in vain.
  struct Waited {
    absl::Time called;
    absl::Time deadline;
  };
  std::optional<Waited> waited;
  bool is_waited_new = false;  // until the run has seen it
  bool differs_here = false;   // from another member of this host, all of which have arrived
  // The data that a wait shows once it has lasted for a while.
  struct Shown {
    std::string label;
    absl::Time since;
    uint64_t name_hash;  // of a named barrier
  };
  std::optional<Shown> shown;
  // The end of a circle of waits that includes the run. The function that removes it calls `next`.
  struct Ending {
    Status error;
    bool is_held = false;  // until is_released
    std::function<void()> next;
  };
  std::optional<Ending> ending;
  bool is_released = false;
  // Set by events that end a wait for the members of this host.
  std::atomic<bool> has_news{false};
};

class SpanState final : public WaitingGroup {
 public:
  // `rendezvous`: of the members on this host, in the order of the group. The group, which must
  // outlive it, has the members of all hosts.
  SpanState(host::HostGroup& group, std::shared_ptr<Network> network, bool is_for_messages,
            host::Rendezvous rendezvous);

  int num_members() const { return static_cast<int>(group.all_members().size()); }
  std::string name_of(int member) const;
  host::Rendezvous& rendezvous() { return meetings.rendezvous(); }
  void send_to_others(const Letter& letter) const;
  // Whether all members of this host have arrived in a run, and one has made a different call.
  bool differ_here(uint32_t seq, const Signature& call);
  // Whether all members of all hosts have arrived.
  bool all_came(uint32_t seq);

  // A verdict of a run, and whether this client has not known it before.
  struct Verdict {
    Status status;
    bool is_new;
  };
  // The first verdict that any host has proposed: asks the coordinator which it is, until a moment
  // after the deadline. Must be called without the mutex.
  Verdict decide(uint32_t seq, const Signature& call, const Status& error, absl::Time deadline);
  // Sends it to the other hosts.
  void tell(uint32_t seq, const Signature& call, const Status& verdict) const {
    send_to_others(letter_of(seq, call, verdict));
  }
  // The letter with a verdict, from a member of this client.
  Letter letter_of(uint32_t seq, const Signature& call, const Status& verdict) const;

  std::optional<LocalWait> wait_of(int device) override;
  bool has_arrived(int device, uint32_t seq) override;
  bool has_part(const host::GroupRecords& on_host) const override {
    return meetings.rendezvous().records().id() == on_host.id();
  }
  void end(const DeviceWait& wait, const Status& error, bool is_held,
           std::function<void()>& next) override;
  void release(const DeviceWait& wait) override;
  void connection_broke(int client, uint64_t number) override;
  void connection_is_up(int client) override;
  GroupWait awaited_in(uint32_t seq) override;

  // ---- The functions below require the mutex.

  // Whether the entries of all members on other hosts are here.
  bool have_all_come(const Board& board) const {
    return board.entries.size() == static_cast<size_t>(num_members() - group.size());
  }
  // `here`: arrivals() of the record.
  bool has_come(int member, const std::vector<bool>& here, const Board& board) const;
  // Notes the entries that another client of this host has posted.
  void read_posted(uint32_t seq);
  // Keeps the verdict of a run, also for late members.
  void keep_failure(uint32_t seq, const Signature& call, const Status& verdict);
  // The run in which a device of this client publishes that it waits. Null where there is none, or
  // where it has another number than `seq`, if that is given.
  RunNews* shown_by(int device, std::optional<uint32_t> seq = {}) const;
  // Releases the lock until the condition holds or `limit` has passed, and returns whether it
  // holds. Does the engine's work meanwhile. `is_ready` is called under the mutex, by other threads
  // too, and must not change their data.
  bool wait_for(std::unique_lock<std::mutex>& lock, absl::Duration limit,
                absl::FunctionRef<bool()> is_ready);
  // Wakes the threads whose condition now holds.
  void wake_waiters();
  // Wakes all threads, which then check conditions that no letter reports.
  void wake_all();
  // Ends the wait of a run for the members of this host, so that it checks its conditions.
  void nudge(RunNews& run);
  void nudge_runs(uint32_t seq);

  host::HostGroup& group;
  const std::shared_ptr<Network> network;
  const bool is_for_messages;
  const uint64_t name;  // of its letters
  const Verdicts verdicts;
  const Places places;
  const std::vector<int> others;  // the clients of the group on other hosts
  host::Meetings meetings;
  Postings postings;  // put() and take() are thread-safe; the mutex guards the other functions

  std::mutex mutex;
  Boards boards;
  std::vector<RunNews*> running;  // by member of this host, from its arrival on; null: none
  // The run that often checks the conditions for which nothing wakes it; it shares the result with
  // the others.
  const RunNews* checker = nullptr;

 private:
  // A waiter is woken once its condition holds, not for every letter.
  struct Waiter {
    absl::FunctionRef<bool()> is_ready;
    transport::Engine::Wait wait = {};
  };
  std::vector<Waiter*> waiters_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_STATE_H_
