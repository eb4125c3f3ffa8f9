// SPDX-License-Identifier: Apache-2.0
//
// ViewErrors: the views that a function of local_map() requested and that do not exist, and memory
// in their place. Internal to dtensor/.
//
//   errors->report(absl::InvalidArgumentError("output written as i32, and it is f32"));
//   return errors->memory(/*view=*/-1, 12);
//
// The function continues with the memory, which no tensor has, and the op fails with the first
// error.
#ifndef TESSERA_DTENSOR_VIEW_ERRORS_H_
#define TESSERA_DTENSOR_VIEW_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "device/buffer.h"
#include "device/local_device.h"

namespace tessera::internal {

// Thread-safe: a function may have threads of its own.
class TESSERA_INTERNAL ViewErrors {
 public:
  // `most_elements`: as many as the largest shard of the call has. The device must outlive the
  // call of the function.
  ViewErrors(LocalDevice& device, int64_t most_elements, int num_outputs)
      : device_(device), most_elements_(most_elements), num_outputs_(num_outputs) {}

  // "input 0"; "output", or "output 1" in a call with several.
  std::string name_of(int view) const;

  // Keeps only the first error.
  void report(Status error);
  Status first() const;

  // Memory of the device for `num_elements` elements of any type, at least for most_elements: so
  // copies of another shard's size are in bounds. One memory for each `view`. Null where it cannot
  // be allocated.
  std::byte* memory(int view, int64_t num_elements);
  // The box of a view that does not exist: the box of an output, followed by dims of one element up
  // to rank 8, so that indices of dims are in bounds.
  const Box& missing_box(const Box& output);

 private:
  struct Memory {
    int64_t num_elements = 0;
    std::vector<std::byte> on_host;
    std::shared_ptr<Buffer> on_device;
    std::byte* data = nullptr;
  };
  Memory new_memory(int64_t num_elements) const;

  LocalDevice& device_;
  const int64_t most_elements_;
  const int num_outputs_;
  mutable std::mutex mutex_;  // guards the members below
  Status first_;
  std::multimap<int, Memory> memories_;
  std::unique_ptr<const Box> missing_box_;
};

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_VIEW_ERRORS_H_
