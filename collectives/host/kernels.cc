// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace tessera::host {
namespace {

// Elements that are reduced at a time: the accumulators stay in the first-level cache.
constexpr int64_t kBlockElements = 2048;

// What an element is loaded as and accumulated in. Unsigned, so that integers wrap without
// undefined behaviour; bool as its byte, for which min is and, max is or.
template <class T>
struct Arithmetic {
  using Stored = T;
  using Accumulator = T;
};
template <>
struct Arithmetic<bool> {
  using Stored = uint8_t;
  using Accumulator = uint8_t;
};
template <>
struct Arithmetic<Eigen::half> {
  using Stored = Eigen::half;
  using Accumulator = float;
};
template <>
struct Arithmetic<Eigen::bfloat16> {
  using Stored = Eigen::bfloat16;
  using Accumulator = float;
};

template <ReduceOp op, class A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    // A NaN loses against any number: a comparison with it is false, and a != a finds it in `a`.
    const bool take_b = op == ReduceOp::kMin ? b < a : b > a;
    return take_b || a != a ? b : a;
  } else if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    // Small types are promoted to int, where their products fit; u32 and u64 wrap by themselves.
    if constexpr (op == ReduceOp::kProd) {
      return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else {
    return op == ReduceOp::kProd ? a * b : a + b;
  }
}

template <class T, ReduceOp op>
void reduce_typed(absl::Span<const std::byte* const> terms, absl::Span<std::byte* const> outs,
                  int64_t num_elements) {
  using Stored = typename Arithmetic<T>::Stored;
  using Accumulator = typename Arithmetic<T>::Accumulator;
  Accumulator accumulators[kBlockElements];
  Stored results[kBlockElements];
  for (int64_t first = 0; first < num_elements; first += kBlockElements) {
    const int64_t n = std::min(kBlockElements, num_elements - first);
    const auto* term = reinterpret_cast<const Stored*>(terms[0]) + first;
    for (int64_t i = 0; i < n; ++i) accumulators[i] = static_cast<Accumulator>(term[i]);
    for (size_t k = 1; k < terms.size(); ++k) {
      term = reinterpret_cast<const Stored*>(terms[k]) + first;
      for (int64_t i = 0; i < n; ++i) {
        accumulators[i] = combine<op>(accumulators[i], static_cast<Accumulator>(term[i]));
      }
    }
    if constexpr (op == ReduceOp::kAvg) {
      const auto divisor = static_cast<Accumulator>(terms.size());
      for (int64_t i = 0; i < n; ++i) accumulators[i] /= divisor;
    }
    for (int64_t i = 0; i < n; ++i) results[i] = static_cast<Stored>(accumulators[i]);
    for (std::byte* out : outs) {
      std::memcpy(out + first * sizeof(Stored), results, n * sizeof(Stored));
    }
  }
}

template <class T>
void reduce_with(ReduceOp op, absl::Span<const std::byte* const> terms,
                 absl::Span<std::byte* const> outs, int64_t num_elements) {
  constexpr bool kIsFloat = !std::is_integral_v<T>;
  switch (op) {
    case ReduceOp::kMin:
      return reduce_typed<T, ReduceOp::kMin>(terms, outs, num_elements);
    case ReduceOp::kMax:
      return reduce_typed<T, ReduceOp::kMax>(terms, outs, num_elements);
    case ReduceOp::kSum:
      if constexpr (!std::is_same_v<T, bool>) {
        return reduce_typed<T, ReduceOp::kSum>(terms, outs, num_elements);
      }
      break;
    case ReduceOp::kProd:
      if constexpr (!std::is_same_v<T, bool>) {
        return reduce_typed<T, ReduceOp::kProd>(terms, outs, num_elements);
      }
      break;
    case ReduceOp::kAvg:
      if constexpr (kIsFloat) {
        return reduce_typed<T, ReduceOp::kAvg>(terms, outs, num_elements);
      }
      break;
  }
  TESSERA_CHECK(false, "a reduction that validate_reduction passed");
}

// Calls fn(buffer offsets of one contiguous run, elements of the run) for every run of `box` that
// is contiguous in all of `containers`. Offsets are in elements from the start of each container.
//
// Loop invariant: `index` is the position of the run inside `box`, over the outer dims.
template <class Fn>
void for_each_run(const Box& box, absl::Span<const Box* const> containers, Fn&& fn) {
  if (box.is_empty()) return;
  const int rank = static_cast<int>(box.sizes.size());
  // The run takes in dim `outer - 1` as long as all dims after it are whole in every container.
  int outer = rank;
  int64_t run = 1;
  while (outer > 0) {
    run *= box.sizes[outer - 1];
    --outer;
    const bool whole = std::all_of(containers.begin(), containers.end(), [&](const Box* c) {
      return c->sizes[outer] == box.sizes[outer];
    });
    if (!whole) break;
  }
  const size_t n = containers.size();
  std::vector<int64_t> offsets(n, 0);
  std::vector<int64_t> strides(n * rank, 1);
  for (size_t c = 0; c < n; ++c) {
    int64_t stride = 1;
    for (int dim = rank - 1; dim >= 0; --dim) {
      strides[c * rank + dim] = stride;
      offsets[c] += (box.offsets[dim] - containers[c]->offsets[dim]) * stride;
      stride *= containers[c]->sizes[dim];
    }
  }
  std::vector<int64_t> index(outer, 0);
  while (true) {
    fn(absl::MakeConstSpan(offsets), run);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      const int64_t step = ++index[dim] < box.sizes[dim] ? 1 : 1 - box.sizes[dim];
      for (size_t c = 0; c < n; ++c) offsets[c] += step * strides[c * rank + dim];
      if (step == 1) break;
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace

void reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
            absl::Span<std::byte* const> outs, int64_t num_elements) {
  if (num_elements == 0) return;
  if (terms.size() == 1) {
    for (std::byte* out : outs) {
      if (out != terms[0]) std::memcpy(out, terms[0], num_elements * dtype_size(dtype));
    }
    return;
  }
  visit_dtype(dtype, [&]<class T>() { reduce_with<T>(op, terms, outs, num_elements); });
}

void copy_box(const Box& box, ConstBoxView from, BoxView to, int64_t element_bytes) {
  const Box* containers[] = {&from.box, &to.box};
  for_each_run(box, containers, [&](absl::Span<const int64_t> offsets, int64_t run) {
    std::memcpy(to.data + offsets[1] * element_bytes, from.data + offsets[0] * element_bytes,
                run * element_bytes);
  });
}

void reduce_box(DType dtype, ReduceOp op, const Box& box, absl::Span<const ConstBoxView> terms,
                BoxView to) {
  const int64_t element_bytes = dtype_size(dtype);
  std::vector<const Box*> containers;
  for (const ConstBoxView& term : terms) containers.push_back(&term.box);
  containers.push_back(&to.box);
  std::vector<const std::byte*> run_terms(terms.size());
  for_each_run(box, containers, [&](absl::Span<const int64_t> offsets, int64_t run) {
    for (size_t k = 0; k < terms.size(); ++k) {
      run_terms[k] = terms[k].data + offsets[k] * element_bytes;
    }
    std::byte* out = to.data + offsets.back() * element_bytes;
    reduce(dtype, op, run_terms, absl::MakeConstSpan(&out, 1), run);
  });
}

}  // namespace tessera::host
