// SPDX-License-Identifier: Apache-2.0
//
// Shared, SharedText: immutable values that copies share.
//
// A relayout that runs repeatedly starts copies of one call: the data that all copies share is not
// copied on the heap each time. Thread-safe, as a shared_ptr is.
#ifndef TESSERA_COLLECTIVES_SHARED_H_
#define TESSERA_COLLECTIVES_SHARED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/stable_hash.h"

namespace tessera {

// Never null: a default T where none was given.
template <class T>
class Shared {
 public:
  Shared() = default;
  Shared(T value)  // the same value, as it can be shared
      : value_(std::make_shared<const T>(std::move(value))) {}

  const T& operator*() const { return value_ == nullptr ? none() : *value_; }
  const T* operator->() const { return &**this; }
  operator const T&() const { return **this; }

 private:
  static const T& none() {
    static const T* const kNone = new T();
    return *kNone;
  }

  std::shared_ptr<const T> value_;  // null: none()
};

// A text: a short one is stored in the object; copies share a longer one. Every operation has
// several, most of them empty: moving a text copies four words.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text) {
    if (text.size() <= sizeof(short_)) {
      short_size_ = static_cast<uint8_t>(text.copy(short_, sizeof(short_)));
    } else {
      const uint64_t hash = stable_hash(text);
      long_ = std::make_shared<const Long>(Long{std::move(text), hash});
    }
  }

  absl::string_view view() const {
    return long_ != nullptr ? absl::string_view(long_->text)
                            : absl::string_view(short_, short_size_);
  }
  // stable_hash(view()); of a long text it is computed once for all copies.
  uint64_t hash() const { return long_ != nullptr ? long_->hash : stable_hash(view()); }
  operator absl::string_view() const { return view(); }
  bool empty() const { return view().empty(); }

 private:
  struct Long {
    std::string text;
    uint64_t hash;
  };
  std::shared_ptr<const Long> long_;  // null: short_ is the text
  uint8_t short_size_ = 0;
  char short_[15] = {};  // all of it is copied
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_SHARED_H_
