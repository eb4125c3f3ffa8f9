// SPDX-License-Identifier: Apache-2.0
//
// The seed of a random test. It is printed, so that a failure can be repeated:
//
//   TESSERA_TEST_SEED=4711 bazel test //tests/relayout:relayout_test
#ifndef TESSERA_TESTS_SUPPORT_SEED_H_
#define TESSERA_TESTS_SUPPORT_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"

namespace tessera::testing {

// $TESSERA_TEST_SEED, or `otherwise` where that is not set.
inline uint64_t test_seed(uint64_t otherwise) {
  uint64_t seed = otherwise;
  const char* text = std::getenv("TESSERA_TEST_SEED");
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &seed)) << "TESSERA_TEST_SEED=" << text;
  }
  std::cout << "TESSERA_TEST_SEED=" << seed << "\n";
  return seed;
}

// Another one in each run.
inline uint64_t test_seed() { return test_seed(std::random_device()()); }

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_SEED_H_
