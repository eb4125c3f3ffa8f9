// SPDX-License-Identifier: Apache-2.0
//
// update_on_devices(): tensors that get new values in place, as the variables and the state of an
// optimizer do. Internal, for nn/.
//
//   DTensor* const state[] = {&value, &momentum};
//   update_on_devices("Sgd", state, gradient, kernel);
//
// A device's part of a tensor keeps its memory if nothing else holds it when the device computes:
// the new value then reuses the memory of the old one. Otherwise the new value gets memory of its
// own, and the holders of the old value keep it.
#ifndef TESSERA_DTENSOR_DEVICE_UPDATE_H_
#define TESSERA_DTENSOR_DEVICE_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/types/span.h"
#include "base/status.h"
#include "dtensor/dtensor.h"

namespace tessera {
class Engine;  // compute/engine.h
}  // namespace tessera

namespace tessera::internal {

// Dense arrays of one device, of num_elements each: an input, and the old and the new values of the
// state. An old array and its new one may be the same memory.
struct UpdateArrays {
  const std::byte* input;
  absl::Span<const std::byte* const> from;
  absl::Span<std::byte* const> to;
  int64_t num_elements;
};
// Computes by the device's engine, null where threads of the host compute for it. Called as a
// DeviceKernel.
using UpdateKernel = std::function<Status(Engine* engine, const UpdateArrays& arrays)>;

// Replaces each tensor of `state` by the result of the kernel. Requires tensors without errors, of
// one client, shape and layout. An error of a device's input or old state becomes the error of its
// new state. FailedPrecondition after shutdown; nothing is changed then.
Status update_on_devices(const char* label, absl::Span<DTensor* const> state, const DTensor& input,
                         UpdateKernel kernel);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_DEVICE_UPDATE_H_
