// SPDX-License-Identifier: Apache-2.0
//
// IteratorState: the position of an iterator over a data set, as a few numbers.
//
//   std::string text = iterator.state().to_string();     saved with a checkpoint
//   StatusOr<IteratorState> state = IteratorState::parse(text);
//   StatusOr<Iterator> rest = loader.iterate(*state);    yields exactly what was still to come
//
// The position does not depend on the number of clients or devices, nor on prefetched batches. A
// state describes the step that comes next. A state made by hand, such as {.epoch = 1}, starts an
// epoch; its `dataset` is 0, which is not compared.
#ifndef TESSERA_INPUT_ITERATOR_STATE_H_
#define TESSERA_INPUT_ITERATOR_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::input {

struct IteratorState {
  // The hash of the data set's description: of its source and operations, not of functions.
  uint64_t dataset = 0;
  // If the data set ends in repeat(): the repetition that the next step begins in. Else the number
  // that shuffle() takes its order from.
  int64_t epoch = 0;
  // Batches (elements, where the data set has no batches) that began in this epoch.
  int64_t step = 0;
  // The positions of a stream's operations. Without them the elements of the epoch before the step
  // are read again.
  std::vector<int64_t> pipelines = {};

  // "{dataset=h00c0ffee12345678, epoch=2, step=1, pipelines=[]}".
  std::string to_string() const;
  // InvalidArgument for a text that to_string() does not write, naming the place.
  static StatusOr<IteratorState> parse(absl::string_view text);

  friend bool operator==(const IteratorState& a, const IteratorState& b) {
    return a.dataset == b.dataset && a.epoch == b.epoch && a.step == b.step &&
           a.pipelines == b.pipelines;
  }
};

}  // namespace tessera::input

#endif  // TESSERA_INPUT_ITERATOR_STATE_H_
