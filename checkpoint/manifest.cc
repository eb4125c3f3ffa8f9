// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/manifest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/text.h"
#include "checkpoint/checksum.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/tiling.h"
#include "files/json_reader.h"
#include "layout/layout.h"

namespace tessera::checkpoint::internal {
namespace {

using files::append_json_text;
using files::JsonDocument;
using files::JsonElements;
using files::JsonKind;
using files::JsonMembers;
using files::JsonStart;
using files::JsonValue;

constexpr absl::string_view kFormat = "tessera.checkpoint";
constexpr int64_t kVersion = 1;
constexpr absl::string_view kChecksumMember = "\"xxh3\": \"";
constexpr absl::string_view kChecksumEnd = "\"}\n";
constexpr size_t kChecksumDigits = 32;
constexpr size_t kMaxNameBytes = 1024;
// RFC 3339, in UTC. absl::RFC3339_full would write "+00:00".
constexpr char kTimeFormat[] = "%Y-%m-%dT%H:%M:%E*SZ";

template <class... Parts>
Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

bool is_hex(absl::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f');
         });
}

std::string json_text(absl::string_view text) {
  std::string out;
  append_json_text(text, &out);
  return out;
}

std::string json_numbers(absl::Span<const int64_t> numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

void append_file(std::string* out, const FileInfo& file) {
  absl::StrAppend(
      out, "{\"name\": ", json_text(file.name), ", \"bytes\": ", file.bytes, ", \"blocks\": [",
      absl::StrJoin(file.block_checksums, ", ",
                    [](std::string* block, uint64_t checksum) {
                      absl::StrAppend(block, "\"", absl::Hex(checksum, absl::kZeroPad16), "\"");
                    }),
      "]}");
}

void append_piece(std::string* out, const Piece& piece) {
  absl::StrAppend(out, "[", piece.file, ", ", piece.offset, ", ", json_numbers(piece.box.offsets),
                  ", ", json_numbers(piece.box.sizes), "]");
}

void append_tensor(std::string* out, const TensorInfo& tensor) {
  absl::StrAppend(
      out, "{\"name\": ", json_text(tensor.name), ", \"dtype\": ", json_text(tensor.dtype),
      ", \"shape\": ", json_numbers(tensor.shape), ", \"layout\": ", json_text(tensor.layout),
      ", \"pieces\": [", absl::StrJoin(tensor.pieces, ", ", append_piece), "]}");
}

// The member, by a reading function of JsonValue; errors name it.
template <class T>
StatusOr<T> read_member(const JsonValue& object, absl::string_view name,
                        StatusOr<T> (JsonValue::*read)() const) {
  TESSERA_ASSIGN_OR_RETURN(const JsonValue member, object.member(name));
  StatusOr<T> value = (member.*read)();
  if (!value.ok()) return with_context(value.status(), in_quotes(name));
  return value;
}

StatusOr<int64_t> read_integer(const JsonValue& object, absl::string_view name) {
  return read_member<int64_t>(object, name, &JsonValue::to_integer);
}

StatusOr<absl::string_view> read_text(const JsonValue& object, absl::string_view name) {
  return read_member<absl::string_view>(object, name, &JsonValue::to_text);
}

StatusOr<JsonElements> read_elements(const JsonValue& object, absl::string_view name) {
  return read_member<JsonElements>(object, name, &JsonValue::to_elements);
}

// Reads a list of numbers, which must not be negative.
StatusOr<std::vector<int64_t>> to_sizes(const JsonValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const JsonElements elements, value.to_elements());
  if (value.size() > size_t{kMaxRank}) {
    return refuse("it has ", value.size(), " dims; the most are ", kMaxRank);
  }
  std::vector<int64_t> sizes;
  sizes.reserve(value.size());
  for (const JsonValue element : elements) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t size, element.to_integer());
    if (size < 0) return refuse(size, " is negative");
    sizes.push_back(size);
  }
  return sizes;
}

StatusOr<FileInfo> read_file(const JsonValue& value) {
  FileInfo file;
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view name, read_text(value, "name"));
  file.name = std::string(name);
  TESSERA_ASSIGN_OR_RETURN(file.bytes, read_integer(value, "bytes"));
  TESSERA_ASSIGN_OR_RETURN(const JsonElements blocks, read_elements(value, "blocks"));
  for (const JsonValue block : blocks) {
    TESSERA_ASSIGN_OR_RETURN(const absl::string_view digits, block.to_text());
    uint64_t checksum = 0;
    if (!is_hex(digits, 16) || !absl::SimpleHexAtoi(digits, &checksum)) {
      return refuse("\"blocks\": ", block.to_string(),
                    " is not a checksum of 16 lower-case hexadecimal digits");
    }
    file.block_checksums.push_back(checksum);
  }
  return file;
}

StatusOr<Piece> read_piece(const JsonValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const JsonElements elements, value.to_elements());
  if (value.size() != 4) {
    return refuse("it has ", value.size(),
                  " elements instead of 4: file, offset, offsets of the box, sizes of the box");
  }
  auto element = elements.begin();
  TESSERA_ASSIGN_OR_RETURN(const int64_t file, (*element).to_integer());
  if (file < 0 || file > std::numeric_limits<int>::max()) return refuse("it is in file ", file);
  Piece piece;
  piece.file = static_cast<int>(file);
  TESSERA_ASSIGN_OR_RETURN(piece.offset, (*++element).to_integer());
  TESSERA_ASSIGN_OR_RETURN(piece.box.offsets, to_sizes(*++element));
  TESSERA_ASSIGN_OR_RETURN(piece.box.sizes, to_sizes(*++element));
  return piece;
}

StatusOr<TensorInfo> read_tensor_called(absl::string_view name, const JsonValue& value) {
  TensorInfo tensor;
  tensor.name = std::string(name);
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view dtype, read_text(value, "dtype"));
  tensor.dtype = std::string(dtype);
  TESSERA_ASSIGN_OR_RETURN(const JsonValue shape, value.member("shape"));
  StatusOr<std::vector<int64_t>> sizes = to_sizes(shape);
  if (!sizes.ok()) return with_context(sizes.status(), "\"shape\"");
  tensor.shape = *std::move(sizes);
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view layout, read_text(value, "layout"));
  tensor.layout = std::string(layout);
  TESSERA_ASSIGN_OR_RETURN(const JsonElements pieces, read_elements(value, "pieces"));
  for (const JsonValue element : pieces) {
    StatusOr<Piece> piece = read_piece(element);
    if (!piece.ok()) {
      return with_context(piece.status(), absl::StrCat("piece ", tensor.pieces.size()));
    }
    tensor.pieces.push_back(*std::move(piece));
  }
  return tensor;
}

StatusOr<TensorInfo> read_tensor(const JsonValue& value) {
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view name, read_text(value, "name"));
  StatusOr<TensorInfo> tensor = read_tensor_called(name, value);
  if (tensor.ok()) return tensor;
  return with_context(tensor.status(), absl::StrCat("tensor ", in_quotes(name)));
}

StatusOr<absl::Time> read_time(const JsonValue& root) {
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view text, read_text(root, "time"));
  absl::Time time;
  std::string problem;
  // The parser also reads "infinite-future", and other forms of the same time.
  if (!absl::EndsWith(text, "Z") || !absl::ParseTime(kTimeFormat, text, &time, &problem) ||
      absl::FormatTime(kTimeFormat, time, absl::UTCTimeZone()) != text) {
    return refuse("\"time\": ", in_quotes(text), " is not a time such as \"2026-11-22T13:05:00Z\"");
  }
  return time;
}

Status check_format(const JsonValue& root) {
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view format, read_text(root, "format"));
  if (format != kFormat) {
    return refuse("\"format\": ", in_quotes(format), " is not ", in_quotes(kFormat),
                  ": it is not a checkpoint of Tessera");
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t version, read_integer(root, "version"));
  if (version < kVersion) return refuse("\"version\": ", version, "; versions begin at 1");
  if (version > kVersion) {
    return absl::UnimplementedError(absl::StrCat("it was written by a newer Tessera, as version ",
                                                 version, "; versions known: ", kVersion));
  }
  return absl::OkStatus();
}

StatusOr<Info> read_info(const JsonValue& root) {
  TESSERA_RETURN_IF_ERROR(check_format(root));
  Info info;
  TESSERA_ASSIGN_OR_RETURN(const absl::string_view save_id, read_text(root, "save_id"));
  info.save_id = std::string(save_id);
  TESSERA_ASSIGN_OR_RETURN(info.step, read_integer(root, "step"));
  TESSERA_ASSIGN_OR_RETURN(info.time, read_time(root));
  TESSERA_ASSIGN_OR_RETURN(const int64_t clients, read_integer(root, "clients"));
  if (clients < 1 || clients > std::numeric_limits<int>::max()) {
    return refuse("\"clients\": ", clients, "; it must be 1 to 2147483647");
  }
  info.num_clients = static_cast<int>(clients);
  TESSERA_ASSIGN_OR_RETURN(const int64_t block_bytes, read_integer(root, "block_bytes"));
  if (block_bytes != kBlockBytes) {
    return refuse("\"block_bytes\": ", block_bytes, "; version 1 has ", kBlockBytes);
  }
  TESSERA_ASSIGN_OR_RETURN(const JsonMembers metadata,
                           read_member<JsonMembers>(root, "metadata", &JsonValue::to_members));
  for (const auto& [name, value] : metadata) {
    const StatusOr<absl::string_view> text = value.to_text();
    if (!text.ok()) {
      return with_context(text.status(), absl::StrCat("\"metadata\": ", in_quotes(name)));
    }
    info.metadata.emplace(name, *text);
  }
  TESSERA_ASSIGN_OR_RETURN(const JsonElements files, read_elements(root, "files"));
  for (const JsonValue value : files) {
    StatusOr<FileInfo> file = read_file(value);
    if (!file.ok()) {
      return with_context(file.status(), absl::StrCat("file ", info.files.size()));
    }
    info.files.push_back(*std::move(file));
  }
  TESSERA_ASSIGN_OR_RETURN(const JsonElements tensors, read_elements(root, "tensors"));
  for (const JsonValue value : tensors) {
    TESSERA_ASSIGN_OR_RETURN(TensorInfo tensor, read_tensor(value));
    info.tensors.push_back(std::move(tensor));
  }
  return info;
}

// The bytes that the checksum covers.
StatusOr<absl::string_view> checked_text(absl::string_view text) {
  constexpr size_t kTail = kChecksumMember.size() + kChecksumDigits + kChecksumEnd.size();
  const absl::string_view tail = text.substr(text.size() < kTail ? 0 : text.size() - kTail);
  const absl::string_view digits =
      tail.size() < kTail ? "" : tail.substr(kChecksumMember.size(), kChecksumDigits);
  if (!absl::StartsWith(tail, kChecksumMember) || !absl::EndsWith(tail, kChecksumEnd) ||
      !is_hex(digits, kChecksumDigits)) {
    return absl::DataLossError(absl::StrCat(
        "it does not end in its checksum, the member \"xxh3\": it was cut or changed"));
  }
  const absl::string_view covered = text.substr(0, text.size() - kTail);
  const std::string checksum = checksum128_hex(covered);
  if (checksum == digits) return covered;
  return absl::DataLossError(absl::StrCat("its ", covered.size(), " bytes have the checksum ",
                                          checksum, ", and it says ", digits,
                                          ": it was cut or changed"));
}

Status check_file(const FileInfo& file) {
  if (!is_file_name(file.name)) {
    return refuse("file ", in_quotes(file.name),
                  " is not the name of a file in the directory of the checkpoint: a name holds no "
                  "\"/\" and is not \".\" or \"..\"");
  }
  if (file.bytes < 0) return refuse("file ", in_quotes(file.name), " has ", file.bytes, " bytes");
  const int64_t blocks = num_blocks(file.bytes);
  if (static_cast<int64_t>(file.block_checksums.size()) != blocks) {
    return refuse("file ", in_quotes(file.name), " of ", file.bytes, " bytes has ", blocks,
                  " blocks and ", file.block_checksums.size(), " checksums");
  }
  return absl::OkStatus();
}

// The bytes of a piece in its file.
struct Range {
  int file;
  int64_t begin;
  int64_t end;
  const TensorInfo* tensor;
  const Piece* piece;

  std::string to_string() const {
    return absl::StrCat(piece->box.to_string(), " of tensor ", in_quotes(tensor->name), ", bytes ",
                        begin, " to ", end);
  }
};

// Appends the ranges of the pieces that have bytes. Requires pieces inside the shape.
Status append_ranges(const Info& info, const TensorInfo& tensor, int64_t bits,
                     std::vector<Range>* ranges) {
  for (const Piece& piece : tensor.pieces) {
    const auto refused = [&](const auto&... parts) {
      return refuse("tensor ", in_quotes(tensor.name), ": the piece ", piece.box.to_string(), " ",
                    parts...);
    };
    if (piece.file < 0 || piece.file >= static_cast<int64_t>(info.files.size())) {
      return refused("is in file ", piece.file, "; there are ", info.files.size(), " files");
    }
    const __int128 bits_of_piece = static_cast<__int128>(piece.box.num_elements()) * bits;
    if (bits_of_piece % 8 != 0) return refused("has no whole number of bytes");
    // Fits int64: the shape was checked.
    const int64_t bytes = static_cast<int64_t>(bits_of_piece / 8);
    const FileInfo& file = info.files[piece.file];
    if (piece.offset < kDataAlignment) {
      return refused("is at byte ", piece.offset, " of file ", in_quotes(file.name),
                     ", in its header; data begins at byte ", kDataAlignment, " or later");
    }
    if (piece.offset > file.bytes || bytes > file.bytes - piece.offset) {
      return refused("has ", bytes, " bytes at byte ", piece.offset, " of file ",
                     in_quotes(file.name), ", which has ", file.bytes);
    }
    if (bytes > 0) {
      ranges->push_back({piece.file, piece.offset, piece.offset + bytes, &tensor, &piece});
    }
  }
  return absl::OkStatus();
}

Status check_tensor(const TensorInfo& tensor, int64_t bits) {
  const auto named = [&](const Status& status) {
    return with_context(status, absl::StrCat("tensor ", in_quotes(tensor.name)));
  };
  TESSERA_RETURN_IF_ERROR(named(validate_shape(tensor.shape)));
  const __int128 total = static_cast<__int128>(num_elements(tensor.shape)) * bits;
  if (total / 8 > std::numeric_limits<int64_t>::max()) {
    return refuse("tensor ", in_quotes(tensor.name), ": shape ", shape_to_string(tensor.shape),
                  " of ", tensor.dtype, " has more than 2^63 - 1 bytes");
  }
  return check_tiling(tensor.name, tensor.shape, tensor.pieces);
}

Status check_disjoint(const Info& info, std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    const Range& before = ranges[i - 1];
    if (before.file != ranges[i].file || before.end <= ranges[i].begin) continue;
    return refuse("file ", in_quotes(info.files[before.file].name), ": ", before.to_string(),
                  ", and ", ranges[i].to_string(), ", share bytes");
  }
  return absl::OkStatus();
}

}  // namespace

bool is_save_id(absl::string_view text) { return is_hex(text, kSaveIdDigits); }

bool is_file_name(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && !absl::StrContains(name, '/') &&
         !absl::StrContains(name, '\0');
}

Status check_manifest_size(int64_t bytes) {
  if (bytes <= kMaxManifestBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("it has ", bytes, " bytes; a manifest has at most ", kMaxManifestBytes));
}

std::string format_manifest(const Info& info) {
  std::string text = absl::StrCat(
      "{\"format\": ", json_text(kFormat), ", \"version\": ", kVersion,
      ", \"save_id\": ", json_text(info.save_id), ", \"step\": ", info.step, ",\n \"time\": \"",
      absl::FormatTime(kTimeFormat, info.time, absl::UTCTimeZone()),
      "\", \"clients\": ", info.num_clients, ", \"metadata\": {",
      absl::StrJoin(info.metadata, ", ",
                    [](std::string* out, const auto& entry) {
                      absl::StrAppend(out, json_text(entry.first), ": ", json_text(entry.second));
                    }),
      "},\n \"block_bytes\": ", kBlockBytes, ",\n \"files\": [",
      absl::StrJoin(info.files, ",\n  ", append_file), "],\n \"tensors\": [",
      absl::StrJoin(info.tensors, ",\n  ", append_tensor), "],\n ");
  const std::string checksum = checksum128_hex(text);
  absl::StrAppend(&text, kChecksumMember, checksum, kChecksumEnd);
  return text;
}

StatusOr<Info> parse_manifest(absl::string_view text) {
  TESSERA_RETURN_IF_ERROR(check_manifest_size(static_cast<int64_t>(text.size())));
  TESSERA_RETURN_IF_ERROR(checked_text(text));
  TESSERA_ASSIGN_OR_RETURN(const JsonDocument document,
                           JsonDocument::parse(text, JsonStart::kBrace));
  TESSERA_ASSIGN_OR_RETURN(Info info, read_info(document.root()));
  TESSERA_RETURN_IF_ERROR(check_info(info));
  return info;
}

Status check_info(const Info& info) {
  if (!is_save_id(info.save_id)) {
    return refuse("\"save_id\": ", in_quotes(info.save_id),
                  " is not 16 lower-case hexadecimal digits");
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const FileInfo& file : info.files) {
    TESSERA_RETURN_IF_ERROR(check_file(file));
    if (!names.insert(file.name).second)
      return refuse("file ", in_quotes(file.name), " is listed twice");
  }
  names.clear();
  std::vector<Range> ranges;
  for (const TensorInfo& tensor : info.tensors) {
    TESSERA_RETURN_IF_ERROR(check_tensor_name(tensor.name));
    if (!names.insert(tensor.name).second) {
      return refuse("tensor ", in_quotes(tensor.name), " is listed twice");
    }
    const std::optional<int64_t> bits = dtype_bits(tensor.dtype);
    if (!bits.has_value()) {
      return refuse("tensor ", in_quotes(tensor.name), ": ", in_quotes(tensor.dtype),
                    " is no dtype");
    }
    TESSERA_RETURN_IF_ERROR(check_tensor(tensor, *bits));
    TESSERA_RETURN_IF_ERROR(append_ranges(info, tensor, *bits, &ranges));
  }
  return check_disjoint(info, std::move(ranges));
}

Status check_tensor_name(absl::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return refuse("tensor name ", in_quotes(name), " has ", name.size(),
                  " bytes; it must have 1 to ", kMaxNameBytes);
  }
  if (name == "__metadata__") {
    return refuse("tensor name ", in_quotes(name), " is reserved by safetensors");
  }
  if (std::any_of(name.begin(), name.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; })) {
    return refuse("tensor name ", in_quotes(name), " has a control character");
  }
  return with_context(files::check_utf8(name), absl::StrCat("tensor name ", in_quotes(name)));
}

}  // namespace tessera::checkpoint::internal
