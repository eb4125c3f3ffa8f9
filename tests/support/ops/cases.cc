// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/cases.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "tests/support/forked.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

std::vector<std::string> split_list(absl::string_view text) {
  if (text == "-") return {};
  return absl::StrSplit(text, "; ");
}

std::vector<int64_t> parse_integers(absl::string_view text) {
  std::vector<int64_t> numbers;
  for (absl::string_view item : absl::StrSplit(text, absl::ByAnyChar("[], "), absl::SkipEmpty())) {
    int64_t number = 0;
    if (absl::SimpleAtoi(item, &number)) numbers.push_back(number);
  }
  return numbers;
}

StatusOr<double> parse_real(absl::string_view text) {
  double number = 0;
  if (text == "-" || absl::SimpleAtod(text, &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a number"));
}

StatusOr<DType> parse_dtype(absl::string_view name) {
  for (int k = 0; k < kNumDTypes; ++k) {
    if (dtype_name(static_cast<DType>(k)) == name) return static_cast<DType>(k);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a dtype"));
}

// The columns that both tables begin with, up to the formulas of the operands.
Status parse_operands(absl::Span<const std::string> cells, OpCase& row) {
  row.id = cells[0];
  row.op = cells[1];
  for (const std::string& attribute : split_list(cells[2])) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(attribute, absl::MaxSplits('=', 1));
    row.attributes.insert(pair);
  }
  const std::vector<std::string> meshes = split_list(cells[3]);
  const std::vector<std::string> dtypes = split_list(cells[4]);
  if (dtypes.empty()) row.mesh = cells[3];
  const std::vector<std::string> shapes = split_list(cells[5]);
  const std::vector<std::string> layouts = split_list(cells[6]);
  const std::vector<std::string> formulas = split_list(cells[7]);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, parse_dtype(dtypes[i]));
    row.operands.push_back({meshes.empty() ? "" : meshes[std::min(i, meshes.size() - 1)], dtype,
                            parse_integers(shapes[i]), layouts.empty() ? "" : layouts[i],
                            formulas.empty() ? "-" : formulas[i]});
  }
  return absl::OkStatus();
}

// sum, squares, weighted, at, tolerance.
Status parse_checks(absl::Span<const std::string> cells, size_t first, OpCase& row) {
  TESSERA_ASSIGN_OR_RETURN(row.sum, parse_real(cells[first]));
  TESSERA_ASSIGN_OR_RETURN(row.squares, parse_real(cells[first + 1]));
  TESSERA_ASSIGN_OR_RETURN(row.weighted, parse_real(cells[first + 2]));
  if (cells[first + 3] != "-") {
    for (absl::string_view item : absl::StrSplit(cells[first + 3], ", ")) {
      const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(item, ": ");
      TESSERA_ASSIGN_OR_RETURN(const double index, parse_real(pair.first));
      TESSERA_ASSIGN_OR_RETURN(const double value, parse_real(pair.second));
      row.at.emplace_back(static_cast<int64_t>(index), value);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(row.tolerance, parse_real(cells[first + 4]));
  return absl::OkStatus();
}

StatusOr<OpCase> parse_op(absl::Span<const std::string> cells) {
  OpCase row;
  TESSERA_RETURN_IF_ERROR(parse_operands(cells, row));
  row.out = cells[8];
  row.error = cells[18] == "-" ? std::vector<std::string>() : absl::StrSplit(cells[18], " | ");
  if (!row.error.empty()) return row;
  row.shape = parse_integers(cells[9]);
  TESSERA_ASSIGN_OR_RETURN(row.dtype, parse_dtype(cells[10]));
  row.layout = cells[11];
  row.why = cells[12];
  TESSERA_RETURN_IF_ERROR(parse_checks(cells, 13, row));
  return row;
}

StatusOr<OpCase> parse_gradient(absl::Span<const std::string> cells) {
  OpCase row;
  TESSERA_RETURN_IF_ERROR(parse_operands(cells, row));
  row.out = "-";
  row.seed = cells[8];
  TESSERA_ASSIGN_OR_RETURN(const double source, parse_real(cells[9]));
  row.source = static_cast<int>(source);
  row.shape = row.operands[row.source].shape;
  row.dtype = row.operands[row.source].dtype;
  row.layout = "*";
  TESSERA_RETURN_IF_ERROR(parse_checks(cells, 10, row));
  return row;
}

// Appends the rows of a table with so many columns.
template <class Parse>
Status read_table(const char* path, size_t num_columns, Parse parse, std::vector<OpCase>& rows) {
  std::ifstream file(path);
  if (!file.is_open()) return absl::NotFoundError(absl::StrCat("no file ", path));
  std::string line;
  std::getline(file, line);  // The names of the columns.
  while (std::getline(file, line)) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    TESSERA_REQUIRE(cells.size() == num_columns, "cells of row ", line);
    StatusOr<OpCase> row = parse(cells);
    TESSERA_RETURN_IF_ERROR(with_context(row.status(), absl::StrCat("row \"", line, "\"")));
    rows.push_back(*std::move(row));
  }
  return absl::OkStatus();
}

StatusOr<Mesh> find_mesh(const Client& client, const std::string& text,
                         std::map<std::string, Mesh>& meshes) {
  const auto known = meshes.find(text);
  if (known != meshes.end()) return known->second;
  TESSERA_ASSIGN_OR_RETURN(const Mesh abstract, Mesh::parse(text));
  std::vector<int> ids(abstract.size());
  std::iota(ids.begin(), ids.end(), 0);
  TESSERA_ASSIGN_OR_RETURN(
      Mesh mesh, create_mesh(client, {abstract.axes().begin(), abstract.axes().end()}, ids));
  return meshes.emplace(text, mesh).first->second;
}

// The term at position p of P of the element i whose value is v: see tests/facts/ops.md.
double term_of(ReduceOp op, bool is_bool, double v, int64_t i, int64_t p, int64_t P) {
  const auto other = [i](int64_t k) { return static_cast<double>((i + 3 * k) % 5 - 2); };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: {
      if (p > 0) return other(p);
      double first = op == ReduceOp::kAvg ? v * static_cast<double>(P) : v;
      for (int64_t k = 1; k < P; ++k) first -= other(k);
      return first;
    }
    case ReduceOp::kProd:
      return i % P == p ? v : 1;
    case ReduceOp::kMax:
      if (is_bool) return i % P == p ? v : 0;
      return v - static_cast<double>((((p - i) % P) + P) % P);
    case ReduceOp::kMin:
      if (is_bool) return i % P == p ? v : 1;
      return v + static_cast<double>((((p - i) % P) + P) % P);
  }
  return v;
}

template <class T>
T converted(double value) {
  if constexpr (std::is_same_v<T, bool>) return value != 0;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<int64_t>(value));
  return static_cast<T>(value);
}

template <class T>
StatusOr<DTensor> make_tensor(const Client& client, const OpOperand& operand,
                              const Layout& layout) {
  std::vector<HostTensor<T>> shards;
  Status status;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const Box box = layout.box(operand.shape, *position);
    HostTensor<T>& shard = shards.emplace_back();
    shard.shape = box.sizes;
    shard.data.resize(box.num_elements());
    for_each_element(box, [&](const std::vector<int64_t>& index, int64_t place) {
      const int64_t i = flat_index(operand.shape, index);
      StatusOr<double> value = formula_at(operand.formula, i);
      status.Update(value.status());
      if (!value.ok()) return;
      if (layout.is_partial()) {
        *value = term_of(*layout.partial_op(), std::is_same_v<T, bool>, *value, i,
                         layout.partial_index(*position), layout.num_partial_terms());
      }
      shard.data[place] = converted<T>(*value);
    });
  }
  TESSERA_RETURN_IF_ERROR(status);
  return from_shards<T>(operand.shape, layout, shards);
}

// Sums over the dense result.
struct Sums {
  double sum = 0, squares = 0, weighted = 0;
  double absolute = 0, absolute_weighted = 0;
};

Status check_close(absl::string_view what, double actual, double expected, double bound) {
  TESSERA_REQUIRE(std::abs(actual - expected) <= bound, what, " ", actual, ", not ", expected);
  return absl::OkStatus();
}

template <class T>
Status check_values(const OpCase& row, const DTensor& result) {
  TESSERA_ASSIGN_OR_RETURN(const HostTensor<T> host, result.to_host<T>());
  Sums sums;
  for (size_t i = 0; i < host.data.size(); ++i) {
    const double v = static_cast<double>(host.data[i]);
    const double weight = static_cast<double>(i % 97 + 1);
    sums.sum += v;
    sums.squares += v * v;
    sums.weighted += v * weight;
    sums.absolute += std::abs(v);
    sums.absolute_weighted += std::abs(v) * weight;
  }
  const double t = row.tolerance;
  for (const auto& [index, value] : row.at) {
    TESSERA_RETURN_IF_ERROR(check_close(absl::StrCat("element ", index),
                                        static_cast<double>(host.data[index]), value,
                                        t * std::max(1.0, std::abs(value))));
  }
  // The sums here are added in another order than the sums of the table.
  const double rounding = t == 0 ? 0 : 1e-14;
  TESSERA_RETURN_IF_ERROR(
      check_close("sum", sums.sum, row.sum, (t + rounding) * std::max(1.0, sums.absolute)));
  TESSERA_RETURN_IF_ERROR(check_close("squares", sums.squares, row.squares,
                                      (2 * t + rounding) * std::max(1.0, sums.squares)));
  return check_close("weighted", sums.weighted, row.weighted,
                     (t + rounding) * std::max(1.0, sums.absolute_weighted));
}

}  // namespace

int64_t OpCase::integer(const std::string& attribute) const {
  return parse_integers(attributes.at(attribute)).at(0);
}
double OpCase::real(const std::string& attribute) const {
  return parse_real(attributes.at(attribute)).value();
}
std::vector<int64_t> OpCase::integers(const std::string& attribute) const {
  return parse_integers(attributes.at(attribute));
}

StatusOr<OpCase> make_op_case(const std::vector<std::string>& cells) {
  OpCase row;
  TESSERA_RETURN_IF_ERROR(parse_operands(cells, row));
  row.out = "-";
  row.dtype = row.operands[0].dtype;
  if (row.has("dtype")) {
    TESSERA_ASSIGN_OR_RETURN(row.dtype, parse_dtype(row.attributes.at("dtype")));
  }
  return row;
}

StatusOr<std::vector<OpCase>> read_op_cases() {
  std::vector<OpCase> rows;
  TESSERA_RETURN_IF_ERROR(read_table("ops/testdata/ops_cases.tsv", 19, parse_op, rows));
  TESSERA_RETURN_IF_ERROR(read_table("ops/testdata/array_cases.tsv", 19, parse_op, rows));
  return rows;
}

StatusOr<std::vector<OpCase>> read_gradient_cases() {
  std::vector<OpCase> rows;
  TESSERA_RETURN_IF_ERROR(read_table("ops/testdata/gradients_cases.tsv", 15, parse_gradient, rows));
  TESSERA_RETURN_IF_ERROR(
      read_table("ops/testdata/array_gradients_cases.tsv", 15, parse_gradient, rows));
  return rows;
}

// "(7i+3)%11-5", "((7i+3)%11-5)/4".
StatusOr<double> formula_at(absl::string_view formula, int64_t i) {
  if (formula == "-") return 0;
  const size_t brace = formula.find(" {");
  if (brace != absl::string_view::npos) {
    const absl::string_view replaced = formula.substr(brace + 2, formula.size() - brace - 3);
    for (absl::string_view item : absl::StrSplit(replaced, ", ")) {
      const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(item, ": ");
      if (pair.first == absl::StrCat(i)) return parse_real(pair.second);
    }
    formula = formula.substr(0, brace);
  }
  const std::vector<int64_t> n = [&] {
    std::vector<int64_t> numbers;
    for (absl::string_view item :
         absl::StrSplit(formula, absl::ByAnyChar("()i%/+-"), absl::SkipEmpty())) {
      int64_t number = 0;
      if (absl::SimpleAtoi(item, &number)) numbers.push_back(number);
    }
    return numbers;
  }();
  if (n.size() < 4 || n.size() > 5) {
    return absl::InvalidArgumentError(absl::StrCat("formula \"", formula, "\""));
  }
  // "...%17+250" adds; all others subtract.
  const bool adds = absl::StrContains(formula, absl::StrCat("%", n[2], "+"));
  const int64_t value = (n[0] * i + n[1]) % n[2] + (adds ? n[3] : -n[3]);
  return static_cast<double>(value) / static_cast<double>(n.size() == 5 ? n[4] : 1);
}

StatusOr<DTensor> make_operand(const Client& client, const OpOperand& operand,
                               std::map<std::string, Mesh>& meshes) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, find_mesh(client, operand.mesh, meshes));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::parse(mesh, operand.layout));
  return visit_dtype(operand.dtype,
                     [&]<class T>() { return make_tensor<T>(client, operand, layout); });
}

StatusOr<ops::Out> make_out(const Client& client, const OpCase& row,
                            std::map<std::string, Mesh>& meshes) {
  if (row.out == "-") return ops::Out();
  const std::vector<std::string> parts = absl::StrSplit(row.out, " on ");
  const std::string& of_operands = row.operands.empty() ? row.mesh : row.operands[0].mesh;
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh,
                           find_mesh(client, parts.size() > 1 ? parts[1] : of_operands, meshes));
  return ops::Out(Layout::parse(mesh, parts[0]));
}

Status check_result(const OpCase& row, const DTensor& result) {
  TESSERA_RETURN_IF_ERROR(result.status());
  TESSERA_REQUIRE(result.dtype() == row.dtype, dtype_name(result.dtype()));
  TESSERA_REQUIRE(result.shape() == row.shape, shape_to_string(result.shape()));
  if (row.layout != "*") {
    TESSERA_REQUIRE(result.layout().to_string() == row.layout, result.layout().to_string(),
                    " instead of ", row.layout);
  }
  if (result.num_local_shards() == 0) return absl::OkStatus();
  return visit_dtype(row.dtype, [&]<class T>() { return check_values<T>(row, result); });
}

}  // namespace tessera::testing
