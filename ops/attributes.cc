// SPDX-License-Identifier: Apache-2.0
#include "ops/attributes.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <optional>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/text.h"
#include "ops/refusal.h"

namespace tessera::ops {
namespace {

uint64_t bits_of(const Scalar& scalar) {
  return std::visit([](auto number) { return std::bit_cast<uint64_t>(number); }, scalar.value());
}

// The shortest text that is read as this number: clients compare it.
std::string shortest(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

Status wrong(const AttributeSpec& spec, absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("attribute ", spec.name, "=", text, " is ", expected));
}

StatusOr<Attribute> read_scalar(const AttributeSpec& spec, absl::string_view text) {
  int64_t integer = 0;
  if (absl::SimpleAtoi(text, &integer)) return Attribute(Scalar(integer));
  double real = 0;
  if (absl::SimpleAtod(text, &real)) return Attribute(Scalar(real));
  return wrong(spec, text, "not a number");
}

StatusOr<Attribute> read_integers(const AttributeSpec& spec, absl::string_view text) {
  StatusOr<std::vector<int64_t>> numbers = read_list(text);
  if (!numbers.ok()) return wrong(spec, text, "not a list of whole numbers, as [0, 2]");
  if (spec.count == 0 || numbers->size() == static_cast<size_t>(spec.count)) {
    return Attribute(*std::move(numbers));
  }
  return absl::InvalidArgumentError(absl::StrCat("attribute ", spec.name, "=", text, " has ",
                                                 numbers->size(), " numbers, not ", spec.count));
}

StatusOr<Attribute> read_dtype_of(const AttributeSpec& spec, absl::string_view text) {
  const StatusOr<DType> dtype = read_dtype(text);
  if (dtype.ok()) return Attribute(*dtype);
  return wrong(spec, text, dtype.status().message());
}

StatusOr<Attribute> read_value(const AttributeSpec& spec, absl::string_view text) {
  int64_t integer = 0;
  double real = 0;
  switch (spec.kind) {
    case AttributeKind::kInt:
      if (absl::SimpleAtoi(text, &integer)) return Attribute(integer);
      return wrong(spec, text, "not a whole number");
    case AttributeKind::kReal:
      if (absl::SimpleAtod(text, &real)) return Attribute(real);
      return wrong(spec, text, "not a number");
    case AttributeKind::kFlag:
      if (text.empty() || text == "true") return Attribute(true);
      if (text == "false") return Attribute(false);
      return wrong(spec, text, "neither true nor false");
    case AttributeKind::kDType:
      return read_dtype_of(spec, text);
    case AttributeKind::kInts:
      return read_integers(spec, text);
    case AttributeKind::kScalar:
      return read_scalar(spec, text);
    case AttributeKind::kText:
      return Attribute(std::string(text));
    case AttributeKind::kFunction:
      break;
  }
  return wrong(spec, text, "a function, which has no text");
}

}  // namespace

std::string AttributeSpec::example_text() const {
  return kind == AttributeKind::kFlag ? name : absl::StrCat(name, "=", example);
}

std::string Attribute::to_string() const {
  struct Writer {
    std::string operator()(std::monostate) const { return "unset"; }
    std::string operator()(int64_t value) const { return absl::StrCat(value); }
    std::string operator()(double value) const { return shortest(value); }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(DType value) const { return std::string(dtype_name(value)); }
    std::string operator()(const std::vector<int64_t>& value) const { return list_text(value); }
    std::string operator()(const Scalar& value) const {
      const auto* const real = std::get_if<double>(&value.value());
      return real != nullptr ? shortest(*real) : scalar_text(value);
    }
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(const FunctionAttribute&) const { return "function"; }
  };
  return std::visit(Writer(), value_);
}

uint64_t Attribute::bits() const {
  struct Reader {
    uint64_t operator()(std::monostate) const { return 0; }
    uint64_t operator()(int64_t value) const { return static_cast<uint64_t>(value); }
    uint64_t operator()(double value) const { return std::bit_cast<uint64_t>(value); }
    uint64_t operator()(bool value) const { return value ? 1 : 0; }
    uint64_t operator()(DType value) const { return static_cast<uint64_t>(value); }
    uint64_t operator()(const std::vector<int64_t>& value) const { return absl::HashOf(value); }
    uint64_t operator()(const Scalar& value) const { return bits_of(value); }
    uint64_t operator()(const std::string& value) const { return absl::HashOf(value); }
    uint64_t operator()(const FunctionAttribute& value) const {
      return absl::HashOf(value.identity);
    }
  };
  return std::visit(Reader(), value_);
}

bool operator==(const Attribute& a, const Attribute& b) {
  if (a.value_.index() != b.value_.index()) return false;
  if (const auto* const list = std::get_if<std::vector<int64_t>>(&a.value_)) {
    return *list == b.as<std::vector<int64_t>>();
  }
  if (const auto* const text = std::get_if<std::string>(&a.value_)) {
    return *text == b.as<std::string>();
  }
  if (const auto* const scalar = std::get_if<Scalar>(&a.value_)) {
    const Scalar& other = b.as<Scalar>();
    return scalar->value().index() == other.value().index() && bits_of(*scalar) == bits_of(other);
  }
  if (const auto* const function = std::get_if<FunctionAttribute>(&a.value_)) {
    const FunctionAttribute& other = b.as<FunctionAttribute>();
    if (function->object == other.object) return true;
    return !function->identity.empty() && function->identity == other.identity;
  }
  return a.bits() == b.bits();
}

Attributes::Attributes(absl::Span<const AttributeSpec> specs, Values values)
    : specs_(specs), values_(std::move(values)) {
  TESSERA_CHECK(specs_.size() == values_.size() || values_.empty(), "an attribute for each spec");
}

bool Attributes::are_comparable() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (specs_[i].kind != AttributeKind::kFunction) continue;
    if (values_[i].as<FunctionAttribute>().identity.empty()) return false;
  }
  return true;
}

std::string Attributes::to_string() const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i].is_set()) {
      texts.push_back(absl::StrCat(specs_[i].name, "=", values_[i].to_string()));
    }
  }
  return absl::StrJoin(texts, "; ");
}

const Attribute& Attributes::value(absl::string_view name) const {
  static const auto* const kUnset = new Attribute;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (name == specs_[i].name) return values_.empty() ? *kUnset : values_[i];
  }
  TESSERA_CHECK(false, "an operation reads an attribute that its specs do not have");
}

StatusOr<AttributeTexts> parse_attributes(absl::string_view text) {
  AttributeTexts texts;
  for (absl::string_view part : absl::StrSplit(text, ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;
    const size_t sign = part.find('=');
    const std::string name(absl::StripAsciiWhitespace(part.substr(0, sign)));
    if (!is_name(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", in_quotes(part), " has no name; give one, as in dim=0"));
    }
    const absl::string_view value = sign == absl::string_view::npos ? "" : part.substr(sign + 1);
    if (!texts.emplace(name, absl::StripAsciiWhitespace(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", name, " is given twice"));
    }
  }
  return texts;
}

StatusOr<Attributes> read_attributes(const char* operation, absl::Span<const AttributeSpec> specs,
                                     const AttributeTexts& texts) {
  std::vector<std::string> known;
  for (const AttributeSpec& spec : specs) {
    known.emplace_back(spec.name);
    if (spec.otherwise != nullptr || texts.contains(spec.name)) continue;
    return refusal(operation, "attribute ", spec.name, " is missing; give one, as in ",
                   spec.example_text());
  }
  for (const auto& [name, text] : texts) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return refusal(operation, "has no attribute ", in_quotes(name),
                   known.empty() ? "" : absl::StrCat("; it has ", quoted_list(known)),
                   did_you_mean(name, known));
  }
  Attributes::Values values;
  for (const AttributeSpec& spec : specs) {
    const auto given = texts.find(spec.name);
    const absl::string_view text =
        given == texts.end() ? absl::string_view(spec.otherwise) : given->second;
    if (given == texts.end() && text.empty()) {
      values.emplace_back();
      if (spec.kind == AttributeKind::kFlag) values.back() = false;
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(Attribute value, read_value(spec, text));
    values.push_back(std::move(value));
  }
  return Attributes(specs, std::move(values));
}

std::string list_text(absl::Span<const int64_t> list) {
  return absl::StrCat("[", absl::StrJoin(list, ", "), "]");
}

StatusOr<DType> read_dtype(absl::string_view text) {
  std::vector<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    names.emplace_back(dtype_name(static_cast<DType>(i)));
    if (names.back() == text) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("none of ", quoted_list(names)));
}

StatusOr<std::vector<int64_t>> read_list(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, absl::ByAnyChar("[], "))) {
    if (part.empty()) continue;
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(in_quotes(part), " is not a whole number"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace tessera::ops
