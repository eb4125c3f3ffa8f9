// SPDX-License-Identifier: Apache-2.0
//
// Two properties are checked:
//
// - Any bytes read as a file of a data set are refused with a message that names the file, or give
//   elements of the types that the data set says.
// - Any text read as an iterator state is refused, or the state reads back from its own text.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/status.h"
#include "fuzz/fuzz.h"
#include "input/dataset.h"
#include "input/iterator_state.h"
#include "input/source.h"

namespace tessera::input {
namespace {

using fuzz::require;

// A file in memory with these bytes; its path is valid until the next call.
std::string file_of(absl::string_view bytes) {
  static const int file = memfd_create("fuzz", MFD_CLOEXEC);
  require(ftruncate(file, 0) == 0 &&
              pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "a file in memory");
  return absl::StrCat("/proc/self/fd/", file);
}

StatusOr<Dataset> open(int format, const std::string& path) {
  switch (format) {
    case 0:
      return Dataset::npy(path);
    case 1:
      return Dataset::idx(path);
    case 2:
      return Dataset::csv({path}, {DType::kInt32, DType::kFloat32, DType::kBool});
    case 3:
      return Dataset::csv({path}, {DType::kBFloat16}, {.skip_lines = 1});
    case 4:
      return Dataset::text_lines({path});
    default:
      return Dataset::fixed_records({path}, 3);
  }
}

void check_refusal(const Status& status, const std::string& path) {
  // DataLoss and Unimplemented are for .npy files.
  require((absl::IsInvalidArgument(status) || absl::IsDataLoss(status) ||
           absl::IsUnimplemented(status)) &&
              absl::StrContains(status.message(), path),
          status.ToString());
}

// Reads the first elements only: an array without bytes may have any number of elements.
void check_elements(const Dataset& dataset, const std::string& path) {
  constexpr int kMaxElements = 300;
  StatusOr<HostIterator> iterator = dataset.iterate();
  require(iterator.ok(), iterator.status().ToString());
  for (int i = 0; i < kMaxElements; ++i) {
    const StatusOr<std::optional<Element>> element = iterator->next();
    if (!element.ok()) return check_refusal(element.status(), path);
    if (!element->has_value()) return require(dataset.cardinality() == i, "the cardinality");
    require(check_element(dataset.element_spec(), **element).ok(), "an element and its spec");
  }
}

void check_state(absl::string_view text) {
  const StatusOr<IteratorState> state = IteratorState::parse(text);
  if (!state.ok())
    return require(absl::IsInvalidArgument(state.status()), state.status().ToString());
  const StatusOr<IteratorState> again = IteratorState::parse(state->to_string());
  require(again.ok() && *again == *state, state->to_string());
  // A data set refuses any state or continues from it.
  for (const Dataset& dataset :
       {Dataset::range(10).repeat().batch(3),
        Dataset::range(10).filter([](const Element&) -> StatusOr<bool> { return true; }).take(5)}) {
    IteratorState from = *state;
    from.dataset = 0;
    StatusOr<HostIterator> iterator = dataset.iterate(from);
    if (iterator.ok()) require(iterator->next().ok(), from.to_string());
  }
}

}  // namespace
}  // namespace tessera::input

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kNumFormats = 6;
  if (size == 0) return 0;
  const int format = data[0] % (kNumFormats + 1);
  const absl::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (format == kNumFormats) {
    tessera::input::check_state(bytes);
    return 0;
  }
  const std::string path = tessera::input::file_of(bytes);
  const tessera::StatusOr<tessera::input::Dataset> dataset = tessera::input::open(format, path);
  if (dataset.ok()) {
    tessera::input::check_elements(*dataset, path);
  } else {
    tessera::input::check_refusal(dataset.status(), path);
  }
  return 0;
}
