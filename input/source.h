// SPDX-License-Identifier: Apache-2.0
//
// Source: where the elements of a data set come from.
//
//   class Squares : public Source {
//     std::vector<TensorSpec> spec() const override { return {{DType::kInt64, {}}}; }
//     std::optional<int64_t> size() const override { return 100; }
//     StatusOr<Element> read(int64_t i) const override { return Element{HostArray::scalar(i * i)};
//     }
//   };
//   StatusOr<Dataset> squares = Dataset::from_source(std::make_shared<Squares>());
//
// An element is a list of arrays: an image and its label, the columns of a line. All elements of a
// source have the same number of arrays and the same dtypes.
#ifndef TESSERA_INPUT_SOURCE_H_
#define TESSERA_INPUT_SOURCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

// The dtype and shape of one array of an element; a size of -1 differs from element to element.
struct TensorSpec {
  DType dtype = DType::kFloat32;
  Shape shape;

  // "f32 [-1, 3]".
  std::string to_string() const;
  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.dtype == b.dtype && a.shape == b.shape;
  }
};

using Element = std::vector<HostArray>;

// Thread-safe: several threads read at once.
class Source {
 public:
  virtual ~Source() = default;
  // Must be equal at every call.
  virtual std::vector<TensorSpec> spec() const = 0;
  // The number of elements. Nothing for a stream, which is read in order only, from element 0.
  virtual std::optional<int64_t> size() const = 0;
  // Element `index`, equal at every call. OutOfRange at the end of a stream. An element whose type
  // differs from spec() is an error.
  virtual StatusOr<Element> read(int64_t index) const = 0;
  // The files that the source reads, in order, and the source over only the files that `keep`
  // lists. A source without files returns an empty list.
  virtual std::vector<std::string> files() const { return {}; }
  virtual StatusOr<std::shared_ptr<const Source>> with_files(absl::Span<const int64_t> keep) const;
};

// InvalidArgument unless the element matches the spec. The message names the array that does not.
Status check_element(absl::Span<const TensorSpec> spec, const Element& element);
// InvalidArgument unless every array is valid (HostArray::validate()).
Status check_arrays(const Element& element);

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_SOURCE_H_
