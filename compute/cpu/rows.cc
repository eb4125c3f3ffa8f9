// SPDX-License-Identifier: Apache-2.0
#include "compute/cpu/rows.h"

#include <cstdint>
#include <vector>

#include "compute/cpu/loops.h"

namespace tessera::kernels {
namespace {

void rows_of(const Loops& loops, const RowCall& call, LoopType type, Rows rows,
             const void* const* in, void* out) {
  switch (call.kind) {
    case RowKind::kSoftmax:
    case RowKind::kLogSoftmax:
      return loops.softmax(type, call.kind == RowKind::kLogSoftmax, in[0], rows, out);
    case RowKind::kSoftmaxGradient:
    case RowKind::kLogSoftmaxGradient:
      return loops.softmax_gradient(type, call.kind == RowKind::kLogSoftmaxGradient, in[0], in[1],
                                    rows, out);
    case RowKind::kNormalize:
      return loops.normalize(type, in[0], in[1], in[2], rows, call.epsilon, out);
    case RowKind::kNormalizeGradient:
      return loops.normalize_gradient(type, in[0], in[1], rows, call.epsilon, out);
  }
}

// Row by row, each converted to f32 and back.
void rows_of_halves(const Loops& loops, const RowCall& call, HalfType type,
                    absl::Span<const std::byte* const> in, std::byte* out) {
  const int64_t n = call.size;
  std::vector<float> wide[3];
  std::vector<float> result(n);
  const void* operands[3] = {nullptr, nullptr, nullptr};
  for (int64_t row = 0; row < call.count; ++row) {
    for (size_t k = 0; k < in.size(); ++k) {
      // Scale and bias are one row for all.
      const bool is_shared = call.kind == RowKind::kNormalize && k > 0;
      if (is_shared && row > 0) continue;
      wide[k].resize(n);
      operands[k] = wide[k].data();
      loops.widen(type, reinterpret_cast<const uint16_t*>(in[k]) + (is_shared ? 0 : row * n),
                  wide[k].data(), n);
    }
    rows_of(loops, call, LoopType::kFloat32, {1, n}, operands, result.data());
    loops.narrow(type, result.data(), reinterpret_cast<uint16_t*>(out) + row * n, n);
  }
}

}  // namespace

void rows(InstructionSet set, const RowCall& call, DType dtype,
          absl::Span<const std::byte* const> in, std::byte* out) {
  if (call.size == 0) return;
  const Loops& loops = kernels::loops(set);
  if (dtype == DType::kFloat16) return rows_of_halves(loops, call, HalfType::kFloat16, in, out);
  if (dtype == DType::kBFloat16) return rows_of_halves(loops, call, HalfType::kBFloat16, in, out);
  const void* operands[3] = {nullptr, nullptr, nullptr};
  for (size_t k = 0; k < in.size(); ++k) operands[k] = in[k];
  rows_of(loops, call, dtype == DType::kFloat32 ? LoopType::kFloat32 : LoopType::kFloat64,
          {call.count, call.size}, operands, out);
}

}  // namespace tessera::kernels
