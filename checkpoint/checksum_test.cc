// SPDX-License-Identifier: Apache-2.0
//
// Checksums of known bytes: the rows of tests/facts/checkpoint.md.
#include "checkpoint/checksum.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::checkpoint::internal {
namespace {

// Byte i is (167 i + 13) mod 256.
std::string p(int64_t n) {
  std::string bytes(n, '\0');
  for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<char>((167 * i + 13) % 256);
  return bytes;
}

absl::Span<const std::byte> as_bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

struct ChecksumRow {
  const char* name;
  std::string bytes;
  const char* checksum64;
  const char* checksum128;
};

TEST(ChecksumTest, RowsOfTheFacts) {
  const ChecksumRow kRows[] = {
      {"empty", "", "2d06800538d394c2", "99aa06d3014798d86001c324468d497f"},
      {"a", "a", "e6c632b61e964e1f", "a96faf705af16834e6c632b61e964e1f"},
      {"123456789", "123456789", "72dcb18b67a17dff", "33119477ede5dcd5e9716427681d5860"},
      {"16 x 00", std::string(16, '\0'), "d0a66a65c7528968", "e5189a9599e3f86205ea23ef06e28b2d"},
      {"p(17)", p(17), "bc307578d06e9d93", "f600c8a98b27cda20dfdb8ed0de7262a"},
      {"p(240)", p(240), "2817ed3cdf9547e7", "5d572fc255e19c13dfd310866e8ad632"},
      {"p(241)", p(241), "02f838dd48200ee8", "7fb50ebce4e0117802f838dd48200ee8"},
      {"p(4096)", p(4096), "5b1812436f21d06d", "c86b5857c54d0be95b1812436f21d06d"},
      {"p(4194304)", p(4194304), "d0c380efb671d17a", "29b7a93804213ab0d0c380efb671d17a"},
      {"p(5000000)", p(5000000), "2371265990babc17", "9bd68d04d1a11a7a2371265990babc17"},
  };
  for (const ChecksumRow& row : kRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(hex(checksum64(row.bytes)), row.checksum64);
    EXPECT_EQ(hex(checksum64(as_bytes(row.bytes))), row.checksum64);
    EXPECT_EQ(checksum128_hex(row.bytes), row.checksum128);
    // In parts of other sizes, with one state.
    Checksum64 sum;
    for (const size_t part : {size_t{1}, size_t{7}, size_t{1000}, size_t{1} << 20}) {
      if (row.bytes.size() / part > 100000) continue;
      sum.reset();
      for (size_t at = 0; at < row.bytes.size(); at += part) {
        sum.add(as_bytes(absl::string_view(row.bytes).substr(at, part)));
      }
      EXPECT_EQ(hex(sum.value()), row.checksum64);
    }
  }
}

TEST(ChecksumTest, BlocksOfAFile) {
  const std::string bytes = p(5000000);
  const absl::string_view second = absl::string_view(bytes).substr(4194304);
  EXPECT_EQ(second.size(), 805696u);
  EXPECT_EQ(hex(checksum64(absl::string_view(bytes).substr(0, 4194304))), "d0c380efb671d17a");
  EXPECT_EQ(hex(checksum64(second)), "c289a125bad9aad0");
}

TEST(ChecksumTest, NamesOfTheFactsHaveTheirHashes) {
  EXPECT_EQ(hex(checksum64(absl::string_view("t0"))), "048aed90999e2ce9");
  EXPECT_EQ(hex(checksum64(absl::string_view("t1"))), "c03234fac12ac33c");
  EXPECT_EQ(hex(checksum64(absl::string_view("t2"))), "c23bcc2a4bb537e0");
}

TEST(ChecksumTest, AStateCanBeMoved) {
  Checksum64 from;
  from.add(as_bytes("12345"));
  Checksum64 to = std::move(from);
  to.add(as_bytes("6789"));
  EXPECT_EQ(hex(to.value()), "72dcb18b67a17dff");
}

}  // namespace
}  // namespace tessera::checkpoint::internal
