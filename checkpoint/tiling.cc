// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tiling.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera::checkpoint::internal {
namespace {

// The prime 2^61 - 1.
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

uint64_t multiply(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b % kPrime);
}

uint64_t subtract(uint64_t a, uint64_t b) { return a >= b ? a - b : a + kPrime - b; }

// The finalizer of SplitMix64: a bijection that mixes all bits.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// value() of the header, with numbers from a key that is drawn here.
class BoxValues {
 public:
  BoxValues() {
    std::random_device random;
    for (uint64_t& key : keys_) key = (uint64_t{random()} << 32) ^ random();
  }

  uint64_t value(const Box& box) const {
    uint64_t product = 1;
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      const uint64_t end = number(d, box.offsets[d] + box.sizes[d]);
      product = multiply(product, subtract(end, number(d, box.offsets[d])));
    }
    return product;
  }

 private:
  // F_d(place).
  uint64_t number(size_t d, int64_t place) const {
    return mix(mix(mix(d ^ keys_[0]) + static_cast<uint64_t>(place)) ^ keys_[1]) % kPrime;
  }

  uint64_t keys_[2];
};

bool is_tiled(const Shape& shape, absl::Span<const Piece> pieces) {
  if (pieces.size() == 1 && pieces[0].box == whole_box(shape)) return true;  // Most tensors.
  const BoxValues values;
  uint64_t sum = 0;
  for (const Piece& piece : pieces) {
    // The numbers of equal places are equal: a box without elements has the value 0.
    sum = (sum + values.value(piece.box)) % kPrime;
  }
  return sum == values.value(whole_box(shape));
}

// The dim in which the boxes begin at the most places. Requires a rank of at least 1.
size_t most_cut_dim(absl::Span<const Box* const> boxes) {
  size_t best = 0;
  size_t most = 0;
  for (size_t d = 0; d < boxes[0]->sizes.size(); ++d) {
    absl::flat_hash_set<int64_t> begins;
    for (const Box* box : boxes) begins.insert(box->offsets[d]);
    if (begins.size() <= most) continue;
    most = begins.size();
    best = d;
  }
  return best;
}

bool have_common_element(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

struct Overlap {
  const Box* first;
  const Box* second;
};

// Sweeps along the dim with the most cuts, and compares each box with the boxes that cover its
// begin.
// Nothing where there is no overlap, or after kMaxComparisons of a hostile manifest.
std::optional<Overlap> find_overlap(std::vector<const Box*> boxes) {
  constexpr int64_t kMaxComparisons = 20'000'000;
  if (boxes.size() < 2) return std::nullopt;
  if (boxes[0]->sizes.empty()) return Overlap{boxes[0], boxes[1]};
  const size_t dim = most_cut_dim(boxes);
  std::stable_sort(boxes.begin(), boxes.end(),
                   [dim](const Box* a, const Box* b) { return a->offsets[dim] < b->offsets[dim]; });
  std::vector<const Box*> open;
  int64_t comparisons = 0;
  for (const Box* box : boxes) {
    const auto ended = [&](const Box* other) {
      return other->offsets[dim] + other->sizes[dim] <= box->offsets[dim];
    };
    comparisons += static_cast<int64_t>(open.size());
    if (comparisons > kMaxComparisons) return std::nullopt;
    open.erase(std::remove_if(open.begin(), open.end(), ended), open.end());
    for (const Box* other : open) {
      if (have_common_element(*other, *box)) return Overlap{other, box};
    }
    open.push_back(box);
  }
  return std::nullopt;
}

// The indices of the first element in row-major order that no box holds. Requires disjoint boxes:
// then a slice of the shape is covered where the volumes of the boxes in it are its volume. Finds
// the first slice along dim 0 that is not covered, then goes on in that slice.
std::optional<std::vector<int64_t>> first_missing(const Shape& shape,
                                                  std::vector<const Box*> boxes) {
  std::vector<int64_t> place;
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto volume = [d](absl::Span<const int64_t> sizes) {
      return num_elements(sizes.subspan(d + 1));
    };
    std::vector<std::pair<int64_t, int64_t>> changes = {{0, 0}};  // Place, change of the volume.
    for (const Box* box : boxes) {
      changes.push_back({box->offsets[d], volume(box->sizes)});
      changes.push_back({box->offsets[d] + box->sizes[d], -volume(box->sizes)});
    }
    std::sort(changes.begin(), changes.end());
    const int64_t whole = volume(shape);
    __int128 covered = 0;
    std::optional<int64_t> first;
    for (size_t i = 0; i < changes.size() && !first.has_value(); ++i) {
      covered += changes[i].second;
      const bool is_last = i + 1 == changes.size() || changes[i + 1].first != changes[i].first;
      if (is_last && covered < whole && changes[i].first < shape[d]) first = changes[i].first;
    }
    if (!first.has_value()) return std::nullopt;
    place.push_back(*first);
    boxes.erase(std::remove_if(boxes.begin(), boxes.end(),
                               [&](const Box* box) {
                                 return *first < box->offsets[d] ||
                                        *first >= box->offsets[d] + box->sizes[d];
                               }),
                boxes.end());
  }
  if (!boxes.empty()) return std::nullopt;
  return place;
}

template <class... Parts>
Status refuse(absl::string_view tensor, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", in_quotes(tensor), ": ", parts...));
}

Status check_inside(absl::string_view tensor, const Shape& shape, const Box& box) {
  if (box.sizes.size() != shape.size() || box.offsets.size() != shape.size()) {
    return refuse(tensor, "a piece has a box of ", box.sizes.size(), " dims, the shape ",
                  shape_to_string(shape), " has ", shape.size());
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t begin = box.offsets[d];
    if (begin < 0 || begin > shape[d] || box.sizes[d] < 0 || box.sizes[d] > shape[d] - begin) {
      return refuse(tensor, "the box ", box.to_string(), " of a piece is not inside the shape ",
                    shape_to_string(shape));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status check_tiling(absl::string_view tensor, const Shape& shape, absl::Span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    TESSERA_RETURN_IF_ERROR(check_inside(tensor, shape, piece.box));
  }
  if (is_tiled(shape, pieces)) return absl::OkStatus();
  std::vector<const Box*> boxes;
  for (const Piece& piece : pieces) {
    if (!piece.box.is_empty()) boxes.push_back(&piece.box);
  }
  const std::optional<Overlap> overlap = find_overlap(boxes);
  if (overlap.has_value()) {
    return refuse(tensor, "its pieces ", overlap->first->to_string(), " and ",
                  overlap->second->to_string(), " have elements in common");
  }
  const std::optional<std::vector<int64_t>> missing = first_missing(shape, std::move(boxes));
  if (missing.has_value()) {
    return refuse(tensor, "no piece holds element ", shape_to_string(*missing), " of the shape ",
                  shape_to_string(shape));
  }
  return refuse(tensor, "its pieces do not hold each element of the shape ", shape_to_string(shape),
                " once");
}

}  // namespace tessera::checkpoint::internal
