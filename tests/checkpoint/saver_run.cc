// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/saver_run.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "job/testing/launcher_run.h"
#include "tests/support/folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

std::vector<Call> read_log(const std::string& path) {
  std::vector<Call> calls;
  std::ifstream log(path);
  std::string line;
  while (std::getline(log, line)) {
    std::istringstream fields(line);
    Call call;
    fields >> call.client >> call.number >> call.name >> call.path >> call.other >> call.fault;
    EXPECT_TRUE(fields) << "a line of the log: " << line;
    calls.push_back(std::move(call));
  }
  return calls;
}

// The lines of the saver that begin with the word.
std::map<int, Returned> read_reports(const std::string& output, absl::string_view word) {
  std::map<int, Returned> reports;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(output, '\n'))) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(' ', 4));
    int client = 0;
    int code = 0;
    int64_t took_ms = 0;
    std::string message;
    if (fields[0] != word) continue;
    if (fields.size() < 5 || !absl::SimpleAtoi(fields[1], &client) ||
        !absl::SimpleAtoi(fields[2], &code) || !absl::SimpleAtoi(fields[3], &took_ms) ||
        !absl::CUnescape(fields[4], &message)) {
      ADD_FAILURE() << "a line of the saver: " << line;
      continue;
    }
    reports[client] = {Status(static_cast<absl::StatusCode>(code), message),
                       absl::Milliseconds(took_ms)};
  }
  return reports;
}

std::vector<std::string> command_of(const SaverJob& job) {
  std::vector<std::string> command = {"tests/checkpoint/saver",
                                      job.verb,
                                      job.path,
                                      absl::StrCat(job.step),
                                      absl::StrCat(job.base),
                                      absl::StrCat(job.num_clients)};
  if (job.again) command.push_back("again");
  return command;
}

// `plan`: what follows the folder and the log in the plan of the fault library.
LauncherRun start(const std::vector<std::string>& command, const std::string& folder,
                  const std::string& log, const std::string& plan) {
  return LauncherRun::program(
      command,
      {absl::StrCat("TESSERA_FAULTS=folder=", folder, ";log=", log, plan.empty() ? "" : ";", plan),
       absl::StrCat("LD_PRELOAD=",
                    fs::canonical("tests/checkpoint/libfault_library.so").string())});
}

SaverRun run(const std::vector<std::string>& command, const std::string& folder,
             const std::string& plan) {
  const Folder logs;
  const std::string log = logs.path() + "/log";
  // Clients whose parent was killed become children of the test, which waits for their ends.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  LauncherRun program = start(command, folder, log, plan);
  SaverRun run;
  run.exit_code = program.wait();
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  run.was_killed = run.exit_code == 128 + SIGKILL;
  run.calls = read_log(log);
  run.first = read_reports(program.output(), "first");
  run.again = read_reports(program.output(), "again");
  run.error_output = program.error();
  return run;
}

}  // namespace

std::string Fault::to_string() const {
  std::string text = absl::StrCat("n=", n, ";do=", action);
  if (client >= 0) absl::StrAppend(&text, ";client=", client);
  if (!call.empty()) absl::StrAppend(&text, ";call=", call);
  if (!path.empty()) absl::StrAppend(&text, ";path=", path);
  return text;
}

std::optional<Call> SaverRun::fault() const {
  for (const Call& call : calls) {
    if (call.fault != "-" && call.fault != "error") return call;
  }
  return std::nullopt;
}

bool SaverRun::is_acknowledged() const {
  return std::any_of(first.begin(), first.end(),
                     [](const auto& report) { return report.second.status.ok(); });
}

SaverRun run_saver(const SaverJob& job, const std::string& folder,
                   const std::optional<Fault>& fault) {
  // With a client in the plan counting begins when the saver says so.
  return run(command_of(job), folder, fault.has_value() ? fault->to_string() : "client=0");
}

SaverRun run_program(const std::vector<std::string>& command, const std::string& folder,
                     const std::optional<Fault>& fault) {
  return run(command, folder, fault.has_value() ? fault->to_string() : "");
}

PausedSaver::PausedSaver(const SaverJob& job, const std::string& folder, Fault fault)
    : program_([&] {
        fault.action = "pause";
        return start(command_of(job), folder, "", fault.to_string());
      }()) {
  program_.await_lines("paused", 1);
}

std::vector<int64_t> sample_of_points(int64_t num_points, int64_t in_ci, uint64_t seed) {
  int64_t count = in_ci;
  const char* const text = std::getenv("TESSERA_CHECKPOINT_POINTS");
  if (text != nullptr && std::string(text) == "all") {
    count = num_points;
  } else if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &count)) << text;
  }
  std::vector<int64_t> points(static_cast<size_t>(num_points));
  std::iota(points.begin(), points.end(), 0);
  std::mt19937_64 random(seed);
  std::shuffle(points.begin(), points.end(), random);
  points.resize(static_cast<size_t>(std::min(count, num_points)));
  std::sort(points.begin(), points.end());
  return points;
}

}  // namespace tessera::testing
