// SPDX-License-Identifier: Apache-2.0
#include "files/npy.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/text.h"
#include "layout/layout.h"

namespace tessera::files {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kVersionEnd = 8;  // of the magic, the major and the minor version
constexpr size_t kMostBytesBeforeText = 12;

template <class... Parts>
Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

constexpr std::pair<absl::string_view, DType> kTypes[] = {
    {"b1", DType::kBool},    {"i1", DType::kInt8},    {"u1", DType::kUint8},
    {"i4", DType::kInt32},   {"i8", DType::kInt64},   {"f2", DType::kFloat16},
    {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
};
constexpr absl::string_view kKnownTypes =
    "types are b1, i1, u1, i4, i8, f2, f4 and f8, after <, >, =, | or nothing";

// What the elements are of a type that NumPy writes and Tessera lacks; empty for other texts.
absl::string_view foreign_elements(absl::string_view type) {
  constexpr std::pair<absl::string_view, absl::string_view> kNumbers[] = {
      {"i2", "i16"},          {"u2", "u16"},          {"u4", "u32"},         {"u8", "u64"},
      {"f12", "f96"},         {"f16", "f128"},        {"c8", "complex f32"}, {"c16", "complex f64"},
      {"c24", "complex f96"}, {"c32", "complex f128"}};
  for (const auto& [text, elements] : kNumbers) {
    if (text == type) return elements;
  }
  if (type == "O") return "objects of Python, which would be unpickled";
  if (absl::StartsWith(type, "M8") || absl::StartsWith(type, "m8")) return "dates or times";
  if (type.size() < 2 || !std::all_of(type.begin() + 1, type.end(), absl::ascii_isdigit)) return "";
  switch (type[0]) {
    case 'V':
      return "bytes without a type; NumPy saves bf16 so";
    case 'S':
    case 'a':
    case 'U':
      return "text";
    default:
      return "";
  }
}

// Reads the dictionary of a header: its three keys, in any order.
class Dictionary {
 public:
  explicit Dictionary(absl::string_view text) : cursor_("header", text) {}

  Status read(NpyHeader* header) {
    if (!cursor_.consume('{')) return cursor_.expected("\"{\"");
    while (!cursor_.consume('}')) {
      TESSERA_ASSIGN_OR_RETURN(const std::string key, read_text());
      if (!cursor_.consume(':')) return cursor_.expected("\":\"");
      TESSERA_RETURN_IF_ERROR(read_value(key, header));
      if (!cursor_.consume(',') && !cursor_.next_is('}')) return cursor_.expected("\",\" or \"}\"");
    }
    if (!cursor_.at_end()) return cursor_.expected("the end of the header");
    for (const auto& [name, found] :
         {std::pair{"descr", has_descr_}, {"fortran_order", has_order_}, {"shape", has_shape_}}) {
      if (!found) return refuse("its header has no ", name);
    }
    return absl::OkStatus();
  }

 private:
  Status read_value(absl::string_view key, NpyHeader* header) {
    if (key == "descr") {
      TESSERA_RETURN_IF_ERROR(check_first(key, &has_descr_));
      return read_descr(header);
    }
    if (key == "fortran_order") {
      TESSERA_RETURN_IF_ERROR(check_first(key, &has_order_));
      return read_order(header);
    }
    if (key == "shape") {
      TESSERA_RETURN_IF_ERROR(check_first(key, &has_shape_));
      return read_shape(header);
    }
    return refuse("its header has the key ", in_quotes(key),
                  "; descr, fortran_order and shape are known");
  }
  static Status check_first(absl::string_view key, bool* found) {
    if (std::exchange(*found, true))
      return refuse("its header has the key ", in_quotes(key), " twice");
    return absl::OkStatus();
  }
  // Reads a string of Python 2 or 3: 'f4', "f4", u'f4' or b'f4'.
  StatusOr<std::string> read_text() {
    absl::string_view text = cursor_.rest();
    if (!text.empty() && (text[0] == 'u' || text[0] == 'b')) text.remove_prefix(1);
    if (text.empty() || (text[0] != '"' && text[0] != '\'')) {
      return cursor_.expected("a text in quotes");
    }
    const size_t end = text.find(text[0], 1);
    if (end == absl::string_view::npos) {
      return refuse("its header has a text without a closing quote: ", in_quotes(text));
    }
    cursor_ = TextCursor("header", text.substr(end + 1));
    return std::string(text.substr(1, end - 1));
  }
  Status read_descr(NpyHeader* header) {
    if (cursor_.next_is('[')) {
      return absl::UnimplementedError(
          "its elements are structures; save each of their fields as an array");
    }
    TESSERA_ASSIGN_OR_RETURN(const std::string name, read_text());
    // The byte order may be left out; it is then the machine's, as with '='.
    absl::string_view type = name;
    const bool has_order = !type.empty() && absl::StrContains("<>|=", type.substr(0, 1));
    if (has_order) type.remove_prefix(1);
    for (const auto& [text, dtype] : kTypes) {
      if (text != type) continue;
      header->dtype = dtype;
      header->is_big_endian = name[0] == '>' && dtype_size(dtype) > 1;
      return absl::OkStatus();
    }
    const absl::string_view elements = foreign_elements(type);
    if (!elements.empty()) {
      return absl::UnimplementedError(absl::StrCat("its element type is ", in_quotes(name), " (",
                                                   elements, "); ", kKnownTypes));
    }
    return refuse("its element type is ", in_quotes(name), ", which NumPy does not write; ",
                  kKnownTypes);
  }
  Status read_order(NpyHeader* header) {
    TextCursor before = cursor_;
    const absl::string_view order = cursor_.read_name();
    if (order != "True" && order != "False") return before.expected("\"True\" or \"False\"");
    header->is_fortran = order == "True";
    return absl::OkStatus();
  }
  // Reads a tuple: (), (2,), (2, 3). In Python (6) is a number.
  Status read_shape(NpyHeader* header) {
    if (!cursor_.consume('(')) return cursor_.expected("\"(\" of a tuple");
    header->shape.clear();
    while (!cursor_.consume(')')) {
      const std::optional<int64_t> size = cursor_.read_integer();
      if (!size.has_value()) return cursor_.expected("a size or \")\"");
      if (header->shape.size() == kMaxRank) {
        return refuse("the rank of its array is over ", kMaxRank);
      }
      header->shape.push_back(*size);
      (void)cursor_.consume('L');  // a long integer of Python 2
      const bool is_last = header->shape.size() == 1 && cursor_.next_is(')');
      if (is_last) return cursor_.expected("\",\": a tuple of one size is (6,)");
      if (!cursor_.consume(',') && !cursor_.next_is(')')) return cursor_.expected("\",\" or \")\"");
    }
    return absl::OkStatus();
  }

  TextCursor cursor_;
  bool has_descr_ = false, has_order_ = false, has_shape_ = false;
};

// The bytes before the data, once the file is known to have them.
StatusOr<int64_t> data_offset_of(absl::string_view front, int64_t file_bytes) {
  const size_t compared = std::min(front.size(), kMagic.size());
  if (front.substr(0, compared) != kMagic.substr(0, compared)) {
    return refuse("it is not a .npy file: it does not begin with \"\\x93NUMPY\"");
  }
  const auto cut_off = [&] {
    return absl::DataLossError(absl::StrCat(
        "it has ", file_bytes, " bytes, which end before the length of its header does"));
  };
  if (front.size() < kVersionEnd) return cut_off();
  const int major = static_cast<uint8_t>(front[6]);
  const int minor = static_cast<uint8_t>(front[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "it has version ", major, ".", minor, " of the .npy format; 1.0, 2.0 and 3.0 are known"));
  }
  const size_t begin = kVersionEnd + (major == 1 ? 2 : 4);
  if (front.size() < begin) return cut_off();
  int64_t length = 0;
  for (size_t i = begin; i-- > kVersionEnd;) length = length << 8 | static_cast<uint8_t>(front[i]);
  const int64_t after = file_bytes - static_cast<int64_t>(begin);
  if (length > after) {
    return absl::DataLossError(absl::StrCat("its header has ", length, " bytes, and ", after,
                                            " are there: the file was cut off"));
  }
  if (length > kMaxNpyHeaderBytes) {
    return refuse("its header has ", length, " bytes; at most ", kMaxNpyHeaderBytes, " are read");
  }
  return static_cast<int64_t>(begin) + length;
}

// Checks the bytes of the dictionary: ASCII, and UTF-8 from version 3 on.
Status check_encoding(absl::string_view text, int version) {
  const auto first_wide = std::find_if_not(text.begin(), text.end(), absl::ascii_isascii);
  const size_t place =
      version == 3 ? utf8_prefix(text) : static_cast<size_t>(first_wide - text.begin());
  if (place == text.size()) return absl::OkStatus();
  return refuse("its header has the byte ",
                absl::Hex(static_cast<uint8_t>(text[place]), absl::kZeroPad2), ", and is ",
                version == 3 ? "UTF-8" : "ASCII", " in version ", version, ".0");
}

}  // namespace

StatusOr<NpyHeader> parse_npy(absl::string_view front, int64_t file_bytes) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t data_offset, data_offset_of(front, file_bytes));
  const int version = front[6];
  const size_t begin = kVersionEnd + (version == 1 ? 2 : 4);
  const absl::string_view text = front.substr(begin, static_cast<size_t>(data_offset) - begin);
  TESSERA_RETURN_IF_ERROR(check_encoding(text, version));
  NpyHeader header = {};
  header.data_offset = data_offset;
  TESSERA_RETURN_IF_ERROR(Dictionary(text).read(&header));
  TESSERA_RETURN_IF_ERROR(validate_shape(header.shape, header.dtype));
  const int64_t bytes = num_bytes(header.shape, header.dtype);
  if (bytes > file_bytes - data_offset) {
    return absl::DataLossError(absl::StrCat(
        "its array ", dtype_name(header.dtype), " ", shape_to_string(header.shape), " takes ",
        bytes, " bytes, and ", file_bytes - data_offset, " are there: the file was cut off"));
  }
  return header;
}

StatusOr<NpyHeader> read_npy_header(const RandomAccessFile& file) {
  const std::string subject = absl::StrCat("file ", in_quotes(file.path()));
  TESSERA_ASSIGN_OR_RETURN(std::string front, file.read_front(kMostBytesBeforeText));
  const StatusOr<int64_t> data_offset = data_offset_of(front, file.size());
  if (!data_offset.ok()) return with_context(data_offset.status(), subject);
  TESSERA_ASSIGN_OR_RETURN(front, file.read_front(*data_offset));
  StatusOr<NpyHeader> header = parse_npy(front, file.size());
  if (!header.ok()) return with_context(header.status(), subject);
  return header;
}

std::string format_npy_header(DType dtype, const Shape& shape) {
  TESSERA_CHECK(dtype != DType::kBFloat16, "NumPy has no bf16");
  absl::string_view type;
  for (const auto& [text, known] : kTypes) {
    if (known == dtype) type = text;
  }
  std::string text = absl::StrCat("{'descr': '", dtype_size(dtype) == 1 ? "|" : "<", type,
                                  "', 'fortran_order': False, ", "'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  // NumPy reserves 21 digits for dim 0, so that a file can grow in place.
  constexpr size_t kDigits = 21;
  if (!shape.empty()) text.append(kDigits - absl::StrCat(shape[0]).size(), ' ');
  // It adds 1 to kAlignment blanks, also where none are needed, and a newline.
  constexpr size_t kAlignment = 64;
  const size_t begin = kVersionEnd + 2;
  const size_t length = text.size() + 1;
  text.append(kAlignment - (begin + length) % kAlignment, ' ');
  text.push_back('\n');
  std::string header(kMagic);
  for (const size_t byte : {size_t{1}, size_t{0}, text.size() & 0xff, text.size() >> 8}) {
    header.push_back(static_cast<char>(byte));
  }
  return absl::StrCat(header, text);
}

}  // namespace tessera::files
