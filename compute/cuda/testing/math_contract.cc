// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/testing/math_contract.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "device/cuda/kernel_plan.h"
#include "device/cuda/testing/bench.h"

namespace tessera::cuda {
namespace {

// Small whole numbers, whose products and sums every type of floats holds exactly.
template <class T>
std::vector<std::byte> whole_numbers(int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(static_cast<float>((7 * i + 3) % 11 - 5));
    std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
  return bytes;
}

bool has_no_cublaslt(const Status& status) {
  return absl::IsUnimplemented(status) && absl::StrContains(status.message(), "install");
}

template <class T>
Status check_product(const Libraries& libraries, bool a_is_transposed, bool b_is_transposed) {
  constexpr int64_t kBatch = 2, kRows = 5, kColumns = 3, kSummed = 4;
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(*libraries.cuda));
  const std::vector<std::byte> a = whole_numbers<T>(kBatch * kRows * kSummed);
  const std::vector<std::byte> b = whole_numbers<T>(kBatch * kSummed * kColumns);
  Gemm gemm;
  gemm.type = element_type(dtype_of<T>());
  gemm.batch = kBatch;
  gemm.rows = kRows;
  gemm.columns = kColumns;
  gemm.summed = kSummed;
  gemm.a = {nullptr, a_is_transposed, a_is_transposed ? kRows : kSummed, kRows * kSummed};
  gemm.b = {nullptr, b_is_transposed, b_is_transposed ? kSummed : kColumns, kSummed * kColumns};
  TESSERA_ASSIGN_OR_RETURN(gemm.a.data, bench->upload(a));
  TESSERA_ASSIGN_OR_RETURN(gemm.b.data, bench->upload(b));
  constexpr int64_t kCount = kBatch * kRows * kColumns;
  TESSERA_ASSIGN_OR_RETURN(gemm.c, bench->memory(kCount * sizeof(T)));
  const Status status = libraries.math->multiply(gemm, bench->workspaces(), bench->stream());
  if (has_no_cublaslt(status)) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(status);
  TESSERA_ASSIGN_OR_RETURN(const auto got, bench->download(gemm.c, kCount * sizeof(T)));
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t n = i / (kRows * kColumns), row = i / kColumns % kRows, column = i % kColumns;
    double sum = 0;
    for (int64_t k = 0; k < kSummed; ++k) {
      const int64_t from_a = a_is_transposed ? k * kRows + row : row * kSummed + k;
      const int64_t from_b = b_is_transposed ? column * kSummed + k : k * kColumns + column;
      sum += static_cast<double>(at<T>(a, n * kRows * kSummed + from_a)) *
             static_cast<double>(at<T>(b, n * kSummed * kColumns + from_b));
    }
    if (static_cast<double>(at<T>(got, i)) == sum) continue;
    return absl::InternalError(absl::StrCat("element ", i, " of a product of ",
                                            dtype_name(dtype_of<T>()), " is ",
                                            static_cast<double>(at<T>(got, i)), " and not ", sum));
  }
  return absl::OkStatus();
}

Status multiplies(const Libraries& libraries) {
  for (const bool a_is_transposed : {false, true}) {
    for (const bool b_is_transposed : {false, true}) {
      TESSERA_RETURN_IF_ERROR(check_product<float>(libraries, a_is_transposed, b_is_transposed));
      TESSERA_RETURN_IF_ERROR(check_product<double>(libraries, a_is_transposed, b_is_transposed));
      TESSERA_RETURN_IF_ERROR(
          check_product<Eigen::half>(libraries, a_is_transposed, b_is_transposed));
      TESSERA_RETURN_IF_ERROR(
          check_product<Eigen::bfloat16>(libraries, a_is_transposed, b_is_transposed));
    }
  }
  return absl::OkStatus();
}

// Sums that are long for their result, as in the gradient of a weight: where there is memory for a
// workspace, where there is none, and twice.
template <class T>
Status check_long_sums(const Libraries& libraries) {
  constexpr int64_t kRows = 32, kColumns = 16, kSummed = 4096;
  TESSERA_ASSIGN_OR_RETURN(const auto bench, Bench::create(*libraries.cuda));
  std::mt19937 random(17);
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<std::byte> terms[2];
  for (const int k : {0, 1}) {
    for (int64_t i = 0; i < kSummed * (k == 0 ? kRows : kColumns); ++i) {
      const T value = static_cast<T>(numbers(random));
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      terms[k].insert(terms[k].end(), bytes, bytes + sizeof(T));
    }
  }
  Gemm gemm;
  gemm.type = element_type(dtype_of<T>());
  gemm.rows = kRows;
  gemm.columns = kColumns;
  gemm.summed = kSummed;
  gemm.a = {nullptr, true, kRows, 0};
  gemm.b = {nullptr, false, kColumns, 0};
  TESSERA_ASSIGN_OR_RETURN(gemm.a.data, bench->upload(terms[0]));
  TESSERA_ASSIGN_OR_RETURN(gemm.b.data, bench->upload(terms[1]));
  constexpr int64_t kCount = kRows * kColumns;
  TESSERA_ASSIGN_OR_RETURN(gemm.c, bench->memory(kCount * sizeof(T)));
  const auto no_workspace = [](uint64_t) -> StatusOr<std::byte*> {
    return absl::ResourceExhaustedError("no memory");
  };
  std::vector<std::byte> results[4];
  for (const int k : {0, 1, 2, 3}) {
    const Status status = k % 2 == 0
                              ? libraries.math->multiply(gemm, bench->workspaces(), bench->stream())
                              : libraries.math->multiply(gemm, no_workspace, bench->stream());
    if (has_no_cublaslt(status)) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(status);
    TESSERA_ASSIGN_OR_RETURN(results[k], bench->download(gemm.c, kCount * sizeof(T)));
  }
  const bool same_bits = results[0] == results[2] && results[1] == results[3];
  TESSERA_RETURN_IF_ERROR(expect(same_bits, "a product gives the same bits each time"));
  // One rounding to the type, after sums in f32 or f64.
  const double rounding = sizeof(T) > 2                    ? 0
                          : std::is_same_v<T, Eigen::half> ? std::ldexp(1, -11)
                                                           : std::ldexp(1, -8);
  for (int64_t i = 0; i < kCount; ++i) {
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < kSummed; ++k) {
      const double term = static_cast<double>(at<T>(terms[0], k * kRows + i / kColumns)) *
                          static_cast<double>(at<T>(terms[1], k * kColumns + i % kColumns));
      sum += term;
      magnitude += std::abs(term);
    }
    for (const int k : {0, 1}) {
      const double got = static_cast<double>(at<T>(results[k], i));
      if (std::abs(got - sum) <= 1e-6 * magnitude + rounding * std::abs(sum)) continue;
      return absl::InternalError(absl::StrCat("element ", i, " of a long sum of ",
                                              dtype_name(dtype_of<T>()), " is ", got, " and not ",
                                              sum));
    }
  }
  return absl::OkStatus();
}

Status multiplies_long_sums(const Libraries& libraries) {
  TESSERA_RETURN_IF_ERROR(check_long_sums<float>(libraries));
  TESSERA_RETURN_IF_ERROR(check_long_sums<double>(libraries));
  TESSERA_RETURN_IF_ERROR(check_long_sums<Eigen::half>(libraries));
  return check_long_sums<Eigen::bfloat16>(libraries);
}

}  // namespace

std::vector<MathContractCase> math_contract_cases() {
  return {
      {"multiplies", multiplies},
      {"multiplies_long_sums", multiplies_long_sums},
  };
}

}  // namespace tessera::cuda
