// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/wants.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera::network {
namespace {

using Target = BoxReduction::Target;

void append(const Box& box, std::vector<int64_t>& words) {
  words.insert(words.end(), box.offsets.begin(), box.offsets.end());
  words.insert(words.end(), box.sizes.begin(), box.sizes.end());
}

}  // namespace

Places::Places(std::vector<bool> is_here) : local_index_(is_here.size(), -1) {
  for (size_t m = 0; m < is_here.size(); ++m) {
    if (is_here[m]) local_index_[m] = num_here_++;
  }
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
    return wants;
  }
  if (reduction->box.is_empty()) return wants;
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
  const Collective::Chunk chunk = collective.chunk(member);
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

StatusOr<Request> decode_request(absl::Span<const std::byte> bytes) {
  const Status malformed = absl::InvalidArgumentError("a malformed request of another client");
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
  if (words.size() < 2) return malformed;
  Request request;
  request.of_sums = words[0] != 0;
  const int64_t num_parts = words[1];
  next = 2;
  for (int64_t i = 0; i < num_parts; ++i) {
    if (words.size() - next < 2) return malformed;
    const auto tag = static_cast<Tag>(words[next]);
    const int64_t rank = words[next + 1];
    next += 2;
    const auto left = static_cast<int64_t>(words.size() - next);
    if (rank < 0 || rank > left / 4) return malformed;
    Box box = read_box(rank);
    Box held = read_box(rank);
    if (tag >= kNumTags) return malformed;
    request.parts.push_back({std::move(box), std::move(held), tag});
  }
  return request;
}

}  // namespace tessera::network
