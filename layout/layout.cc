// SPDX-License-Identifier: Apache-2.0
#include "layout/layout.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/math.h"
#include "base/reduce_op.h"
#include "base/text.h"
#include "layout/layout_text.h"
#include "layout/parts.h"

namespace tessera {

using internal::AxisText;
using internal::LayoutText;
using internal::NamedPart;
using internal::PositionDigit;

// One ordered list of parts in its three forms: as written, as digits of the axes, as digits of the
// position.
struct Layout::Rep {
  struct Parts {
    std::vector<SubAxis> axes;
    std::vector<PositionDigit> digits;
    int64_t count = 1;

    // Which of `count` shards (or terms) the position-th device holds.
    int64_t index(int64_t position) const {
      int64_t index = 0;
      for (const PositionDigit& digit : digits) {
        index = index * digit.size + position / digit.divisor % digit.size;
      }
      return index;
    }
  };

  explicit Rep(Mesh mesh_of_layout) : mesh(std::move(mesh_of_layout)) {}

  Parts make_parts(absl::Span<const SubAxis> parts) const {
    Parts made;
    made.axes = internal::normal_parts(parts);
    made.digits = internal::position_digits(mesh, made.axes);
    // At most the number of devices: the parts are disjoint.
    for (const SubAxis& part : made.axes) made.count *= part.size;
    return made;
  }

  Mesh mesh;
  std::vector<DimSharding> dims;
  std::vector<std::vector<SubAxis>> dim_axes;
  std::vector<Parts> dim_parts;
  Parts partial;
  ReduceOp partial_op = ReduceOp::kSum;
};

namespace {

template <class... Parts>
Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

Status check_rank(absl::string_view what, int64_t rank) {
  if (rank >= 0 && rank <= kMaxRank) return absl::OkStatus();
  return refuse(what, " has rank ", rank, "; a rank is 0 to ", kMaxRank);
}

bool same_device_order(const Mesh& a, const Mesh& b) {
  if (a.ids_are_positions() != b.ids_are_positions()) return false;
  return a.ids_are_positions() || a.device_ids() == b.device_ids();
}

std::string count_of(size_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace

const Layout::Rep& Layout::empty() {
  static const Rep* const kEmpty = new Rep{Mesh()};
  return *kEmpty;
}

StatusOr<Layout> Layout::create(Mesh mesh, std::vector<DimSharding> dims) {
  if (!mesh.valid()) return internal::empty_handle("Layout::create()", "Mesh");
  TESSERA_RETURN_IF_ERROR(check_rank("a layout", dims.size()));
  LayoutText text;
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    text.dims.emplace_back();
    for (const std::string& token : dims[dim]) {
      const StatusOr<AxisText> axis = internal::parse_axis_text(token);
      if (!axis.ok()) {
        return with_context(axis.status(),
                            absl::StrCat("layout ", in_quotes(internal::dims_to_string(dims)),
                                         ", dim ", dim, " (empty where it is not split)"));
      }
      text.dims.back().push_back(*axis);
    }
  }
  return from_text(std::move(mesh), text, text.to_string());
}

StatusOr<Layout> Layout::parse(Mesh mesh, absl::string_view text) {
  if (!mesh.valid()) return internal::empty_handle("Layout::parse()", "Mesh");
  TESSERA_ASSIGN_OR_RETURN(const LayoutText layout, internal::parse_layout_text(text));
  TESSERA_RETURN_IF_ERROR(check_rank("a layout", layout.dims.size()));
  if (!layout.mesh.empty()) {
    const StatusOr<Mesh> written = Mesh::parse(layout.mesh);
    if (!written.ok()) {
      return with_context(written.status(), absl::StrCat("layout ", in_quotes(text)));
    }
    if (!(*written == mesh)) {
      return refuse("layout ", in_quotes(text), " is on ", written->to_string(),
                    ", and is to be read on ", mesh.to_string(),
                    "; leave the mesh out or give the same");
    }
  }
  return from_text(std::move(mesh), layout, text);
}

StatusOr<Layout> Layout::from_text(Mesh mesh, const internal::LayoutText& layout,
                                   absl::string_view written) {
  std::vector<NamedPart> named;
  std::vector<std::vector<SubAxis>> dims;
  for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
    dims.emplace_back();
    for (const AxisText& axis : layout.dims[dim]) {
      TESSERA_ASSIGN_OR_RETURN(NamedPart part,
                               internal::resolve_part(mesh, axis, static_cast<int>(dim), written));
      dims.back().push_back(part.part);
      named.push_back(std::move(part));
    }
  }
  std::vector<SubAxis> partial;
  for (const AxisText& axis : layout.partial) {
    TESSERA_ASSIGN_OR_RETURN(NamedPart part,
                             internal::resolve_part(mesh, axis, internal::kPartialPlace, written));
    partial.push_back(part.part);
    named.push_back(std::move(part));
  }
  TESSERA_RETURN_IF_ERROR(internal::check_parts(mesh, named, written));

  auto rep = std::make_shared<Rep>(std::move(mesh));
  for (const std::vector<SubAxis>& parts : dims) {
    rep->dim_parts.push_back(rep->make_parts(parts));
    rep->dim_axes.push_back(rep->dim_parts.back().axes);
    DimSharding& names = rep->dims.emplace_back();
    for (const SubAxis& part : rep->dim_axes.back()) {
      names.push_back(internal::part_to_string(rep->mesh, part));
    }
  }
  std::sort(partial.begin(), partial.end(), [](const SubAxis& a, const SubAxis& b) {
    return std::pair(a.axis, a.pre) < std::pair(b.axis, b.pre);
  });
  rep->partial = rep->make_parts(partial);
  if (!rep->partial.axes.empty()) rep->partial_op = *layout.partial_op;
  return Layout(std::move(rep));
}

StatusOr<Layout> Layout::replicated(Mesh mesh, int rank) {
  if (!mesh.valid()) return internal::empty_handle("Layout::replicated()", "Mesh");
  TESSERA_RETURN_IF_ERROR(check_rank("a replicated layout", rank));
  return create(std::move(mesh), std::vector<DimSharding>(rank));
}

StatusOr<Layout> Layout::batch_sharded(Mesh mesh, absl::string_view axis, int rank, int dim) {
  if (!mesh.valid()) return internal::empty_handle("Layout::batch_sharded()", "Mesh");
  TESSERA_RETURN_IF_ERROR(check_rank("a sharded layout", rank));
  if (rank == 0) {
    return refuse("a layout of rank 0 has no dim to split by axis ", in_quotes(axis),
                  "; give it one");
  }
  if (dim < 0 || dim >= rank) {
    return refuse("a layout of rank ", rank, " has no dim ", dim, " to split by axis ",
                  in_quotes(axis), "; dims are 0 to ", rank - 1);
  }
  std::vector<DimSharding> dims(rank);
  dims[dim] = {std::string(axis)};
  return create(std::move(mesh), std::move(dims));
}

StatusOr<Layout> Layout::inner_sharded(Mesh mesh, absl::string_view axis, int rank) {
  return batch_sharded(std::move(mesh), axis, rank, std::max(rank, 1) - 1);
}

StatusOr<Layout> Layout::with_partial(std::vector<std::string> axes, ReduceOp op) const {
  if (!valid()) return internal::empty_handle("Layout::with_partial()", "Layout");
  TESSERA_RETURN_IF_ERROR(
      with_context(validate_reduce_op(op), absl::StrCat("layout ", to_string())));
  LayoutText text;
  for (const DimSharding& dim : rep().dims) {
    text.dims.emplace_back();
    for (const std::string& token : dim) {
      TESSERA_ASSIGN_OR_RETURN(AxisText axis, internal::parse_axis_text(token));
      text.dims.back().push_back(std::move(axis));
    }
  }
  if (axes.empty()) {
    return refuse("layout ", to_string(), " is given an empty list of partial axes for ",
                  reduce_op_name(op), "; name one, or use without_partial()");
  }
  text.partial_op = op;
  for (const std::string& token : axes) {
    const StatusOr<AxisText> axis = internal::parse_axis_text(token);
    if (!axis.ok()) {
      return with_context(axis.status(), absl::StrCat("layout ", to_string(), ", partial axes of ",
                                                      reduce_op_name(op)));
    }
    text.partial.push_back(*axis);
  }
  return from_text(rep().mesh, text, text.to_string());
}

Layout Layout::without_partial() const {
  if (!is_partial()) return *this;
  auto rep = std::make_shared<Rep>(*rep_);
  rep->partial = Rep::Parts();
  rep->partial_op = ReduceOp::kSum;
  return Layout(std::move(rep));
}

StatusOr<Layout> Layout::with_mesh(Mesh mesh) const {
  if (!valid()) return internal::empty_handle("Layout::with_mesh()", "Layout");
  if (!mesh.valid()) return internal::empty_handle("Layout::with_mesh()", "Mesh");
  if (mesh.axes() != rep().mesh.axes()) {
    return refuse("layout ", to_string_with_mesh(), " cannot move to mesh ",
                  axes_to_string(mesh.axes()), "; give it a mesh with the same axes");
  }
  auto rep = std::make_shared<Rep>(*rep_);
  rep->mesh = std::move(mesh);
  return Layout(std::move(rep));
}

const Mesh& Layout::mesh() const { return rep().mesh; }

int Layout::rank() const { return static_cast<int>(rep().dims.size()); }

absl::Span<const DimSharding> Layout::dims() const { return rep().dims; }

absl::Span<const std::vector<SubAxis>> Layout::dim_axes() const { return rep().dim_axes; }

absl::Span<const SubAxis> Layout::partial_axes() const { return rep().partial.axes; }

std::optional<ReduceOp> Layout::partial_op() const {
  return is_partial() ? std::optional(rep().partial_op) : std::nullopt;
}

bool Layout::is_fully_replicated() const {
  return valid() && !is_partial() &&
         std::all_of(rep().dims.begin(), rep().dims.end(),
                     [](const DimSharding& dim) { return dim.empty(); });
}

bool Layout::is_partial() const { return !rep().partial.axes.empty(); }

int64_t Layout::num_shards(int dim) const {
  return dim >= 0 && dim < rank() ? rep().dim_parts[dim].count : 1;
}

int64_t Layout::shard_index(int dim, int64_t position) const {
  if (dim < 0 || dim >= rank() || position < 0 || position >= mesh().size()) return 0;
  return rep().dim_parts[dim].index(position);
}

int64_t Layout::partial_index(int64_t position) const {
  return position >= 0 && position < mesh().size() ? rep().partial.index(position) : 0;
}

int64_t Layout::num_partial_terms() const { return rep().partial.count; }

Box Layout::box(absl::Span<const int64_t> shape, int64_t position) const {
  if (static_cast<int>(shape.size()) != rank() || position < 0 || position >= mesh().size()) {
    const std::vector<int64_t> zeros(std::max<size_t>(shape.size(), 1), 0);
    return {zeros, zeros};
  }
  Box box;
  box.offsets.resize(rank());
  box.sizes.resize(rank());
  for (int dim = 0; dim < rank(); ++dim) {
    const auto [first, end] =
        shard_interval(std::max<int64_t>(shape[dim], 0), rep().dim_parts[dim].count,
                       rep().dim_parts[dim].index(position));
    box.offsets[dim] = first;
    box.sizes[dim] = end - first;
  }
  return box;
}

Status Layout::validate_shape(absl::Span<const int64_t> shape) const {
  if (!valid()) return internal::empty_handle("Layout::validate_shape()", "Layout");
  if (static_cast<int>(shape.size()) != rank()) {
    return refuse("layout ", to_string(), " has ", count_of(rank(), "dim"), ", shape ",
                  shape_to_string(shape), " has ", shape.size(), "; give one entry per dim");
  }
  return tessera::validate_shape(shape);
}

std::string Layout::to_string() const {
  if (!valid()) return "";
  std::string text = internal::dims_to_string(rep().dims);
  if (!is_partial()) return text;
  absl::StrAppend(&text, " ", reduce_op_name(rep().partial_op), "{");
  for (size_t i = 0; i < rep().partial.axes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",",
                    internal::part_to_string(rep().mesh, rep().partial.axes[i]));
  }
  return text + "}";
}

std::string Layout::to_string_with_mesh() const {
  return valid() ? absl::StrCat(to_string(), " on ", mesh().to_string()) : "";
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.rep_ == b.rep_) return true;
  return a.rep().dim_axes == b.rep().dim_axes && a.rep().partial.axes == b.rep().partial.axes &&
         a.rep().partial_op == b.rep().partial_op && a.rep().mesh == b.rep().mesh;
}

bool Layout::has_digits_of(const Layout& other, absl::Span<const int64_t> shape) const {
  if (rank() != other.rank() || rep().partial.digits != other.rep().partial.digits) return false;
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  for (int dim = 0; dim < rank(); ++dim) {
    // Boxes without elements are compared by their sizes alone.
    const int64_t shards = num_shards(dim);
    if (empty && shards == other.num_shards(dim) && shape[dim] % shards == 0) continue;
    if (shape[dim] == 0) continue;
    if (rep().dim_parts[dim].digits != other.rep().dim_parts[dim].digits) return false;
  }
  return true;
}

LayoutArg::LayoutArg(StatusOr<Layout> layout) : layout_(std::move(layout)) {
  if (layout_.ok() && !layout_->valid()) {
    layout_ = absl::FailedPreconditionError(
        "the layout is an empty Layout; make one with Layout::parse(mesh, ...)");
  }
}

LayoutArg::LayoutArg(absl::string_view text)
    : layout_(absl::InvalidArgumentError(
          absl::StrCat("the layout ", in_quotes(text),
                       " is text, and no argument names a mesh; use Layout::parse(mesh, ",
                       in_quotes(text), ")"))),
      text_(text) {}

StatusOr<Layout> LayoutArg::resolve(const Mesh& mesh) const {
  if (!text_.has_value()) return layout_;
  return Layout::parse(mesh, *text_);
}

StatusOr<std::vector<Layout>> LayoutArgs::resolve(const Mesh& mesh) const {
  std::vector<Layout> layouts;
  for (const LayoutArg& arg : args_) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, arg.resolve(mesh));
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

StatusOr<std::vector<Layout>> LayoutArgs::layouts() const {
  std::vector<Layout> layouts;
  for (const LayoutArg& arg : args_) {
    TESSERA_ASSIGN_OR_RETURN(Layout layout, arg.layout());
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

std::pair<int64_t, int64_t> shard_interval(int64_t size, int64_t num_shards, int64_t shard) {
  TESSERA_DCHECK(shard >= 0 && shard < num_shards);
  return {ceil_mul_div(shard, size, num_shards), ceil_mul_div(shard + 1, size, num_shards)};
}

namespace {

// The digits of a position that the lists `a` and `b` use: any two positions that agree in these
// digits have the same index in `a`, and the same index in `b`.
std::vector<PositionDigit> joint_digits(const std::vector<PositionDigit>& a,
                                        const std::vector<PositionDigit>& b, int64_t mesh_size) {
  std::vector<int64_t> borders;
  for (const auto* digits : {&a, &b}) {
    for (const PositionDigit& digit : *digits) {
      borders.insert(borders.end(), {digit.divisor, digit.divisor * digit.size});
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<PositionDigit> joint;
  for (size_t i = 1; i < borders.size(); ++i) {
    // Thirds against halves of six.
    if (borders[i] % borders[i - 1] != 0) return {{1, mesh_size}};
    const PositionDigit between = {borders[i - 1], borders[i] / borders[i - 1]};
    const auto covers = [&](const PositionDigit& digit) {
      return digit.divisor <= between.divisor && borders[i] <= digit.divisor * digit.size;
    };
    const bool is_used =
        std::any_of(a.begin(), a.end(), covers) || std::any_of(b.begin(), b.end(), covers);
    if (is_used) joint.push_back(between);
  }
  return joint;
}

// Calls fn(position) for the positions with all values of these digits and 0 in all others, or for
// `most` of them, widely spread. Stops at the first false. Returns whether all calls were true.
template <class Fn>
bool all_positions(const std::vector<PositionDigit>& digits, int64_t most, Fn fn) {
  int64_t count = 1;
  for (const PositionDigit& digit : digits) count *= digit.size;
  int64_t step = count * 5 / 8 + 1;
  while (std::gcd(step, count) != 1) ++step;
  for (int64_t i = 0, number = 0; i < std::min(count, most);
       ++i, number = (number + step) % count) {
    int64_t position = 0;
    int64_t rest = number;
    for (const PositionDigit& digit : digits) {
      position += rest % digit.size * digit.divisor;
      rest /= digit.size;
    }
    if (!fn(position)) return false;
  }
  return true;
}

}  // namespace

// Equal digits of the position, where the devices stand in the same order, are equal boxes of every
// shape, at a cost that does not grow with the mesh. Unequal digits decide nothing: a dim of few
// elements may be cut alike by both. Then each dim is compared at the digits that it is cut by; and
// all devices where their order differs, or boxes without elements begin elsewhere.
bool equivalent(const Layout& a, const Layout& b, absl::Span<const int64_t> shape) {
  if (a.rank() != b.rank() || !a.validate_shape(shape).ok()) return false;
  if (a.mesh().size() != b.mesh().size() || a.num_partial_terms() != b.num_partial_terms() ||
      (a.num_partial_terms() > 1 && a.partial_op() != b.partial_op())) {
    return false;
  }
  if (same_device_order(a.mesh(), b.mesh())) {
    if (a.has_digits_of(b, shape)) return true;
    const std::optional<bool> answer = a.has_shards_of(b, shape);
    if (answer.has_value()) return *answer;
  }
  for (int64_t position_a = 0; position_a < a.mesh().size(); ++position_a) {
    const std::optional<int64_t> position_b =
        b.mesh().position_of_device(*a.mesh().device_at(position_a));
    if (!position_b.has_value() || a.partial_index(position_a) != b.partial_index(*position_b) ||
        !a.has_box_of(b, shape, position_a, *position_b)) {
      return false;
    }
  }
  return true;
}

// Empty boxes of equal sizes hold the same elements wherever they begin.
bool Layout::has_box_of(const Layout& other, absl::Span<const int64_t> shape, int64_t position,
                        int64_t position_of_other) const {
  bool same_offsets = true;
  bool is_empty = false;
  for (int dim = 0; dim < rank(); ++dim) {
    const Rep::Parts& a = rep().dim_parts[dim];
    const Rep::Parts& b = other.rep().dim_parts[dim];
    const auto [first_a, end_a] = shard_interval(shape[dim], a.count, a.index(position));
    const auto [first_b, end_b] = shard_interval(shape[dim], b.count, b.index(position_of_other));
    if (end_a - first_a != end_b - first_b) return false;
    same_offsets &= first_a == first_b;
    is_empty |= end_a == first_a;
  }
  return same_offsets || is_empty;
}

std::optional<bool> Layout::has_shards_of(const Layout& other,
                                          absl::Span<const int64_t> shape) const {
  // Boxes that begin elsewhere are the same where they have no elements.
  bool may_be_empty = false;
  for (int dim = 0; dim < rank(); ++dim) may_be_empty |= shape[dim] < num_shards(dim);
  bool same_offsets = true;
  const auto same_parts = [&](const Rep::Parts& a, const Rep::Parts& b, int64_t length,
                              int64_t most) {
    if (a.digits == b.digits) return true;
    const std::vector<PositionDigit> digits = joint_digits(a.digits, b.digits, mesh().size());
    return all_positions(digits, most, [&](int64_t position) {
      const auto [first_a, end_a] = shard_interval(length, a.count, a.index(position));
      const auto [first_b, end_b] = shard_interval(length, b.count, b.index(position));
      same_offsets &= first_a == first_b;
      return end_a - first_a == end_b - first_b && (same_offsets || may_be_empty);
    });
  };
  // Most layouts that differ do so everywhere: a few positions of each dim come first.
  for (const int64_t most : {int64_t{32}, mesh().size()}) {
    for (int dim = 0; dim < rank(); ++dim) {
      const Rep::Parts& parts = rep().dim_parts[dim];
      if (!same_parts(parts, other.rep().dim_parts[dim], shape[dim], most)) return false;
    }
  }
  if (!same_offsets) return std::nullopt;
  // Terms are compared as the elements of a dim, one element for each term.
  may_be_empty = false;
  return same_parts(rep().partial, other.rep().partial, num_partial_terms(), mesh().size());
}

}  // namespace tessera
