// SPDX-License-Identifier: Apache-2.0
//
// Layout: how one global tensor is split over the devices of a Mesh.
//
// A Layout names, for each tensor dim, the mesh axes that split it, major to minor (or none). A
// tensor is replicated along every mesh axis that no dim names, unless the axis is partial: then
// each device holds a term, and the value is the reduction of the terms along it.
//
//   Mesh   {batch=4, model=2}           8 devices
//   Layout [batch, -]                   dim 0 split 4 ways, dim 1 whole
//   global shape [10, 6]  ->  boxes of 3, 2, 3 and 2 rows; model=0 and model=1 hold equal copies
//
//   layout  := "[" dims? "]" partial?             [] for rank 0
//   dims    := dim ("," dim)*
//   dim     := "-" | axis | "(" axis ("," axis)+ ")"
//   axis    := name | name ":(" pre ")" size      sub-axis: the digit (c / (n/(pre*size))) % size
//   partial := " " op "{" axis ("," axis)* "}"    op := sum | prod | min | max | avg
//
// Split rule: dim of n elements over N shards; shard k holds [ceil(k*n/N), ceil((k+1)*n/N)).
// Equally: element i belongs to shard floor(i*N/n).
//
// Invariants (checked by create() and with_partial(); true of every Layout that exists):
//   1. every axis named is an axis of mesh(), and a sub-axis divides it;
//   2. no part of an axis is named twice, in dims or partial axes, and all parts named of one axis
//      are digits of one mixed-radix number (of any two, one is wholly below the other);
//   3. there is one reduction at most;
//   4. the layout is in normal form: no references of size 1; a whole axis by its name;
//      neighbouring sub-axes of one dim merged; partial axes sorted in mesh order and merged;
//   5. the rank is at most kMaxRank.
//
// Layout is a value: immutable, compared by content (mesh included), safe to read from any
// thread. It knows no buffers and does no communication. Any layout is legal for any shape of its
// rank: where a dim has fewer elements than shards, some shards are empty.
//
// Layout() is empty: valid() is false, it is on an empty mesh and has no dims, and a function that
// can fail is FailedPrecondition. No accessor aborts. For an argument that names no dim or position
// the answer is the answer for a dim that is not split, and a box without elements.
//
// TF DTensor: Layout. JAX: NamedSharding. Shardy: TensorSharding. PyTorch: placements.
#ifndef TESSERA_LAYOUT_LAYOUT_H_
#define TESSERA_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "base/status.h"
#include "layout/sub_axis.h"
#include "mesh/mesh.h"

namespace TESSERA_PUBLIC tessera {

// Bounds the memory that bad input can make us allocate. TF: TensorShape::MaxDimensions().
inline constexpr int kMaxRank = 254;

namespace internal {
struct LayoutText;
}

class Layout;
bool operator==(const Layout& a, const Layout& b);

class Layout {
 public:
  // An empty layout.
  Layout() = default;
  // A move is a copy, so that no layout loses its mesh.
  Layout(const Layout&) = default;
  Layout& operator=(const Layout&) = default;

  // InvalidArgument if an invariant above does not hold, naming the token and the fix.
  static StatusOr<Layout> create(Mesh mesh, std::vector<DimSharding> dims);
  // Reads what to_string() and to_string_with_mesh() write: "[batch, (x,y), -] sum{model}". Blanks
  // are ignored. InvalidArgument names the place of the mistake; a mesh in the text must be equal
  // to `mesh`.
  static StatusOr<Layout> parse(Mesh mesh, absl::string_view text);
  // Every device holds the whole tensor of `rank` dims.
  static StatusOr<Layout> replicated(Mesh mesh, int rank);
  // Splits dim `dim` along `axis`, keeps the others whole.
  // TF DTensor: Layout.batch_sharded(mesh, batch_dim, rank).
  static StatusOr<Layout> batch_sharded(Mesh mesh, absl::string_view axis, int rank, int dim = 0);
  // Splits the last dim. TF DTensor: Layout.inner_sharded(mesh, inner_dim, rank).
  static StatusOr<Layout> inner_sharded(Mesh mesh, absl::string_view axis, int rank);
  // Replaces the partial axes and keeps the dims; the axes may be sub-axes. An empty list of axes
  // is InvalidArgument.
  StatusOr<Layout> with_partial(std::vector<std::string> axes, ReduceOp op = ReduceOp::kSum) const;
  // Removes the partial axes and keeps the dims.
  Layout without_partial() const;
  // Rebinds the layout to a mesh with the same axes: to its devices and its runtime.
  // InvalidArgument for other axes.
  StatusOr<Layout> with_mesh(Mesh mesh) const;

  // False for Layout().
  bool valid() const { return rep_ != nullptr; }
  const Mesh& mesh() const;
  // Rank of the tensor.
  int rank() const;
  // One entry per dim, in normal form.
  absl::Span<const DimSharding> dims() const;
  // As dims(), resolved.
  absl::Span<const std::vector<SubAxis>> dim_axes() const;
  absl::Span<const SubAxis> partial_axes() const;
  // The reduction along partial_axes(); nothing where there are none.
  std::optional<ReduceOp> partial_op() const;

  // No dim is split and nothing is partial.
  bool is_fully_replicated() const;
  bool is_partial() const;
  // 1 where the tensor has no such dim.
  int64_t num_shards(int dim) const;

  // The box that the position-th device of the mesh holds of a tensor of `shape`. O(rank), whatever
  // the number of devices. Where the mesh has no such position, or the shape has another rank than
  // the layout, a box without elements (all offsets and sizes 0) of the rank of the shape, but at
  // least 1.
  Box box(absl::Span<const int64_t> shape, int64_t position) const;
  // Which shard of `dim` that device holds, in [0, num_shards(dim)); 0 where there is no such dim
  // or position.
  int64_t shard_index(int dim, int64_t position) const;
  // Which term of the reduction that device holds, in [0, number of terms); 0 where not partial, or
  // where there is no such position.
  int64_t partial_index(int64_t position) const;
  int64_t num_partial_terms() const;

  // InvalidArgument "layout [batch, -] has 2 dims, shape [10] has 1; give one entry per dim", or
  // the error of tessera::validate_shape().
  Status validate_shape(absl::Span<const int64_t> shape) const;

  // "[batch, -] sum{model}"; "" if empty.
  std::string to_string() const;
  // "[batch, -] sum{model} on {batch=4, model=2}".
  std::string to_string_with_mesh() const;

  friend bool operator==(const Layout& a, const Layout& b);
  friend bool equivalent(const Layout& a, const Layout& b, absl::Span<const int64_t> shape);
  template <typename H>
  friend H AbslHashValue(H h, const Layout& layout) {
    return H::combine(std::move(h), layout.mesh(), layout.dim_axes(), layout.partial_axes(),
                      layout.partial_op());
  }
  friend std::ostream& operator<<(std::ostream& out, const Layout& layout) {
    return out << layout.to_string_with_mesh();
  }

 private:
  struct Rep;
  const Rep& rep() const { return rep_ != nullptr ? *rep_ : empty(); }
  // The contents of an empty layout.
  static const Rep& empty();
  explicit Layout(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}
  // Checks the invariants; `written` is the text for messages.
  static StatusOr<Layout> from_text(Mesh mesh, const internal::LayoutText& layout,
                                    absl::string_view written);
  // Whether every position has equal shard and term numbers under both layouts, in any mesh.
  // Ignores dims without elements.
  bool has_digits_of(const Layout& other, absl::Span<const int64_t> shape) const;
  // Whether the box of `position` equals the box of `position_of_other` under the other layout.
  // Allocates nothing.
  bool has_box_of(const Layout& other, absl::Span<const int64_t> shape, int64_t position,
                  int64_t position_of_other) const;
  // Whether every position has the same box and term under both layouts, compared dim by dim, in
  // any mesh. Nothing where this comparison cannot tell, because boxes without elements begin
  // elsewhere.
  std::optional<bool> has_shards_of(const Layout& other, absl::Span<const int64_t> shape) const;

  std::shared_ptr<const Rep> rep_;  // null: empty
};

// The layout argument of a function: a Layout, the result of a factory, whose error the function
// returns, or text:
//
//   relayout(x, layout);
//   relayout(x, Layout::parse(mesh, "[batch, -]"));
//   relayout(x, "[batch, -]");                        on the mesh of x
//
// Text needs another argument that has a mesh. Other functions return InvalidArgument for text.
class LayoutArg {
 public:
  LayoutArg(const Layout& layout) : LayoutArg(StatusOr<Layout>(layout)) {}    // NOLINT: implicit
  LayoutArg(StatusOr<Layout> layout);                                         // NOLINT: implicit
  LayoutArg(Status error) : LayoutArg(StatusOr<Layout>(std::move(error))) {}  // NOLINT: implicit
  LayoutArg(absl::string_view text);                                          // NOLINT: implicit
  LayoutArg(const std::string& text) : LayoutArg(absl::string_view(text)) {}  // NOLINT: implicit
  LayoutArg(const char* text) : LayoutArg(absl::NullSafeStringView(text)) {}  // NOLINT: implicit

  // The layout; text is read on `mesh`.
  StatusOr<Layout> resolve(const Mesh& mesh) const;
  // The layout where no argument has a mesh; InvalidArgument for text.
  const StatusOr<Layout>& layout() const { return layout_; }

 private:
  StatusOr<Layout> layout_;  // an error for text
  std::optional<std::string> text_;
};

// A list of layout arguments: {rows, Layout::parse(mesh, "[x]")}, or a vector of layouts.
class LayoutArgs {
 public:
  LayoutArgs(std::initializer_list<LayoutArg> args) : args_(args) {}  // NOLINT: implicit
  LayoutArgs(const std::vector<Layout>& layouts)                      // NOLINT: implicit
      : args_(layouts.begin(), layouts.end()) {}
  LayoutArgs(std::vector<LayoutArg> args) : args_(std::move(args)) {}  // NOLINT: implicit

  // All layouts, or the first error.
  StatusOr<std::vector<Layout>> resolve(const Mesh& mesh) const;
  StatusOr<std::vector<Layout>> layouts() const;

 private:
  std::vector<LayoutArg> args_;
};

// The shard rule: the interval of shard `shard` of `num_shards` of a dim of `size` elements, as
// {first, end}. Requires 0 <= shard < num_shards and size >= 0.
std::pair<int64_t, int64_t> shard_interval(int64_t size, int64_t num_shards, int64_t shard);

// Whether every device holds the same box of `shape` under both layouts, with equal partial terms
// and reduction.
// - The meshes may differ if their devices are the same.
// - Empty boxes are the same if their sizes are equal.
// - False if the shape is not legal for both.
// - O(rank) for layouts that agree for every shape on one order of devices. Otherwise, on one
//   order, up to O(positions that differ in the digits that split a dim) for each dim; on two
//   orders O(devices).
bool equivalent(const Layout& a, const Layout& b, absl::Span<const int64_t> shape);

}  // namespace tessera

#endif  // TESSERA_LAYOUT_LAYOUT_H_
