// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ops/small_ops.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tessera::testing {
namespace {

struct Row {
  const char* ops;  // names, separated by blanks: the row is of each
  const char* attributes;
  const char* dtypes;
  const char* shapes;
  // By operand, of kFormulas.
  const char* formulas;
};

struct Formula {
  absl::string_view name;
  const char* text;
};
constexpr Formula kFormulas[] = {
    {"odd", "((14i+3)%202-100)/16"},   // odd multiples of 1/16 between -6.2 and 6.4
    {"even", "((14i+31)%202-99)/16"},  // multiples of 1/8, so they differ from the odd ones
    {"positive", "((14i+3)%202+2)/32"},
    {"int", "(7i+3)%11-5"},
    {"count", "(7i+3)%5+1"},
    {"index", "(3i+1)%5-0"},  // 0 to 4
    {"bool", "(7i+3)%3-1"},
};

// clang-format off
constexpr Row kRows[] = {
    // ---- Elementwise
    {"neg abs sign square relu exp expm1 sin cos tanh sigmoid gelu silu erf softplus floor ceil "
     "round is_nan", "-", "f64", "[5, 3]", "odd"},
    {"log log1p sqrt rsqrt reciprocal", "-", "f64", "[5, 3]", "positive"},
    {"neg tanh", "-", "f64", "[]", "odd"},
    {"neg tanh", "-", "f32", "[8, 4]", "odd"},
    {"neg exp", "-", "f64", "[0, 3]", "odd"},
    {"neg relu", "-", "f64", "[2, 3, 5]", "odd"},
    {"neg abs sign square", "-", "i32", "[7]", "int"},
    {"logical_not", "-", "bool", "[5, 3]", "bool"},
    {"add sub mul", "-", "f64; f64", "[5, 3]; [5, 3]", "odd; even"},
    {"add sub mul", "-", "f64; f64", "[8, 4]; [4]", "odd; even"},
    {"add sub mul", "-", "f64; f64", "[4, 1]; [1, 6]", "odd; even"},
    {"add sub mul", "-", "f64; f64", "[]; [5]", "odd; even"},
    {"add mul", "-", "f64; f64", "[0, 3]; [3]", "odd; even"},
    {"add sub mul", "-", "i32; i32", "[7]; [7]", "int; int"},
    {"div div_or_zero", "-", "f64; f64", "[5, 3]; [5, 3]", "odd; positive"},
    {"mul_or_zero", "-", "f64; f64", "[5, 3]; [3]", "odd; even"},
    {"div pow", "-", "f64; f64", "[4, 5]; [5]", "positive; positive"},
    {"floor_div mod", "-", "i64; i64", "[5, 3]; [3]", "int; count"},
    {"maximum minimum", "-", "f64; f64", "[5, 3]; [5, 3]", "odd; even"},
    {"maximum minimum", "-", "f64; f64", "[5, 1]; [4]", "odd; even"},
    {"equal not_equal less less_equal greater greater_equal", "-", "i32; i32", "[5, 3]; [3]",
     "int; int"},
    {"logical_and logical_or", "-", "bool; bool", "[5, 3]; [5, 1]", "bool; bool"},
    {"add sub mul div mod floor_div maximum minimum less", "scalar=2", "f64", "[5, 3]", "odd"},
    {"add sub mul div", "scalar=2; scalar_side=left", "f64", "[5, 3]", "odd"},
    {"add", "scalar=3", "i32", "[]", "int"},
    {"pow", "scalar=3", "f64", "[5, 3]", "odd"},
    {"clip", "low=-2; high=3", "f64", "[5, 3]", "odd"},
    {"select", "-", "bool; f64; f64", "[5, 3]; [5, 3]; [3]", "bool; odd; even"},
    {"select", "-", "bool; f64; f64", "[5]; []; [5]", "bool; odd; even"},
    {"cast", "dtype=i32", "f64", "[5, 3]", "odd"},
    {"cast", "dtype=bool", "i64", "[7]", "int"},
    {"cast", "dtype=f32", "f64", "[5, 3]", "odd"},
    // ---- Functions of the caller, which table.cc has by the number of operands
    {"elementwise", "-", "f64", "[5, 3]", "odd"},
    {"elementwise", "-", "f64", "[]", "odd"},
    {"elementwise", "-", "f64; f64", "[8, 4]; [4]", "odd; even"},
    {"elementwise", "-", "f64; f64", "[0, 3]; [3]", "odd; even"},
    {"elementwise", "-", "f64; i32; f64", "[4, 1]; [6]; [4, 6]", "odd; int; even"},
    {"local_map", "-", "f64", "[5, 3]", "odd"},
    {"local_map", "-", "f64", "[8]", "odd"},
    {"local_map", "-", "f64", "[]", "odd"},
    {"local_map", "-", "f64; f64", "[5, 3]; [3, 4]", "odd; even"},
    {"local_map", "-", "f64; f64", "[8, 4]; [4, 8]", "odd; even"},
    {"local_map", "-", "f64; f64", "[5, 0]; [0, 3]", "odd; even"},
    // ---- Reductions
    {"sum mean prod max min var norm logsumexp", "-", "f64", "[5, 3]", "odd"},
    {"sum mean prod max min var norm logsumexp", "dims=[0]", "f64", "[5, 3]", "odd"},
    {"sum mean prod max min var norm logsumexp", "dims=[-1]; keep_dims", "f64", "[4, 8]", "odd"},
    {"sum max var", "dims=[0, 2]", "f64", "[2, 3, 5]", "odd"},
    {"sum mean max", "-", "f64", "[]", "odd"},
    {"sum prod", "dims=[0]", "f64", "[0, 3]", "odd"},
    {"sum max", "dims=[1]", "f64", "[0, 3]", "odd"},
    {"sum prod max min", "dims=[0]", "i32", "[5, 2]", "int"},
    {"all any", "dims=[0]", "bool", "[5, 3]", "bool"},
    {"all any", "-", "bool", "[8]", "bool"},
    {"argmax argmin", "dim=0", "f64", "[8, 4]", "odd"},
    {"argmax argmin", "dim=-1", "i32", "[5, 3]", "int"},
    {"cumsum sort", "dim=0", "f64", "[5, 3]", "odd"},
    {"cumsum sort", "dim=1", "f64", "[3, 8]", "odd"},
    {"top_k top_k.1", "dim=0; k=3", "f64", "[5, 3]", "odd"},
    {"top_k top_k.1", "dim=1; k=2", "i32", "[5, 7]", "int"},
    // ---- Movements
    {"transpose", "permutation=[1, 0]", "f64", "[5, 3]", "odd"},
    {"transpose", "permutation=[2, 0, 1]", "f64", "[2, 3, 5]", "odd"},
    {"reshape", "shape=[15]", "f64", "[5, 3]", "odd"},
    {"reshape", "shape=[2, 4]", "f64", "[8]", "odd"},
    {"reshape", "shape=[4, 2]", "f64", "[8]", "odd"},
    {"reshape", "shape=[8]", "f64", "[2, 4]", "odd"},
    {"reshape", "shape=[4, 6]", "f64", "[8, 3]", "odd"},
    {"reshape", "shape=[2, 2, 3]", "f64", "[4, 3]", "odd"},
    {"reshape", "shape=[1, 5, 1, 3]", "f64", "[5, 3]", "odd"},
    {"reshape", "shape=[3, 0]", "f64", "[0, 5]", "odd"},
    {"reshape", "shape=[1]", "f64", "[]", "odd"},
    {"expand_dims", "dim=1", "f64", "[5, 3]", "odd"},
    {"squeeze", "dim=1", "f64", "[5, 1, 3]", "odd"},
    {"broadcast_to", "shape=[4, 5, 3]", "f64", "[5, 1]", "odd"},
    {"broadcast_to", "shape=[2, 3]", "f64", "[]", "odd"},
    {"concat", "dim=0", "f64; f64", "[5, 3]; [2, 3]", "odd; even"},
    {"concat", "dim=-1", "f64; f64", "[5, 3]; [5, 4]", "odd; even"},
    {"concat", "dim=0", "i32; i32; i32", "[3]; [0]; [5]", "int; int; int"},
    {"stack", "dim=1", "f64; f64", "[5, 3]; [5, 3]", "odd; even"},
    {"stack", "dim=0", "f64; f64", "[]; []", "odd; even"},
    {"split split.1", "sizes=[3, 5]; dim=0", "f64", "[8, 2]", "odd"},
    {"slice", "starts=[1, 0]; limits=[5, 3]", "f64", "[8, 3]", "odd"},
    {"slice", "starts=[0, 1]; limits=[5, 8]; strides=[2, 3]", "f64", "[5, 8]", "odd"},
    {"slice", "starts=[2, 0]; limits=[2, 3]", "f64", "[5, 3]", "odd"},
    {"narrow", "dim=0; start=1; length=3", "f64", "[5, 3]", "odd"},
    {"narrow", "dim=-1; start=2; length=0", "f64", "[5, 3]", "odd"},
    {"zeros_like ones_like", "-", "f64", "[5, 3]", "odd"},
    {"full_like", "value=-2", "i32", "[5]", "int"},
    {"tril triu", "-", "f64", "[5, 3]", "odd"},
    {"tril triu", "diagonal=-1", "f64", "[2, 3, 5]", "odd"},
    {"tril triu", "diagonal=9", "i32", "[4, 4]", "int"},
    {"pad", "low=[1, 0]; high=[2, 0]; value=0", "f64", "[5, 3]", "odd"},
    {"pad", "low=[0, 2]; high=[0, 1]; value=7", "f64", "[5, 3]", "odd"},
    {"flip", "dims=[0]", "f64", "[5, 3]", "odd"},
    {"flip", "dims=[0, -1]", "f64", "[8, 3]", "odd"},
    {"roll", "shift=3; dim=0", "f64", "[5, 3]", "odd"},
    {"roll", "shift=-2; dim=1", "f64", "[3, 8]", "odd"},
    {"tile", "repeats=[2, 1]", "f64", "[5, 3]", "odd"},
    {"tile", "repeats=[1, 3]", "f64", "[4, 2]", "odd"},
    {"one_hot", "depth=4", "i32", "[5, 3]", "index"},
    {"take", "dim=0", "f64; i32", "[5, 3]; [4]", "odd; index"},
    {"take", "dim=1", "f64; i64", "[3, 8]; [2, 3]", "odd; index"},
    {"take", "dim=0", "f64; i32", "[8]; []", "odd; index"},
    {"scatter_add", "dim=0", "f64; i32; f64", "[5, 3]; [4]; [4, 3]", "odd; index; even"},
    {"scatter_add", "dim=1", "f64; i32; f64", "[3, 8]; [2]; [3, 2]", "odd; index; even"},
    // ---- Products
    {"matmul", "-", "f64; f64", "[5, 3]; [3, 4]", "odd; even"},
    {"matmul", "-", "f64; f64", "[8, 4]; [4, 8]", "odd; even"},
    {"matmul", "-", "f32; f32", "[8, 5]; [5, 3]", "odd; even"},
    {"matmul", "-", "i32; i32", "[5, 3]; [3, 4]", "int; int"},
    {"matmul", "-", "f64; f64", "[5, 0]; [0, 4]", "odd; even"},
    {"matmul", "-", "f64; f64", "[0, 3]; [3, 4]", "odd; even"},
    {"matmul", "-", "f64; f64", "[5]; [5]", "odd; even"},
    {"matmul", "-", "f64; f64", "[3]; [3, 5]", "odd; even"},
    {"matmul", "-", "f64; f64", "[2, 5, 3]; [3]", "odd; even"},
    {"matmul", "-", "f64; f64", "[2, 3, 4]; [4, 5]", "odd; even"},
    {"matmul", "-", "f64; f64", "[1, 3, 2]; [5, 2, 3]", "odd; even"},
    {"einsum", "equation=ij->", "f64", "[5, 3]", "odd"},
    {"einsum", "equation=ij->ji", "f64", "[5, 3]", "odd"},
    {"einsum", "equation=i,j->ji", "f64; f64", "[5]; [3]", "odd; even"},
    {"einsum", "equation=bik,bkj->bij", "f64; f64", "[2, 3, 4]; [2, 4, 5]", "odd; even"},
    {"einsum", "equation=ij,ij->i", "f64; f64", "[5, 3]; [5, 3]", "odd; even"},
    {"einsum", "equation=ij,k->ik", "f64; f64", "[5, 3]; [4]", "odd; even"},
    {"einsum", "equation=i,ij,j->", "f64; f64; f64", "[5]; [5, 3]; [3]", "odd; even; odd"},
    // ---- Neural networks
    {"softmax log_softmax", "dim=1", "f64", "[3, 8]", "odd"},
    {"softmax log_softmax", "dim=0", "f64", "[5, 3]", "odd"},
    {"layer_norm", "epsilon=1e-3", "f64; f64; f64", "[5, 4]; [4]; [4]", "odd; even; odd"},
    {"softmax_cross_entropy", "-", "f64; i32", "[3, 5]; [3]", "odd; index"},
    {"softmax_cross_entropy", "-", "f64; f64", "[3, 5]; [3, 5]", "odd; positive"},
    {"attention", "causal=false", "f64; f64; f64", "[2, 2, 3, 2]; [2, 2, 5, 2]; [2, 2, 5, 3]",
     "odd; even; odd"},
    {"attention", "causal=true; scale=0.25", "f64; f64; f64",
     "[1, 4, 3, 2]; [1, 4, 5, 2]; [1, 4, 5, 2]", "odd; even; odd"},
    {"conv2d", "strides=[1, 1]; padding=[[1, 1], [1, 1]]", "f64; f64",
     "[2, 5, 4, 2]; [3, 3, 2, 3]", "odd; even"},
    {"conv2d", "strides=[2, 1]; padding=[[0, 1], [1, 0]]; dilation=[1, 2]", "f64; f64",
     "[1, 8, 6, 1]; [2, 2, 1, 2]", "odd; even"},
    {"max_pool2d avg_pool2d", "window=[2, 2]; strides=[2, 2]; padding=[[0, 0], [0, 0]]", "f64",
     "[2, 8, 4, 1]", "odd"},
    {"max_pool2d avg_pool2d", "window=[3, 2]; strides=[2, 1]; padding=[[1, 1], [0, 1]]", "f64",
     "[1, 5, 4, 3]", "odd"},
};
// clang-format on

StatusOr<std::string> formulas_of(const char* names) {
  std::vector<std::string> texts;
  for (absl::string_view name : absl::StrSplit(names, "; ")) {
    const size_t known = texts.size();
    for (const Formula& formula : kFormulas) {
      if (formula.name == name) texts.emplace_back(formula.text);
    }
    if (texts.size() == known) {
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is not a formula"));
    }
  }
  return absl::StrJoin(texts, "; ");
}

}  // namespace

StatusOr<std::vector<OpCase>> small_op_cases() {
  std::vector<OpCase> cases;
  for (const Row& row : kRows) {
    TESSERA_ASSIGN_OR_RETURN(const std::string formulas, formulas_of(row.formulas));
    for (absl::string_view id : absl::StrSplit(row.ops, ' ')) {
      const std::string name(id.substr(0, id.find('.')));
      TESSERA_ASSIGN_OR_RETURN(
          OpCase each, make_op_case({absl::StrCat(id), name, row.attributes, "-", row.dtypes,
                                     row.shapes, "-", formulas}));
      cases.push_back(std::move(each));
    }
  }
  return cases;
}

}  // namespace tessera::testing
