// SPDX-License-Identifier: Apache-2.0
#include "dtensor/array_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera::internal {
namespace {

constexpr int64_t kThreshold = 1000;
constexpr int64_t kEdge = 3;
constexpr int kPrecision = 8;
constexpr size_t kLineWidth = 75;

std::string spaces(size_t count) { return std::string(count, ' '); }

// ---- Numbers.

// 0.d1d2d3... without zeros at the end, times 10^(exponent + 1).
struct Decimal {
  std::string digits;
  int exponent = 0;
};

// Of "1.25e-07".
Decimal decimal_of(absl::string_view scientific) {
  Decimal decimal;
  size_t i = 0;
  for (; i < scientific.size() && scientific[i] != 'e'; ++i) {
    if (scientific[i] != '.') decimal.digits.push_back(scientific[i]);
  }
  decimal.exponent = std::atoi(std::string(scientific.substr(i + 1)).c_str());
  while (decimal.digits.size() > 1 && decimal.digits.back() == '0') decimal.digits.pop_back();
  return decimal;
}

std::string printed(const char* format, int precision, double value) {
  char text[512];
  const int length = std::snprintf(text, sizeof text, format, precision, value);
  return std::string(text, std::min<size_t>(length, sizeof text - 1));
}

// The fewest digits that no other number of the type is as near to. Requires a positive number.
template <class T>
Decimal shortest_digits(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    char text[64];
    const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
    return decimal_of(absl::string_view(text, end.ptr - text));
  } else {
    // Halves: few enough digits to try all lengths. The bits of positive numbers ascend with them.
    const auto bits = Eigen::numext::bit_cast<uint16_t>(value);
    const auto number = [](int b) {
      return static_cast<double>(Eigen::numext::bit_cast<T>(static_cast<uint16_t>(b)));
    };
    const double exact = number(bits);
    const double below = (exact + number(bits - 1)) / 2;
    const double above = Eigen::numext::isinf(Eigen::numext::bit_cast<T>(uint16_t(bits + 1)))
                             ? exact + (exact - below)
                             : (exact + number(bits + 1)) / 2;
    for (int digits = 1;; ++digits) {
      const std::string nearest = printed("%.*e", digits - 1, exact);
      const double unit = std::pow(10.0, decimal_of(nearest).exponent - (digits - 1));
      // The nearest of this length may be outside where the interval is wider on the other side.
      for (const double step : {0.0, unit, -unit}) {
        const std::string text = printed("%.*e", digits - 1, std::atof(nearest.c_str()) + step);
        const double tried = std::atof(text.c_str());
        // A tie is read as the number with even bits.
        if (below < tried && tried < above) return decimal_of(text);
        if (bits % 2 == 0 && (tried == below || tried == above)) return decimal_of(text);
      }
    }
  }
}

// A number as text in its parts: "-1.25e+07" is {"-1", "25", "+07"}.
struct NumberText {
  std::string whole;
  std::string fraction;
  std::string exponent;
};

// One float of any type.
struct Number {
  double value;      // exact
  Decimal shortest;  // of a finite number other than 0
};

NumberText signed_text(const Number& number, NumberText text) {
  if (std::signbit(number.value)) text.whole.insert(0, "-");
  return text;
}

NumberText positional(const Number& number) {
  if (number.value == 0) return signed_text(number, {"0", "", ""});
  const auto& [digits, exponent] = number.shortest;
  const int count = static_cast<int>(digits.size());
  if (count - 1 - exponent > kPrecision) {
    const std::string text = printed("%.*f", kPrecision, std::fabs(number.value));
    const size_t point = text.find('.');
    std::string fraction = text.substr(point + 1);
    while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
    return signed_text(number, {text.substr(0, point), fraction, ""});
  }
  if (exponent < 0) {
    return signed_text(number, {"0", std::string(-exponent - 1, '0') + digits, ""});
  }
  const std::string filled = digits + std::string(std::max(0, exponent + 1 - count), '0');
  return signed_text(number, {filled.substr(0, exponent + 1), filled.substr(exponent + 1), ""});
}

// With `fill`, exactly `precision` digits behind the point; else without zeros at the end.
NumberText scientific(const Number& number, int precision, bool fill) {
  if (number.value == 0)
    return signed_text(number, {"0", fill ? std::string(precision, '0') : "", "+00"});
  Decimal decimal = number.shortest;
  const int count = static_cast<int>(decimal.digits.size()) - 1;
  std::string fraction = decimal.digits.substr(1);
  if (count > precision || (fill && count < precision)) {
    const std::string text = printed("%.*e", precision, std::fabs(number.value));
    const size_t point = text.find('.');
    const size_t e = text.find('e');
    fraction = point == std::string::npos ? "" : text.substr(point + 1, e - point - 1);
    decimal.digits[0] = text[0];
    decimal.exponent = std::atoi(text.c_str() + e + 1);
    while (!fill && !fraction.empty() && fraction.back() == '0') fraction.pop_back();
  }
  return signed_text(
      number, {decimal.digits.substr(0, 1), fraction, printed("%+0*.0f", 3, decimal.exponent)});
}

// Whether numpy uses exponents for these finite numbers. Computes in the type, as numpy does.
template <class T>
bool uses_exponents(const std::vector<Number>& finite) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const Number& number : finite) {
    if (number.value == 0) continue;
    least = std::min(least, std::fabs(number.value));
    most = std::max(most, std::fabs(number.value));
  }
  if (most == 0) return false;
  const double limit = std::is_same_v<T, double> ? 1e8 : std::is_same_v<T, float> ? 1e6 : 1e3;
  const auto rounded = [](double x) { return static_cast<double>(T(x)); };
  return most >= limit || least < rounded(0.0001) || rounded(most / least) > rounded(1000.0);
}

template <class T>
std::vector<std::string> float_words(const std::vector<T>& values) {
  std::vector<Number> numbers;
  std::vector<Number> finite;
  bool has_negative_infinity = false;
  for (const T& value : values) {
    Number number{static_cast<double>(value), {}};
    if (std::isfinite(number.value)) {
      if (number.value != 0) {
        number.shortest = shortest_digits(number.value < 0 ? T(-value) : value);
      }
      finite.push_back(number);
    }
    has_negative_infinity |= std::isinf(number.value) && number.value < 0;
    numbers.push_back(std::move(number));
  }
  const bool with_exponent = uses_exponents<T>(finite);
  size_t left = 0;
  size_t right = 0;
  size_t exponent_size = 0;
  for (const Number& number : finite) {
    const NumberText text =
        with_exponent ? scientific(number, kPrecision, false) : positional(number);
    left = std::max(left, text.whole.size());
    right = std::max(right, text.fraction.size());
    exponent_size = std::max(exponent_size, text.exponent.size());
  }
  const int precision = static_cast<int>(right);
  // Behind the point: the fraction, "e" and the exponent.
  if (with_exponent) right += 1 + exponent_size;
  if (finite.size() < numbers.size()) {
    const size_t longest = has_negative_infinity ? 4 : 3;
    if (left + right + 1 < longest) left = longest - right - 1;
  }
  std::vector<std::string> words;
  for (const Number& number : numbers) {
    if (!std::isfinite(number.value)) {
      const absl::string_view name = std::isnan(number.value) ? "nan"
                                     : number.value < 0       ? "-inf"
                                                              : "inf";
      words.push_back(absl::StrCat(spaces(left + right + 1 - name.size()), name));
      continue;
    }
    NumberText text = with_exponent ? scientific(number, precision, true) : positional(number);
    std::string word =
        absl::StrCat(spaces(left - text.whole.size()), text.whole, ".", text.fraction);
    if (with_exponent) {
      text.exponent.insert(1, exponent_size - text.exponent.size(), '0');
      absl::StrAppend(&word, "e", text.exponent);
    } else {
      absl::StrAppend(&word, spaces(right - text.fraction.size()));
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::vector<std::string> element_words(DType dtype, int64_t count, const std::byte* data,
                                       bool is_scalar) {
  return visit_dtype(dtype, [&]<class T>() -> std::vector<std::string> {
    std::vector<std::string> words;
    if constexpr (std::is_same_v<T, bool>) {
      for (int64_t i = 0; i < count; ++i) {
        words.push_back(data[i] == std::byte{0} ? "False" : is_scalar ? "True" : " True");
      }
    } else if constexpr (std::is_integral_v<T>) {
      size_t width = 0;
      for (int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, data + i * sizeof(T), sizeof(T));
        words.push_back(absl::StrCat(value));
        width = std::max(width, words.back().size());
      }
      for (std::string& word : words) word.insert(0, width - word.size(), ' ');
    } else {
      std::vector<T> values(count);
      if (count > 0) std::memcpy(static_cast<void*>(values.data()), data, count * sizeof(T));
      words = float_words(values);
    }
    return words;
  });
}

// ---- Brackets and lines.

class Lines {
 public:
  Lines(const Shape& shape, bool is_elided, std::vector<std::string> words)
      : shape_(shape), is_elided_(is_elided), words_(std::move(words)) {}

  std::string text() { return shape_.empty() ? words_[0] : part(0, " ", kLineWidth); }

 private:
  // The next part of `dim` and the dims behind it; all lines but the first begin with `indent`.
  std::string part(size_t dim, const std::string& indent, size_t width) {
    const bool is_cut = is_elided_ && shape_[dim] > 2 * kEdge;
    const int64_t count = is_cut ? 2 * kEdge : shape_[dim];
    const std::string text = dim + 1 == shape_.size() ? row(count, is_cut, indent, width - 1)
                                                      : rows(dim, count, is_cut, indent, width);
    return absl::StrCat("[", text.substr(indent.size()), "]");
  }

  std::string row(int64_t count, bool is_cut, const std::string& indent, size_t width) {
    std::string done;
    std::string line = indent;
    const auto add = [&](absl::string_view word) {
      if (line.size() + word.size() > width && line.size() > indent.size()) {
        absl::StrAppend(&done, absl::StripTrailingAsciiWhitespace(line), "\n");
        line = indent;
      }
      absl::StrAppend(&line, word);
    };
    for (int64_t i = 0; i < count; ++i) {
      if (is_cut && i == kEdge) {
        add("...");
        line += " ";
      }
      add(words_[next_++]);
      if (i + 1 < count) line += " ";
    }
    return done + line;
  }

  std::string rows(size_t dim, int64_t count, bool is_cut, const std::string& indent,
                   size_t width) {
    const std::string separator(shape_.size() - dim - 1, '\n');
    std::string text;
    for (int64_t i = 0; i < count; ++i) {
      if (is_cut && i == kEdge) absl::StrAppend(&text, indent, "...", separator);
      absl::StrAppend(&text, indent, part(dim + 1, indent + " ", width - 1));
      if (i + 1 < count) text += separator;
    }
    return text;
  }

  const Shape& shape_;
  const bool is_elided_;
  const std::vector<std::string> words_;
  size_t next_ = 0;
};

}  // namespace

bool is_elided(const Shape& shape) {
  return num_elements(shape) > kThreshold &&
         std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size > 2 * kEdge; });
}

Shape shown_shape(const Shape& shape) {
  Shape shown = shape;
  if (is_elided(shape)) {
    for (int64_t& size : shown) size = std::min(size, 2 * kEdge);
  }
  return shown;
}

// Copies the runs along the last dim one by one: there are few.
void copy_shown(const Shape& shape, const Box& box, int64_t element_size, const std::byte* from,
                std::byte* shown) {
  if (box.is_empty()) return;
  const bool is_cut = is_elided(shape);
  const int rank = static_cast<int>(shape.size());
  struct Place {
    int64_t from;  // in the box
    int64_t shown;
  };
  std::vector<Place> places = {{0, 0}};
  for (int dim = 0; dim < rank; ++dim) {
    const int64_t size = shape[dim];
    const int64_t skipped = is_cut && size > 2 * kEdge ? size - 2 * kEdge : 0;
    std::vector<Place> next;
    for (const Place& place : places) {
      for (int64_t i = 0; i < size - skipped; ++i) {
        const int64_t index = i < kEdge ? i : i + skipped;
        const int64_t in_box = index - box.offsets[dim];
        if (in_box < 0 || in_box >= box.sizes[dim]) continue;
        next.push_back({place.from * box.sizes[dim] + in_box, place.shown * (size - skipped) + i});
      }
    }
    places = std::move(next);
  }
  for (const Place& place : places) {
    std::memcpy(shown + place.shown * element_size, from + place.from * element_size, element_size);
  }
}

std::string array_text(DType dtype, const Shape& shape, const std::byte* shown) {
  const int64_t count = num_elements(shown_shape(shape));
  if (count == 0) return "[]";
  return Lines(shape, is_elided(shape), element_words(dtype, count, shown, shape.empty())).text();
}

std::string whole_array_text(DType dtype, const Shape& shape, const std::byte* values) {
  if (!is_elided(shape)) return array_text(dtype, shape, values);
  std::vector<std::byte> shown(num_bytes(shown_shape(shape), dtype));
  copy_shown(shape, whole_box(shape), dtype_size(dtype), values, shown.data());
  return array_text(dtype, shape, shown.data());
}

}  // namespace tessera::internal
