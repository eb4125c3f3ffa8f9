// SPDX-License-Identifier: Apache-2.0
#include "device/arithmetic.h"

#include <dlfcn.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tessera {
namespace {

// Debian's flavour without threads, then what the loader finds: Debian, Spack and conda have any
// flavour by that name, Fedora the flavour without threads.
constexpr const char* kOpenBlasNames[] = {
    "/usr/lib/x86_64-linux-gnu/openblas-serial/libopenblas.so.0", "libopenblas.so.0",
    "libopenblas.so"};
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

// Whether products of the library run in the thread that calls them. A flavour with threads of its
// own is told to use none. A program that uses this library itself keeps its threads, and
// the flavour of OpenMP has a number of threads for each thread that calls it: these are refused.
bool runs_in_caller(void* library, bool is_of_program) {
  enum { kWithoutThreads = 0, kOwnThreads = 1 };
  int (*flavour)() = nullptr;
  if (!find(library, "openblas_get_parallel", flavour)) return false;
  if (flavour() == kWithoutThreads) return true;
  int (*num_threads)() = nullptr;
  void (*set_num_threads)(int) = nullptr;
  if (flavour() != kOwnThreads || !find(library, "openblas_get_num_threads", num_threads) ||
      !find(library, "openblas_set_num_threads", set_num_threads)) {
    return false;
  }
  if (!is_of_program) set_num_threads(1);
  return num_threads() == 1;
}

// Whether sizes are of type int. A build with sizes of 64 bits says so.
bool has_int_sizes(void* library) {
  const char* (*config)() = nullptr;
  return find(library, "openblas_get_config", config) &&
         !absl::StrContains(config(), "USE64BITINT");
}

std::optional<OpenBlas> load_one(const char* name) {
  const bool is_of_program = dlopen(name, RTLD_NOW | RTLD_NOLOAD) != nullptr;
  // It stays loaded until the process ends.
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const char* (*kernels)() = nullptr;
  OpenBlas blas;
  if (!find(library, "openblas_get_corename", kernels) ||
      !find(library, "cblas_sgemm", blas.sgemm) || !find(library, "cblas_dgemm", blas.dgemm)) {
    return std::nullopt;
  }
  const absl::string_view cpu = kernels();
  if (cpu != "Haswell" && cpu != "Zen") return std::nullopt;
  if (!has_int_sizes(library) || !runs_in_caller(library, is_of_program)) return std::nullopt;
  return blas;
}

}  // namespace

namespace internal {

std::optional<OpenBlas> load_openblas(absl::Span<const char* const> names) {
  for (const char* const name : names) {
    if (const std::optional<OpenBlas> blas = load_one(name)) return blas;
  }
  return std::nullopt;
}

}  // namespace internal

const char* instruction_set_name(InstructionSet set) {
  static constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[static_cast<int>(set)];
}

InstructionSet best_instruction_set() {
  static const InstructionSet kBest = find_set();
  return kBest;
}

const OpenBlas* openblas() {
  static const std::optional<OpenBlas> kLoaded = best_instruction_set() == InstructionSet::kAvx2
                                                     ? internal::load_openblas(kOpenBlasNames)
                                                     : std::nullopt;
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
      absl::StrCat(in_quotes(text), " is not an arithmetic that this build knows"));
}

std::string Arithmetic::to_string() const {
  return absl::StrCat(instruction_set_name(set), uses_openblas ? kWithOpenBlas : "");
}

Arithmetic common_arithmetic(const Arithmetic& a, const Arithmetic& b) {
  return {std::min(a.set, b.set), a.uses_openblas && b.uses_openblas};
}

}  // namespace tessera
