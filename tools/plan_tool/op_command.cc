// SPDX-License-Identifier: Apache-2.0
#include "tools/plan_tool/op_command.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/text.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "ops/all_operations.h"
#include "ops/decision.h"
#include "ops/infer.h"
#include "ops/operand_type.h"
#include "ops/operation.h"
#include "ops/rule.h"
#include "relayout/plan.h"

namespace tessera {
namespace {

struct NamedLayouts {
  std::string name;
  std::vector<std::string> layouts;
};

// "add [x, -] sum{y} [-]" is add of "[x, -] sum{y}" and "[-]".
StatusOr<NamedLayouts> split_op(absl::string_view text) {
  const size_t begin = text.find('[');
  NamedLayouts parts;
  parts.name = std::string(absl::StripAsciiWhitespace(text.substr(0, begin)));
  if (parts.name.empty() || begin == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        in_quotes(text),
        " is not an operation with a layout for each operand, as 'matmul [x, -] [-, y]'"));
  }
  for (const absl::string_view part : absl::StrSplit(text.substr(begin + 1), '[')) {
    parts.layouts.push_back(absl::StrCat("[", absl::StripAsciiWhitespace(part)));
  }
  return parts;
}

StatusOr<std::vector<absl::string_view>> split_list(absl::string_view text, size_t count) {
  std::vector<absl::string_view> entries = absl::StrSplit(text, ';');
  if (entries.size() == count) return entries;
  return absl::InvalidArgumentError(absl::StrCat(
      in_quotes(text), " has ", entries.size(), entries.size() == 1 ? " entry" : " entries",
      " for ", count, " operands; separate them by \";\""));
}

struct OperandTexts {
  std::vector<Layout> layouts;
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
};

StatusOr<OperandTexts> read_operands(const OpCommand& command, const Mesh& mesh,
                                     const NamedLayouts& op) {
  const size_t count = op.layouts.size();
  OperandTexts operands;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<absl::string_view> shapes,
                           of_flag("--shape", split_list(command.shapes, count)));
  std::vector<absl::string_view> dtypes(count, command.dtypes);
  if (absl::StrContains(command.dtypes, ';')) {
    TESSERA_ASSIGN_OR_RETURN(dtypes, of_flag("--dtype", split_list(command.dtypes, count)));
  }
  for (size_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, of_flag("--op", Layout::parse(mesh, op.layouts[i])));
    TESSERA_ASSIGN_OR_RETURN(Shape shape, of_flag("--shape", read_shape(shapes[i])));
    TESSERA_ASSIGN_OR_RETURN(const DType dtype,
                             of_flag("--dtype", read_dtype(absl::StripAsciiWhitespace(dtypes[i]))));
    TESSERA_RETURN_IF_ERROR(with_context(layout.validate_shape(shape), "--op"));
    operands.layouts.push_back(std::move(layout));
    operands.shapes.push_back(std::move(shape));
    operands.dtypes.push_back(dtype);
  }
  return operands;
}

// "any; together", "sum, avg; of operand 0".
std::string partials_text(const ops::Rule& rule) {
  if (rule.linearity == ops::Linearity::kNone || rule.reductions == 0) return "-";
  std::vector<absl::string_view> names;
  for (int op = 0; op < kNumReduceOps; ++op) {
    if (rule.passes(static_cast<ReduceOp>(op))) {
      names.push_back(reduce_op_name(static_cast<ReduceOp>(op)));
    }
  }
  std::string text = names.size() == kNumReduceOps ? "any" : absl::StrJoin(names, ", ");
  std::vector<std::string> carriers;
  for (size_t i = 0; i < rule.operands.size(); ++i) {
    if (rule.may_carry(static_cast<int>(i))) carriers.push_back(absl::StrCat(i));
  }
  if (carriers.size() < rule.operands.size()) {
    absl::StrAppend(&text, " of operand ", absl::StrJoin(carriers, ", "));
  }
  if (carriers.size() < 2) return text;
  return absl::StrCat(text, rule.linearity == ops::Linearity::kEach ? "; of one" : "; of all");
}

struct TableRow {
  std::vector<std::string> names;
  std::string rest;  // The other columns.
};

std::string sample_text(const ops::Operation& operation) {
  std::vector<std::string> operands;
  for (const ops::SampleOperand& operand : ops::sample_operands(operation)) {
    operands.push_back(
        absl::StrCat(dtype_name(operand.dtype), " ", shape_to_string(operand.shape)));
  }
  const std::string attributes = ops::sample_attributes(operation);
  return absl::StrCat(absl::StrJoin(operands, "; "), attributes.empty() ? "" : " with ",
                      attributes);
}

// Exceptions to an operation's rule.
std::string split_dim_text(absl::string_view name) {
  const StatusOr<const ops::Operation*> operation = ops::find_operation(name);
  if (!operation.ok() || (*operation)->parts == nullptr || *(*operation)->made_of == '\0')
    return "";
  return absl::StrCat("  along a split dim, made of ", (*operation)->made_of, " instead\n");
}

// The columns of an operation beside its name.
std::string columns_of(const ops::Operation& operation) {
  if (operation.plan == nullptr) return absl::StrCat(" | made of ", operation.made_of, " | |");
  const StatusOr<ops::OpPlan> plan = ops::plan_sample(operation);
  if (!plan.ok()) return absl::StrCat(" | ", plan.status().message(), " | |");
  const std::string split = *operation.made_of == '\0'
                                ? ""
                                : absl::StrCat("; along a split dim made of ", operation.made_of);
  return absl::StrCat(sample_text(operation), " | `", plan->rule.to_string(), "`", split, " | ",
                      partials_text(plan->rule), " |");
}

}  // namespace

StatusOr<std::string> report_operation(const OpCommand& command) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, of_flag("--mesh", Mesh::parse(command.mesh)));
  TESSERA_ASSIGN_OR_RETURN(const NamedLayouts op, of_flag("--op", split_op(command.op)));
  TESSERA_ASSIGN_OR_RETURN(const OperandTexts texts, read_operands(command, mesh, op));
  TESSERA_ASSIGN_OR_RETURN(const ops::AttributeTexts attributes,
                           of_flag("--attributes", ops::parse_attributes(command.attributes)));
  TESSERA_ASSIGN_OR_RETURN(const PlanOptions options, read_plan_options(command.machine));
  std::optional<Layout> out;
  if (!command.out.empty()) {
    TESSERA_ASSIGN_OR_RETURN(out, of_flag("--out", Layout::parse(mesh, command.out)));
  }
  std::vector<ops::OperandType> types;
  std::vector<ops::Operand> operands;
  for (size_t i = 0; i < texts.layouts.size(); ++i) {
    types.emplace_back(texts.dtypes[i], texts.shapes[i]);
    operands.push_back({texts.layouts[i], texts.shapes[i], texts.dtypes[i]});
  }
  TESSERA_ASSIGN_OR_RETURN(const ops::OpPlan plan,
                           of_flag("--op", ops::plan_operation(op.name, types, attributes)));
  TESSERA_ASSIGN_OR_RETURN(const ops::LayoutDecision decided,
                           ops::decide_layouts(op.name.c_str(), plan, operands, out, options));
  const Layout& layout = out.has_value() ? *out : decided.assignment.result;
  return absl::StrCat(
      topology_text(command.machine, options.topology), dtype_name(plan.dtype), " ",
      shape_to_string(plan.shape), " under ", layout.to_string_with_mesh(), "\n",
      decided.explanation,
      decided.assignment.is_contested ? "" : "  the operands agree: nothing was compared\n",
      split_dim_text(op.name));
}

std::string operations_table() {
  std::vector<TableRow> rows;
  for (const ops::Operation* const operation : ops::called_operations()) {
    std::string rest = columns_of(*operation);
    const auto same = std::find_if(rows.begin(), rows.end(),
                                   [&](const TableRow& row) { return row.rest == rest; });
    if (same != rows.end()) {
      same->names.emplace_back(operation->name);
    } else {
      rows.push_back({{operation->name}, std::move(rest)});
    }
  }
  std::string text =
      "| operation | for example of | rule | partial operands that pass |\n| --- | --- | --- | --- "
      "|\n";
  for (const TableRow& row : rows) {
    absl::StrAppend(&text, "| ", absl::StrJoin(row.names, ", "), " | ", row.rest, "\n");
  }
  return text;
}

}  // namespace tessera
