// SPDX-License-Identifier: Apache-2.0
#include "input/source.h"

#include "absl/strings/str_cat.h"

namespace tessera::input {
namespace {

bool fits(const TensorSpec& spec, const HostArray& array) {
  if (array.dtype != spec.dtype || array.shape.size() != spec.shape.size()) return false;
  for (size_t dim = 0; dim < spec.shape.size(); ++dim) {
    if (spec.shape[dim] != -1 && spec.shape[dim] != array.shape[dim]) return false;
  }
  return true;
}

}  // namespace

std::string TensorSpec::to_string() const {
  return absl::StrCat(dtype_name(dtype), " ", shape_to_string(shape));
}

StatusOr<std::shared_ptr<const Source>> Source::with_files(absl::Span<const int64_t>) const {
  return absl::InvalidArgumentError("the source of the data set has no files");
}

Status check_arrays(const Element& element) {
  for (size_t i = 0; i < element.size(); ++i) {
    if (const Status status = element[i].validate(); !status.ok()) {
      return with_context(status, absl::StrCat("tensor ", i));
    }
  }
  return absl::OkStatus();
}

Status check_element(absl::Span<const TensorSpec> spec, const Element& element) {
  if (element.size() != spec.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it has ", element.size(), " tensors; the spec of its source has ", spec.size()));
  }
  TESSERA_RETURN_IF_ERROR(check_arrays(element));
  for (size_t i = 0; i < spec.size(); ++i) {
    if (!fits(spec[i], element[i])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", i, " is ", TensorSpec{element[i].dtype, element[i].shape}.to_string(),
          "; the spec of its source says ", spec[i].to_string()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera::input
