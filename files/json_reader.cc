// SPDX-License-Identifier: Apache-2.0
#include "files/json_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tessera::files {
namespace {

using nlohmann::json;

std::string hex(absl::string_view bytes) {
  std::string result;
  for (const char byte : bytes) {
    absl::StrAppend(&result, result.empty() ? "" : " ",
                    absl::Hex(static_cast<uint8_t>(byte), absl::kZeroPad2));
  }
  return result;
}

// The reason in a message of nlohmann-json:
//   [json.exception.parse_error.101] parse error at line 1, column 3: syntax error while parsing
//   value - invalid literal; last read: '{}x'; expected end of input  ->  invalid literal
absl::string_view reason_of(absl::string_view what) {
  for (const absl::string_view before : {"] ", "syntax error while parsing ", " - "}) {
    const size_t place = what.find(before);
    if (place != absl::string_view::npos) what.remove_prefix(place + before.size());
  }
  return what.substr(0, what.find("; "));
}

}  // namespace

// Receives the values of a text in order, and refuses what the parser accepts.
class JsonDocument::Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(JsonDocument* document) : document_(*document) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return add(JsonKind::kNull, 0, 0); }
  bool boolean(bool value) override {
    return add(value ? JsonKind::kTrue : JsonKind::kFalse, 0, 0);
  }
  bool number_integer(number_integer_t value) override {
    // The parser gives an integer with a minus: 0 was "-0".
    if (value == 0) return add_text(JsonKind::kNumber, "-0");
    return add(JsonKind::kNegative, static_cast<uint64_t>(value), 0);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(JsonKind::kUnsigned, value, 0);
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return add_text(JsonKind::kNumber, text);
  }
  bool string(string_t& text) override { return add_text(JsonKind::kText, text); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(JsonKind::kObject); }
  bool key(string_t& name) override {
    ++document_.nodes_[open_.back()].size;
    return append_text(JsonKind::kText, name);
  }
  bool end_object() override {
    close();
    return check_names(JsonValue(&document_, closed_));
  }
  bool start_array(std::size_t) override { return open(JsonKind::kArray); }
  bool end_array() override {
    close();
    return true;
  }
  bool parse_error(std::size_t place, const std::string& token,
                   const nlohmann::detail::exception& exception) override {
    problem_ = absl::StrCat("it is not JSON at byte ", place == 0 ? 0 : place - 1, ", at ",
                            tessera::in_quotes(token), ": ", reason_of(exception.what()));
    return false;
  }

 private:
  // The functions add() and add_text() add a value, which is an element if an array is open.
  bool add(JsonKind kind, uint64_t value, uint32_t size) {
    count_element();
    document_.nodes_.push_back({value, size, kind});
    return true;
  }
  bool add_text(JsonKind kind, absl::string_view text) {
    count_element();
    return append_text(kind, text);
  }
  void count_element() {
    if (open_.empty()) return;
    internal::JsonNode& container = document_.nodes_[open_.back()];
    if (container.kind == JsonKind::kArray) ++container.size;
  }
  bool append_text(JsonKind kind, absl::string_view text) {
    document_.nodes_.push_back({document_.texts_.size(), static_cast<uint32_t>(text.size()), kind});
    document_.texts_.append(text.data(), text.size());
    return true;
  }
  bool open(JsonKind kind) {
    if (open_.size() == kMaxDepth) {
      problem_ = absl::StrCat("it has arrays and objects in more than ", kMaxDepth, " levels");
      return false;
    }
    const size_t place = document_.nodes_.size();
    add(kind, 0, 0);
    open_.push_back(place);
    return true;
  }
  void close() {
    closed_ = open_.back();
    open_.pop_back();
    document_.nodes_[closed_].value = document_.nodes_.size() - closed_;
  }
  // Sorts the names, so that an object of a million members does not take a hash table.
  bool check_names(const JsonValue& object) {
    names_.clear();
    for (const JsonMember member : object.members()) names_.push_back(member.name);
    std::sort(names_.begin(), names_.end());
    const auto twice = std::adjacent_find(names_.begin(), names_.end());
    if (twice == names_.end()) return true;
    problem_ = absl::StrCat("it has the name ", in_quotes(*twice), " twice in one object");
    return false;
  }

  JsonDocument& document_;
  std::string problem_;
  std::vector<size_t> open_;  // the places of the containers around the next value
  size_t closed_ = 0;         // the place of the last container that ended
  std::vector<absl::string_view> names_;
};

StatusOr<JsonDocument> JsonDocument::parse(absl::string_view text, JsonStart start) {
  const auto refuse = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (text.size() > kMaxBytes) {
    return refuse("it has ", text.size(), " bytes of JSON; at most ", kMaxBytes, " are read");
  }
  if (text.empty()) return refuse("it is not JSON: it is empty");
  const bool has_mark = absl::StartsWith(text, "\xef\xbb\xbf");
  if (has_mark || (start == JsonStart::kBrace && text[0] != '{')) {
    return refuse("its JSON begins with byte ", hex(text.substr(0, 1)),
                  start == JsonStart::kBrace ? ", where \"{\" should be"
                                             : ", a byte order mark, which JSON does not have");
  }
  TESSERA_RETURN_IF_ERROR(check_utf8(text));
  // The parser takes a zero for the end of the text.
  if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
    return refuse("it is not JSON at byte ", zero, ": byte 00");
  }
  JsonDocument document;
  Builder builder(&document);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return refuse(builder.problem());
  return document;
}

const internal::JsonNode& JsonValue::node() const { return document_->nodes_[place_]; }

absl::string_view JsonValue::text() const {
  return absl::string_view(document_->texts_).substr(node().value, node().size);
}

JsonValue JsonValue::next() const {
  const bool is_container = kind() == JsonKind::kArray || kind() == JsonKind::kObject;
  return JsonValue(document_, place_ + (is_container ? node().value : 1));
}

size_t JsonValue::size() const {
  return kind() == JsonKind::kArray || kind() == JsonKind::kObject ? node().size : 0;
}

StatusOr<int64_t> JsonValue::to_integer() const {
  const bool is_integer = kind() == JsonKind::kNegative || kind() == JsonKind::kUnsigned;
  if (!is_integer) {
    return absl::InvalidArgumentError(
        absl::StrCat(to_string(), " is not an integer",
                     kind() == JsonKind::kNumber ? " of 64 bits, written in digits" : ""));
  }
  if (kind() == JsonKind::kUnsigned && node().value > std::numeric_limits<int64_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(to_string(), " is over 2^63 - 1"));
  }
  return static_cast<int64_t>(node().value);
}

StatusOr<absl::string_view> JsonValue::to_text() const {
  if (kind() == JsonKind::kText) return text();
  return absl::InvalidArgumentError(absl::StrCat(to_string(), " is not a string"));
}

StatusOr<JsonElements> JsonValue::to_elements() const {
  if (kind() == JsonKind::kArray) return elements();
  return absl::InvalidArgumentError(absl::StrCat(to_string(), " is not an array"));
}

StatusOr<JsonMembers> JsonValue::to_members() const {
  if (kind() == JsonKind::kObject) return members();
  return absl::InvalidArgumentError(absl::StrCat(to_string(), " is not an object"));
}

StatusOr<JsonValue> JsonValue::member(absl::string_view name) const {
  TESSERA_RETURN_IF_ERROR(to_members());
  if (const std::optional<JsonValue> found = find(name); found.has_value()) return *found;
  return absl::InvalidArgumentError(absl::StrCat(in_quotes(name), " is missing"));
}

std::optional<JsonValue> JsonValue::find(absl::string_view name) const {
  for (const JsonMember member : members()) {
    if (member.name == name) return member.value;
  }
  return std::nullopt;
}

JsonElements JsonValue::elements() const {
  const JsonValue after = next();
  const JsonValue first(document_, place_ + 1);
  return kind() == JsonKind::kArray ? JsonElements(first, after) : JsonElements(after, after);
}

JsonMembers JsonValue::members() const {
  const JsonValue after = next();
  const JsonValue first(document_, place_ + 1);
  return kind() == JsonKind::kObject ? JsonMembers(first, after) : JsonMembers(after, after);
}

std::string JsonValue::to_string() const {
  switch (kind()) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kFalse:
      return "false";
    case JsonKind::kTrue:
      return "true";
    case JsonKind::kNegative:
      return absl::StrCat(static_cast<int64_t>(node().value));
    case JsonKind::kUnsigned:
      return absl::StrCat(node().value);
    case JsonKind::kNumber:
      return std::string(text());
    case JsonKind::kText:
      return in_quotes(text());
    case JsonKind::kArray:
      return "an array";
    case JsonKind::kObject:
      return "an object";
  }
  return "";
}

JsonElements::Iterator& JsonElements::Iterator::operator++() {
  value_ = value_.next();
  return *this;
}

JsonMember JsonMembers::Iterator::operator*() const { return {name_.text(), name_.next()}; }

JsonMembers::Iterator& JsonMembers::Iterator::operator++() {
  name_ = name_.next().next();
  return *this;
}

Status check_utf8(absl::string_view text) {
  const size_t place = utf8_prefix(text);
  if (place == text.size()) return absl::OkStatus();
  // Shows the bytes that were to be one character.
  size_t end = place + 1;
  while (end < text.size() && end < place + 4 && (text[end] & 0xC0) == 0x80) ++end;
  return absl::InvalidArgumentError(
      absl::StrCat("it is not UTF-8 at byte ", place, ": ", hex(text.substr(place, end - place))));
}

void append_json_text(absl::string_view text, std::string* out) {
  constexpr absl::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr absl::string_view kLetters = "\"\\bfnrt";
  out->push_back('"');
  for (const char c : text) {
    if (const size_t place = kEscaped.find(c); place != absl::string_view::npos) {
      out->push_back('\\');
      out->push_back(kLetters[place]);
    } else if (static_cast<uint8_t>(c) < 0x20) {
      absl::StrAppend(out, "\\u", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad4));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

}  // namespace tessera::files
