// SPDX-License-Identifier: Apache-2.0
#include "nn/parameters.h"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/dtype.h"
#include "base/math.h"
#include "base/shape.h"
#include "base/text.h"
#include "dtensor/device_op.h"
#include "layout/layout.h"

namespace tessera::nn {

struct Parameters::State {
  std::vector<std::string> names;
  std::vector<Variable> variables;
  // Copies of the handles at addresses that stay when others are added: add() returns references.
  std::deque<Variable> handles;
  absl::flat_hash_map<std::string, size_t> places;
  Status status;

  std::mutex mutex;                                         // guards `missing`
  absl::node_hash_map<std::string, Variable> missing = {};  // names that operator[] did not find
};

namespace {

bool is_failed(const Variable& variable) {
  return !internal::facts_of(variable.value()).error.ok();
}

// On the device that holds the most: its shard of each dim is the longest.
int64_t bytes_per_device(const Variable& variable) {
  int64_t bytes = dtype_size(variable.dtype());
  for (size_t dim = 0; dim < variable.shape().size(); ++dim) {
    const int64_t num_shards = variable.layout().num_shards(static_cast<int>(dim));
    bytes *= ceil_mul_div(1, variable.shape()[dim], num_shards);
  }
  return bytes;
}

// Name, shape, dtype, layout, bytes per device. Only the first of a group's name.
using Row = std::array<std::string, 5>;

std::string aligned(const std::vector<Row>& rows) {
  std::array<size_t, 5> widths = {};
  for (const Row& row : rows) {
    for (size_t k = 0; k < row.size(); ++k) widths[k] = std::max(widths[k], row[k].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t k = 0; k + 1 < row.size(); ++k) {
      absl::StrAppend(&line, row[k], std::string(widths[k] - row[k].size() + 2, ' '));
    }
    absl::StrAppend(&line, std::string(widths[4] - row[4].size(), ' '), row[4]);
    line.resize(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace

Parameters::Parameters() : state_(std::make_shared<State>()) {}

Variable& Parameters::add(absl::string_view name, DTensor initial) {
  State& state = *state_;
  std::string own(name);
  if (!state.places.try_emplace(own, state.names.size()).second) {
    initial = internal::failed_tensor(
        initial.dtype(), initial.shape(), initial.layout(),
        absl::InvalidArgumentError(absl::StrCat("parameter ", in_quotes(name),
                                                " is added twice; give each its own name")));
  }
  Variable& added = state.handles.emplace_back(own, initial);
  state.variables.push_back(added);
  state.names.push_back(std::move(own));
  state.status.Update(internal::facts_of(added.value()).error);
  return added;
}

const Variable& Parameters::operator[](absl::string_view name) const {
  if (const std::optional<size_t> place = find(name); place.has_value()) {
    return state_->handles[*place];
  }
  std::lock_guard<std::mutex> lock(state_->mutex);
  const auto found = state_->missing.find(name);
  if (found != state_->missing.end()) return found->second;
  const Status error =
      absl::NotFoundError(absl::StrCat("there is no parameter ", in_quotes(name), " among ",
                                       state_->names.size(), did_you_mean(name, state_->names)));
  Variable none(std::string(name), internal::failed_tensor(DType::kFloat32, {}, error, error));
  return state_->missing.emplace(name, std::move(none)).first->second;
}

std::optional<size_t> Parameters::find(absl::string_view name) const {
  const auto place = state_->places.find(name);
  if (place == state_->places.end()) return std::nullopt;
  return place->second;
}

absl::Span<Variable> Parameters::variables() const { return absl::MakeSpan(state_->variables); }
absl::Span<const std::string> Parameters::names() const { return state_->names; }
Status Parameters::status() const { return state_->status; }

std::vector<DTensor> Parameters::watch(Tape& tape) const {
  std::vector<DTensor> watched;
  watched.reserve(variables().size());
  for (const Variable& variable : variables()) watched.push_back(tape.watch(variable.value()));
  return watched;
}

int64_t Parameters::num_elements() const {
  int64_t sum = 0;
  for (const Variable& variable : variables()) {
    if (!is_failed(variable)) sum += tessera::num_elements(variable.shape());
  }
  return sum;
}

std::string Parameters::to_string() const {
  std::vector<Row> rows = {{"name", "shape", "dtype", "layout", "bytes per device"}};
  std::vector<absl::string_view> above;  // the groups of the row before
  int64_t bytes = 0;
  for (size_t i = 0; i < names().size(); ++i) {
    std::vector<absl::string_view> groups = absl::StrSplit(names()[i], '/');
    const absl::string_view member = groups.back();
    groups.pop_back();
    const size_t num_equal =
        std::mismatch(groups.begin(), groups.end(), above.begin(), above.end()).first -
        groups.begin();
    for (size_t k = num_equal; k < groups.size(); ++k) {
      rows.push_back({absl::StrCat(std::string(2 * k, ' '), groups[k], "/")});
    }
    above = groups;
    const Variable& variable = variables()[i];
    const std::string indented = absl::StrCat(std::string(2 * groups.size(), ' '), member);
    if (is_failed(variable)) {
      rows.push_back({indented, "failed"});
      continue;
    }
    const int64_t own_bytes = bytes_per_device(variable);
    bytes += own_bytes;
    rows.push_back({indented, shape_to_string(variable.shape()),
                    std::string(dtype_name(variable.dtype())), variable.layout().to_string(),
                    absl::StrCat(own_bytes)});
  }
  const std::string sums = absl::StrCat(names().size(), " in all: ", num_elements(), " elements, ",
                                        bytes, " bytes per device\n");
  if (status().ok()) return absl::StrCat(aligned(rows), sums);
  return absl::StrCat(aligned(rows), sums, "first error: ", status().message(), "\n");
}

}  // namespace tessera::nn
