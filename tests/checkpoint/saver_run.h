// SPDX-License-Identifier: Apache-2.0
//
// run_saver: one run of the program saver.cc with the fault library, and what is known after it.
//
//   const SaverRun clean = run_saver({.verb = "save", .path = root, .num_clients = 2});
//   clean.calls                       what the clients asked of the system, in order
//   const Fault fault = {.client = 1, .call = "rename", .action = "kill_job_before"};
//   EXPECT_TRUE(run_saver({...}, fault).was_killed);
//
#ifndef TESSERA_TESTS_CHECKPOINT_SAVER_RUN_H_
#define TESSERA_TESTS_CHECKPOINT_SAVER_RUN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "job/testing/launcher_run.h"

namespace tessera::testing {

// The arguments of the saver.
struct SaverJob {
  std::string verb;
  std::string path;
  int64_t step = 200;
  int64_t base = 200;
  int num_clients = 1;
  bool again = false;
};

// A fault of one client, as the first lines of fault_library.cc say.
struct Fault {
  int client = 0;  // -1: a program without clients
  std::string call = "";
  std::string path = "";
  int64_t n = 1;
  std::string action = "";

  std::string to_string() const;
};
inline std::ostream& operator<<(std::ostream& out, const Fault& fault) {
  return out << fault.to_string();
}

// A call that a client made: a line of the library's log.
struct Call {
  int client = 0;
  int64_t number = 0;
  std::string name;
  std::string path;
  std::string other;  // the second path; "-" without one
  std::string fault;  // "-" without one

  bool operator==(const Call&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.client << " " << call.number << " " << call.name << " " << call.path << " "
             << call.other << " " << call.fault;
}

// The result of a call of the saver in one client.
struct Returned {
  Status status;
  absl::Duration took;
};

struct SaverRun {
  bool was_killed = false;  // the whole job
  int exit_code = 0;
  std::vector<Call> calls;
  std::map<int, Returned> first;  // by client
  std::map<int, Returned> again;
  std::string error_output;

  // The call with the fault.
  std::optional<Call> fault() const;
  // Whether any client was told that the first call succeeded.
  bool is_acknowledged() const;
};

// Counts the calls in `folder`: the root, or the folder of the file. All processes have ended when
// it returns; the test has no other children then.
SaverRun run_saver(const SaverJob& job, const std::string& folder,
                   const std::optional<Fault>& fault = std::nullopt);
// As run_saver(), for a program of one process, whose client is -1 in faults and calls.
SaverRun run_program(const std::vector<std::string>& command, const std::string& folder,
                     const std::optional<Fault>& fault = std::nullopt);
// A saver that pauses at a call, until the object goes.
class PausedSaver {
 public:
  // `fault`: its action is set.
  PausedSaver(const SaverJob& job, const std::string& folder, Fault fault);

 private:
  LauncherRun program_;
};

// The points of `num_points` that a test visits: all, or $TESSERA_CHECKPOINT_POINTS of them
// (`in_ci` unless given, "all" for all), drawn by the seed and ascending.
std::vector<int64_t> sample_of_points(int64_t num_points, int64_t in_ci, uint64_t seed);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_CHECKPOINT_SAVER_RUN_H_
