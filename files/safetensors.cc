// SPDX-License-Identifier: Apache-2.0
#include "files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "files/json_reader.h"
#include "layout/layout.h"

namespace tessera::files {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the length of the header is copied as it is in files");
constexpr int64_t kLengthBytes = 8;
constexpr absl::string_view kMetadata = "__metadata__";

struct FormatDType {
  absl::string_view name;
  int bits;
  std::optional<DType> dtype = std::nullopt;
};

// All dtypes of the format.
constexpr FormatDType kDTypes[] = {
    {"BOOL", 8, DType::kBool},
    {"I8", 8, DType::kInt8},
    {"U8", 8, DType::kUint8},
    {"I32", 32, DType::kInt32},
    {"I64", 64, DType::kInt64},
    {"F16", 16, DType::kFloat16},
    {"BF16", 16, DType::kBFloat16},
    {"F32", 32, DType::kFloat32},
    {"F64", 64, DType::kFloat64},
    {"F4", 4},
    {"F6_E2M3", 6},
    {"F6_E3M2", 6},
    {"F8_E5M2", 8},
    {"F8_E4M3", 8},
    {"F8_E8M0", 8},
    {"F8_E5M2FNUZ", 8},
    {"F8_E4M3FNUZ", 8},
    {"I16", 16},
    {"U16", 16},
    {"U32", 32},
    {"U64", 64},
    {"C64", 64},
};

template <class... Parts>
Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

StatusOr<FormatDType> find_dtype(absl::string_view name) {
  for (const FormatDType& dtype : kDTypes) {
    if (dtype.name == name) return dtype;
  }
  return refuse(in_quotes(name), " is no dtype of safetensors; dtypes are ",
                absl::StrJoin(kDTypes, ", ", [](std::string* out, const FormatDType& dtype) {
                  absl::StrAppend(out, dtype.name);
                }));
}

// The length of the header, once the file is known to have it.
StatusOr<int64_t> header_length(absl::string_view front, int64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("it has ", file_bytes,
                                            " bytes; the header length alone takes ", kLengthBytes,
                                            ": the file was cut off"));
  }
  uint64_t length = 0;
  std::memcpy(&length, front.data(), kLengthBytes);
  if (length == 0) return refuse("its header has 0 bytes; an object of JSON has 2 or more");
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return refuse("its header has ", length, " bytes, by its first ", kLengthBytes,
                  " bytes; the format allows ", kMaxSafetensorsHeaderBytes,
                  ": it is no safetensors file");
  }
  if (length > static_cast<uint64_t>(file_bytes - kLengthBytes)) {
    return absl::DataLossError(absl::StrCat("its header has ", length, " bytes, and ",
                                            file_bytes - kLengthBytes,
                                            " are there: the file was cut off"));
  }
  return static_cast<int64_t>(length);
}

StatusOr<std::map<std::string, std::string>> read_metadata(const JsonValue& value) {
  std::map<std::string, std::string> metadata;
  if (value.kind() == JsonKind::kNull) return metadata;  // as the reference reader has it
  TESSERA_ASSIGN_OR_RETURN(const JsonMembers members, value.to_members());
  for (const auto& [name, text] : members) {
    const StatusOr<absl::string_view> content = text.to_text();
    if (!content.ok()) return with_context(content.status(), in_quotes(name));
    metadata.emplace(name, *content);
  }
  return metadata;
}

StatusOr<Shape> read_shape(const JsonValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const JsonElements elements, value.to_elements());
  if (value.size() > kMaxRank) {
    return refuse("its rank is ", value.size(), "; a rank is 0 to ", kMaxRank);
  }
  Shape shape;
  for (const JsonValue element : elements) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, element.to_integer());
    if (size < 0) return refuse("size ", size, " is negative");
    shape.push_back(size);
  }
  return shape;
}

// The bytes of the elements. The product of the sizes but those of 0 must fit as well, because
// strides are made of it.
StatusOr<int64_t> bytes_of(const Shape& shape, const FormatDType& dtype) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  __int128 bits = dtype.bits;
  for (const int64_t size : shape) {
    const __int128 factor = std::max<int64_t>(size, 1);
    if (__builtin_mul_overflow(bits, factor, &bits) || bits / 8 > kMax) {
      return refuse("shape ", shape_to_string(shape), " of ", dtype.name,
                    " has more than 2^63 - 1 bytes");
    }
  }
  if (num_elements(shape) == 0) return 0;
  if (bits % 8 != 0) {
    return refuse("shape ", shape_to_string(shape), " of ", dtype.name, " has ",
                  static_cast<int64_t>(bits % 8), " bits after its last whole byte");
  }
  return static_cast<int64_t>(bits / 8);
}

// Two numbers of bytes that count from the data.
StatusOr<std::pair<int64_t, int64_t>> read_offsets(const JsonValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const JsonElements elements, value.to_elements());
  if (value.size() != 2) return refuse("it has ", value.size(), " numbers, not begin and end");
  const JsonElements::Iterator first = elements.begin();
  JsonElements::Iterator second = first;
  ++second;
  TESSERA_ASSIGN_OR_RETURN(const int64_t begin, (*first).to_integer());
  TESSERA_ASSIGN_OR_RETURN(const int64_t end, (*second).to_integer());
  if (begin < 0 || end < 0) {
    return refuse("offset ", std::min(begin, end), " is negative");
  }
  if (begin > end) return refuse("it begins at ", begin, ", after its end at ", end);
  return std::pair(begin, end);
}

// Reads a member of a tensor by `read`, with its name before an error.
template <class Read>
auto read_member(const JsonValue& tensor, absl::string_view name, Read read)
    -> decltype(read(tensor)) {
  TESSERA_ASSIGN_OR_RETURN(const JsonValue value, tensor.member(name));
  auto result = read(value);
  if (!result.ok()) return with_context(result.status(), name);
  return result;
}

// Reads a tensor. Its bytes count from the data, which has `data_bytes`.
StatusOr<SafetensorsEntry> read_tensor(const JsonMember& member, int64_t data_bytes) {
  SafetensorsEntry entry;
  entry.name = std::string(member.name);
  TESSERA_ASSIGN_OR_RETURN(
      const absl::string_view dtype,
      read_member(member.value, "dtype", [](const JsonValue& value) { return value.to_text(); }));
  TESSERA_ASSIGN_OR_RETURN(const FormatDType known, find_dtype(dtype));
  entry.dtype = std::string(dtype);
  TESSERA_ASSIGN_OR_RETURN(entry.shape, read_member(member.value, "shape", read_shape));
  TESSERA_ASSIGN_OR_RETURN(const auto offsets,
                           read_member(member.value, "data_offsets", read_offsets));
  std::tie(entry.begin, entry.end) = offsets;
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, bytes_of(entry.shape, known));
  if (entry.end - entry.begin != bytes) {
    return refuse(dtype, " ", shape_to_string(entry.shape), " takes ", bytes,
                  " bytes, and data_offsets give it ", entry.end - entry.begin);
  }
  if (entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat("it ends at byte ", entry.end,
                                            " of the data, which has ", data_bytes,
                                            " bytes: the file was cut off"));
  }
  return entry;
}

// Checks that the entries, sorted by begin and end, tile data of `data_bytes`. An empty tensor
// passes at any boundary: before another tensor with its begin, or after one with its end.
Status check_tiling(absl::Span<const SafetensorsEntry> entries, int64_t data_bytes) {
  int64_t end = 0;  // of the tensors before
  const SafetensorsEntry* last = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > end) {
      return refuse("bytes ", end, " to ", entry.begin, " of the data, before tensor ",
                    in_quotes(entry.name), ", belong to no tensor");
    }
    if (entry.begin < end && entry.begin == entry.end) {
      return refuse("the empty tensor ", in_quotes(entry.name), " is at byte ", entry.begin,
                    " of the data, inside of tensor ", in_quotes(last->name));
    }
    if (entry.begin < end) {
      return refuse("bytes ", entry.begin, " to ", std::min(end, entry.end),
                    " of the data belong to tensors ", in_quotes(last->name), " and ",
                    in_quotes(entry.name));
    }
    end = entry.end;
    last = &entry;
  }
  if (end == data_bytes) return absl::OkStatus();
  return refuse("bytes ", end, " to ", data_bytes,
                " of the data, after the last tensor, belong to ", "no tensor");
}

}  // namespace

StatusOr<SafetensorsHeader> parse_safetensors(absl::string_view front, int64_t file_bytes) {
  // A front that is shorter than the caller promised is read as a file that ends there.
  if (front.size() < kLengthBytes) file_bytes = static_cast<int64_t>(front.size());
  TESSERA_ASSIGN_OR_RETURN(const int64_t length, header_length(front, file_bytes));
  const absl::string_view text = front.substr(kLengthBytes, static_cast<size_t>(length));
  const StatusOr<JsonDocument> document = JsonDocument::parse(text, JsonStart::kBrace);
  if (!document.ok()) return with_context(document.status(), "its header");

  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const int64_t data_bytes = file_bytes - header.data_begin;
  for (const JsonMember member : document->root().members()) {
    if (member.name == kMetadata) {
      StatusOr<std::map<std::string, std::string>> metadata = read_metadata(member.value);
      if (!metadata.ok()) return with_context(metadata.status(), kMetadata);
      header.metadata = *std::move(metadata);
      continue;
    }
    StatusOr<SafetensorsEntry> entry = read_tensor(member, data_bytes);
    if (!entry.ok()) {
      return with_context(entry.status(), absl::StrCat("tensor ", in_quotes(member.name)));
    }
    header.entries.push_back(*std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  TESSERA_RETURN_IF_ERROR(check_tiling(header.entries, data_bytes));
  for (SafetensorsEntry& entry : header.entries) {
    entry.begin += header.data_begin;
    entry.end += header.data_begin;
  }
  return header;
}

StatusOr<SafetensorsHeader> read_safetensors_header(const RandomAccessFile& file) {
  const std::string subject = absl::StrCat("file ", in_quotes(file.path()));
  TESSERA_ASSIGN_OR_RETURN(std::string front, file.read_front(kLengthBytes));
  const StatusOr<int64_t> length = header_length(front, file.size());
  if (!length.ok()) return with_context(length.status(), subject);
  TESSERA_ASSIGN_OR_RETURN(front, file.read_front(kLengthBytes + *length));
  StatusOr<SafetensorsHeader> header = parse_safetensors(front, file.size());
  if (!header.ok()) return with_context(header.status(), subject);
  return header;
}

StatusOr<DType> dtype_of_safetensors(absl::string_view dtype) {
  TESSERA_ASSIGN_OR_RETURN(const FormatDType found, find_dtype(dtype));
  if (found.dtype.has_value()) return *found.dtype;
  return absl::UnimplementedError(absl::StrCat("dtype ", dtype,
                                               " of safetensors is not supported; supported are ",
                                               "BOOL, I8, U8, I32, I64, F16, BF16, F32 and F64"));
}

std::optional<int64_t> bits_of_safetensors(absl::string_view dtype) {
  const StatusOr<FormatDType> found = find_dtype(dtype);
  return found.ok() ? std::optional<int64_t>(found->bits) : std::nullopt;
}

absl::string_view safetensors_name(DType dtype) {
  for (const FormatDType& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "unknown";
}

StatusOr<std::string> format_safetensors_header(absl::Span<const SafetensorsEntry> tensors,
                                                const std::map<std::string, std::string>& metadata,
                                                int64_t alignment) {
  std::string result(kLengthBytes, '\0');
  result.push_back('{');
  absl::string_view comma = "";
  const auto append_text = [&result](absl::string_view what, absl::string_view text) -> Status {
    const Status status = check_utf8(text);
    if (!status.ok()) return with_context(status, absl::StrCat(what, " ", in_quotes(text)));
    append_json_text(text, &result);
    return absl::OkStatus();
  };
  if (!metadata.empty()) {
    absl::StrAppend(&result, "\"", kMetadata, "\":{");
    for (const auto& [name, text] : metadata) {
      absl::StrAppend(&result, std::exchange(comma, ","));
      TESSERA_RETURN_IF_ERROR(append_text("metadata", name));
      result.push_back(':');
      TESSERA_RETURN_IF_ERROR(append_text("metadata", text));
    }
    result.push_back('}');
  }
  std::set<absl::string_view> names = {kMetadata};
  for (const SafetensorsEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return refuse("tensor name ", in_quotes(tensor.name),
                    tensor.name == kMetadata ? " means the metadata of a safetensors file"
                                             : " is given twice");
    }
    absl::StrAppend(&result, std::exchange(comma, ","));
    TESSERA_RETURN_IF_ERROR(append_text("tensor name", tensor.name));
    absl::StrAppend(&result, ":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", tensor.begin, ",",
                    tensor.end, "]}");
  }
  result.push_back('}');
  while (static_cast<int64_t>(result.size()) % alignment != 0) result.push_back(' ');
  const uint64_t length = result.size() - kLengthBytes;
  if (length > kMaxSafetensorsHeaderBytes) {
    return refuse("the header of ", tensors.size(), " tensors has ", length,
                  " bytes; safetensors allows ", kMaxSafetensorsHeaderBytes,
                  ": write several files, or shorter names");
  }
  std::memcpy(result.data(), &length, kLengthBytes);
  return result;
}

}  // namespace tessera::files
