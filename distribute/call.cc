// SPDX-License-Identifier: Apache-2.0
#include "distribute/call.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera::distribute::internal {
namespace {

constexpr int kLinesBeforeTensors = 4;

// "1 returned" after "0 called all_reduce(sum)".
std::string what_it_did(const Call& call) {
  return call.text == kReturned ? call.text : absl::StrCat("called ", call.text);
}

Status disagreement(absl::string_view text, absl::string_view first, absl::string_view what_first,
                    absl::string_view second, absl::string_view what_second) {
  return absl::InvalidArgumentError(
      absl::StrCat(text, ": ", first, " has ", what_first, ", ", second, " has ", what_second));
}

Status check_tensors(const Call& a, const Call& b, absl::string_view first,
                     absl::string_view second, const Freedom& freedom) {
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const TensorKind& x = a.tensors[i];
    const TensorKind& y = b.tensors[i];
    const std::string which = a.tensors.size() > 1 ? absl::StrCat("tensor ", i, " of ") : "";
    const auto differ = [&](absl::string_view of_x, absl::string_view of_y) {
      return disagreement(a.text, first, absl::StrCat(which, of_x), second,
                          absl::StrCat(which, of_y));
    };
    if (x.dtype != y.dtype) return differ(dtype_name(x.dtype), dtype_name(y.dtype));
    if (freedom.dims.empty()) {
      if (x.shape == y.shape) continue;
      return differ(absl::StrCat("shape ", shape_to_string(x.shape)),
                    absl::StrCat("shape ", shape_to_string(y.shape)));
    }
    if (x.shape.size() != y.shape.size()) {
      return differ(absl::StrCat("rank ", x.shape.size()), absl::StrCat("rank ", y.shape.size()));
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> free,
                             normal_dims(freedom.dims, static_cast<int64_t>(x.shape.size())));
    for (size_t dim = 0; dim < x.shape.size(); ++dim) {
      const bool is_free = std::count(free.begin(), free.end(), static_cast<int64_t>(dim)) > 0;
      if (is_free || x.shape[dim] == y.shape[dim]) continue;
      return differ(absl::StrCat("size ", x.shape[dim], " of dim ", dim),
                    absl::StrCat("size ", y.shape[dim]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<int64_t>> normal_dims(absl::Span<const int64_t> dims, int64_t rank) {
  std::vector<int64_t> normal;
  for (const int64_t dim : dims) {
    if (dim < -rank || dim >= rank) {
      return absl::InvalidArgumentError(
          rank == 0 ? absl::StrCat("a tensor of rank 0 has no dim ", dim,
                                   "; give it one by ops::expand_dims()")
                    : absl::StrCat("dim ", dim, " is out of range for a tensor of rank ", rank));
    }
    normal.push_back(dim < 0 ? dim + rank : dim);
  }
  std::sort(normal.begin(), normal.end());
  const auto twice = std::adjacent_find(normal.begin(), normal.end());
  if (twice != normal.end()) {
    return absl::InvalidArgumentError(absl::StrCat("dim ", *twice, " is given twice"));
  }
  return normal;
}

std::string call_text(absl::string_view name, ReduceOp op) {
  return absl::StrCat(name, "(", reduce_op_name(op), ")");
}

// Lines, each escaped: text, value, code and message of the error, then a line for each tensor.
std::string encode_call(const Call& call) {
  std::vector<std::string> lines = {absl::CEscape(call.text), absl::CEscape(call.value),
                                    absl::StrCat(static_cast<int>(call.error.code())),
                                    absl::CEscape(call.error.message())};
  for (const TensorKind& tensor : call.tensors) {
    lines.push_back(absl::StrCat(static_cast<int>(tensor.dtype), ";",
                                 absl::StrJoin(tensor.shape, ","), ";", tensor.layout));
  }
  return absl::StrJoin(lines, "\n");
}

std::optional<Call> decode_call(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < kLinesBeforeTensors) return std::nullopt;
  Call call;
  int code = 0;
  std::string message;
  if (!absl::CUnescape(lines[0], &call.text) || !absl::CUnescape(lines[1], &call.value) ||
      !absl::SimpleAtoi(lines[2], &code) || !absl::CUnescape(lines[3], &message)) {
    return std::nullopt;
  }
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) return std::nullopt;
  call.error = Status(static_cast<absl::StatusCode>(code), message);
  for (size_t i = kLinesBeforeTensors; i < lines.size(); ++i) {
    const std::vector<absl::string_view> parts = absl::StrSplit(lines[i], absl::MaxSplits(';', 2));
    int dtype = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &dtype)) return std::nullopt;
    if (dtype < 0 || dtype >= kNumDTypes) return std::nullopt;
    TensorKind& tensor = call.tensors.emplace_back();
    tensor.dtype = static_cast<DType>(dtype);
    for (const absl::string_view size : absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
      int64_t& added = tensor.shape.emplace_back();
      if (!absl::SimpleAtoi(size, &added) || added < 0) return std::nullopt;
    }
    tensor.layout = std::string(parts[2]);
  }
  return call;
}

Status check_calls(absl::Span<const Call> calls, absl::Span<const std::string> names,
                   const Freedom& freedom) {
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].error.ok()) return with_context(calls[i].error, names[i]);
  }
  const Call& first = calls[0];
  for (size_t i = 1; i < calls.size(); ++i) {
    if (calls[i].text == first.text) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(names[0], " ", what_it_did(first), ", ", names[i], " ", what_it_did(calls[i]),
                     "; all replicas must make the same calls in the same order"));
  }
  for (const TensorKind& tensor : first.tensors) {
    if (freedom.any_tensor) break;
    TESSERA_RETURN_IF_ERROR(with_context(
        normal_dims(freedom.dims, static_cast<int64_t>(tensor.shape.size())).status(), first.text));
  }
  for (size_t i = 1; i < calls.size(); ++i) {
    if (!freedom.any_value && calls[i].value != first.value) {
      return absl::InvalidArgumentError(
          absl::StrCat(first.text, ": ", names[0], " and ", names[i], " have different values"));
    }
    if (calls[i].tensors.size() != first.tensors.size()) {
      return disagreement(first.text, names[0], absl::StrCat(first.tensors.size(), " tensors"),
                          names[i], absl::StrCat(calls[i].tensors.size()));
    }
    if (freedom.any_tensor) continue;
    TESSERA_RETURN_IF_ERROR(check_tensors(first, calls[i], names[0], names[i], freedom));
  }
  return absl::OkStatus();
}

}  // namespace tessera::distribute::internal
