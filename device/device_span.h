// SPDX-License-Identifier: Apache-2.0
//
// DeviceSpan: memory of one device that a program fills itself and gives to collectives.
//
//   TESSERA_ASSIGN_OR_RETURN(DeviceSpan<float> x, client.allocate<float>(0, 1024));
//   std::fill(x.begin(), x.end(), 1.0f);                     of a CPU device
//   group.all_reduce(x, x, ReduceOp::kSum);
//
// Other members reach this memory directly; memory from elsewhere is copied on its way to other
// clients. It is aligned to 64 bytes and not initialised. Copies of a span share the memory, which
// is released with the last of them: keep a copy until the Work is done. On a GPU it is the GPU's
// memory, which the host must not touch.
#ifndef TESSERA_DEVICE_DEVICE_SPAN_H_
#define TESSERA_DEVICE_DEVICE_SPAN_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

template <class T>
class DeviceSpan {
 public:
  using value_type = T;

  // A span without elements.
  DeviceSpan() = default;
  // `owner` keeps the memory.
  DeviceSpan(absl::Span<T> span, std::shared_ptr<const void> owner)
      : span_(span), owner_(std::move(owner)) {}

  T* data() const { return span_.data(); }
  size_t size() const { return span_.size(); }
  bool empty() const { return span_.empty(); }
  T* begin() const { return span_.begin(); }
  T* end() const { return span_.end(); }
  // Requires i < size().
  T& operator[](size_t i) const { return span_[i]; }

  absl::Span<T> span() const { return span_; }
  absl::Span<const T> const_span() const { return span_; }
  // Converts to a plain span, for functions that take one.
  operator absl::Span<T>() const { return span_; }
  operator absl::Span<const T>() const { return span_; }

 private:
  absl::Span<T> span_;
  std::shared_ptr<const void> owner_;
};

}  // namespace tessera

#endif  // TESSERA_DEVICE_DEVICE_SPAN_H_
