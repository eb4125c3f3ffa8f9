// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic: the properties of a CPU that determine the bits of a result besides the operands: the
// instruction set of the kernels, and whether OpenBLAS computes some products.
//
// Clients of one job may run on different CPUs. They agree on one Arithmetic when they connect, so
// that replicas hold the same bits on all of them:
//
//   Arithmetic agreed = Arithmetic::of_this_host();
//   for (const Arithmetic& other : others) agreed = common_arithmetic(agreed, other);
#ifndef TESSERA_DEVICE_ARITHMETIC_H_
#define TESSERA_DEVICE_ARITHMETIC_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera {

// In ascending order: a CPU with a set also has the sets before it.
enum class InstructionSet : uint8_t { kBaseline, kAvx2, kAvx512 };

// "baseline", "avx2" or "avx512".
const char* instruction_set_name(InstructionSet set);
// The best set that this CPU supports and this build has code for.
InstructionSet best_instruction_set();

struct Arithmetic {
  InstructionSet set = InstructionSet::kBaseline;
  // With kAvx2 only.
  bool uses_openblas = false;

  // The best of this host. The first call loads OpenBLAS, which takes some milliseconds.
  static const Arithmetic& of_this_host();
  // Reads a text of to_string(). InvalidArgument for another text.
  static StatusOr<Arithmetic> parse(absl::string_view text);
  // "avx2" or "avx2, openblas".
  std::string to_string() const;

  friend bool operator==(const Arithmetic&, const Arithmetic&) = default;
};

// The best arithmetic that the hosts of both can use.
Arithmetic common_arithmetic(const Arithmetic& a, const Arithmetic& b);

// Functions of OpenBLAS, cblas_sgemm and cblas_dgemm: enumerations and sizes are of type int.
// Thread-safe; the bits of a product depend on its sizes alone.
template <class T>
using CblasGemm = void (*)(int order, int a_form, int b_form, int rows, int columns, int summed,
                           T alpha, const T* a, int a_stride, const T* b, int b_stride, T beta,
                           T* c, int c_stride);
struct OpenBlas {
  CblasGemm<float> sgemm = nullptr;
  CblasGemm<double> dgemm = nullptr;
};
// Loaded at the first call; null where OpenBLAS is not used. It is used on CPUs with AVX2 and
// without AVX-512, if it has chosen its kernels for AVX2: it has a list of CPUs by name, and for an
// unknown CPU it may choose slow kernels. Products run in the thread that calls them: a flavour
// with threads of its own is set to one, unless the program has loaded it before and uses more. The
// flavour of OpenMP is not used.
const OpenBlas* openblas();

namespace internal {
// Loads the first of the libraries that can be used; nothing where there is none.
std::optional<OpenBlas> load_openblas(absl::Span<const char* const> names);
}  // namespace internal

}  // namespace tessera

#endif  // TESSERA_DEVICE_ARITHMETIC_H_
