// SPDX-License-Identifier: Apache-2.0
//
// gemm() on every instruction set of the CPU, and OpenBLAS, against loops.
#include "compute/cpu/gemm.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "device/arithmetic.h"
#include "gtest/gtest.h"

namespace tessera::kernels {
namespace {

// The functions of an instruction set, which this CPU has and this build has.
struct Set {
  const char* name;
  void (*of_floats)(const GemmSize&, const GemmForm&, const float*, const float*, float*);
  void (*of_doubles)(const GemmSize&, const GemmForm&, const double*, const double*, double*);
  void (*of_int32)(const GemmSize&, const int32_t*, const int32_t*, int32_t*);
  void (*of_int64)(const GemmSize&, const int64_t*, const int64_t*, int64_t*);

  void multiply(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
                float* c) const {
    of_floats(size, form, a, b, c);
  }
  void multiply(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
                double* c) const {
    of_doubles(size, form, a, b, c);
  }
  void multiply(const GemmSize& size, const GemmForm&, const int32_t* a, const int32_t* b,
                int32_t* c) const {
    of_int32(size, a, b, c);
  }
  void multiply(const GemmSize& size, const GemmForm&, const int64_t* a, const int64_t* b,
                int64_t* c) const {
    of_int64(size, a, b, c);
  }
};

std::vector<Set> sets() {
  std::vector<Set> result;
#define TESSERA_SET_(name)                                                                      \
  result.push_back({#name, internal::gemm_##name, internal::gemm_##name, internal::gemm_##name, \
                    internal::gemm_##name})
  TESSERA_SET_(baseline);
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::kAvx2) TESSERA_SET_(avx2);
#ifndef TESSERA_WITHOUT_AVX512
  if (best == InstructionSet::kAvx512) TESSERA_SET_(avx512);
#endif
#undef TESSERA_SET_
  return result;
}

// Small integers, whose sums are exact.
template <class T>
std::vector<T> numbers(int64_t count, int64_t factor) {
  std::vector<T> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<T>(i * factor % 7 - 3);
  return result;
}

// [rows, columns] as [columns, rows].
template <class T>
std::vector<T> transposed(const std::vector<T>& x, int64_t rows, int64_t columns) {
  std::vector<T> result(x.size());
  for (int64_t i = 0; i < rows * columns; ++i) result[i % columns * rows + i / columns] = x[i];
  return result;
}

template <class T>
void check_sizes(const std::vector<GemmForm>& forms) {
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
        for (const GemmForm& form : forms) {
          const std::vector<T> left = form.is_a_transposed ? transposed(a, m, k) : a;
          const std::vector<T> right = form.is_b_transposed ? transposed(b, k, n) : b;
          for (const Set& set : sets()) {
            std::vector<T> c(m * n, T(3));
            set.multiply({m, n, k}, form, left.data(), right.data(), c.data());
            for (T& each : c) each -= form.adds ? T(3) : T(0);
            EXPECT_EQ(c, expected) << set.name << " " << m << " " << n << " " << k;
          }
        }
      }
    }
  }
}

TEST(GemmTest, EverySizeAndFormOnEveryInstructionSet) {
  std::vector<GemmForm> forms;
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const bool adds : {false, true}) forms.push_back({a, b, adds});
    }
  }
  check_sizes<float>(forms);
  check_sizes<double>(forms);
  check_sizes<int32_t>({{}});
  check_sizes<int64_t>({{}});
}

template <class T>
void check_openblas() {
  const int64_t sizes[] = {1, 2, 5, 33, 70};
  for (const int64_t m : sizes) {
    for (const int64_t n : sizes) {
      for (const int64_t k : sizes) {
        const std::vector<T> a = numbers<T>(m * k, 5);
        const std::vector<T> b = numbers<T>(k * n, 3);
        for (const bool adds : {false, true}) {
          std::vector<T> expected(m * n, T(3));
          internal::gemm_baseline({m, n, k}, {.adds = adds}, a.data(), b.data(), expected.data());
          for (const bool is_a : {false, true}) {
            for (const bool is_b : {false, true}) {
              std::vector<T> c(m * n, T(3));
              internal::gemm_openblas({m, n, k}, {is_a, is_b, adds},
                                      (is_a ? transposed(a, m, k) : a).data(),
                                      (is_b ? transposed(b, k, n) : b).data(), c.data());
              EXPECT_EQ(c, expected) << m << " " << n << " " << k << " " << is_a << is_b << adds;
            }
          }
        }
      }
    }
  }
}

TEST(GemmTest, OpenBlasComputesTheSame) {
  if (openblas() == nullptr) GTEST_SKIP() << "OpenBLAS is not used on this machine";
  check_openblas<float>();
  check_openblas<double>();
}

// Its serial flavour is not built without locks.
TEST(GemmTest, LargeProductsOfManyThreads) {
  const GemmSize size = {.rows = 5, .columns = 1024, .summed = 1024};
  static_assert(is_for_openblas({.rows = 5, .columns = 1024, .summed = 1024}, 4));
  const std::vector<float> a = numbers<float>(size.rows * size.summed, 5);
  const std::vector<float> b = numbers<float>(size.summed * size.columns, 3);
  std::vector<float> expected(size.rows * size.columns);
  internal::gemm_baseline(size, {}, a.data(), b.data(), expected.data());
  std::vector<std::thread> threads;
  std::atomic<int> num_right = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 10; ++call) {
        std::vector<float> c(expected.size());
        gemm(Arithmetic::of_this_host(), size, {}, a.data(), b.data(), c.data());
        num_right += c == expected ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 160);
}

TEST(GemmTest, OpenBlasComputesLargeProductsAlone) {
  EXPECT_TRUE(is_for_openblas({.rows = 64, .columns = 4096, .summed = 4096}, 4));
  EXPECT_TRUE(is_for_openblas({.rows = 2, .columns = 512, .summed = 512}, 8));
  EXPECT_FALSE(is_for_openblas({.rows = 2, .columns = 512, .summed = 512}, 4));
  EXPECT_FALSE(is_for_openblas({.rows = 1, .columns = 4096, .summed = 4096}, 4));
  EXPECT_FALSE(is_for_openblas({.rows = 2048, .columns = 64, .summed = 2048}, 4));
  EXPECT_FALSE(is_for_openblas({.rows = 2048, .columns = 1 << 20, .summed = 64}, 4));
  EXPECT_FALSE(is_for_openblas({.rows = 2, .columns = 1LL << 31, .summed = 128}, 4));
}

TEST(GemmTest, IntegersWrap) {
  const int32_t a[] = {1 << 30, 3};
  const int32_t b[] = {4, 5};
  int32_t c = 0;
  gemm(Arithmetic::of_this_host(), {1, 1, 2}, a, b, &c);
  EXPECT_EQ(c, 15);
}

TEST(GemmTest, SameBitsTwice) {
  constexpr int64_t kSize = 130;
  std::vector<float> a(kSize * kSize);
  for (size_t i = 0; i < a.size(); ++i) a[i] = std::sin(static_cast<float>(i));
  std::vector<float> first(a.size());
  std::vector<float> second(a.size());
  gemm(Arithmetic::of_this_host(), {kSize, kSize, kSize}, {}, a.data(), a.data(), first.data());
  // At another address.
  const std::vector<float> copy = a;
  gemm(Arithmetic::of_this_host(), {kSize, kSize, kSize}, {}, copy.data(), a.data(), second.data());
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tessera::kernels
