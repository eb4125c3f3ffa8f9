// SPDX-License-Identifier: Apache-2.0
//
// The texts of the launch report.
#include "job/launcher/launch_report.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

std::string details(const ClientEnd& client) {
  std::string text;
  if (!client.reported_status.empty()) {
    absl::StrAppend(&text, "  error: ", client.reported_status, "\n");
  }
  const auto& lines = client.tail.lines();
  if (lines.empty()) return absl::StrCat(text, "  it wrote nothing\n");
  absl::StrAppend(&text, "  last ", lines.size(), lines.size() == 1 ? " line:\n" : " lines:\n");
  for (const std::string& line : lines) absl::StrAppend(&text, "    | ", line, "\n");
  return text;
}

}  // namespace

void TailLines::add(absl::string_view line) {
  std::string kept(line.substr(0, kMaxLineBytes));
  if (kept.size() < line.size()) absl::StrAppend(&kept, "... (", line.size(), " bytes)");
  lines_.push_back(std::move(kept));
  if (lines_.size() > kMaxLines) lines_.pop_front();
}

bool ClientEnd::lost_a_peer() const {
  const bool is_loss = absl::StartsWith(
      reported_status, absl::StatusCodeToString(absl::StatusCode::kUnavailable) + ":");
  // A client that was stopped, and then goes on, is told of its own loss.
  return is_loss &&
         (is_host || !absl::StrContains(reported_status, absl::StrCat("client ", client_id, " (")));
}

std::string ClientEnd::name() const {
  if (is_host) return absl::StrCat("the job on ", host, " (ssh pid ", pid, ")");
  return absl::StrCat("client ", client_id, " (", host, ", pid ", pid, ")");
}

bool is_likelier_cause(const ClientEnd& a, const ClientEnd& b) {
  if (a.lost_a_peer() != b.lost_a_peer()) return b.lost_a_peer();
  const absl::Time a_began = a.ending_since.value_or(a.time);
  const absl::Time b_began = b.ending_since.value_or(b.time);
  if (a_began != b_began) return a_began < b_began;
  return a.ending_since.has_value() && !b.ending_since.has_value();
}

std::string stopped_report(const std::vector<int>& client_ids) {
  if (client_ids.empty()) return "";
  return absl::StrCat("tessera_run: then stopped client", client_ids.size() == 1 ? " " : "s ",
                      absl::StrJoin(client_ids, ", "), "\n");
}

std::string failure_report(const std::vector<ClientEnd>& failures, int num_clients,
                           absl::Time start) {
  const ClientEnd& first = failures[0];
  std::string text = absl::StrCat(
      "tessera_run: ", failures.size(), " of ", num_clients, first.is_host ? " host" : " client",
      num_clients == 1 ? "" : "s", " failed; the first was ",
      first.is_host ? first.host : absl::StrCat("client ", first.client_id), "\n");
  for (const ClientEnd& failure : failures) {
    absl::StrAppendFormat(
        &text, "%s %s, %.3f s after the start (%s)\n", failure.name(), failure.exit.to_string(),
        absl::ToDoubleSeconds(failure.time - start),
        absl::FormatTime("%Y-%m-%dT%H:%M:%E9S%Ez", failure.time, absl::LocalTimeZone()));
    absl::StrAppend(&text, details(failure));
  }
  return text;
}

std::string timeout_report(const std::vector<ClientEnd>& unfinished, int num_clients,
                           absl::Duration timeout) {
  std::string text =
      absl::StrCat("tessera_run: stopped at the timeout of ", absl::FormatDuration(timeout), ": ",
                   unfinished.size(), " of ", num_clients, " clients had not exited\n");
  for (const ClientEnd& client : unfinished) {
    const auto& lines = client.tail.lines();
    const std::string last =
        lines.empty() ? "it wrote nothing" : absl::StrCat("its last line was: ", lines.back());
    absl::StrAppend(&text, client.name(), " was still running; ", last, "\n");
    if (!client.reported_status.empty()) {
      absl::StrAppend(&text, "  error: ", client.reported_status, "\n");
    }
  }
  return text;
}

}  // namespace tessera
