// SPDX-License-Identifier: Apache-2.0
//
// Products of bf16 matrices by MathApi::multiply(): called in a local function, and bare. Measures
// the host's cost of a call, and the rate of large products.
#ifndef TESSERA_BENCHMARKS_GPU_LOCAL_PRODUCTS_H_
#define TESSERA_BENCHMARKS_GPU_LOCAL_PRODUCTS_H_

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "benchmarks/gpu/rounds.h"
#include "compute/cuda/math_api.h"

namespace tessera::benchmarks {

struct ProductSizes {
  int64_t small_rows = 128;
  int64_t large_rows = 8192;
  int rounds = 15;
  int small_repeats = 200;  // in a row, before the caller waits
  int large_repeats = 4;
};

// Runs as one client of one device on the libraries. Adds rows, and two goals: at most 5 us over
// the bare call, and 0.97 of its rate. The results of both are checked before they are measured.
Status measure_products(const std::shared_ptr<const cuda::Libraries>& libraries,
                        const ProductSizes& sizes, Report* report);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_LOCAL_PRODUCTS_H_
