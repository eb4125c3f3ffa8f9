// SPDX-License-Identifier: Apache-2.0
//
// The bytes of .npy files, and files that cannot be written.
#include "examples/npy.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/matchers.h"

namespace tessera::examples {
namespace {

using ::tessera::testing::IsOk;
using ::tessera::testing::StatusIs;
using ::testing::HasSubstr;

struct HeaderCase {
  const char* name;
  Shape shape;
  const char* tuple;  // as Python writes it
};

class NpyHeaderTest : public ::testing::TestWithParam<HeaderCase> {};

TEST_P(NpyHeaderTest, FollowsTheFormat) {
  const std::string header = npy_header(GetParam().shape);
  ASSERT_GE(header.size(), 64u);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t length = static_cast<uint8_t>(header[8]) + 256 * static_cast<uint8_t>(header[9]);
  EXPECT_EQ(length, header.size() - 10);
  const std::string dictionary =
      std::string("{'descr': '<f4', 'fortran_order': False, 'shape': ") + GetParam().tuple + ", }";
  EXPECT_EQ(header.substr(10, dictionary.size()), dictionary);
  EXPECT_EQ(header.find_first_not_of(' ', 10 + dictionary.size()), header.size() - 1);
  EXPECT_EQ(header.back(), '\n');
}

INSTANTIATE_TEST_SUITE_P(Shapes, NpyHeaderTest,
                         ::testing::Values(HeaderCase{"scalar", {}, "()"},
                                           HeaderCase{"vector", {7}, "(7,)"},
                                           HeaderCase{"matrix", {64, 96}, "(64, 96)"},
                                           HeaderCase{"empty", {0, 3}, "(0, 3)"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(NpyTest, ALongHeaderHasALengthOfTwoBytes) {
  const std::string header = npy_header(Shape(32, 1000000007));
  EXPECT_GT(header.size(), 256u + 10);
  EXPECT_EQ(header.size() % 64, 0u);
  EXPECT_EQ(static_cast<uint8_t>(header[8]) + 256u * static_cast<uint8_t>(header[9]),
            header.size() - 10);
}

TEST(NpyTest, ElementsFollowTheHeader) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/m.npy";
  const HostTensor<float> tensor{{2, 3}, {1, 2, 3, 4, 5, -0.5f}};
  ASSERT_THAT(write_npy(path, tensor), IsOk());
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string header = npy_header({2, 3});
  ASSERT_EQ(bytes.size(), header.size() + 6 * sizeof(float));
  EXPECT_EQ(bytes.substr(0, header.size()), header);
  EXPECT_EQ(std::memcmp(&bytes[header.size()], tensor.data.data(), 6 * sizeof(float)), 0);
}

TEST(NpyTest, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(
      write_npy("no/such/folder/m.npy", {{1}, {1}}),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("cannot create \"no/such/folder/m.npy\": No such file or directory")));
}

TEST(NpyTest, AFullDiskIsAnError) {
  EXPECT_THAT(write_npy("/dev/full", {{1}, {1}}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cannot write")));
}

}  // namespace
}  // namespace tessera::examples
