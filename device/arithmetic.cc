// SPDX-License-Identifier: Apache-2.0
#include "device/arithmetic.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {
namespace {

// Loads the library by its path: the library that a plain name finds may have threads.
constexpr char kOpenBlas[] = "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0";
constexpr absl::string_view kWithOpenBlas = ", openblas";

constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kAvx2,
                                    InstructionSet::kAvx512};

InstructionSet find_set() {
  __builtin_cpu_init();
#ifndef TESSERA_WITHOUT_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
    return InstructionSet::kAvx512;
  }
#endif
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
  return InstructionSet::kBaseline;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::optional<OpenBlas> load_openblas() {
  if (best_instruction_set() != InstructionSet::kAvx2) return std::nullopt;
  // It stays loaded until the process ends.
  void* const library = dlopen(kOpenBlas, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const char* (*kernels)() = nullptr;
  OpenBlas blas;
  if (!find(library, "openblas_get_corename", kernels) ||
      !find(library, "cblas_sgemm", blas.sgemm) || !find(library, "cblas_dgemm", blas.dgemm)) {
    return std::nullopt;
  }
  const absl::string_view name = kernels();
  if (name != "Haswell" && name != "Zen") return std::nullopt;
  return blas;
}

}  // namespace

const char* instruction_set_name(InstructionSet set) {
  static constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(set)];
}

InstructionSet best_instruction_set() {
  static const InstructionSet kBest = find_set();
  return kBest;
}

const OpenBlas* openblas() {
  static const std::optional<OpenBlas> kLoaded = load_openblas();
  return kLoaded.has_value() ? &*kLoaded : nullptr;
}

const Arithmetic& Arithmetic::of_this_host() {
  static const Arithmetic kBest = {best_instruction_set(), openblas() != nullptr};
  return kBest;
}

StatusOr<Arithmetic> Arithmetic::parse(absl::string_view text) {
  for (const InstructionSet set : kSets) {
    for (const bool uses_openblas : {false, true}) {
      const Arithmetic arithmetic = {set, uses_openblas};
      if (uses_openblas && set != InstructionSet::kAvx2) continue;
      if (arithmetic.to_string() == text) return arithmetic;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(quoted(text), " is not an arithmetic that this build knows"));
}

std::string Arithmetic::to_string() const {
  return absl::StrCat(instruction_set_name(set), uses_openblas ? kWithOpenBlas : "");
}

Arithmetic common_arithmetic(const Arithmetic& a, const Arithmetic& b) {
  return {std::min(a.set, b.set), a.uses_openblas && b.uses_openblas};
}

}  // namespace tessera
