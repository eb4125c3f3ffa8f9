// SPDX-License-Identifier: Apache-2.0
//
// gemm() on every instruction set of the CPU, against loops.
#include "ops/kernels/gemm.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "ops/kernels/instruction_set.h"

namespace tessera::kernels {
namespace {

template <class T>
using Function = void (*)(const GemmSize& size, const T* a, const T* b, T* c);

template <class T>
struct Set {
  const char* name;
  Function<T> function;
};

// Those that this CPU has, and that this build has.
template <class T>
std::vector<Set<T>> sets() {
  std::vector<Set<T>> result = {{"chosen", gemm}, {"baseline", internal::gemm_baseline}};
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::kAvx2) result.push_back({"avx2", internal::gemm_avx2});
#ifndef TESSERA_WITHOUT_AVX512
  if (best == InstructionSet::kAvx512) result.push_back({"avx512", internal::gemm_avx512});
#endif
  return result;
}

// Small integers, whose sums are exact.
template <class T>
std::vector<T> numbers(int64_t count, int64_t factor) {
  std::vector<T> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<T>(i * factor % 7 - 3);
  return result;
}

template <class T>
void check_sizes() {
  const int64_t sizes[] = {0, 1, 2, 5, 16, 33, 70};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        const std::vector<T> a = numbers<T>(m * k, 5);
        const std::vector<T> b = numbers<T>(k * n, 3);
        std::vector<T> expected(m * n, T(0));
        for (int64_t i = 0; i < m * n; ++i) {
          for (int64_t l = 0; l < k; ++l) expected[i] += a[i / n * k + l] * b[l * n + i % n];
        }
        for (const Set<T>& set : sets<T>()) {
          std::vector<T> c(m * n, T(NAN));
          set.function({m, n, k}, a.data(), b.data(), c.data());
          EXPECT_EQ(c, expected) << set.name << " " << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(GemmTest, EverySizeOnEveryInstructionSet) {
  check_sizes<float>();
  check_sizes<double>();
}

TEST(GemmTest, SameBitsTwice) {
  constexpr int64_t kSize = 130;
  std::vector<float> a(kSize * kSize);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  std::vector<float> first(a.size());
  std::vector<float> second(a.size());
  gemm({kSize, kSize, kSize}, a.data(), a.data(), first.data());
  // At another address.
  const std::vector<float> copy = a;
  gemm({kSize, kSize, kSize}, copy.data(), a.data(), second.data());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tessera::kernels
