// SPDX-License-Identifier: Apache-2.0
#include "files/box_runs.h"

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/check.h"

namespace tessera::files {
namespace {

// A dim over which runs repeat: the bytes from one index to the next in both memories.
struct Repeat {
  int64_t count;
  int64_t piece_stride;
  int64_t target_stride;
  int64_t index = 0;
};

}  // namespace

void for_each_run(const Box& piece, const Box& wanted, const Box& target, int64_t element_bytes,
                  absl::FunctionRef<void(int64_t, int64_t, int64_t)> run) {
  const size_t rank = piece.sizes.size();
  TESSERA_DCHECK(wanted.sizes.size() == rank && target.sizes.size() == rank);
  // Before strides are multiplied, which are bounded only where there are elements.
  const Box common = intersect(piece, wanted);
  if (common.is_empty()) return;
  // From the minor dim up. A dim belongs to the run while the dims below it are whole in both.
  absl::InlinedVector<Repeat, 8> repeats;
  int64_t piece_stride = element_bytes;
  int64_t target_stride = element_bytes;
  int64_t piece_offset = 0;
  int64_t target_offset = 0;
  int64_t run_bytes = element_bytes;
  bool is_one_run = true;
  for (size_t d = rank; d-- > 0;) {
    const int64_t size = common.sizes[d];
    piece_offset += (common.offsets[d] - piece.offsets[d]) * piece_stride;
    target_offset += (common.offsets[d] - target.offsets[d]) * target_stride;
    if (is_one_run) {
      run_bytes *= size;
      is_one_run = size == piece.sizes[d] && size == target.sizes[d];
    } else if (size > 1) {
      repeats.push_back({size, piece_stride, target_stride});
    }
    piece_stride *= piece.sizes[d];
    target_stride *= target.sizes[d];
  }
  // An odometer; repeats[0] is the fastest wheel.
  while (true) {
    run(piece_offset, target_offset, run_bytes);
    size_t wheel = 0;
    for (; wheel < repeats.size(); ++wheel) {
      Repeat& repeat = repeats[wheel];
      piece_offset += repeat.piece_stride;
      target_offset += repeat.target_stride;
      if (++repeat.index < repeat.count) break;
      piece_offset -= repeat.count * repeat.piece_stride;
      target_offset -= repeat.count * repeat.target_stride;
      repeat.index = 0;
    }
    if (wheel == repeats.size()) return;
  }
}

}  // namespace tessera::files
