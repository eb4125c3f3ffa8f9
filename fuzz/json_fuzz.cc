// SPDX-License-Identifier: Apache-2.0
//
// Any bytes read as JSON are refused, or nlohmann-json reads the same values of them, and all texts
// read back from what is written of them. The values of nlohmann-json are looser: it may accept
// what is refused here, but not the other way around.
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "files/json_reader.h"
#include "fuzz/fuzz.h"
#include "nlohmann/json.hpp"

namespace tessera::files {
namespace {

using fuzz::require;
using nlohmann::json;

void check_text(absl::string_view text, const std::string& expected) {
  require(text == expected, expected);
  std::string written;
  append_json_text(text, &written);
  const StatusOr<JsonDocument> again = JsonDocument::parse(written);
  require(again.ok() && *again->root().to_text() == text, written);
}

// Requires of integers the same value, and of all other numbers that they are not integers of 64
// bits for either reader.
void check_number(const JsonValue& value, const json& expected) {
  const std::string text = value.to_string();
  switch (value.kind()) {
    case JsonKind::kNegative:
      return require(expected.get<int64_t>() == *value.to_integer() && *value.to_integer() < 0,
                     text);
    case JsonKind::kUnsigned:
      require(expected.is_number_unsigned() && std::to_string(expected.get<uint64_t>()) == text,
              text);
      return require(value.to_integer().ok() == (expected.get<uint64_t>() <= INT64_MAX), text);
    default:
      require(!value.to_integer().ok(), text);
      return require(expected.is_number_float() || text == "-0", text);
  }
}

// No deeper than JsonDocument::kMaxDepth.
void check_value(const JsonValue& value, const json& expected) {
  require(value.size() == (expected.is_structured() ? expected.size() : 0), "the size");
  size_t count = 0;
  switch (value.kind()) {
    case JsonKind::kNull:
      return require(expected.is_null(), "null");
    case JsonKind::kFalse:
    case JsonKind::kTrue:
      return require(
          expected.is_boolean() && expected.get<bool>() == (value.kind() == JsonKind::kTrue),
          "a bool");
    case JsonKind::kText:
      require(expected.is_string(), "a string");
      return check_text(*value.to_text(), expected.get<std::string>());
    case JsonKind::kArray:
      require(expected.is_array(), "an array");
      for (const JsonValue element : value.elements()) check_value(element, expected[count++]);
      return require(count == value.size(), "the number of elements");
    case JsonKind::kObject:
      require(expected.is_object(), "an object");
      for (const auto& [name, member] : value.members()) {
        const auto found = expected.find(std::string(name));
        require(found != expected.end() && value.find(name).has_value(), std::string(name));
        check_text(name, found.key());
        check_value(member, *found);
        ++count;
      }
      return require(count == value.size(), "the number of members");
    default:
      require(expected.is_number(), "a number");
      return check_number(value, expected);
  }
}

}  // namespace
}  // namespace tessera::files

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tessera::files::JsonDocument;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const tessera::StatusOr<JsonDocument> document = JsonDocument::parse(text);
  if (!document.ok()) {
    tessera::fuzz::require(absl::IsInvalidArgument(document.status()),
                           document.status().ToString());
    return 0;
  }
  const auto expected =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  tessera::fuzz::require(!expected.is_discarded(), "nlohmann-json reads it too");
  tessera::files::check_value(document->root(), expected);
  return 0;
}
