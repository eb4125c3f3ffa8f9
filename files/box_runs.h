// SPDX-License-Identifier: Apache-2.0
//
// for_each_run: where the elements of a box are in a file that holds another box, and where they go
// in memory that holds a third one.
//
//   piece [0:4, 0:3] in the file     wanted [0:2, 0:6], which is also the target
//
//     a b c   offsets 0 1 2            a b c . . .    run 1: piece 0, target 0, 3 elements
//     d e f           3 4 5            d e f . . .    run 2: piece 3, target 6, 3 elements
//     g h i           6 7 8
//     j k l           9 ...          consecutive in the file, two runs: they go to two places
//
// All boxes are boxes of one tensor. The piece and the target are row-major and dense.
//
// Pure; safe to call from any thread. O(rank), and amortised O(1) for each run.
#ifndef TESSERA_FILES_BOX_RUNS_H_
#define TESSERA_FILES_BOX_RUNS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/shape.h"

namespace tessera::files {

// Calls run(offset in the piece, offset in the target, bytes) for the elements that `piece` and
// `wanted` have in common. All three numbers are in bytes, the last is positive.
// - The runs hold each common element once, in ascending order of both offsets.
// - A run is consecutive in the piece and in the target, and as long as it can be: the next run
//   does not continue it in both. Runs that continue each other in the piece alone are separate.
// - Nothing is called where there is no common element.
// Requires boxes of one rank, `target` that contains the common elements, and a positive
// `element_bytes` with which no offset exceeds int64.
void for_each_run(
    const Box& piece, const Box& wanted, const Box& target, int64_t element_bytes,
    absl::FunctionRef<void(int64_t piece_offset, int64_t target_offset, int64_t bytes)> run);

}  // namespace tessera::files

#endif  // TESSERA_FILES_BOX_RUNS_H_
