// SPDX-License-Identifier: Apache-2.0
#include "ops/catalog.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "ops/catalog_entries.h"

namespace tessera::ops {
namespace {

// "dim" of "dim=0".
std::string name_of(absl::string_view attribute) {
  return std::string(attribute.substr(0, attribute.find('=')));
}

std::vector<std::string> names_of(const std::vector<std::string>& attributes) {
  std::vector<std::string> names;
  for (const std::string& attribute : attributes) names.push_back(name_of(attribute));
  return names;
}

StatusOr<const CatalogEntry*> find_entry(absl::string_view name) {
  std::vector<std::string> names;
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name == name) return &entry;
    names.push_back(entry.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("operation ", quoted(name), " is unknown", did_you_mean(name, names)));
}

Status check_number(const CatalogEntry& entry, size_t count) {
  const auto least = static_cast<size_t>(entry.least_operands);
  const auto most = static_cast<size_t>(entry.most_operands);
  if (count >= least && count <= most) return absl::OkStatus();
  const std::string takes = least == most      ? absl::StrCat(least)
                            : most - least > 1 ? absl::StrCat(least, " and more")
                                               : absl::StrCat(least, " or ", most);
  return refusal(entry.name.c_str(), "takes ", takes, most == 1 ? " operand" : " operands",
                 ", not ", count);
}

Status check_attributes(const CatalogEntry& entry, const Attributes& attributes) {
  std::vector<std::string> known = names_of(entry.needed);
  for (size_t i = 0; i < known.size(); ++i) {
    if (attributes.has(known[i])) continue;
    return refusal(entry.name.c_str(), "attribute ", known[i], " is missing; give one, as in ",
                   entry.needed[i]);
  }
  const std::vector<std::string> optional = names_of(entry.optional);
  known.insert(known.end(), optional.begin(), optional.end());
  for (const std::string& name : attributes.names()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return refusal(entry.name.c_str(), "has no attribute ", quoted(name),
                   known.empty() ? "" : absl::StrCat("; it has ", quoted_list(known)),
                   did_you_mean(name, known));
  }
  return absl::OkStatus();
}

Status wrong(const std::string& name, const std::string& text, const char* expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("attribute ", name, "=", text, " is not a ", expected));
}

}  // namespace

std::string CatalogEntry::attributes_of_sample() const {
  std::vector<std::string> all = needed;
  if (!sample_attributes.empty()) all.push_back(sample_attributes);
  return absl::StrJoin(all, "; ");
}

StatusOr<Attributes> Attributes::parse(absl::string_view text) {
  Attributes attributes;
  for (absl::string_view part : absl::StrSplit(text, ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;
    const size_t sign = part.find('=');
    const std::string name(absl::StripAsciiWhitespace(part.substr(0, sign)));
    if (!is_name(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", quoted(part), " has no name; give one, as in dim=0"));
    }
    const absl::string_view value = sign == absl::string_view::npos ? "" : part.substr(sign + 1);
    if (!attributes.values_.emplace(name, absl::StripAsciiWhitespace(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", name, " is given twice"));
    }
  }
  return attributes;
}

std::vector<std::string> Attributes::names() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) names.push_back(name);
  return names;
}

std::string Attributes::text(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? "" : found->second;
}

StatusOr<int64_t> Attributes::integer(const std::string& name) const {
  int64_t value = 0;
  if (absl::SimpleAtoi(text(name), &value)) return value;
  return wrong(name, text(name), "whole number");
}

StatusOr<Scalar> Attributes::scalar(const std::string& name) const {
  int64_t integer = 0;
  if (absl::SimpleAtoi(text(name), &integer)) return Scalar(integer);
  double real = 0;
  if (absl::SimpleAtod(text(name), &real)) return Scalar(real);
  return wrong(name, text(name), "number");
}

StatusOr<std::vector<int64_t>> Attributes::integers(const std::string& name) const {
  std::vector<int64_t> numbers;
  for (absl::string_view part : absl::StrSplit(text(name), absl::ByAnyChar("[], "))) {
    if (part.empty()) continue;
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) {
      return wrong(name, text(name), "list of whole numbers, as [0, 2]");
    }
    numbers.push_back(number);
  }
  return numbers;
}

StatusOr<std::vector<int64_t>> Attributes::integers(const std::string& name, size_t count,
                                                    std::vector<int64_t> otherwise) const {
  if (!has(name)) return otherwise;
  TESSERA_ASSIGN_OR_RETURN(std::vector<int64_t> numbers, integers(name));
  if (numbers.size() == count) return numbers;
  return absl::InvalidArgumentError(absl::StrCat("attribute ", name, "=", text(name), " has ",
                                                 numbers.size(), " numbers, not ", count));
}

absl::Span<const CatalogEntry> catalog() {
  static const auto* const entries = [] {
    auto* const all = new std::vector<CatalogEntry>;
    for (std::vector<CatalogEntry> part :
         {contract_entries(), pointwise_entries(), reduction_entries(), line_entries(),
          shape_entries(), joining_entries(), indexing_entries(), window_entries(),
          network_entries()}) {
      std::move(part.begin(), part.end(), std::back_inserter(*all));
    }
    return all;
  }();
  return *entries;
}

StatusOr<OpPlan> plan_operation(absl::string_view name, absl::Span<const OperandType> operands,
                                const Attributes& attributes) {
  TESSERA_ASSIGN_OR_RETURN(const CatalogEntry* const entry, find_entry(name));
  if (entry->plan == nullptr) {
    return refusal(entry->name.c_str(), "made of ", entry->made_of,
                   ", each with a rule of its own; ask for one of them");
  }
  TESSERA_RETURN_IF_ERROR(check_number(*entry, operands.size()));
  TESSERA_RETURN_IF_ERROR(check_attributes(*entry, attributes));
  return entry->plan(operands, attributes);
}

}  // namespace tessera::ops
