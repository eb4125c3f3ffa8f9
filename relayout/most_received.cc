// SPDX-License-Identifier: Apache-2.0
#include "relayout/most_received.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "layout/layout.h"
#include "relayout/shard_grid.h"
#include "relayout/sub_axes.h"

namespace tessera::internal {
namespace {

constexpr int64_t kMostTried = 128;

// How the old shards of a dim relate to the new ones.
enum class Relation : uint8_t { kHeld, kGathered, kOther };

struct Dim {
  int64_t size = 0;
  int64_t old_shards = 1;
  int64_t new_shards = 1;
  Relation relation = Relation::kOther;
  Digits new_digits;
  Digits minor;                // kGathered: tell the old shards in a new one apart
  bool minor_is_free = false;  // no new shard depends on them

  int64_t largest() const { return (size + new_shards - 1) / new_shards; }
  // How much of a largest new shard its device already holds, at least.
  int64_t least_held() const {
    if (relation == Relation::kHeld) return largest();
    if (relation == Relation::kOther) return 0;
    const int64_t least = size / old_shards;
    const int64_t in_each = old_shards / new_shards;
    return largest() == in_each * (least + 1) ? least + 1 : least;
  }
  // Some shard of the largest size. Shard k is one where k * (size % new_shards) passes a multiple
  // of new_shards: the q-th of them is floor(q * new_shards / (size % new_shards)).
  int64_t large_shard(uint64_t number) const {
    const int64_t larger = size % new_shards;
    if (larger == 0) return static_cast<int64_t>(number % new_shards);
    return static_cast<int64_t>(static_cast<__int128>(number % larger) * new_shards / larger);
  }
  // kGathered: which of the old shards in new shard `shard` is a smallest one, by binary search for
  // the first few of them among which there is one.
  int64_t small_minor(int64_t shard) const {
    const int64_t in_each = old_shards / new_shards;
    const int64_t first = shard * in_each;
    const auto begin = [&](int64_t old) { return shard_interval(size, old_shards, old).first; };
    const int64_t least = size / old_shards;
    int64_t few = 0;         // among so many there is none
    int64_t many = in_each;  // among so many there is one, if there is any
    while (many - few > 1) {
      const int64_t middle = few + (many - few) / 2;
      const bool has_small = begin(first + middle) - begin(first) < middle * (least + 1);
      (has_small ? many : few) = middle;
    }
    return many - 1;
  }
};

// A number for try `attempt` at choice `choice`: 0 for the first, and different ones spread evenly.
uint64_t spread(uint64_t attempt, uint64_t choice) {
  if (attempt == 0) return 0;
  uint64_t bits = attempt * 0x9e3779b97f4a7c15u + choice * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 31)) * 0x94d049bb133111ebu;
  return (bits ^ (bits >> 29)) >> 1;
}

class Search {
 public:
  explicit Search(const PullRouting& routing) : routing_(routing), to_(routing.to().layout()) {
    const Layout& from = routing.from().layout();
    same_mesh_ = from.mesh() == to_.mesh();
    for (int dim = 0; dim < to_.rank(); ++dim) {
      Dim& row = dims_.emplace_back();
      row.size = routing.to().shape()[dim];
      row.old_shards = from.num_shards(dim);
      row.new_shards = to_.num_shards(dim);
      row.new_digits = digits_of(to_.mesh(), to_.dim_axes()[dim]);
    }
    if (same_mesh_) {
      relate(from);
    } else {
      free_ = digits_of(to_.mesh(), complement(to_.mesh(), all_sub_axes(to_.dim_axes())));
    }
  }

  MostReceived run() {
    if (num_elements(routing_.to().shape()) == 0) return result_;
    int64_t largest = 1;
    int64_t least_held = 1;
    for (const Dim& dim : dims_) {
      largest *= dim.largest();
      least_held *= dim.least_held();
    }
    bound_ = largest - (same_mesh_ ? least_held : 0);
    for (int64_t attempt = 0; attempt < std::min(kMostTried, to_.mesh().size()); ++attempt) {
      if (attains_bound(candidate(attempt))) return result_;
    }
    const int64_t positions = same_mesh_ ? num_values(used_) : to_.mesh().size();
    for (int64_t value = 0; value < positions; ++value) {
      if (attains_bound(same_mesh_ ? offset_of(used_, value) : value)) return result_;
    }
    return result_;
  }

 private:
  // Sets the relations of the dims, and which digits are free and used.
  void relate(const Layout& from) {
    const Mesh& mesh = to_.mesh();
    const Cuts cuts(from, to_);
    const SubAxes new_parts = cuts.cut(all_sub_axes(to_.dim_axes()));
    SubAxes used;
    SubAxes chosen = new_parts;
    for (int dim = 0; dim < to_.rank(); ++dim) {
      const SubAxes before = cuts.cut(from.dim_axes()[dim]);
      const SubAxes after = cuts.cut(to_.dim_axes()[dim]);
      used.insert(used.end(), before.begin(), before.end());
      if (is_prefix(before, after)) {
        dims_[dim].relation = Relation::kHeld;
      } else if (is_prefix(after, before)) {
        const SubAxes minor(before.begin() + after.size(), before.end());
        dims_[dim].relation = Relation::kGathered;
        dims_[dim].minor = digits_of(mesh, minor);
        dims_[dim].minor_is_free =
            std::none_of(minor.begin(), minor.end(),
                         [&](const SubAxis& part) { return overlaps_any(part, new_parts); });
        if (dims_[dim].minor_is_free) chosen.insert(chosen.end(), minor.begin(), minor.end());
      }
    }
    used.insert(used.end(), new_parts.begin(), new_parts.end());
    used_ = digits_of(mesh, whole_where_unaligned(cuts, used));
    free_ = digits_of(mesh, complement(mesh, whole_where_unaligned(cuts, chosen)));
  }

  // In mesh order, each once; parts of an axis that the layouts do not cut alike are the axis.
  SubAxes whole_where_unaligned(const Cuts& cuts, SubAxes parts) const {
    const Mesh& mesh = to_.mesh();
    for (SubAxis& part : parts) {
      if (!cuts.aligned(part.axis)) part = {part.axis, 1, mesh.axes()[part.axis].size};
    }
    return normalised(mesh, std::move(parts));
  }

  int64_t candidate(int64_t attempt) const {
    int64_t position = 0;
    for (size_t i = 0; i < dims_.size(); ++i) {
      const Dim& dim = dims_[i];
      const int64_t shard = dim.large_shard(spread(attempt, 2 * i));
      position += offset_of(dim.new_digits, shard);
      if (dim.minor_is_free) position += offset_of(dim.minor, dim.small_minor(shard));
    }
    // Between the first and the last: what is far from the new shard holds nothing of it.
    const int64_t choices = num_values(free_);
    const int64_t choice =
        attempt == 0 ? choices - 1 : static_cast<int64_t>(spread(attempt, 1) % choices);
    return position + offset_of(free_, choice);
  }

  bool attains_bound(int64_t position) {
    const int64_t elements = routing_.received_at(position);
    ++result_.num_looked_at;
    if (elements > result_.elements) {
      result_.elements = elements;
      result_.position = position;
    }
    return elements == bound_;
  }

  const PullRouting& routing_;
  const Layout& to_;
  bool same_mesh_ = false;
  std::vector<Dim> dims_;
  Digits free_;  // that neither new shards nor free minor digits depend on
  Digits used_;  // same mesh: that the answer of a position depends on
  int64_t bound_ = 0;
  MostReceived result_;
};

}  // namespace

MostReceived most_received(const PullRouting& routing) { return Search(routing).run(); }

}  // namespace tessera::internal
