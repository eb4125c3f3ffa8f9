// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/circles.h"

#include <utility>

#include "collectives/network/letter_body.h"

namespace tessera::network {
namespace {

// Visits that are remembered. A forgotten visit costs letters.
constexpr size_t kMostVisits = 1 << 14;

struct LetterHead {
  CircleLetter::Round round;
  uint32_t number;
  uint32_t at;
  uint32_t num_hops;
};

// The label and the ids of the group follow.
struct HopHead {
  uint64_t group;
  uint64_t name_hash;
  int32_t device;
  uint32_t seq;
  uint32_t label_bytes;
  uint32_t num_ids;
};

bool take_hop(absl::Span<const std::byte>& in, CircleHop& hop) {
  HopHead head;
  if (!take(in, 1, &head)) return false;
  if (head.label_bytes > in.size() || head.num_ids > in.size() / sizeof(int)) return false;
  hop.device = head.device;
  hop.run = {head.group, head.seq};
  hop.name_hash = head.name_hash;
  hop.label.resize(head.label_bytes);
  hop.group.resize(head.num_ids);
  return take(in, hop.label.size(), hop.label.data()) &&
         take(in, hop.group.size(), hop.group.data());
}

}  // namespace

std::vector<std::byte> encode(const CircleLetter& letter) {
  std::vector<std::byte> out;
  const LetterHead head = {letter.round, letter.number, letter.at,
                           static_cast<uint32_t>(letter.hops.size())};
  append(&head, 1, out);
  for (const CircleHop& hop : letter.hops) {
    const HopHead hop_head = {hop.run.group,
                              hop.name_hash,
                              hop.device,
                              hop.run.seq,
                              static_cast<uint32_t>(hop.label.size()),
                              static_cast<uint32_t>(hop.group.size())};
    append(&hop_head, 1, out);
    append_text(hop.label, out);
    append(hop.group.data(), hop.group.size(), out);
  }
  return out;
}

std::optional<CircleLetter> decode_circle(absl::Span<const std::byte> bytes) {
  LetterHead head;
  CircleLetter letter;
  bool is_good = take(bytes, 1, &head) && head.round <= CircleLetter::Round::kEnd &&
                 head.num_hops > 0 && head.num_hops <= bytes.size() / sizeof(HopHead);
  if (is_good) {
    letter = {head.round, head.number, head.at, std::vector<CircleHop>(head.num_hops)};
    for (CircleHop& hop : letter.hops) is_good = is_good && take_hop(bytes, hop);
    const bool is_circle = head.round != CircleLetter::Round::kSearch;
    is_good = is_good && bytes.empty() && (!is_circle || head.at <= head.num_hops);
  }
  if (!is_good) return std::nullopt;
  return letter;
}

void Circles::search(int device) {
  std::optional<CircleWait> wait = site_.wait_of(device);
  if (!wait.has_value()) return;
  CircleLetter letter = {.hops = {std::move(wait->hop)}};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    letter.number = ++last_number_;
  }
  for (const int missing : wait->missing) site_.send(missing, letter);
}

void Circles::read(int device, CircleLetter letter) {
  if (letter.round == CircleLetter::Round::kSearch) return read_search(device, std::move(letter));
  if (letter.round == CircleLetter::Round::kEnd) return read_end(device, std::move(letter));
  // Back at the first one: it was there all the time.
  if (letter.at == letter.hops.size()) {
    letter.round = CircleLetter::Round::kEnd;
    letter.at = 0;
    return read_end(device, std::move(letter));
  }
  const std::optional<CircleWait> wait = site_.wait_of(device);
  const CircleHop& hop = letter.hops[letter.at];
  if (hop.device != device || !wait.has_value() || wait->hop.run != hop.run) return;
  ++letter.at;
  site_.send(letter.hops[letter.at % letter.hops.size()].device, letter);
}

void Circles::read_search(int device, CircleLetter letter) {
  const CircleHop& origin = letter.hops.front();
  if (site_.has_arrived(device, letter.hops.back().run)) return;
  std::optional<CircleWait> wait = site_.wait_of(device);
  if (!wait.has_value()) return;
  const RunId run = wait->hop.run;
  const bool is_first = letter.hops.size() == 1;
  if (is_first && origin.name_hash != 0 && wait->hop.name_hash == origin.name_hash &&
      run.group != origin.run.group) {
    return confirm({std::move(wait->hop), origin});
  }
  if (run == origin.run) {
    // The device waits there in place of the device that has searched.
    if (is_first) return;
    letter.hops.front() = std::move(wait->hop);
    return confirm(std::move(letter.hops));
  }
  if (wait->spans_hosts && run < origin.run) return;
  if (!is_first_visit(device, letter)) return;
  letter.hops.push_back(std::move(wait->hop));
  for (const int missing : wait->missing) site_.send(missing, letter);
}

bool Circles::is_first_visit(int device, const CircleLetter& letter) {
  const CircleHop& origin = letter.hops.front();
  std::lock_guard<std::mutex> lock(mutex_);
  if (visits_.size() >= kMostVisits) visits_.clear();
  const auto [visit, is_new] =
      visits_.try_emplace({origin.device, origin.run, device}, letter.number);
  if (is_new) return true;
  // Ignores older searches too: two that alternate would circulate forever. Numbers begin again.
  if (static_cast<int32_t>(letter.number - visit->second) <= 0) return false;
  visit->second = letter.number;
  return true;
}

void Circles::confirm(std::vector<CircleHop> circle) {
  const int first = circle[0].device;
  read(first, {.round = CircleLetter::Round::kConfirm, .hops = std::move(circle)});
}

void Circles::read_end(int device, CircleLetter letter) {
  const size_t at = letter.at;
  if (letter.hops[at % letter.hops.size()].device != device) return;
  if (at == letter.hops.size()) return site_.release(letter.hops[0]);
  ++letter.at;
  const int next = letter.hops[letter.at % letter.hops.size()].device;
  site_.end(letter.hops[at], letter.hops, /*is_held=*/at == 0,
            [this, next, letter] { site_.send(next, letter); });
}

}  // namespace tessera::network
