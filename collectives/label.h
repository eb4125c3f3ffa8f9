// SPDX-License-Identifier: Apache-2.0
//
// Label: what an operation is called in messages.
//
//   all_reduce                                          a name
//   barrier "ckpt" on {batch=4}                         a name, a text, and where
//   relayout #12 [x, -] -> [-, x] on {x=2}, f32 [8, 6]  a name, a number, a text
//
// Few operations ever need theirs as one text: it is put together when somebody asks for it, and a
// copy of a Label takes nothing from the heap.
#ifndef TESSERA_COLLECTIVES_LABEL_H_
#define TESSERA_COLLECTIVES_LABEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "collectives/shared.h"

namespace tessera {

class Label {
 public:
  Label() = default;
  Label(SharedText text) : name_(std::move(text)) {}
  Label(std::string text) : name_(std::move(text)) {}
  Label(const char* text) : name_(std::string(text)) {}
  // "name #number text where"; without what is 0 or empty. Requires a name.
  Label(SharedText name, uint64_t number, SharedText text, SharedText where = {})
      : name_(std::move(name)), number_(number), text_(std::move(text)), where_(std::move(where)) {}

  bool empty() const { return name_.empty(); }
  std::string to_string() const;
  // Writes as much as fits and a final '\0'; returns the number of bytes before that. Requires
  // room for one byte.
  size_t copy_to(absl::Span<char> to) const;

 private:
  SharedText name_;
  uint64_t number_ = 0;
  SharedText text_;
  SharedText where_;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_LABEL_H_
