// SPDX-License-Identifier: Apache-2.0
//
// Attributes: the numbers, texts and functions that a call of an operation has beside its operands.
//
//   constexpr AttributeSpec kTopKAttributes[] = {{"k", AttributeKind::kInt, "2"},
//                                                {"dim", AttributeKind::kInt, "1"}};
//   Attributes attributes(kTopKAttributes, {k, dim});      in the order of the specs
//   attributes.integer("k")
//
// As text, "k=2; dim=[0, 1]; keep_dims", they come from command lines and tables of facts.
//
// Values: no function changes what another thread may read. A name or a kind that the specs do not
// have is a mistake in an operation, and ends the process.
#ifndef TESSERA_OPS_ATTRIBUTES_H_
#define TESSERA_OPS_ATTRIBUTES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/status.h"
#include "ops/scalar.h"

namespace tessera::ops {

enum class AttributeKind : uint8_t {
  kInt,
  kReal,
  kFlag,  // as text its name alone, or with true or false
  kDType,
  kInts,
  kScalar,
  kText,
  kFunction,  // has no text
};

struct AttributeSpec {
  const char* name;
  AttributeKind kind;
  // A value as text, for messages, tables and fuzzers.
  const char* example;
  // The value where a text does not give one; empty: unset. Null: the text must give one.
  const char* otherwise = nullptr;
  // How many numbers a list has; 0: any number.
  int count = 0;

  // "dim=1"; "keep_dims".
  std::string example_text() const;
};

// A function that a user gave.
struct FunctionAttribute {
  std::shared_ptr<const void> object;
  // Equal for functions that give equal results. Empty where that is not known: calls with the
  // function are then not cached.
  std::vector<int64_t> identity;
};

// One value. Two are equal where they have one kind and the same bits.
class Attribute {
 public:
  Attribute() = default;  // unset
  template <class T>
  Attribute(T value) : value_(std::move(value)) {}  // NOLINT: calls write values
  // Unset where there is none.
  template <class T>
  Attribute(const std::optional<T>& value) {  // NOLINT: calls write values
    if (value.has_value()) value_ = *value;
  }

  bool is_set() const { return value_.index() != 0; }
  // Requires a value of this type.
  template <class T>
  const T& as() const {
    return std::get<T>(value_);
  }
  // "2", "[0, 1]", "bf16"; "function" for every function.
  std::string to_string() const;

  friend bool operator==(const Attribute& a, const Attribute& b);
  template <class H>
  friend H AbslHashValue(H state, const Attribute& attribute) {
    return H::combine(std::move(state), attribute.value_.index(), attribute.bits());
  }

 private:
  // A hash of numbers, and the size of other values: enough to tell most calls apart.
  uint64_t bits() const;

  std::variant<std::monostate, int64_t, double, bool, DType, std::vector<int64_t>, Scalar,
               std::string, FunctionAttribute>
      value_;
};

class Attributes {
 public:
  using Values = absl::InlinedVector<Attribute, 3>;

  Attributes() = default;
  // One value for each spec, or none where all are unset. The specs must live as long as the
  // program.
  Attributes(absl::Span<const AttributeSpec> specs, Values values);

  // Whether the attribute is set. The names of this and of what follows are names of specs.
  bool has(absl::string_view name) const { return value(name).is_set(); }
  // These require a set attribute of that kind.
  int64_t integer(absl::string_view name) const { return value(name).as<int64_t>(); }
  double real(absl::string_view name) const { return value(name).as<double>(); }
  bool flag(absl::string_view name) const { return value(name).as<bool>(); }
  DType dtype(absl::string_view name) const { return value(name).as<DType>(); }
  const std::vector<int64_t>& integers(absl::string_view name) const {
    return value(name).as<std::vector<int64_t>>();
  }
  const Scalar& scalar(absl::string_view name) const { return value(name).as<Scalar>(); }
  const std::string& text(absl::string_view name) const { return value(name).as<std::string>(); }
  template <class T>
  const T& function(absl::string_view name) const {
    return *static_cast<const T*>(value(name).as<FunctionAttribute>().object.get());
  }

  const Values& values() const { return values_; }
  // False where a function has no identity.
  bool are_comparable() const;
  // "k=2; dim=1", without those that are unset.
  std::string to_string() const;

  friend bool operator==(const Attributes& a, const Attributes& b) {
    return a.values_ == b.values_;
  }
  template <class H>
  friend H AbslHashValue(H state, const Attributes& attributes) {
    return H::combine(std::move(state), attributes.values_);
  }

 private:
  const Attribute& value(absl::string_view name) const;

  absl::Span<const AttributeSpec> specs_;
  Values values_;
};

// Attributes as text, by their names; nothing is known yet about their operation.
using AttributeTexts = std::map<std::string, std::string>;
// "dims=[0, 2]; keep_dims", "equation=ik,kj->ij", "padding=[[1, 1], [0, 0]]". InvalidArgument for
// an attribute that is given twice or has no name.
StatusOr<AttributeTexts> parse_attributes(absl::string_view text);
// The attributes of the operation with this name. InvalidArgument for an attribute that is unknown
// or missing, and for a text that is no value: "attribute dim=x is not a whole number".
StatusOr<Attributes> read_attributes(const char* operation, absl::Span<const AttributeSpec> specs,
                                     const AttributeTexts& texts);

// "[1, 2]".
std::string list_text(absl::Span<const int64_t> list);
// "bf16". InvalidArgument "none of "bool", "i8", ...".
StatusOr<DType> read_dtype(absl::string_view text);
// "[[1, 2], [3, 4]]": the numbers of nested lists, one after the other. InvalidArgument where one
// is not a whole number.
StatusOr<std::vector<int64_t>> read_list(absl::string_view text);

}  // namespace tessera::ops

#endif  // TESSERA_OPS_ATTRIBUTES_H_
