// SPDX-License-Identifier: Apache-2.0
//
// JsonDocument and JsonValue: strict JSON of files that may be hostile, such as the headers of
// safetensors files and the manifests of checkpoints.
//
//   TESSERA_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text));
//   TESSERA_ASSIGN_OR_RETURN(const JsonValue shape, document.root().member("shape"));
//   for (const JsonValue size : shape.elements()) {
//     TESSERA_ASSIGN_OR_RETURN(const int64_t value, size.to_integer());
//   }
//
// The text is read by the SAX parser of nlohmann-json, whose own values (json::parse) accept what a
// checkpoint must refuse. Each row is a way in which two readers would see two different files:
//
//   text                      json::parse() of 3.11.2           here
//   {"a":1,"a":2}             keeps the last                    InvalidArgument
//   {}\0\0, \xef\xbb\xbf{}    ignores the bytes                 InvalidArgument
//   18446744073709551616      a double, without a word          not an integer
//   -0                        the integer zero                  not an integer
//   100,000 brackets          allocates each level              InvalidArgument beyond kMaxDepth
//
// Memory: 16 bytes a value and a name, and the bytes of the texts; the time is linear, except for
// n log n in the members of one object.
//
// Threads: a document is immutable, so any number of threads may read it.
#ifndef TESSERA_FILES_JSON_READER_H_
#define TESSERA_FILES_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace tessera::files {

enum class JsonKind : uint8_t {
  kNull,
  kFalse,
  kTrue,
  kNegative,  // an integer of int64 below 0
  kUnsigned,  // an integer of uint64
  kNumber,    // every other number, kept as its text: 1.0, 1e0, -0, 2^64
  kText,
  kArray,
  kObject,
};

namespace internal {
// A value. The values of a document are in the order of its text: an array is followed by its
// elements, an object by its members, each of which is a kText and a value.
struct JsonNode {
  uint64_t value;  // the integer; the place of the text; the number of nodes of a container
  uint32_t size;   // bytes of the text; elements of an array; members of an object
  JsonKind kind;
};
}  // namespace internal

class JsonDocument;
class JsonElements;
class JsonMembers;

// A value of a document, which must outlive it. Cheap to copy.
class JsonValue {
 public:
  JsonKind kind() const { return node().kind; }
  // The number of elements or members; 0 for other values.
  size_t size() const;

  // These fail with InvalidArgument for a value of another kind; the caller puts the subject before
  // the message, "tensor \"a\": dtype: 32 is not a text".
  StatusOr<int64_t> to_integer() const;  // also fails for an integer beyond int64
  StatusOr<absl::string_view> to_text() const;
  StatusOr<JsonElements> to_elements() const;
  StatusOr<JsonMembers> to_members() const;

  // The member of this name, in time linear in the members. member() fails with InvalidArgument
  // where there is none or this is no object; find() returns nothing.
  StatusOr<JsonValue> member(absl::string_view name) const;
  std::optional<JsonValue> find(absl::string_view name) const;

  // The elements of an array, the members of an object; empty for other values.
  JsonElements elements() const;
  JsonMembers members() const;

  // For messages: "\"F32\"", "-1", "null", "an array", "an object".
  std::string to_string() const;

 private:
  friend class JsonDocument;
  friend class JsonElements;
  friend class JsonMembers;

  JsonValue(const JsonDocument* document, size_t place) : document_(document), place_(place) {}
  const internal::JsonNode& node() const;
  // The text of a kText or a kNumber.
  absl::string_view text() const;
  // The value after this one and all that is in it.
  JsonValue next() const;

  const JsonDocument* document_;
  size_t place_;
};

struct JsonMember {
  absl::string_view name;  // any bytes of UTF-8, also 00
  JsonValue value;
};

// The elements of an array, for range-based loops.
class JsonElements {
 public:
  class Iterator {
   public:
    JsonValue operator*() const { return value_; }
    Iterator& operator++();
    bool operator==(const Iterator& other) const { return value_.place_ == other.value_.place_; }

   private:
    friend class JsonElements;
    explicit Iterator(JsonValue value) : value_(value) {}
    JsonValue value_;
  };
  Iterator begin() const { return Iterator(begin_); }
  Iterator end() const { return Iterator(end_); }

 private:
  friend class JsonValue;
  JsonElements(JsonValue begin, JsonValue end) : begin_(begin), end_(end) {}
  JsonValue begin_, end_;
};

// The members of an object in the order of the text, for range-based loops.
class JsonMembers {
 public:
  class Iterator {
   public:
    JsonMember operator*() const;
    Iterator& operator++();
    bool operator==(const Iterator& other) const { return name_.place_ == other.name_.place_; }

   private:
    friend class JsonMembers;
    explicit Iterator(JsonValue name) : name_(name) {}
    JsonValue name_;
  };
  Iterator begin() const { return Iterator(begin_); }
  Iterator end() const { return Iterator(end_); }

 private:
  friend class JsonValue;
  JsonMembers(JsonValue begin, JsonValue end) : begin_(begin), end_(end) {}
  JsonValue begin_, end_;
};

// What the first byte of a text may be.
enum class JsonStart {
  kAny,
  kBrace,  // "{": neither a blank nor another value
};

// A text of JSON, read. Values point to it, so it must not be moved while they are used.
class JsonDocument {
 public:
  static constexpr int kMaxDepth = 64;
  static constexpr size_t kMaxBytes = size_t{1} << 31;

  // Reads one value and the blanks around it. InvalidArgument for everything else: the message has
  // the byte, counted from 0, or the name of a member that is there twice. The caller puts the name
  // of the file before the message: "it is not JSON at byte 2, ...".
  static StatusOr<JsonDocument> parse(absl::string_view text, JsonStart start = JsonStart::kAny);

  JsonValue root() const { return JsonValue(this, 0); }

 private:
  friend class JsonValue;
  class Builder;

  JsonDocument() = default;

  std::vector<internal::JsonNode> nodes_;  // the first is the root
  std::string texts_;                      // of all kText and kNumber, one after the other
};

// OK where `text` is UTF-8; else InvalidArgument with the byte: "it is not UTF-8: byte ff at byte
// 2". Overlong forms and surrogates are no UTF-8.
Status check_utf8(absl::string_view text);

// Appends `text` in quotes, escaped as JSON. Requires UTF-8, which is kept as it is.
void append_json_text(absl::string_view text, std::string* out);

}  // namespace tessera::files

#endif  // TESSERA_FILES_JSON_READER_H_
