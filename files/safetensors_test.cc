// SPDX-License-Identifier: Apache-2.0
//
// safetensors headers against the facts: each good file, each malformed one with its reason, every
// cut and every flipped bit.
#include "files/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/text.h"
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
using testing::IsOkAndHolds;
using testing::StatusIs;

StatusOr<SafetensorsHeader> parse(absl::string_view bytes) {
  return parse_safetensors(bytes, static_cast<int64_t>(bytes.size()));
}

// "\"w\" F32 [2, 3] 0 to 24": the tensors, with ranges of the data, then the metadata.
std::string to_string(const SafetensorsHeader& header) {
  std::string result;
  for (const SafetensorsEntry& entry : header.entries) {
    absl::StrAppend(&result, result.empty() ? "" : "; ", tessera::in_quotes(entry.name), " ",
                    entry.dtype, " ", shape_to_string(entry.shape), " ",
                    entry.begin - header.data_begin, " to ", entry.end - header.data_begin);
  }
  for (const auto& [name, text] : header.metadata) {
    absl::StrAppend(&result, result.empty() ? "" : "; ", name, "=", text);
  }
  return result;
}

const FactRow kGood[] = {
    {"empty_object", ""},
    {"empty_as_written", ""},
    {"scalar_f32", "\"s\" F32 [] 0 to 4"},
    {"bool_3", "\"b\" BOOL [3] 0 to 3"},
    {"i8", "\"x\" I8 [2] 0 to 2"},
    {"u8", "\"x\" U8 [2] 0 to 2"},
    {"i32_2x2", "\"m\" I32 [2, 2] 0 to 16"},
    {"i64", "\"n\" I64 [2] 0 to 16"},
    {"f16", "\"h\" F16 [3] 0 to 6"},
    {"bf16", "\"h\" BF16 [3] 0 to 6"},
    {"f64", "\"d\" F64 [1] 0 to 8"},
    {"two_sorted_by_alignment", "\"z\" F64 [1] 0 to 8; \"a\" U8 [1] 8 to 9"},
    {"empty_tensor", "\"e\" F32 [0, 3] 0 to 0"},
    {"metadata", "\"a\" U8 [1] 0 to 1; format=pt"},
    {"unpadded_header", "\"a\" F32 [1] 0 to 4"},
    {"header_not_in_data_order", "\"a\" F32 [1] 0 to 4; \"b\" F32 [1] 4 to 8"},
    {"escaped_name", "\"\xc3\xa9\" U8 [1] 0 to 1"},
    {"utf8_name", "\"\xc3\xa9\" U8 [1] 0 to 1"},
    {"surrogate_pair", "\"\xf0\x9f\x98\x80\" U8 [1] 0 to 1"},
    {"nul_in_name", "\"a\\x00b\" U8 [1] 0 to 1"},
    {"empty_name", "\"\" U8 [1] 0 to 1"},
    {"name_with_slashes", "\"../../x\" U8 [1] 0 to 1"},
    {"unknown_field", "\"a\" U8 [1] 0 to 1"},
    {"fields_in_other_order", "\"a\" U8 [1] 0 to 1"},
    {"blanks_and_newlines", "\"a\" U8 [1] 0 to 1"},
    {"empty_metadata", ""},
    {"null_metadata", ""},
    {"metadata_last", "\"a\" U8 [1] 0 to 1; k=v"},
    {"nan_values", "\"a\" F32 [1] 0 to 4"},
    {"bool_byte_2", "\"a\" BOOL [1] 0 to 1"},
    {"dtype_we_lack", "\"a\" U16 [2] 0 to 4"},
    {"fp8", "\"a\" F8_E4M3 [4] 0 to 4"},
    {"zero_size_at_the_end", "\"a\" U8 [1] 0 to 1; \"e\" F32 [0, 9] 1 to 1"},
    {"two_empty_same_place", "\"d\" F32 [0] 0 to 0; \"e\" F32 [0] 0 to 0"},
    {"size_one_dims", "\"a\" F32 [1, 1, 1, 1, 1] 0 to 4"},
};

const FactRow kBad[] = {
    {"empty_file", "it has 0 bytes; the header length alone takes 8"},
    {"seven_bytes", "it has 7 bytes; the header length alone takes 8"},
    {"length_zero", "its header has 0 bytes"},
    {"length_past_the_end", "its header has 3 bytes, and 2 are there"},
    {"length_over_the_cap",
     "its header has 100000001 bytes, by its first 8 bytes; the format "
     "allows 100000000"},
    {"length_2_63", "its header has 9223372036854775808 bytes"},
    {"length_2_64_less_1", "its header has 18446744073709551615 bytes"},
    {"not_utf8", "its header: it is not UTF-8 at byte 2: ff"},
    {"overlong_utf8", "it is not UTF-8 at byte 2: c0 80"},
    {"utf8_surrogate", "it is not UTF-8 at byte 2: ed a0 80"},
    {"byte_order_mark", "its JSON begins with byte ef, where \"{\" should be"},
    {"leading_space", "its JSON begins with byte 20, where \"{\" should be"},
    {"array", "its JSON begins with byte 5b, where \"{\" should be"},
    {"cut_json", "it is not JSON at byte 31, at \"1]\": unexpected end of input"},
    {"garbage_after_json", "it is not JSON at byte 2, at \"{}x\": invalid literal"},
    {"nul_padding", "it is not JSON at byte 2: byte 00"},
    {"duplicate_name_same_range", "it has the name \"a\" twice in one object"},
    {"duplicate_name_other_dtype", "it has the name \"a\" twice in one object"},
    {"duplicate_name_escaped", "it has the name \"a\" twice in one object"},
    {"duplicate_metadata", "it has the name \"__metadata__\" twice in one object"},
    {"duplicate_metadata_key", "it has the name \"k\" twice in one object"},
    {"duplicate_field", "it has the name \"shape\" twice in one object"},
    {"unknown_dtype", "tensor \"a\": \"F33\" is no dtype of safetensors"},
    {"lower_case_dtype", "tensor \"a\": \"f32\" is no dtype of safetensors; dtypes are BOOL"},
    {"dtype_is_a_number", "tensor \"a\": dtype: 32 is not a string"},
    {"no_dtype", "tensor \"a\": \"dtype\" is missing"},
    {"no_shape", "tensor \"a\": \"shape\" is missing"},
    {"no_offsets", "tensor \"a\": \"data_offsets\" is missing"},
    {"negative_size", "tensor \"a\": shape: size -1 is negative"},
    {"size_is_a_fraction", "tensor \"a\": shape: 1.0 is not an integer"},
    {"size_with_exponent", "tensor \"a\": shape: 1e0 is not an integer"},
    {"size_is_a_string", "tensor \"a\": shape: \"1\" is not an integer"},
    {"size_2_64", "tensor \"a\": shape: 18446744073709551616 is not an integer of 64 bits"},
    {"elements_overflow",
     "tensor \"a\": shape [4294967296, 4294967296, 4] of F32 has more than 2^63 - 1 bytes"},
    {"bytes_overflow",
     "tensor \"a\": shape [2305843009213693952] of F64 has more than 2^63 - 1 bytes"},
    {"overflow_hidden_by_zero",
     "tensor \"a\": shape [1099511627776, 1099511627776, 0] of F32 has more than 2^63 - 1 bytes"},
    {"begin_after_end", "tensor \"a\": data_offsets: it begins at 4, after its end at 0"},
    {"end_past_the_file", "tensor \"a\": it ends at byte 8 of the data, which has 4 bytes"},
    {"size_does_not_match", "tensor \"a\": F32 [2] takes 8 bytes, and data_offsets give it 4"},
    {"overlap", "bytes 4 to 8 of the data belong to tensors \"a\" and \"b\""},
    {"same_range", "bytes 0 to 4 of the data belong to tensors \"a\" and \"b\""},
    {"hole", "bytes 4 to 8 of the data, before tensor \"b\", belong to no tensor"},
    {"hole_at_the_start", "bytes 0 to 4 of the data, before tensor \"a\", belong to no tensor"},
    {"trailing_bytes", "bytes 4 to 5 of the data, after the last tensor, belong to no tensor"},
    {"no_tensor_but_data", "bytes 0 to 1 of the data, after the last tensor, belong to no tensor"},
    {"cut_by_one_byte", "tensor \"a\": it ends at byte 4 of the data, which has 3 bytes"},
    {"three_offsets", "tensor \"a\": data_offsets: it has 3 numbers, not begin and end"},
    {"one_offset", "tensor \"a\": data_offsets: it has 1 numbers, not begin and end"},
    {"offset_is_a_fraction", "tensor \"a\": data_offsets: 0.0 is not an integer"},
    {"negative_offset", "tensor \"a\": data_offsets: offset -4 is negative"},
    {"offsets_wrap", "tensor \"a\": data_offsets: 18446744073709551612 is over 2^63 - 1"},
    {"metadata_number", "__metadata__: \"k\": 1 is not a string"},
    {"metadata_nested", "__metadata__: \"k\": an object is not a string"},
    {"metadata_is_a_list", "__metadata__: an array is not an object"},
    {"tensor_is_null", "tensor \"a\": null is not an object"},
    {"half_a_byte", "tensor \"a\": shape [3] of F4 has 4 bits after its last whole byte"},
    {"deep_nesting", "it has arrays and objects in more than 64 levels"},
    {"nan_literal", "it is not JSON at byte 29, at \"\\\"shape\\\":[N\": invalid literal"},
    {"trailing_comma", "it is not JSON at byte 54, at \"4]},}\": unexpected '}'"},
    {"comment", "it is not JSON at byte 1, at \"{/\": invalid literal"},
    {"single_quotes", "it is not JSON at byte 1, at \"{'\": invalid literal"},
    {"lone_surrogate", "surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF"},
    {"control_byte_in_name", "control character U+0001 (SOH) must be escaped"},
    {"empty_in_the_middle",
     "the empty tensor \"e\" is at byte 2 of the data, inside of tensor \"a\""},
    {"rank_255", "tensor \"a\": shape: its rank is 255; a rank is 0 to 254"},
    {"size_over_int64", "tensor \"a\": shape: 9223372036854775808 is over 2^63 - 1"},
};

std::vector<FactFile> files_of(bool are_good) {
  std::vector<FactFile> files = fact_files("safetensors");
  const auto is_other = [&](const FactFile& file) {
    // A file with a dtype that Tessera lacks is read; its tensors are not.
    return (file.answer == StatusCode::kOk || file.answer == StatusCode::kUnimplemented) !=
           are_good;
  };
  files.erase(std::remove_if(files.begin(), files.end(), is_other), files.end());
  return files;
}

// The answer to the whole file: its header, then the dtypes of its tensors.
Status read_tensors(const StatusOr<SafetensorsHeader>& header) {
  TESSERA_RETURN_IF_ERROR(header);
  for (const SafetensorsEntry& entry : header->entries) {
    TESSERA_RETURN_IF_ERROR(dtype_of_safetensors(entry.dtype));
  }
  return absl::OkStatus();
}

StatusOr<SafetensorsHeader> read_file(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const auto file, RandomAccessFile::open(path));
  return read_safetensors_header(*file);
}

TEST(SafetensorsTest, GoodFilesOfTheFacts) {
  for_each_row(files_of(true), kGood,
               [](const FactFile& file, const std::string& path, const char* expected) {
                 TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, parse(file.bytes));
                 EXPECT_EQ(to_string(header), expected);
                 const int64_t end =
                     header.entries.empty() ? header.data_begin : header.entries.back().end;
                 EXPECT_EQ(end, file.bytes.size());
                 EXPECT_EQ(read_tensors(header).code(), file.answer);
                 TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader read, read_file(path));
                 EXPECT_EQ(read.entries, header.entries);
                 EXPECT_EQ(read.metadata, header.metadata);
                 EXPECT_EQ(read.data_begin, header.data_begin);
               });
}

TEST(SafetensorsTest, MalformedFilesOfTheFacts) {
  expect_refused(
      files_of(false), kBad, [](absl::string_view bytes) { return parse(bytes).status(); },
      [](const std::string& path) { return read_file(path).status(); });
}

TEST(SafetensorsTest, EveryCutIsDataLoss) {
  for (const FactFile& file : files_of(true)) {
    SCOPED_TRACE(file.name);
    for (size_t size = 0; size < file.bytes.size(); ++size) {
      ASSERT_THAT(parse(absl::string_view(file.bytes).substr(0, size)),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("the file was cut off")));
    }
  }
}

// A header must be true of the file that it was read from, whatever its bits are.
void check_invariants(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t end = header.data_begin;
  for (const SafetensorsEntry& entry : header.entries) {
    ASSERT_EQ(entry.begin, end);
    ASSERT_GE(entry.end, entry.begin);
    end = entry.end;
    const StatusOr<DType> dtype = dtype_of_safetensors(entry.dtype);
    if (dtype.ok()) {
      ASSERT_EQ(num_bytes(entry.shape, *dtype), entry.end - entry.begin);
    }
  }
  ASSERT_EQ(end, file_bytes);
}

TEST(SafetensorsTest, AnyFlippedBitIsRefusedOrKeepsTheInvariants) {
  for_each_flipped_bit("safetensors", [](absl::string_view bytes) {
    const StatusOr<SafetensorsHeader> header = parse(bytes);
    if (header.ok()) check_invariants(*header, bytes.size());
    EXPECT_FALSE(absl::IsUnimplemented(header.status())) << header.status();
    return header.status();
  });
}

TEST(SafetensorsTest, DTypesHaveTheirNames) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_THAT(dtype_of_safetensors(safetensors_name(dtype)), IsOkAndHolds(dtype));
  }
  EXPECT_EQ(safetensors_name(DType::kBFloat16), "BF16");
  EXPECT_THAT(dtype_of_safetensors("U16"),
              StatusIs(StatusCode::kUnimplemented,
                       HasSubstr("dtype U16 of safetensors is not supported; supported are BOOL")));
  EXPECT_THAT(dtype_of_safetensors("F8_E4M3"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("dtype F8_E4M3")));
  EXPECT_THAT(dtype_of_safetensors("f32"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"f32\" is no dtype")));
}

// The entries with ranges of the data, as format_safetensors_header() takes them.
std::vector<SafetensorsEntry> in_data(const SafetensorsHeader& header) {
  std::vector<SafetensorsEntry> entries = header.entries;
  for (SafetensorsEntry& entry : entries) {
    entry.begin -= header.data_begin;
    entry.end -= header.data_begin;
  }
  return entries;
}

// Files that the reference library wrote are written with the same bytes.
TEST(SafetensorsTest, HeadersAreThoseOfTheReference) {
  int checked = 0;
  for (const FactFile& file : files_of(true)) {
    for (const absl::string_view name :
         {"empty_as_written", "scalar_f32", "bool_3", "i8", "u8", "i32_2x2", "i64", "f16", "bf16",
          "f64", "two_sorted_by_alignment", "empty_tensor", "metadata"}) {
      if (file.name != name) continue;
      SCOPED_TRACE(name);
      TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, parse(file.bytes));
      EXPECT_THAT(format_safetensors_header(in_data(header), header.metadata),
                  IsOkAndHolds(file.bytes.substr(0, header.data_begin)));
      ++checked;
    }
  }
  EXPECT_EQ(checked, 13);
}

TEST(SafetensorsTest, HeadersThatWereWrittenAreReadBack) {
  for (const FactFile& file : files_of(true)) {
    SCOPED_TRACE(file.name);
    TESSERA_ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, parse(file.bytes));
    for (const int64_t alignment : {1, 8, 64, 4096}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::string front,
          format_safetensors_header(in_data(header), header.metadata, alignment));
      EXPECT_EQ(front.size() % alignment, 0);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const SafetensorsHeader again,
          parse(absl::StrCat(front, file.bytes.substr(header.data_begin))));
      EXPECT_EQ(again.data_begin, front.size());
      EXPECT_EQ(in_data(again), in_data(header));
      EXPECT_EQ(again.metadata, header.metadata);
    }
  }
}

TEST(SafetensorsTest, HeadersThatAreNotWritten) {
  const SafetensorsEntry one = {"a", "U8", {1}, 0, 1};
  const auto named = [&](absl::string_view name) {
    SafetensorsEntry entry = one;
    entry.name = std::string(name);
    return std::vector<SafetensorsEntry>{entry};
  };
  const std::map<std::string, std::string> none;
  EXPECT_THAT(format_safetensors_header(std::vector{one, one}, none),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("\"a\" is given twice")));
  EXPECT_THAT(format_safetensors_header(named("__metadata__"), none),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("means the metadata")));
  EXPECT_THAT(format_safetensors_header(named("a\xff"), none),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("tensor name \"a\\xff\": it is not UTF-8 at byte 1: ff")));
  EXPECT_THAT(format_safetensors_header({}, {{"k", "\xff"}}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("metadata \"\\xff\": it is not UTF-8 at byte 0")));
  EXPECT_THAT(format_safetensors_header(named(std::string(kMaxSafetensorsHeaderBytes, 'x')), none),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("the header of 1 tensors has 100000056 bytes; safetensors allows "
                                 "100000000")));
}

}  // namespace
}  // namespace tessera::files
