// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/call_agreement.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/checksum.h"
#include "dtensor/client_messages.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr char kSame = '=';
constexpr char kDiffers = '#';
constexpr size_t kChecksumDigits = 32;
constexpr size_t kMostBytesOfLines = size_t{1} << 20;

Status differs(const Client& client, size_t other, absl::string_view mine,
               absl::string_view theirs) {
  using tessera::internal::describe_client;
  return absl::InvalidArgumentError(
      absl::StrCat("clients make different calls: ", describe_client(client, 0), " has ", mine,
                   ", and ", describe_client(client, static_cast<int>(other)), " has ", theirs));
}

// The call in a value of the first round. The value of a call of files/ is the call itself.
absl::string_view call_of(absl::string_view value) {
  const size_t blank = value.find(' ');
  return blank == kChecksumDigits ? value.substr(blank + 1) : value;
}

// The first value that differs from that of client 0, or their number.
size_t find_other(absl::Span<const std::string> values) {
  return std::find_if(values.begin(), values.end(),
                      [&](const std::string& value) { return value != values[0]; }) -
         values.begin();
}

Rounds::Value name_difference(const Client& client, absl::Span<const std::string> values) {
  const size_t other = find_other(values);
  if (other == values.size()) {
    return absl::InvalidArgumentError(
        "clients make calls that differ far behind in their arguments; compare the lists of "
        "tensors");
  }
  const std::vector<absl::string_view> mine = absl::StrSplit(values[0], '\n');
  const std::vector<absl::string_view> theirs = absl::StrSplit(values[other], '\n');
  const size_t count = std::min(mine.size(), theirs.size());
  const size_t line =
      std::mismatch(mine.begin(), mine.begin() + count, theirs.begin()).first - mine.begin();
  const auto text = [line](const std::vector<absl::string_view>& lines) {
    return line < lines.size() ? lines[line] : absl::string_view("no more");
  };
  return differs(client, other, text(mine), text(theirs));
}

}  // namespace

Rounds::Value agree_on_call(const Client& client, Rounds& rounds, const CallText& mine,
                            const Status& refused, absl::FunctionRef<Rounds::Value()> then) {
  std::string lines = absl::StrJoin(mine.lines, "\n");
  const std::string checksum = checksum128_hex(lines);
  const Rounds::Value value =
      refused.ok() ? Rounds::Value(absl::StrCat(checksum, " ", mine.call)) : Rounds::Value(refused);
  Rounds::Value result = rounds.agree(client, mine.call, value,
                                      [&](absl::Span<const std::string> values) -> Rounds::Value {
                                        const size_t other = find_other(values);
                                        if (other == values.size()) {
                                          TESSERA_ASSIGN_OR_RETURN(const std::string next, then());
                                          return absl::StrCat(std::string(1, kSame), next);
                                        }
                                        const absl::string_view call = call_of(values[other]);
                                        if (call == mine.call) return std::string(1, kDiffers);
                                        return differs(client, other, mine.call, call);
                                      });
  TESSERA_RETURN_IF_ERROR(result.status());
  if ((*result)[0] == kSame) return result->substr(1);
  lines.resize(std::min(lines.size(), kMostBytesOfLines));
  return rounds.agree(client, mine.call, lines, [&](absl::Span<const std::string> values) {
    return name_difference(client, values);
  });
}

}  // namespace tessera::checkpoint::internal
