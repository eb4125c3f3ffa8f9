// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/openblas.h"

#include <dlfcn.h>

#include <optional>

#include "absl/strings/string_view.h"
#include "ops/kernels/instruction_set.h"

namespace tessera::kernels {
namespace {

// By its path: the library that a plain name finds may have threads.
constexpr char kLibrary[] = "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0";

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const OpenBlas* openblas() {
  static const std::optional<OpenBlas> kLoaded = []() -> std::optional<OpenBlas> {
    if (best_instruction_set() != InstructionSet::kAvx2) return std::nullopt;
    // It stays loaded until the process ends.
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::nullopt;
    const char* (*kernels)() = nullptr;
    OpenBlas blas;
    if (!find(library, "openblas_get_corename", kernels) ||
        !find(library, "cblas_sgemm", blas.sgemm_) || !find(library, "cblas_dgemm", blas.dgemm_)) {
      return std::nullopt;
    }
    const absl::string_view name = kernels();
    if (name != "Haswell" && name != "Zen") return std::nullopt;
    return blas;
  }();
  return kLoaded.has_value() ? &*kLoaded : nullptr;
}

template <class T>
void OpenBlas::call(Gemm<T> gemm, const GemmSize& size, const GemmForm& form, const T* a,
                    const T* b, T* c) {
  constexpr int kRowMajor = 101;
  constexpr int kAsIs = 111;
  constexpr int kTransposed = 112;
  const auto rows = static_cast<int>(size.rows);
  const auto columns = static_cast<int>(size.columns);
  const auto summed = static_cast<int>(size.summed);
  gemm(kRowMajor, form.is_a_transposed ? kTransposed : kAsIs,
       form.is_b_transposed ? kTransposed : kAsIs, rows, columns, summed, T(1), a,
       form.is_a_transposed ? rows : summed, b, form.is_b_transposed ? summed : columns,
       T(form.adds ? 1 : 0), c, columns);
}

void OpenBlas::gemm(const GemmSize& size, const GemmForm& form, const float* a, const float* b,
                    float* c) const {
  call(sgemm_, size, form, a, b, c);
}
void OpenBlas::gemm(const GemmSize& size, const GemmForm& form, const double* a, const double* b,
                    double* c) const {
  call(dgemm_, size, form, a, b, c);
}

}  // namespace tessera::kernels
