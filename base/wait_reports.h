// SPDX-License-Identifier: Apache-2.0
//
// WaitReports: reports the long waits of this process.
//
//   const ReportedWait wait(reports, "create_mesh {x=4}", [&] { return missing_clients(); });
//   ... the call that blocks ...
//
// One thread looks at the waits of ReportedWait, and at the waits that a source lists. It reports a
// wait after 1, 3, 6, 12 and 30 units and then every 30 units, where a unit is 10 s: after 10 s, 30
// s, 1, 2 and 5 minutes, and every 5 minutes.
//
// Invariants:
//   1. waits of one operation are one wait, which began with the first of them: devices and threads
//      that wait in one operation make one report;
//   2. an ended wait is not reported: a report is written only if the wait is still there after its
//      text was made;
//   3. a process that waits for nothing wakes once in a unit: no wait that begins after a look is
//      due before the next one.
//
// Thread-safe, except start() and stop(). The sink, the source and the texts are called by the
// thread alone, without a lock that ReportedWait takes.
#ifndef TESSERA_BASE_WAIT_REPORTS_H_
#define TESSERA_BASE_WAIT_REPORTS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/thread.h"
#include "base/wait_report.h"

namespace tessera {

class WaitReports {
 public:
  // The cause of a wait: its text, and the clients that it waits for.
  struct Missing {
    std::string text;
    std::vector<int> clients;
  };
  struct Wait {
    std::string operation;
    absl::Time since;  // of steady_now()
    // Nothing where the wait is over.
    std::function<std::optional<Missing>()> missing;
  };
  using Source = std::function<std::vector<Wait>()>;
  // Receives the operation of the ReportedWait that waits now or, if none waits, of the last one
  // that ended. Must not block.
  using Listener = std::function<void(absl::string_view operation, bool is_waiting)>;

  struct Options {
    std::string subject;                               // "client 0"
    std::function<void(const WaitReport&)> sink = {};  // empty: a line on stderr
    absl::Duration unit = absl::Seconds(10);
  };

  explicit WaitReports(Options options) : options_(std::move(options)) {}
  ~WaitReports() { stop(); }

  // ResourceExhausted where the thread cannot be started.
  Status start();
  // Ends the thread. Must not be called by the thread itself.
  void stop();
  // Whether this call is made by the thread.
  bool is_current() const { return thread_.is_current(); }

  // Null: none. When this returns the previous source is not running.
  void set_source(Source source);
  void set_listener(Listener listener);
  // Waits that are shorter are never reported.
  absl::Duration shortest() const { return options_.unit; }

  // Reports all waits that are due, and returns when to look again. The thread calls it; tests call
  // it without a thread.
  absl::Time look(absl::Time now);

 private:
  friend class ReportedWait;
  struct Written {
    absl::Time since;
    int num_reports = 0;
  };

  uint64_t add(Wait wait);
  void remove(uint64_t number);
  void run();
  // The waits of each operation, the first one to have begun before the others. Requires looking_.
  std::map<std::string, std::vector<Wait>> list_waits();
  std::optional<WaitReport> describe(const std::vector<Wait>& waits, absl::Time now) const;

  const Options options_;
  std::mutex looking_;  // held during a look; acquired before mutex_. Guards the next members
  Source source_;
  std::map<std::string, Written> written_;  // by operation

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool stopping_ = false;
  Listener listener_;
  std::map<uint64_t, Wait> registered_;
  uint64_t last_number_ = 0;

  Thread thread_;
};

// A wait of the calling thread, from its construction to its destruction. `missing` is called by
// the thread of the reports, also for a moment after the destruction; a wait for which it returns
// nothing is not reported.
class ReportedWait {
 public:
  // Null: nothing is reported. `since`: of steady_now(); nothing: now.
  ReportedWait(WaitReports* reports, std::string operation,
               std::function<std::optional<WaitReports::Missing>()> missing,
               std::optional<absl::Time> since = std::nullopt);
  ~ReportedWait();
  ReportedWait(const ReportedWait&) = delete;
  ReportedWait& operator=(const ReportedWait&) = delete;

 private:
  WaitReports* const reports_;
  uint64_t number_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_BASE_WAIT_REPORTS_H_
