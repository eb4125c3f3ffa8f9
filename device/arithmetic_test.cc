// SPDX-License-Identifier: Apache-2.0
//
// Texts of Arithmetic, what two hosts have in common, and which OpenBLAS is used.
#include "device/arithmetic.h"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/folder.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr Arithmetic kBaseline = {InstructionSet::kBaseline, false};
constexpr Arithmetic kAvx2 = {InstructionSet::kAvx2, false};
constexpr Arithmetic kAvx2WithOpenBlas = {InstructionSet::kAvx2, true};
constexpr Arithmetic kAvx512 = {InstructionSet::kAvx512, false};

TEST(ArithmeticTest, TextsAreReadAsTheyWereWritten) {
  const auto read = [](const Arithmetic& arithmetic) {
    return Arithmetic::parse(arithmetic.to_string());
  };
  for (const Arithmetic& each : {kBaseline, kAvx2, kAvx2WithOpenBlas, kAvx512}) {
    EXPECT_THAT(read(each), IsOkAndHolds(each));
  }
  EXPECT_THAT(read(Arithmetic::of_this_host()), IsOkAndHolds(Arithmetic::of_this_host()));
  EXPECT_EQ(kAvx2WithOpenBlas.to_string(), "avx2, openblas");
  for (const char* wrong : {"", "sse", "avx2,openblas", "baseline, openblas", "avx512, openblas"}) {
    EXPECT_THAT(Arithmetic::parse(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::HasSubstr("is not an arithmetic that this build knows")));
  }
}

// Each pair, in both orders.
TEST(ArithmeticTest, WhatTwoHaveInCommonIsTheLeast) {
  struct Row {
    Arithmetic a, b, common;
  };
  const Row rows[] = {
      {kBaseline, kAvx2, kBaseline},     {kBaseline, kAvx2WithOpenBlas, kBaseline},
      {kBaseline, kAvx512, kBaseline},   {kAvx2, kAvx2WithOpenBlas, kAvx2},
      {kAvx2, kAvx512, kAvx2},           {kAvx2WithOpenBlas, kAvx512, kAvx2},
      {kBaseline, kBaseline, kBaseline}, {kAvx2, kAvx2, kAvx2},
      {kAvx512, kAvx512, kAvx512},       {kAvx2WithOpenBlas, kAvx2WithOpenBlas, kAvx2WithOpenBlas},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(common_arithmetic(row.a, row.b), row.common);
    EXPECT_EQ(common_arithmetic(row.b, row.a), row.common);
  }
}

// A library of testing/fake_openblas.cc, and whether it is used.
struct FlavourRow {
  const char* name;
  const char* parallel;  // what openblas_get_parallel() returns
  const char* core = "Haswell";
  const char* config = "OpenBLAS 0.3.21 DYNAMIC_ARCH MAX_THREADS=64";
  bool is_of_program = false;
  std::optional<int> threads = {};  // of a product; nothing where the library is not used
};

class OpenBlasFlavourTest : public ::testing::TestWithParam<FlavourRow> {
 protected:
  // Each row has a library of its own, because a library stays loaded.
  OpenBlasFlavourTest() : library_(folder_ / "libfake_openblas.so") {
    testing::write_bytes(library_, testing::read_bytes("device/libfake_openblas.so"));
    setenv("FAKE_OPENBLAS_PARALLEL", GetParam().parallel, 1);
    setenv("FAKE_OPENBLAS_CORE", GetParam().core, 1);
    setenv("FAKE_OPENBLAS_CONFIG", GetParam().config, 1);
  }

  const testing::Folder folder_;
  const std::string library_;
};

TEST_P(OpenBlasFlavourTest, RunsInTheCallerOrIsNotUsed) {
  if (GetParam().is_of_program) {
    ASSERT_NE(dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  }
  const std::optional<OpenBlas> blas = internal::load_openblas({library_.c_str()});
  ASSERT_EQ(blas.has_value(), GetParam().threads.has_value());
  if (!blas.has_value()) return;
  float single = 0;
  double twice = 0;
  blas->sgemm(0, 0, 0, 1, 1, 1, 1, &single, 1, &single, 1, 0, &single, 1);
  blas->dgemm(0, 0, 0, 1, 1, 1, 1, &twice, 1, &twice, 1, 0, &twice, 1);
  EXPECT_EQ(single, GetParam().threads);
  EXPECT_EQ(twice, GetParam().threads);
}

// The fake has 4 threads until it is told otherwise; a library without threads is not told.
INSTANTIATE_TEST_SUITE_P(
    Rows, OpenBlasFlavourTest,
    ::testing::Values(
        FlavourRow{.name = "without_threads", .parallel = "0", .threads = 4},
        FlavourRow{.name = "own_threads", .parallel = "1", .threads = 1},
        FlavourRow{.name = "openmp", .parallel = "2"},
        FlavourRow{.name = "own_threads_of_the_program", .parallel = "1", .is_of_program = true},
        FlavourRow{.name = "without_threads_of_the_program",
                   .parallel = "0",
                   .is_of_program = true,
                   .threads = 4},
        FlavourRow{.name = "zen", .parallel = "0", .core = "Zen", .threads = 4},
        FlavourRow{.name = "kernels_of_another_cpu", .parallel = "0", .core = "Prescott"},
        FlavourRow{.name = "sizes_of_64_bits", .parallel = "0", .config = "0.3.21 USE64BITINT"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(OpenBlasTest, TheFirstLibraryThatCanBeUsedIs) {
  setenv("FAKE_OPENBLAS_PARALLEL", "0", 1);
  setenv("FAKE_OPENBLAS_CORE", "Haswell", 1);
  setenv("FAKE_OPENBLAS_CONFIG", "", 1);
  EXPECT_FALSE(internal::load_openblas({}).has_value());
  EXPECT_FALSE(internal::load_openblas({"libmissing.so.0", "libc.so.6"}).has_value());
  EXPECT_TRUE(
      internal::load_openblas({"libmissing.so.0", "libc.so.6", "device/libfake_openblas.so"})
          .has_value());
}

}  // namespace
}  // namespace tessera
