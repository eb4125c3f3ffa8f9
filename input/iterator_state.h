// SPDX-License-Identifier: Apache-2.0
//
// IteratorState: the position of an iterator over a data set, as a few numbers.
//
//   std::string text = iterator.state().to_string();     saved with a checkpoint
//   StatusOr<IteratorState> state = IteratorState::parse(text);
//   StatusOr<Iterator> rest = loader.iterate(*state);    yields the remaining batches
//
// The position does not depend on the number of clients or devices, nor on prefetched batches. A
// state describes the next step. A state made by hand, such as {.epoch = 1}, starts an epoch; its
// `dataset` is 0, which matches every data set.
#ifndef TESSERA_INPUT_ITERATOR_STATE_H_
#define TESSERA_INPUT_ITERATOR_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

struct IteratorState {
  // The hash of the data set's source and operations. Functions do not count.
  uint64_t dataset = 0;
  // For a data set that ends in repeat(): the repetition in which the next step begins. For others:
  // the number from which shuffle() takes its order.
  int64_t epoch = 0;
  // The number of batches (elements, for a data set without batches) that began in this epoch.
  int64_t step = 0;
  // The positions of a stream's operations. Without them the elements of the epoch before the step
  // are read again.
  std::vector<int64_t> pipelines = {};

  // "{dataset=h00c0ffee12345678, epoch=2, step=1, pipelines=[]}".
  std::string to_string() const;
  // InvalidArgument for a text that to_string() does not write. The message names the place.
  static StatusOr<IteratorState> parse(absl::string_view text);

  friend bool operator==(const IteratorState& a, const IteratorState& b) {
    return a.dataset == b.dataset && a.epoch == b.epoch && a.step == b.step &&
           a.pipelines == b.pipelines;
  }
};

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_ITERATOR_STATE_H_
