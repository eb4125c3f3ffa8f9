// SPDX-License-Identifier: Apache-2.0
//
// Manifests: the rows of tests/facts/checkpoint.md that need no file, random Infos there and back,
// and damage at every bit.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "checkpoint/checksum.h"
#include "checkpoint/testing/saved.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "relayout/testing/small_relayouts.h"
#include "tests/support/matchers.h"
#include "tests/support/sanitizers.h"
#include "tests/support/seed.h"

namespace tessera::checkpoint::internal {
namespace {

using checkpoint::testing::saved_info;
using tessera::testing::IsOk;
using tessera::testing::IsOkAndHolds;
using tessera::testing::kSanitized;
using tessera::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// w [9, 2] in two files, v [3, 3] in one.
Info small_info() {
  Info info;
  info.save_id = "7c9e6679a1b2c3d4";
  info.step = 100;
  info.time = absl::FromUnixSeconds(1795352700);
  info.num_clients = 4;
  info.metadata = {{"lr", "0.01"}};
  info.files = {{"data-00000-7c9e6679a1b2c3d4.safetensors", 4096 + 76, {0x9d1c}},
                {"data-00001-7c9e6679a1b2c3d4.safetensors", 4096 + 32, {~uint64_t{0}}}};
  info.tensors = {{"w",
                   "f32",
                   {9, 2},
                   "[x, -] on {x=2}",
                   {{{{0, 0}, {5, 2}}, 0, 4096}, {{{5, 0}, {4, 2}}, 1, 4096}}},
                  {"v", "f32", {3, 3}, "", {{{{0, 0}, {3, 3}}, 0, 4136}}}};
  return info;
}

std::string without_checksum(const std::string& manifest) {
  return manifest.substr(0, manifest.rfind("\"xxh3\""));
}

std::string with_checksum(const std::string& text) {
  return absl::StrCat(text, "\"xxh3\": \"", checksum128_hex(text), "\"}\n");
}

// The good manifest with `from` replaced by `to`, once, and a right checksum.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = without_checksum(format_manifest(small_info()));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return text;
  text.replace(at, from.size(), to);
  return with_checksum(text);
}

TEST(ManifestTest, TheTextIsTheOneOfTheHeader) {
  Info info;
  info.save_id = "7c9e6679a1b2c3d4";
  info.step = 100;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, "2026-11-22T13:05:00Z", &info.time, nullptr));
  info.num_clients = 4;
  info.metadata = {{"lr", "0.01"}};
  info.files = {{"data-00000-7c9e6679a1b2c3d4.safetensors", 4192, {0x9d1c000000000000}}};
  info.tensors = {{"w", "f32", {4, 6}, "[x, -] on {x=4}", {{{{0, 0}, {4, 6}}, 0, 4096}}}};
  const std::string text =
      "{\"format\": \"tessera.checkpoint\", \"version\": 1, \"save_id\": \"7c9e6679a1b2c3d4\", "
      "\"step\": 100,\n \"time\": \"2026-11-22T13:05:00Z\", \"clients\": 4, \"metadata\": {\"lr\": "
      "\"0.01\"},\n \"block_bytes\": 4194304,\n \"files\": [{\"name\": "
      "\"data-00000-7c9e6679a1b2c3d4.safetensors\", \"bytes\": 4192, \"blocks\": "
      "[\"9d1c000000000000\"]}],\n \"tensors\": [{\"name\": \"w\", \"dtype\": \"f32\", \"shape\": "
      "[4, "
      "6], \"layout\": \"[x, -] on {x=4}\", \"pieces\": [[0, 4096, [0, 0], [4, 6]]]}],\n ";
  EXPECT_EQ(format_manifest(info), with_checksum(text));
}

TEST(ManifestTest, ThereAndBack) {
  EXPECT_THAT(parse_manifest(format_manifest(small_info())), IsOkAndHolds(small_info()));
  Info info = small_info();
  info.time += absl::Nanoseconds(1) + absl::Nanoseconds(1) / 4;
  info.step = std::numeric_limits<int64_t>::min();
  info.metadata = {{"", ""}, {"a\"\\\n\x01", "\xc3\xa9\xf0\x9f\x98\x80"}};
  info.metadata.emplace(std::string("\0b", 2), std::string("\0", 1));
  info.tensors[0].name = "\xc3\xa9 / \"../x\"";
  info.tensors[1].dtype = "u32";
  EXPECT_THAT(parse_manifest(format_manifest(info)), IsOkAndHolds(info));
  Info nothing;
  nothing.save_id = "0000000000000000";
  nothing.time = absl::UnixEpoch();
  nothing.num_clients = 1;
  EXPECT_THAT(parse_manifest(format_manifest(nothing)), IsOkAndHolds(nothing));
}

// A good manifest in which `from` is replaced by `to`.
struct ChangeRow {
  const char* name;
  const char* from;
  const char* to;
  absl::StatusCode code;
  const char* message;
};

#define FIRST_PIECE "[0, 4096, [0, 0], [5, 2]]"
#define SECOND_PIECE "[1, 4096, [5, 0], [4, 2]]"
#define FILE_0 "data-00000-7c9e6679a1b2c3d4"

const ChangeRow kFacts[] = {
    {"other_format", "tessera.checkpoint", "other", kInvalid,
     "\"format\": \"other\" is not \"tessera.checkpoint\""},
    {"newer_version", "\"version\": 1", "\"version\": 2", absl::StatusCode::kUnimplemented,
     "it was written by a newer Tessera, as version 2; versions known: 1"},
    {"unknown_member", "\"version\": 1", "\"version\": 1, \"note\": [{\"a\": 1.5}]",
     absl::StatusCode::kOk, ""},
    {"path_up", FILE_0, "../x", kInvalid,
     "file \"../x.safetensors\" is not the name of a file in the directory"},
    {"path_absolute", FILE_0 ".safetensors", "/etc/passwd", kInvalid,
     "file \"/etc/passwd\" is not the name"},
    {"path_of_the_directory", FILE_0 ".safetensors", "..", kInvalid, "file \"..\" is not the name"},
    {"file_twice", "data-00001", "data-00000", kInvalid,
     "file \"" FILE_0 ".safetensors\" is listed twice"},
    {"piece_outside", SECOND_PIECE, "[1, 4096, [5, 0], [5, 2]]", kInvalid,
     "tensor \"w\": the box [5:10, 0:2] of a piece is not inside the shape [9, 2]"},
    {"pieces_overlap", SECOND_PIECE, "[1, 4096, [4, 0], [5, 2]]", kInvalid,
     "tensor \"w\": its pieces [0:5, 0:2] and [4:9, 0:2] have elements in common"},
    {"pieces_leave_a_gap", FIRST_PIECE, "[0, 4096, [0, 0], [4, 2]]", kInvalid,
     "tensor \"w\": no piece holds element [4, 0] of the shape [9, 2]"},
    {"no_piece", FIRST_PIECE ", " SECOND_PIECE, "", kInvalid,
     "tensor \"w\": no piece holds element [0, 0] of the shape [9, 2]"},
    {"box_rank", "[0, 4136, [0, 0], [3, 3]]", "[0, 4136, [0], [9]]", kInvalid,
     "tensor \"v\": a piece has a box of 1 dims, the shape [3, 3] has 2"},
    {"range_past_the_file", "\"bytes\": 4128", "\"bytes\": 4127", kInvalid,
     "tensor \"w\": the piece [5:9, 0:2] has 32 bytes at byte 4096 of file "
     "\"data-00001-7c9e6679a1b2c3d4.safetensors\", which has 4127"},
    {"range_in_the_header", FIRST_PIECE, "[0, 16, [0, 0], [5, 2]]", kInvalid,
     "tensor \"w\": the piece [0:5, 0:2] is at byte 16 of file \"" FILE_0
     ".safetensors\", in its header; data begins at byte 4096"},
    {"ranges_overlap", "[0, 4136,", "[0, 4135,", kInvalid,
     "[0:5, 0:2] of tensor \"w\", bytes 4096 to 4136, and [0:3, 0:3] of tensor \"v\", bytes 4135 "
     "to "
     "4171, share bytes"},
    {"dtype", "\"f32\"", "\"f33\"", kInvalid, "tensor \"w\": \"f33\" is no dtype"},
    {"dtype_of_others", "\"f32\", \"shape\": [3, 3]", "\"u16\", \"shape\": [3, 3]",
     absl::StatusCode::kOk, ""},
    {"shape_overflow", "[9, 2]", "[1099511627776, 1099511627776]", kInvalid,
     "tensor \"w\": shape [1099511627776, 1099511627776]"},
    {"bytes_overflow", "[9, 2]", "[2305843009213693952, 2]", kInvalid,
     "tensor \"w\": shape [2305843009213693952, 2] of f32 has more than 2^63 - 1 bytes"},
    {"negative", "[0, 4096,", "[0, -1,", kInvalid,
     "tensor \"w\": the piece [0:5, 0:2] is at byte -1 of file"},
    {"large_number", "[0, 4096,", "[0, 9007199254740993,", kInvalid,
     "has 40 bytes at byte 9007199254740993 of file"},
    {"tensor_twice", "\"name\": \"v\"", "\"name\": \"w\"", kInvalid,
     "tensor \"w\" is listed twice"},
    {"duplicate_member", "\"shape\": [9, 2]", "\"shape\": [9, 2], \"shape\": [9, 2]", kInvalid,
     "\"shape\" twice"},
    {"too_few_checksums", "\"bytes\": 4128", "\"bytes\": 16777216", kInvalid,
     "of 16777216 bytes has 4 blocks and 1 checksums"},
};

const ChangeRow kBadMembers[] = {
    {"no_checksum_of_a_block", "\"ffffffffffffffff\"", "", kInvalid,
     "of 4128 bytes has 1 blocks and 0 checksums"},
    {"no_step", "\"step\": 100", "\"stop\": 100", kInvalid, "\"step\" is missing"},
    {"step_is_a_fraction", "\"step\": 100", "\"step\": 1e2", kInvalid,
     "\"step\": 1e2 is not an integer"},
    {"save_id", "\"save_id\": \"7c9e6679a1b2c3d4\"", "\"save_id\": \"7C9E6679A1B2C3D4\"", kInvalid,
     "\"save_id\": \"7C9E6679A1B2C3D4\" is not 16 lower-case hexadecimal digits"},
    {"time", "2026-11-22T13:05:00Z", "infinite-future", kInvalid,
     "\"time\": \"infinite-future\" is not a time"},
    {"clients", "\"clients\": 4", "\"clients\": 0", kInvalid, "\"clients\": 0"},
    {"block_bytes", "4194304", "4194305", kInvalid, "\"block_bytes\": 4194305"},
    {"metadata", "\"0.01\"", "0.01", kInvalid, "\"metadata\": \"lr\": 0.01 is not a string"},
    {"checksum_of_a_block", "\"ffffffffffffffff\"", "\"FFFFFFFFFFFFFFFF\"", kInvalid,
     "file 1: \"blocks\": \"FFFFFFFFFFFFFFFF\" is not a checksum"},
    {"piece_of_three", FIRST_PIECE, "[0, 4096, [0, 0]]", kInvalid,
     "tensor \"w\": piece 0: it has 3 elements instead of 4"},
    {"file_of_a_piece", FIRST_PIECE, "[2, 4096, [0, 0], [5, 2]]", kInvalid,
     "tensor \"w\": the piece [0:5, 0:2] is in file 2; there are 2 files"},
    {"size_below_zero", FIRST_PIECE, "[0, 4096, [0, 0], [-5, 2]]", kInvalid,
     "tensor \"w\": piece 0: -5 is negative"},
    {"name_of_a_tensor", "\"name\": \"v\"", "\"name\": \"\"", kInvalid,
     "tensor name \"\" has 0 bytes"},
};

void check_row(const ChangeRow& row) {
  SCOPED_TRACE(row.name);
  const StatusOr<Info> info = parse_manifest(changed(row.from, row.to));
  if (row.code == absl::StatusCode::kOk) {
    EXPECT_THAT(info, IsOk());
  } else {
    EXPECT_THAT(info, StatusIs(row.code, HasSubstr(row.message)));
  }
}

TEST(ManifestTest, RowsOfTheFacts) {
  for (const ChangeRow& row : kFacts) check_row(row);
}

TEST(ManifestTest, BadMembers) {
  for (const ChangeRow& row : kBadMembers) check_row(row);
}

struct TextRow {
  const char* name;
  std::string text;
  absl::StatusCode code;
  const char* message;
};

TEST(ManifestTest, TextsThatAreNoManifest) {
  const std::string good = format_manifest(small_info());
  const TextRow kRows[] = {
      {"cut", good.substr(0, good.size() - 10), kDataLoss, "it was cut or changed"},
      {"flipped_bit", absl::StrReplaceAll(good, {{"\"shape\": [9, 2]", "\"shape\": [8, 2]"}}),
       kDataLoss, "it was cut or changed"},
      {"no_checksum", without_checksum(good) + "\"note\": 1}\n", kDataLoss,
       "it does not end in its checksum"},
      {"nothing", "", kDataLoss, "it does not end in its checksum"},
      {"deep",
       with_checksum(
           absl::StrCat("{\"a\": ", std::string(50000, '['), std::string(50000, ']'), ", ")),
       kInvalid, "levels"},
      {"not_an_object", with_checksum("[1, "), kInvalid, "JSON"},
  };
  for (const TextRow& row : kRows) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(parse_manifest(row.text), StatusIs(row.code, HasSubstr(row.message)));
  }
}

TEST(ManifestTest, NoPieceIsRightWhereThereAreNoElements) {
  Info info = small_info();
  info.tensors[0].shape = {0};
  info.tensors[0].pieces = {};
  EXPECT_THAT(parse_manifest(format_manifest(info)), IsOkAndHolds(info));
}

TEST(ManifestTest, Huge) {
  EXPECT_THAT(check_manifest_size(int64_t{1} << 30), IsOk());
  EXPECT_THAT(check_manifest_size((int64_t{1} << 30) + 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1073741825 bytes")));
}

TEST(ManifestTest, NamesOfTensors) {
  EXPECT_THAT(check_tensor_name("a/b.c \xc3\xa9"), IsOk());
  EXPECT_THAT(check_tensor_name(std::string(1024, 'a')), IsOk());
  EXPECT_THAT(check_tensor_name(std::string(1025, 'a')),
              StatusIs(kInvalid, HasSubstr("has 1025 bytes; it must have 1 to 1024")));
  EXPECT_THAT(check_tensor_name("__metadata__"), StatusIs(kInvalid, HasSubstr("is reserved")));
  EXPECT_THAT(check_tensor_name("a\nb"), StatusIs(kInvalid, HasSubstr("control character")));
  EXPECT_THAT(check_tensor_name(absl::string_view("a\0b", 3)),
              StatusIs(kInvalid, HasSubstr("control character")));
  EXPECT_THAT(check_tensor_name("\xc0\x80"), StatusIs(kInvalid, HasSubstr("UTF-8")));
}

TEST(ManifestTest, EveryCutAndEveryFlippedBitIsDataLoss) {
  const std::string good = format_manifest(small_info());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(parse_manifest(absl::string_view(good).substr(0, size)), StatusIs(kDataLoss));
  }
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THAT(parse_manifest(bad), StatusIs(kDataLoss)) << bit;
  }
}

// One flipped bit with a right checksum: an error, or an Info that passes its checks.
TEST(ManifestTest, EveryFlippedBitWithARightChecksumIsReadOrRefused) {
  const std::string good = without_checksum(format_manifest(small_info()));
  int read = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    const StatusOr<Info> info = parse_manifest(with_checksum(bad));
    if (!info.ok()) continue;
    ++read;
    EXPECT_THAT(parse_manifest(format_manifest(*info)), IsOkAndHolds(*info));
  }
  EXPECT_GT(read, 10);
}

TEST(ManifestTest, RandomInfosThereAndBack) {
  std::mt19937_64 random(tessera::testing::test_seed());
  const std::vector<Mesh> meshes = tessera::testing::small_meshes(2, 8);
  for (int trial = 0; trial < (kSanitized ? 50 : 500); ++trial) {
    const Mesh& mesh = meshes[random() % meshes.size()];
    const int rank = static_cast<int>(random() % 3);
    const std::vector<Layout> layouts = tessera::testing::every_layout(mesh, rank, {});
    Shape shape(rank);
    for (int64_t& size : shape) size = static_cast<int64_t>(random() % 40);
    const DType dtype = static_cast<DType>(random() % kNumDTypes);
    Info info = *saved_info(layouts[random() % layouts.size()], shape, dtype,
                            absl::StrCat("t", random()), static_cast<int64_t>(random() % 100));
    info.step = static_cast<int64_t>(random());
    info.time = absl::FromUnixNanos(static_cast<int64_t>(random() >> 2));
    info.save_id = absl::StrCat(absl::Hex(random(), absl::kZeroPad16));
    for (FileInfo& file : info.files) {
      for (uint64_t& checksum : file.block_checksums) checksum = random();
    }
    for (uint64_t i = random() % 3; i > 0; --i) {
      info.metadata[absl::StrCat(random())] = absl::StrCat(random());
    }
    EXPECT_THAT(parse_manifest(format_manifest(info)), IsOkAndHolds(info));
  }
}

// A grid of `side` * `side` pieces in `side` files.
Info grid_info(int64_t side) {
  Info info = small_info();
  info.files.clear();
  info.tensors = {{"w", "u8", {side, side}, "", {}}};
  for (int64_t row = 0; row < side; ++row) {
    info.files.push_back({absl::StrCat("f", row), 4096 + side, {0}});
    for (int64_t column = 0; column < side; ++column) {
      info.tensors[0].pieces.push_back(
          {{{row, column}, {1, 1}}, static_cast<int>(row), 4096 + column});
    }
  }
  return info;
}

absl::Duration time_to_parse(const std::string& text) {
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < 3; ++i) {
    const absl::Time begin = steady_now();
    EXPECT_THAT(parse_manifest(text), IsOk());
    best = std::min(best, steady_now() - begin);
  }
  return best;
}

// Ten times the pieces may take 40 times as long, for sorting, caches and noise; a quadratic parser
// takes 100 times as long.
TEST(ManifestTest, AHundredThousandPiecesParseInLinearTime) {
  const absl::Duration small = time_to_parse(format_manifest(grid_info(100)));
  const absl::Duration large = time_to_parse(format_manifest(grid_info(316)));
  RecordProperty("small_ms", static_cast<int>(absl::ToInt64Milliseconds(small)));
  RecordProperty("large_ms", static_cast<int>(absl::ToInt64Milliseconds(large)));
  EXPECT_LT(large, 40 * small);
}

}  // namespace
}  // namespace tessera::checkpoint::internal
