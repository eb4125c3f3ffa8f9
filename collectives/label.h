// SPDX-License-Identifier: Apache-2.0
//
// Label: the name of an operation in messages.
//
//   all_reduce                                          a name
//   barrier "ckpt" on {batch=4}                         a name, a text, and where
//   relayout #12 [x, -] -> [-, x] on {x=2}, f32 [8, 6]  a name, a number, a text
//
// Few operations need their label as one text, so the text is built when it is asked for. A Label
// is a pointer to its parts, which copies share.
#ifndef TESSERA_COLLECTIVES_LABEL_H_
#define TESSERA_COLLECTIVES_LABEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/shared.h"

namespace tessera {

// Writes the text and a final '\0'. If the text does not fit, writes only its two ends, since names
// and lists may differ only at the end. Returns the number of bytes before the '\0'. Requires room
// for one byte.
size_t copy_cut(absl::Span<char> to, absl::string_view text);

class Label {
 public:
  Label() = default;
  Label(SharedText text) : Label(std::move(text), 0, {}) {}
  Label(std::string text) : Label(SharedText(std::move(text))) {}
  Label(const char* text) : Label(std::string(text)) {}
  // "name #number text where"; parts that are 0 or empty are left out.
  Label(SharedText name, uint64_t number, SharedText text, SharedText where = {});

  bool empty() const { return parts_ == nullptr; }
  std::string to_string() const;
  // Equivalent to copy_cut() of to_string().
  size_t copy_to(absl::Span<char> to) const;

 private:
  struct Parts {
    SharedText name;
    uint64_t number;
    SharedText text;
    SharedText where;
  };

  std::shared_ptr<const Parts> parts_;  // null: empty
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_LABEL_H_
