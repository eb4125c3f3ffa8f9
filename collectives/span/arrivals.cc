// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/arrivals.h"

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/span/letter_body.h"

namespace tessera::span {
namespace {

using Bytes = absl::Span<const std::byte>;

struct Head {
  int32_t member;
  uint32_t call_bytes;
  uint32_t own_bytes;
};

// The start of a call. Detail, label and the text of the error follow.
struct CallHead {
  Signature signature;
  int64_t part_count;
  int32_t code;
  uint32_t detail_bytes;
  uint32_t label_bytes;
  uint32_t zeros = 0;
};

// The start of an own part. Counts and input follow.
struct OwnHead {
  int64_t in_count;
  int64_t num_counts;
};

bool take_bytes(Bytes& from, size_t size, Bytes& taken) {
  if (size > from.size()) return false;
  taken = from.subspan(0, size);
  from.remove_prefix(size);
  return true;
}

bool read_call(Bytes call, Board::Entry& entry) {
  CallHead head;
  Bytes detail;
  Bytes label;
  if (!take(call, 1, &head) || !take_bytes(call, head.detail_bytes, detail) ||
      !take_bytes(call, head.label_bytes, label)) {
    return false;
  }
  entry.statement = {"", head.signature, head.part_count, text_of(detail), text_of(label)};
  if (head.code != 0) {
    entry.error = Status(static_cast<absl::StatusCode>(head.code), text_of(call));
  }
  return true;
}

bool read_own(Bytes own, Board::Entry& entry) {
  OwnHead head;
  if (!take(own, 1, &head)) return false;
  if (head.num_counts < 0 ||
      static_cast<uint64_t>(head.num_counts) > own.size() / sizeof(int64_t)) {
    return false;
  }
  entry.in_count = head.in_count;
  entry.counts.resize(head.num_counts);
  take(own, entry.counts.size(), entry.counts.data());
  entry.inlined.assign(own.begin(), own.end());
  return true;
}

}  // namespace

std::vector<std::byte> encode_arrival(const Arrival& arrival) {
  const absl::string_view error = arrival.error.message();
  const CallHead call = {.signature = arrival.signature,
                         .part_count = arrival.part_count,
                         .code = static_cast<int32_t>(arrival.error.code()),
                         .detail_bytes = static_cast<uint32_t>(arrival.detail.size()),
                         .label_bytes = static_cast<uint32_t>(arrival.label.size())};
  const OwnHead own = {.in_count = arrival.in_count,
                       .num_counts = static_cast<int64_t>(arrival.counts.size())};
  const size_t call_bytes =
      sizeof(call) + arrival.detail.size() + arrival.label.size() + error.size();
  const size_t own_bytes =
      sizeof(own) + arrival.counts.size() * sizeof(int64_t) + arrival.inlined.size();
  const Head head = {arrival.member, static_cast<uint32_t>(call_bytes),
                     static_cast<uint32_t>(own_bytes)};
  std::vector<std::byte> letter;
  letter.reserve(sizeof(head) + call_bytes + own_bytes);
  append(&head, 1, letter);
  append(&call, 1, letter);
  append_text(arrival.detail, letter);
  append_text(arrival.label, letter);
  append_text(error, letter);
  append(&own, 1, letter);
  append(arrival.counts.data(), arrival.counts.size(), letter);
  append(arrival.inlined.data(), arrival.inlined.size(), letter);
  return letter;
}

std::vector<std::byte> join_arrivals(absl::Span<const std::vector<std::byte>> letters) {
  std::vector<std::byte> joined;
  Bytes last_call;
  for (const std::vector<std::byte>& letter : letters) {
    Bytes rest = letter;
    Head head;
    Bytes call;
    if (!take(rest, 1, &head) || !take_bytes(rest, head.call_bytes, call)) continue;
    const bool is_same = std::equal(call.begin(), call.end(), last_call.begin(), last_call.end());
    last_call = call;
    if (is_same) head.call_bytes = 0;
    append(&head, 1, joined);
    append(call.data(), head.call_bytes, joined);
    append(rest.data(), rest.size(), joined);
  }
  return joined;
}

bool read_arrivals(absl::Span<const std::byte> letter,
                   absl::FunctionRef<void(int member, Board::Entry entry)> use) {
  Board::Entry last;  // whose call an entry without one repeats
  bool has_last = false;
  while (!letter.empty()) {
    Head head;
    Bytes call;
    Bytes own;
    if (!take(letter, 1, &head) || !take_bytes(letter, head.call_bytes, call) ||
        !take_bytes(letter, head.own_bytes, own)) {
      return false;
    }
    if (!call.empty()) {
      last = {};
      has_last = read_call(call, last);
    }
    Board::Entry entry;
    entry.statement = last.statement;
    entry.error = last.error;
    if (!has_last || !read_own(own, entry)) return false;
    use(head.member, std::move(entry));
  }
  return true;
}

}  // namespace tessera::span
