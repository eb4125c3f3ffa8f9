// SPDX-License-Identifier: Apache-2.0
#include "base/json_syntax.h"

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

// Reads the text once without building a value.
class SyntaxCheck : public nlohmann::json_sax<json> {
 public:
  explicit SyntaxCheck(absl::string_view expected) : expected_(expected) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    fields_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (fields_.back().insert(name).second) return true;
    problem_ = absl::StrCat("field ", tessera::in_quotes(name), " is given twice; give it once");
    return false;
  }
  bool end_object() override {
    fields_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t place, const std::string& token,
                   const nlohmann::detail::exception&) override {
    problem_ = absl::StrCat("is not valid JSON at character ", place, ", at ",
                            tessera::in_quotes(token), "; expected ", expected_);
    return false;
  }

 private:
  absl::string_view expected_;
  std::string problem_;
  std::vector<std::set<std::string>> fields_;  // One for each open object.
};

}  // namespace

std::string json_problem(absl::string_view text, absl::string_view expected) {
  SyntaxCheck check(expected);
  return json::sax_parse(text.begin(), text.end(), &check) ? "" : check.problem();
}

}  // namespace tessera
