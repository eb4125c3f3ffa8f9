// SPDX-License-Identifier: Apache-2.0
#include "ops/random.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "compute/cpu/host_engine.h"
#include "compute/cpu/philox.h"
#include "compute/cpu/pointwise.h"
#include "compute/engine.h"
#include "compute/random_math.h"
#include "device/arithmetic.h"
#include "dtensor/device_op.h"

namespace tessera::random {
namespace {

using kernels::RandomKind;
using kernels::RandomSpec;

template <class... Texts>
Status refusal(const Texts&... texts) {
  return absl::InvalidArgumentError(absl::StrCat(texts...));
}

// The least and the largest integer of a dtype.
std::pair<absl::int128, absl::int128> limits_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return {std::numeric_limits<int8_t>::min(), std::numeric_limits<int8_t>::max()};
    case DType::kUint8:
      return {0, std::numeric_limits<uint8_t>::max()};
    case DType::kInt32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::kInt64:
      return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    default:
      return {0, 1};
  }
}

// Checks that the dtype holds both ends of what may be drawn.
Status check_held(const char* name, DType dtype, double least, double most) {
  for (const double value : {least, most}) {
    double held = 0;
    std::array<std::byte, 8> element = {};
    kernels::cast(DType::kFloat64, dtype, reinterpret_cast<const std::byte*>(&value),
                  element.data(), 1);
    kernels::cast(dtype, DType::kFloat64, element.data(), reinterpret_cast<std::byte*>(&held), 1);
    if (std::isfinite(held)) continue;
    return refusal(name, ": numbers from ", least, " to ", most, " may be drawn, and ",
                   dtype_name(dtype), " cannot hold ", value,
                   "; use smaller parameters or another dtype");
  }
  return absl::OkStatus();
}

Status check_uniform(const RandomSpec& spec, DType dtype) {
  if (!(spec.a <= spec.b) || !std::isfinite(spec.a) || !std::isfinite(spec.b)) {
    return refusal("uniform: from ", spec.a, " to ", spec.b,
                   "; both should be finite, in this order");
  }
  return check_held("uniform", dtype, spec.a, spec.b);
}

Status check_spread(const char* name, const RandomSpec& spec) {
  if (std::isfinite(spec.a) && std::isfinite(spec.b) && spec.b >= 0) return absl::OkStatus();
  return refusal(name, ": mean ", spec.a, ", stddev ", spec.b,
                 "; both should be finite, and stddev not negative");
}

// The least of the open units that normal numbers are made of.
double least_unit(DType dtype) {
  return dtype == DType::kFloat64 ? kernels::open_unit_of_words(0) : kernels::open_unit_of_word(0);
}

Status check_normal(const RandomSpec& spec, DType dtype) {
  TESSERA_RETURN_IF_ERROR(check_spread("normal", spec));
  const double reach = spec.b * std::sqrt(-2 * std::log(least_unit(dtype)));
  return check_held("normal", dtype, spec.a - reach, spec.a + reach);
}

Status check_truncated_normal(const RandomSpec& spec, DType dtype) {
  TESSERA_RETURN_IF_ERROR(check_spread("truncated_normal", spec));
  if (!(spec.low < spec.high)) {
    return refusal("truncated_normal: from ", spec.low, " to ", spec.high,
                   " standard deviations; the first should be below the second");
  }
  const kernels::TruncatedNormal truncated = kernels::truncated_normal(spec.low, spec.high);
  const double unit = least_unit(dtype);
  return check_held("truncated_normal", dtype,
                    spec.a + spec.b * kernels::truncated_quantile(truncated, unit),
                    spec.a + spec.b * kernels::truncated_quantile(truncated, 1 - unit));
}

Status check_spec(const RandomSpec& spec, DType dtype) {
  switch (spec.kind) {
    case RandomKind::kUniform:
      return check_uniform(spec, dtype);
    case RandomKind::kNormal:
      return check_normal(spec, dtype);
    case RandomKind::kTruncatedNormal:
      return check_truncated_normal(spec, dtype);
    case RandomKind::kBernoulli:
      if (spec.a >= 0 && spec.a <= 1) return absl::OkStatus();
      return refusal("bernoulli: probability ", spec.a, "; it should be from 0 to 1");
    default:
      return absl::OkStatus();
  }
}

}  // namespace

Key Key::from_seed(uint64_t seed) {
  return Key({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

Key Key::fold_in(uint64_t data) const {
  const kernels::PhiloxBlock block =
      kernels::philox({static_cast<uint32_t>(data), static_cast<uint32_t>(data >> 32), 0,
                       static_cast<uint32_t>(kernels::RandomStream::kFoldIn)},
                      words_);
  return Key({block[0], block[1]});
}

std::vector<Key> Key::split(int64_t n) const {
  std::vector<Key> keys;
  for (int64_t k = 0; k < n; ++k) keys.push_back(fold_in(static_cast<uint64_t>(k)));
  return keys;
}

std::string Key::to_string() const {
  const uint64_t seed = static_cast<uint64_t>(words_[1]) << 32 | words_[0];
  return absl::StrCat(absl::Hex(seed, absl::kZeroPad16));
}

StatusOr<Key> Key::parse(absl::string_view text) {
  uint64_t seed = 0;
  if (absl::SimpleHexAtoi(text, &seed) && from_seed(seed).to_string() == text) {
    return from_seed(seed);
  }
  return refusal("random key ", in_quotes(text),
                 "; it should be 16 hexadecimal digits in lower case, as to_string() writes them");
}

DTensor draw(const RandomSpec& spec, DType dtype, const Shape& shape, const LayoutArg& layout) {
  const Status status = check_spec(spec, dtype);
  if (!status.ok()) return internal::failed_tensor(dtype, shape, layout.layout(), status);
  return internal::generate("random", dtype, shape, layout,
                            [spec, dtype, shape](Engine* engine, const Box& box, std::byte* out) {
                              Engine& used = engine != nullptr
                                                 ? *engine
                                                 : kernels::host_engine(Arithmetic::of_this_host());
                              return used.random_box(spec, dtype, shape, box, out);
                            });
}

DTensor bernoulli(const Key& key, const Shape& shape, const LayoutArg& layout, double probability) {
  return draw({.kind = RandomKind::kBernoulli, .key = key.words(), .a = probability}, DType::kBool,
              shape, layout);
}

DTensor draw_integers(const Key& key, DType dtype, const Shape& shape, const LayoutArg& layout,
                      absl::int128 low, absl::int128 high) {
  const auto [least, largest] = limits_of(dtype);
  if (low >= high || low < least || high > largest + 1) {
    const auto text = [](absl::int128 value) {
      std::ostringstream digits;
      digits << value;
      return digits.str();
    };
    return internal::failed_tensor(
        dtype, shape, layout.layout(),
        refusal("randint: from ", text(low), " to ", text(high),
                "; the first should be below the second, and both in ", dtype_name(dtype)));
  }
  const absl::int128 range = high - low;
  return draw({.kind = RandomKind::kInteger,
               .key = key.words(),
               .least = static_cast<int64_t>(low),
               .range = static_cast<uint64_t>(range)},
              dtype, shape, layout);
}

DTensor permutation(const Key& key, int64_t n, const LayoutArg& layout) {
  if (n < 0) {
    return internal::failed_tensor(DType::kInt64, {0}, layout.layout(),
                                   refusal("permutation: of ", n, " numbers"));
  }
  return draw(
      {.kind = RandomKind::kPermutation, .key = key.words(), .range = static_cast<uint64_t>(n)},
      DType::kInt64, {n}, layout);
}

}  // namespace tessera::random
