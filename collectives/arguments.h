// SPDX-License-Identifier: Apache-2.0
//
// Arguments: the arguments of one run of a Collective. The Collective holds all that runs share.
#ifndef TESSERA_COLLECTIVES_ARGUMENTS_H_
#define TESSERA_COLLECTIVES_ARGUMENTS_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/label.h"
#include "collectives/shared.h"
#include "device/buffer.h"

namespace tessera {

struct Arguments {
  // Dense row-major memory of the sizes that the Collective asks for; ignored where it asks for
  // none. It must stay valid, and have no other writer, until the run is done. Null where there are
  // no elements.
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  // Where the memory belongs to Buffers, `in` and `out` are set to their memory when the run
  // starts.
  // - The run keeps the Buffers alive.
  // - An error of the input becomes the error of the run on all members.
  // - A deferred output acquires its memory, and the output becomes ready when the run is done.
  // - In a Collective with replicas the output shares the memory that the first replica provides.
  std::shared_ptr<const Buffer> in_buffer = nullptr;
  std::shared_ptr<Buffer> out_buffer = nullptr;

  // Text that must be equal on all members, beside the Collective: the barrier's name, the layouts
  // of a relayout. `detail_field`, a literal, names its kind: "name", "layouts"; empty: "counts".
  SharedText detail = {};
  absl::string_view detail_field = {};
  // The run in error messages: `barrier "ckpt" on {batch=4}`. Empty: the default_label(), which is
  // built when it is needed.
  Label label = {};
  // The caller waits for the run immediately, and may run it on its own thread.
  bool caller_waits = false;
  // Counts from the start of the run on the device. Unset: the default of the client.
  std::optional<absl::Duration> timeout = std::nullopt;
  // A deadline of the whole wait. It takes precedence over `timeout`, which is then only the
  // duration in messages.
  std::optional<absl::Time> deadline = std::nullopt;
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_ARGUMENTS_H_
