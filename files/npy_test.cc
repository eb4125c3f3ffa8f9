// SPDX-License-Identifier: Apache-2.0
//
// .npy headers against the facts: each good file, each malformed one with its reason, every cut and
// every flipped bit.
#include "files/npy.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "files/fact_files.h"
#include "files/random_access_file.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::files {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

StatusOr<NpyHeader> parse(absl::string_view bytes) {
  return parse_npy(bytes, static_cast<int64_t>(bytes.size()));
}

StatusOr<NpyHeader> read_file(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, RandomAccessFile::open(path));
  return read_npy_header(*file);
}

// "f32 [2, 3] at 128", and the orders that are not the usual ones.
std::string to_string(const NpyHeader& header) {
  return absl::StrCat(dtype_name(header.dtype), " ", shape_to_string(header.shape), " at ",
                      header.data_offset, header.is_fortran ? ", by columns" : "",
                      header.is_big_endian ? ", big-endian" : "");
}

const FactRow kGood[] = {
    {"f4_2x3_v1", "f32 [2, 3] at 128"},
    {"f4_2x3_v2", "f32 [2, 3] at 128"},
    {"f4_2x3_v3", "f32 [2, 3] at 128"},
    {"scalar_f8", "f64 [] at 128"},
    {"rank_1", "i64 [2] at 128"},
    {"empty_0x3", "f32 [0, 3] at 128"},
    {"fortran_2x3", "i32 [2, 3] at 128, by columns"},
    {"big_endian_f4", "f32 [2] at 128, big-endian"},
    {"bool", "bool [2] at 128"},
    {"f2", "f16 [2] at 128"},
    {"i1", "i8 [1] at 128"},
    {"u1", "u8 [1] at 128"},
    {"align_16", "f32 [2, 3] at 80"},
    {"unpadded", "f32 [2, 3] at 69"},
    {"keys_in_other_order", "f32 [2, 3] at 128"},
    {"double_quotes", "f32 [2, 3] at 128"},
    {"native_byte_order", "f32 [2, 3] at 128"},
    {"no_byte_order_u1", "u8 [1] at 128"},
    {"python2_long", "f32 [2, 3] at 128"},
    {"trailing_bytes", "f32 [2, 3] at 128"},
};

const FactRow kBad[] = {
    {"big_endian_i2", "its element type is \">i2\" (i16); types are b1"},
    {"bf16_as_numpy_saves_it",
     "its element type is \"<V2\" (bytes without a type; NumPy saves bf16 so)"},
    {"structured", "its elements are structures"},
    {"complex", "its element type is \"<c8\" (complex f32)"},
    {"string", "its element type is \"<U2\" (text)"},
    {"datetime", "its element type is \"<M8[D]\" (dates or times)"},
    {"u2", "its element type is \"<u2\" (u16)"},
    {"bool_q", "its element type is \"?\", which NumPy does not write; types are b1"},
    {"name_float32",
     "its element type is \"float32\", which NumPy does not write; types are b1, i1, u1, i4, i8, "
     "f2, f4 and f8"},
    {"shape_list", "has \"[\" at character 3, where \"(\" of a tuple"},
    {"shape_number", "has \"6\" at character 3, where \"(\" of a tuple"},
    {"shape_no_comma", "where \",\": a tuple of one size is (6,)"},
    {"negative_size", "shape [-1, 6] has size -1 in dim 0"},
    {"size_overflow",
     "shape [4294967296, 4294967296, 4] has more elements than a 64-bit integer counts"},
    {"huge_size", "its array f32 [1099511627776] takes 4398046511104 bytes, and 4 are there"},
    {"short_data", "its array f32 [2, 3] takes 24 bytes, and 20 are there"},
    {"no_descr", "its header has no descr"},
    {"extra_key", "its header has the key \"x\"; descr, fortran_order and shape are known"},
    {"duplicate_key", "its header has the key \"descr\" twice"},
    {"order_is_a_number", "where \"True\" or \"False\""},
    {"magic", "it is not a .npy file: it does not begin with \"\\x93NUMPY\""},
    {"version_4", "it has version 4.0 of the .npy format; 1.0, 2.0 and 3.0 are known"},
    {"version_1_1", "it has version 1.1 of the .npy format; 1.0, 2.0 and 3.0 are known"},
    {"header_past_the_end", "its header has 60000 bytes, and 118 are there"},
    {"v2_length_4_gib", "its header has 4294967295 bytes, and "},
    {"object_dtype",
     "its element type is \"|O\" (objects of Python, which would be unpickled); types are b1"},
    {"code_in_header", "where a size or \")\""},
    {"deep_nesting", "where a size or \")\""},
    {"nine_bytes", "it has 9 bytes, which end before the length of its header does"},
    {"not_ascii_v1", "its header has the byte ff, and is ASCII in version 1.0"},
    {"utf8_name_v3", "its elements are structures"},
    {"bit_sized", "its element type is \"<f16\" (f128)"},
    {"f3", "its element type is \"<f3\", which NumPy does not write"},
};

std::vector<FactFile> files_of(bool are_good) {
  std::vector<FactFile> files = fact_files("npy");
  const auto is_other = [&](const FactFile& file) {
    return (file.answer == StatusCode::kOk) != are_good;
  };
  files.erase(std::remove_if(files.begin(), files.end(), is_other), files.end());
  return files;
}

TEST(NpyTest, GoodFilesOfTheFacts) {
  for_each_row(files_of(true), kGood,
               [](const FactFile& file, const std::string& path, const char* expected) {
                 TESSERA_ASSERT_OK_AND_ASSIGN(const NpyHeader header, parse(file.bytes));
                 EXPECT_EQ(to_string(header), expected);
                 const int64_t end = header.data_offset + num_bytes(header.shape, header.dtype);
                 EXPECT_EQ(end + (file.name == "trailing_bytes"), file.bytes.size());
                 TESSERA_ASSERT_OK_AND_ASSIGN(const NpyHeader read, read_file(path));
                 EXPECT_EQ(to_string(read), expected);
               });
}

TEST(NpyTest, MalformedFilesOfTheFacts) {
  expect_refused(
      files_of(false), kBad, [](absl::string_view bytes) { return parse(bytes).status(); },
      [](const std::string& path) { return read_file(path).status(); });
}

TEST(NpyTest, EveryCutIsDataLoss) {
  for (const FactFile& file : files_of(true)) {
    SCOPED_TRACE(file.name);
    const size_t end = file.bytes.size() - (file.name == "trailing_bytes");
    for (size_t size = 0; size < end; ++size) {
      ASSERT_THAT(parse(absl::string_view(file.bytes).substr(0, size)),
                  StatusIs(StatusCode::kDataLoss));
    }
  }
}

void check_invariants(const NpyHeader& header, size_t file_bytes) {
  ASSERT_THAT(validate_shape(header.shape, header.dtype), IsOk());
  ASSERT_LE(header.data_offset + num_bytes(header.shape, header.dtype),
            static_cast<int64_t>(file_bytes));
}

TEST(NpyTest, AnyFlippedBitIsRefusedOrFitsTheFile) {
  for_each_flipped_bit("npy", [](absl::string_view bytes) {
    const StatusOr<NpyHeader> header = parse(bytes);
    if (header.ok()) check_invariants(*header, bytes.size());
    return header.status();
  });
}

// A .npy file of version 1.0, with 64 bytes of data.
std::string npy_of(absl::string_view header) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xff));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  return absl::StrCat(bytes, header, std::string(64, '\0'));
}

TEST(NpyTest, HeadersOfEveryWriter) {
  for (const char* const header : {
           // npy-matlab#2
           "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }",
           "{'descr': 'f4', 'fortran_order': False, 'shape': (2, 3), }",
           "{'descr': '|f4', 'fortran_order': False, 'shape': (2 , 3L)}",
           "{u'descr': u'<f4', u'fortran_order': False, u'shape': (2L, 3L,), }",
           "{b'descr': b'<f4', 'fortran_order': False, 'shape': (2, 3), }  \n",
       }) {
    SCOPED_TRACE(header);
    TESSERA_ASSERT_OK_AND_ASSIGN(const NpyHeader read, parse(npy_of(header)));
    EXPECT_EQ(read.dtype, DType::kFloat32);
    EXPECT_EQ(read.shape, (Shape{2, 3}));
  }
}

TEST(NpyTest, OtherMalformedHeaders) {
  std::string rank_255 = "{'descr': '|u1', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < 255; ++i) absl::StrAppend(&rank_255, "1,");
  absl::StrAppend(&rank_255, ")}");
  struct Case {
    const char* name;
    std::string header;
    const char* message;
  };
  const Case cases[] = {
      {"no_dictionary", "descr", "where \"{\" should"},
      {"empty_dictionary", "{}", "its header has no descr"},
      {"no_shape", "{'descr': '<f4', 'fortran_order': False}", "its header has no shape"},
      {"no_order", "{'descr': '<f4', 'shape': (2,)}", "its header has no fortran_order"},
      {"key_without_quote", "{descr: '<f4'}", "a text in quotes"},
      {"quote_not_closed", "{'descr: ", "a text without a closing quote: \"'descr: \""},
      {"blank_after_the_prefix", "{u 'descr': '<f4'}", "a text in quotes"},
      {"no_colon", "{'descr' '<f4'}", "where \":\" should"},
      {"no_comma", "{'descr': '<f4' 'shape': (2,)}", "where \",\" or \"}\" should"},
      {"text_after", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), } x",
       "the end of the header"},
      {"no_type", "{'descr': ''}", "its element type is \"\", which NumPy does not write"},
      {"blank_in_the_type", "{'descr': ' <f4'}", "its element type is \" <f4\""},
      {"no_byte_order", "{'descr': 'xf4'}", "its element type is \"xf4\""},
      {"two_byte_orders", "{'descr': '<<f4'}", "its element type is \"<<f4\""},
      {"void_without_a_size", "{'descr': '|V'}",
       "its element type is \"|V\", which NumPy does not write"},
      {"order_of_no_word", "{'fortran_order': 0}", "\"True\" or \"False\""},
      {"two_orders", "{'fortran_order': False, 'fortran_order': True}",
       "the key \"fortran_order\" twice"},
      {"shape_of_text", "{'shape': (a,)}", "a size or \")\""},
      {"only_a_comma", "{'shape': (,)}", "a size or \")\""},
      {"sizes_without_comma", "{'shape': (2 3)}", "\",\" or \")\""},
      {"shape_of_more_bytes",
       "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 1)}",
       "has more than 2^63 - 1 bytes"},
      {"rank_255", rank_255, "the rank of its array is over 254"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(parse(npy_of(row.header)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

// Bytes that a terminal does not show. Only version 3 may have them, and there they are no type.
TEST(NpyTest, HiddenBytes) {
  std::string bytes = npy_of("{'descr': '<f4\xef\xbb\xbf', 'fortran_order': False}");
  EXPECT_THAT(parse(bytes), StatusIs(StatusCode::kInvalidArgument,
                                     HasSubstr("the byte ef, and is ASCII in version 1.0")));
  bytes[6] = 3;
  bytes.insert(10, 2, '\0');  // the length has 4 bytes
  EXPECT_THAT(parse(bytes), StatusIs(StatusCode::kInvalidArgument,
                                     HasSubstr("its element type is \"<f4\\xef\\xbb\\xbf\"")));
  bytes[29] = '\xff';
  EXPECT_THAT(parse(bytes), StatusIs(StatusCode::kInvalidArgument,
                                     HasSubstr("the byte ff, and is UTF-8 in version 3.0")));
}

TEST(NpyTest, ALongHeaderIsRefused) {
  std::string bytes("\x93NUMPY\x02\x00\x01\x00\x10\x00", 12);  // 2^20 + 1
  bytes.append((1 << 20) + 1, ' ');
  EXPECT_THAT(parse(bytes), StatusIs(StatusCode::kInvalidArgument,
                                     HasSubstr("its header has 1048577 bytes; at most 1048576")));
}

TEST(NpyTest, WriteAsNumpy) {
  for (const FactFile& file : files_of(true)) {
    SCOPED_TRACE(file.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const NpyHeader header, parse(file.bytes));
    const std::string front = format_npy_header(header.dtype, header.shape);
    EXPECT_EQ(front.size() % 64, 0);
    for (const absl::string_view name :
         {"f4_2x3_v1", "scalar_f8", "rank_1", "empty_0x3", "bool", "f2", "i1", "u1"}) {
      if (file.name == name) {
        EXPECT_EQ(front, file.bytes.substr(0, header.data_offset));
      }
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const NpyHeader again,
                                 parse(absl::StrCat(front, std::string(64, '\0'))));
    EXPECT_EQ(again.dtype, header.dtype);
    EXPECT_EQ(again.shape, header.shape);
    EXPECT_FALSE(again.is_fortran || again.is_big_endian);
  }
}

// numpy.lib.format leaves room for 21 digits of dim 0, and adds a block of 64 blanks where the
// header ends at a block.
TEST(NpyTest, BlanksAreThoseOfNumpy) {
  constexpr size_t kOfRank2 =
      absl::string_view("0123456789{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1), }\n")
          .size() +
      20;
  bool had_full_block = false;
  for (int rank = 2; rank < 40; ++rank) {
    const size_t bytes = kOfRank2 + 3 * (rank - 2);
    EXPECT_EQ(format_npy_header(DType::kUint8, Shape(rank, 1)).size(), (bytes / 64 + 1) * 64);
    had_full_block = had_full_block || bytes % 64 == 0;
  }
  EXPECT_TRUE(had_full_block);
  EXPECT_EQ(format_npy_header(DType::kUint8, {int64_t{1} << 40, 1}).size(),
            format_npy_header(DType::kUint8, {1, 1}).size());
}

}  // namespace
}  // namespace tessera::files
