// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/wants.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/dtype.h"

namespace tessera::span {
namespace {

using Target = BoxReduction::Target;

// The member of a host that makes the sums of its host for `member`, which is on another host.
int server_on(const std::vector<int>& host, const Places& places, int member) {
  return host[places.local_index(member) % host.size()];
}

// The part of the reduction that a member adds: its chunk, or of a barrier the whole.
Box part_of(const Collective& collective, int member) {
  const Box& own = collective.reduction()->box;
  return collective.kind() == OpKind::kBarrier ? own : chunk_box(collective, member);
}

// The share of this member in `wants`, of rank 1: equal shares, in order.
std::vector<Want> share_of(std::vector<Want> wants, int64_t line, int index, int num_shares) {
  int64_t all = 0;
  for (const Want& want : wants) all += want.box.sizes[0];
  const auto cut = [&](int k) {
    return std::min(all, (all * k / num_shares + line - 1) / line * line);
  };
  const int64_t first = cut(index);
  const int64_t last = index + 1 == num_shares ? all : cut(index + 1);
  std::vector<Want> share;
  int64_t before = 0;
  for (Want& want : wants) {
    const int64_t size = want.box.sizes[0];
    const int64_t from = std::clamp<int64_t>(first - before, 0, size);
    const int64_t to = std::clamp<int64_t>(last - before, 0, size);
    before += size;
    if (from >= to) continue;
    want.box = {{want.box.offsets[0] + from}, {to - from}};
    share.push_back(std::move(want));
  }
  return share;
}

void append(const Box& box, std::vector<int64_t>& words) {
  words.insert(words.end(), box.offsets.begin(), box.offsets.end());
  words.insert(words.end(), box.sizes.begin(), box.sizes.end());
}

}  // namespace

Places::Places(absl::Span<const int> hosts, int here) {
  std::map<int, int> known;  // in by_host()
  for (size_t m = 0; m < hosts.size(); ++m) {
    const auto [it, is_new] = known.emplace(hosts[m], static_cast<int>(members_on_.size()));
    if (is_new) members_on_.emplace_back();
    std::vector<int>& host = members_on_[it->second];
    host_of_.push_back(it->second);
    local_index_.push_back(static_cast<int>(host.size()));
    host.push_back(static_cast<int>(m));
  }
  here_ = known.at(here);
}

// The kinds in which all members pull the same boxes into outputs that hold the same box.
bool is_divided(const Collective& collective, const Places& places) {
  const bool is_same_for_all =
      collective.kind() == OpKind::kAllGather || collective.kind() == OpKind::kBroadcast;
  return is_same_for_all && places.num_here() > 1;
}

std::vector<Want> wants_of_inputs(const Collective& collective, absl::Span<const BoxPull> pulls,
                                  const Places& places) {
  std::vector<Want> wants;
  const BoxReduction* const reduction = collective.reduction();
  if (reduction == nullptr) {
    for (const BoxPull& pull : pulls) {
      if (places.is_here(pull.source) || pull.box.is_empty()) continue;
      wants.push_back({pull.source, pull.box, pull.source_box});
    }
    if (!is_divided(collective, places)) return wants;
    // Members begin with their own pull: the order of the sources is the same for all.
    std::sort(wants.begin(), wants.end(),
              [](const Want& a, const Want& b) { return a.server < b.server; });
    return share_of(std::move(wants), 64 / dtype_size(collective.dtype()),
                    places.local_index(collective.place().position), places.num_here());
  }
  if (reduction->box.is_empty()) return wants;
  if (adds_by_host(collective)) {
    for (int h = 0; h < static_cast<int>(places.by_host().size()); ++h) {
      if (h == places.here()) continue;
      const int server = server_on(places.by_host()[h], places, collective.place().position);
      wants.push_back({server, reduction->box, reduction->held_by(server)});
    }
    return wants;
  }
  for (int k = 0; k < places.num_members(); ++k) {
    if (!places.is_here(k)) wants.push_back({k, reduction->box, reduction->held_by(k)});
  }
  return wants;
}

bool has_second_step(const Collective& collective) {
  const BoxReduction* const reduction = collective.reduction();
  return reduction != nullptr && reduction->target != Target::kOwn;
}

Box chunk_box(const Collective& collective, int member) {
  const ReducedChunk chunk = chunk_of(collective, member);
  return {{chunk.first}, {chunk.count}};
}

std::vector<Want> wants_of_sums(const Collective& collective, const Places& places) {
  std::vector<Want> wants;
  if (!has_second_step(collective)) return wants;
  const bool is_wanted_here =
      collective.reduction()->target == Target::kAll || places.is_here(collective.root());
  if (!is_wanted_here) return wants;
  const int self = places.local_index(collective.place().position);
  int num_far = 0;
  for (int k = 0; k < places.num_members(); ++k) {
    if (places.is_here(k)) continue;
    const bool is_mine = num_far++ % places.num_here() == self;
    const Box box = chunk_box(collective, k);
    if (is_mine && !box.is_empty()) wants.push_back({k, box, box});
  }
  return wants;
}

std::optional<int> num_askers_of_inputs(const Collective& collective, const Places& places) {
  if (!adds_by_host(collective)) return std::nullopt;
  const int self = collective.place().position;
  const std::vector<int>& here = places.by_host()[places.here()];
  int num_askers = 0;
  for (int m = 0; m < places.num_members(); ++m) {
    if (places.is_here(m) || server_on(here, places, m) != self) continue;
    num_askers += !part_of(collective, m).is_empty();
  }
  return num_askers;
}

int num_askers_of_sums(const Collective& collective, const Places& places) {
  if (!has_second_step(collective) || collective.reduction()->box.is_empty()) return 0;
  if (collective.reduction()->target == Target::kAll) {
    return static_cast<int>(places.by_host().size()) - 1;
  }
  return places.is_here(collective.root()) ? 0 : 1;
}

// of_sums | parts | of each: tag | rank | box | held
std::vector<std::byte> encode(const Request& request) {
  std::vector<int64_t> words = {request.of_sums ? 1 : 0,
                                static_cast<int64_t>(request.parts.size())};
  for (const Request::Part& part : request.parts) {
    words.push_back(static_cast<int64_t>(part.tag));
    words.push_back(static_cast<int64_t>(part.box.sizes.size()));
    append(part.box, words);
    append(part.held, words);
  }
  std::vector<std::byte> bytes(words.size() * sizeof(int64_t));
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::optional<Request> decode_request(absl::Span<const std::byte> bytes) {
  std::vector<int64_t> words(bytes.size() / sizeof(int64_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int64_t));
  size_t next = 0;
  const auto read_box = [&](size_t rank) {
    Box box;
    box.offsets.assign(words.begin() + next, words.begin() + next + rank);
    box.sizes.assign(words.begin() + next + rank, words.begin() + next + 2 * rank);
    next += 2 * rank;
    return box;
  };
  if (words.size() < 2) return std::nullopt;
  Request request;
  request.of_sums = words[0] != 0;
  const int64_t num_parts = words[1];
  next = 2;
  for (int64_t i = 0; i < num_parts; ++i) {
    if (words.size() - next < 2) return std::nullopt;
    const auto tag = static_cast<transport::Tag>(words[next]);
    const int64_t rank = words[next + 1];
    next += 2;
    const auto left = static_cast<int64_t>(words.size() - next);
    if (rank < 0 || rank > left / 4) return std::nullopt;
    Box box = read_box(rank);
    Box held = read_box(rank);
    if (tag >= transport::kNumTags) return std::nullopt;
    request.parts.push_back({std::move(box), std::move(held), tag});
  }
  return request;
}

}  // namespace tessera::span
