// SPDX-License-Identifier: Apache-2.0
//
// A library with the functions of OpenBLAS that device/arithmetic.cc looks up. Environment
// variables say what it answers. A product writes the number of threads to its result.
#include <cstdlib>

namespace {

const char* setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

int num_threads = 4;

template <class T>
void gemm(T* c) {
  *c = static_cast<T>(num_threads);
}

}  // namespace

extern "C" {

const char* openblas_get_corename() { return setting("FAKE_OPENBLAS_CORE", "Haswell"); }
const char* openblas_get_config() { return setting("FAKE_OPENBLAS_CONFIG", "DYNAMIC_ARCH"); }
int openblas_get_parallel() { return std::atoi(setting("FAKE_OPENBLAS_PARALLEL", "0")); }
int openblas_get_num_threads() { return num_threads; }
void openblas_set_num_threads(int number) { num_threads = number; }

void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                 float* c, int) {
  gemm(c);
}
void cblas_dgemm(int, int, int, int, int, int, double, const double*, int, const double*, int,
                 double, double* c, int) {
  gemm(c);
}

}  // extern "C"
