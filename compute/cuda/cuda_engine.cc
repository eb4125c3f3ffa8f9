// SPDX-License-Identifier: Apache-2.0
#include "compute/cuda/cuda_engine.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "compute/contraction.h"
#include "compute/cuda/map_plan.h"
#include "compute/strided.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel_plan.h"

namespace tessera::cuda {
namespace {

using kernels::BoxArray;
using kernels::by_label;
using kernels::ContractionLabels;
using kernels::dense_strides;
using kernels::DimPart;
using kernels::ImageCall;
using kernels::Indices;
using kernels::joined;
using kernels::Labelled;
using kernels::Labels;
using kernels::LineIndices;
using kernels::Lines;
using kernels::MergedSpace;
using kernels::PointwiseOp;
using kernels::RandomSpec;
using kernels::Strided;

using Sizes = absl::InlinedVector<int64_t, 8>;

Space space_of(absl::Span<const int64_t> sizes) {
  Space space;
  space.num_dims = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), space.sizes);
  return space;
}

// Calls give(sizes, their first dim in the merged space, where each array begins, first element)
// for parts of the merged space of at most `most` elements, and of as many dims as a kernel takes.
// A part keeps the innermost dims, and some or all of the dim that is its outermost.
template <class Give>
Status for_each_part(const MergedSpace& merged, int64_t most, Give give) {
  const size_t num_dims = merged.sizes().size();
  if (num_dims == 0) return give(Sizes(), 0, Sizes(merged.num_arrays(), 0), 0);
  size_t cut = num_dims > kMaxDims ? num_dims - kMaxDims : 0;
  while (num_elements(merged.sizes().subspan(cut + 1)) > most) ++cut;
  const int64_t slice = num_elements(merged.sizes().subspan(cut + 1));
  const int64_t whole = merged.sizes()[cut];
  Sizes sizes(merged.sizes().begin() + static_cast<int64_t>(cut), merged.sizes().end());
  const int64_t num_slices = num_elements(merged.sizes().first(cut)) * whole;
  for (int64_t s = 0; s < num_slices; s += sizes[0]) {
    sizes[0] = std::min(std::max<int64_t>(most / slice, 1), whole - s % whole);
    Sizes begins(merged.num_arrays(), 0);
    int64_t rest = s;
    for (size_t dim = cut + 1; dim-- > 0; rest /= merged.sizes()[dim]) {
      for (size_t k = 0; k < begins.size(); ++k) {
        begins[k] += rest % merged.sizes()[dim] * merged.strides(k)[dim];
      }
    }
    TESSERA_RETURN_IF_ERROR(give(sizes, cut, begins, s * slice));
  }
  return absl::OkStatus();
}

void set_strides(absl::Span<const int64_t> strides, int64_t (&to)[kMaxDims]) {
  std::copy(strides.begin(), strides.end(), to);
}

LineShape shape_of(const Lines& lines) { return {lines.outer, lines.size, lines.inner}; }
uint64_t items(int64_t count) { return static_cast<uint64_t>(count); }
int64_t quotient_up(int64_t n, int64_t d) { return (n + d - 1) / d; }

// The elements of a pack of a dense array. Neighbours in memory are in the last kept or the last
// reduced dim, and other strides are multiples of its size: packs of a divisor of it are aligned.
int32_t pack_of(const ReduceDims& reduce) {
  const Space& space = reduce.kept_is_fastest ? reduce.kept : reduce.reduced;
  if (space.num_dims == 0) return 1;
  const int64_t size = space.sizes[space.num_dims - 1];
  const int32_t pack = reduce_pack_of(dtype_size(static_cast<DType>(reduce.from)));
  return size % pack == 0 ? pack : 1;
}

// Chooses packs, lanes and chunks for results of `num_terms` each. They are the order of the terms,
// so they depend on the type and the sizes only.
void share_out(const CudaEngineOptions& options, int64_t num_terms, ReduceDims* reduce) {
  constexpr int64_t kManyThreads = 1 << 17;  // keep a large GPU busy: an H200 runs 2^18 at once
  constexpr int64_t kLinePacks = 8;          // a cache line, which neighbouring threads share
  constexpr int64_t kManyPacks = 16;         // of a lane: more lanes are faster
  constexpr int64_t kTooManyPacks = 32;      // of a lane: another pass is faster
  constexpr int64_t kChunkPacks = 4;         // of a lane: the least in a chunk
  const bool columns = reduce->kept_is_fastest;
  reduce->pack = num_terms == 0 ? 1 : pack_of(*reduce);
  reduce->num_packs = columns ? num_terms : num_terms / reduce->pack;
  const int64_t num_packs = reduce->num_packs;
  const int64_t results = columns ? reduce->num_kept / reduce->pack : reduce->num_kept;
  int64_t most_lanes = options.most_lanes;
  // Threads of neighbouring results leave fewer of a block to be lanes.
  for (int64_t side = 1; columns && side < kLinePacks && side < results; side *= 2) {
    most_lanes = std::max<int64_t>(1, most_lanes / 2);
  }
  int64_t lanes = 1;
  while (lanes < most_lanes && lanes < num_packs &&
         ((!columns && lanes < kLinePacks) || results * lanes < kManyThreads ||
          num_packs > kManyPacks * lanes)) {
    lanes *= 2;
  }
  int64_t chunk_packs = options.most_packs * lanes;
  const int64_t threads = results * lanes;
  if (threads < kManyThreads && num_packs > kTooManyPacks * lanes) {
    const int64_t of_lane = quotient_up(num_packs, kManyThreads / threads * lanes);
    chunk_packs = std::min(chunk_packs, std::max(of_lane, kChunkPacks) * lanes);
  }
  reduce->lanes = static_cast<int32_t>(lanes);
  reduce->chunk_packs = static_cast<int32_t>(chunk_packs);
  reduce->num_chunks = std::max<int64_t>(1, quotient_up(num_packs, chunk_packs));
  reduce->num_items = items(results * reduce->num_chunks);
}

IndexArray index_array(const Indices& indices) {
  return {indices.dtype == DType::kInt64, indices.data, indices.count};
}

}  // namespace

Status CudaEngine::add_to(CudaDevice& device, std::shared_ptr<MathApi> math) {
  TESSERA_RETURN_IF_ERROR(device.queue().api()->set_device(device.gpu()));
  TESSERA_RETURN_IF_ERROR(math->load_kernels());
  device.set_engine(std::make_shared<CudaEngine>(device, std::move(math)));
  return absl::OkStatus();
}

StatusOr<CudaEngine::Scratch> CudaEngine::scratch(int64_t size_bytes) const {
  return Buffer::allocate(device_.slabs(), size_bytes);
}

template <class Value>
Status CudaEngine::launch(const Value& value) {
  if (value.num_items == 0) return absl::OkStatus();
  return math_->launch(value, device_.queue().handle());
}

// ---- Elementwise

Status CudaEngine::map(const Map& kind, absl::Span<const Strided> operands,
                       absl::Span<const int64_t> sizes, std::byte* out) {
  if (num_elements(sizes) == 0) return absl::OkStatus();
  const int64_t size = dtype_size(static_cast<DType>(kind.type));
  const bool gives_bool = kind.kind == Map::Kind::kPointwise && kernels::gives_bool(kind.op);
  absl::InlinedVector<absl::Span<const int64_t>, 3> strides;
  for (const Strided& operand : operands) strides.push_back(operand.strides);
  const MergedSpace merged(sizes, strides);
  const auto give = [&](absl::Span<const int64_t> part, size_t cut,
                        absl::Span<const int64_t> begins, int64_t first) {
    Map map = kind;
    map.num_operands = static_cast<int32_t>(operands.size());
    strides.clear();
    for (size_t k = 0; k < operands.size(); ++k) {
      // The condition of select() is of bool.
      const int64_t bytes = kind.kind == Map::Kind::kSelect && k == 0 ? 1 : size;
      if (operands[k].is_element) {
        std::memcpy(map.in[k].element, operands[k].data, static_cast<size_t>(bytes));
      } else {
        map.in[k].data = operands[k].data + begins[k] * bytes;
      }
      strides.push_back(merged.strides(k).subspan(cut));
    }
    map.out = out + first * (gives_bool ? 1 : size);
    plan_map(part, strides, &map);
    return launch(map);
  };
  return for_each_part(merged, options_.most_elements, give);
}

Status CudaEngine::pointwise(PointwiseOp op, DType dtype, absl::Span<const Strided> operands,
                             absl::Span<const int64_t> sizes, std::byte* out) {
  Map kind;
  kind.kind = Map::Kind::kPointwise;
  kind.op = op;
  kind.type = element_type(dtype);
  return map(kind, operands, sizes, out);
}

Status CudaEngine::select(DType dtype, const Strided& condition, const Strided& a, const Strided& b,
                          absl::Span<const int64_t> sizes, std::byte* out) {
  Map kind;
  kind.kind = Map::Kind::kSelect;
  kind.type = element_type(dtype);
  return map(kind, {condition, a, b}, sizes, out);
}

Status CudaEngine::clip(DType dtype, const std::byte* in, const std::byte* low,
                        const std::byte* high, int64_t num_elements, std::byte* out) {
  Map kind;
  kind.kind = Map::Kind::kClip;
  kind.type = element_type(dtype);
  constexpr int64_t kDense[] = {1};
  constexpr int64_t kSame[] = {0};
  return map(kind, {{in, kDense}, {low, kSame, true}, {high, kSame, true}}, {num_elements}, out);
}

Status CudaEngine::copy_strided(DType dtype, const Strided& in, absl::Span<const int64_t> sizes,
                                std::byte* out) {
  Map kind;
  kind.kind = Map::Kind::kCopy;
  kind.type = element_type(dtype);
  return map(kind, {in}, sizes, out);
}

Status CudaEngine::cast(DType from, DType to, const std::byte* in, std::byte* out,
                        int64_t num_elements) {
  if (num_elements == 0) return absl::OkStatus();
  Cast cast = plan_cast(from, to, in, out, num_elements);
  cast.wraps = true;
  return device_.launch(cast);
}

// ---- Products

namespace {

// The stride of a group of dims that are walked through as one; nothing where it has no single one.
struct Group {
  int64_t size;
  std::optional<int64_t> stride;
};
Group group_of(const Labelled& array, const Labels& group) {
  const Sizes sizes = by_label(array.labels, array.sizes, group);
  const Sizes strides = by_label(array.labels, dense_strides(array.sizes), group);
  const MergedSpace merged(sizes, {strides});
  Group result = {num_elements(sizes), std::nullopt};
  if (merged.sizes().empty()) result.stride = 0;
  if (merged.sizes().size() == 1) result.stride = merged.strides(0)[0];
  return result;
}

// An array as matrices, one for each index of the batch, by strides in elements.
struct Matrices {
  const std::byte* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t column_stride;
};

// The array as it is in memory, if it is matrices of which the elements of a row, or of a column,
// are next to each other.
std::optional<Matrices> as_matrices(const Labelled& array, const Labels& batch, const Labels& rows,
                                    const Labels& columns) {
  const Group n = group_of(array, batch);
  const Group r = group_of(array, rows);
  const Group c = group_of(array, columns);
  if (!n.stride.has_value() || !r.stride.has_value() || !c.stride.has_value()) return std::nullopt;
  Matrices matrices = {array.data, *n.stride, *r.stride, *c.stride};
  // Where there is one of a kind, its stride is free.
  if (c.size == 1 && matrices.row_stride != 1) matrices.column_stride = 1;
  if (matrices.column_stride == 1) {
    if (r.size == 1) matrices.row_stride = c.size;
    if (matrices.row_stride >= c.size) return matrices;
  }
  if (r.size == 1) matrices.row_stride = 1;
  if (matrices.row_stride == 1) {
    if (c.size == 1) matrices.column_stride = r.size;
    if (matrices.column_stride >= r.size) return matrices;
  }
  return std::nullopt;
}

// The label of the dim whose elements are next to each other; -1 of an array of one element.
int innermost_label(const Labelled& array) {
  for (size_t dim = array.sizes.size(); dim-- > 0;) {
    if (array.sizes[dim] != 1) return array.labels[dim];
  }
  return -1;
}

bool has(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

Gemm::Matrix gemm_matrix(const Matrices& matrices) {
  const bool is_transposed = matrices.column_stride != 1;
  return {matrices.data, is_transposed,
          is_transposed ? matrices.column_stride : matrices.row_stride, matrices.batch_stride};
}

}  // namespace

Status CudaEngine::contract(DType dtype, const Labelled& a, const Labelled& b, const Labels& labels,
                            absl::Span<const int64_t> sizes, std::byte* out) {
  if (num_elements(sizes) == 0) return absl::OkStatus();
  const ContractionLabels parts = ContractionLabels::create(a, b, labels);
  // A result that ends in a row is computed as its transpose, which has the order of the result, or
  // is copied by runs.
  if (!parts.columns.empty() && has(parts.rows, labels.back())) {
    return contract(dtype, b, a, labels, sizes, out);
  }
  const int64_t num_summed = num_elements(by_label(a.labels, a.sizes, parts.summed));
  if (num_summed == 0) {
    constexpr std::byte kZero[8] = {};
    return fill(dtype, kZero, out, num_elements(sizes));
  }
  std::vector<Scratch> scratches;  // until the stream has all the work
  const auto matrices_of = [&](const Labelled& array, const Labels& left,
                               const Labels& right) -> StatusOr<Matrices> {
    if (const auto found = as_matrices(array, parts.batch, left, right)) return *found;
    // In the one of the two orders that keeps neighbours next to each other.
    const bool is_transposed = has(left, innermost_label(array));
    const Labels order =
        is_transposed ? joined(parts.batch, right, left) : joined(parts.batch, left, right);
    const Sizes ordered = by_label(array.labels, array.sizes, order);
    const Sizes strides = by_label(array.labels, dense_strides(array.sizes), order);
    TESSERA_ASSIGN_OR_RETURN(Scratch copy, scratch(num_bytes(ordered, dtype)));
    TESSERA_RETURN_IF_ERROR(
        copy_strided(dtype, {array.data, strides}, ordered, copy->mutable_data()));
    const int64_t num_right = num_elements(by_label(array.labels, array.sizes, right));
    const int64_t num_left = num_elements(by_label(array.labels, array.sizes, left));
    scratches.push_back(std::move(copy));
    const std::byte* const data = scratches.back()->data();
    return is_transposed ? Matrices{data, num_left * num_right, 1, num_left}
                         : Matrices{data, num_left * num_right, num_right, 1};
  };
  TESSERA_ASSIGN_OR_RETURN(const Matrices left, matrices_of(a, parts.rows, parts.summed));
  TESSERA_ASSIGN_OR_RETURN(const Matrices right, matrices_of(b, parts.summed, parts.columns));
  const Labels order = joined(parts.batch, parts.rows, parts.columns);
  const Sizes ordered = by_label(labels, sizes, order);
  std::byte* result = out;
  if (order != labels) {
    TESSERA_ASSIGN_OR_RETURN(Scratch copy, scratch(num_bytes(sizes, dtype)));
    scratches.push_back(std::move(copy));
    result = scratches.back()->mutable_data();
  }
  Gemm gemm;
  gemm.type = element_type(dtype);
  gemm.batch = num_elements(by_label(labels, sizes, parts.batch));
  gemm.rows = num_elements(by_label(labels, sizes, parts.rows));
  gemm.columns = num_elements(by_label(labels, sizes, parts.columns));
  gemm.summed = num_summed;
  gemm.a = gemm_matrix(left);
  gemm.b = gemm_matrix(right);
  gemm.c = result;
  const auto workspace = [&](uint64_t size_bytes) -> StatusOr<std::byte*> {
    TESSERA_ASSIGN_OR_RETURN(Scratch memory, scratch(static_cast<int64_t>(size_bytes)));
    scratches.push_back(std::move(memory));
    return scratches.back()->mutable_data();
  };
  TESSERA_RETURN_IF_ERROR(is_floating_point(dtype)
                              ? math_->multiply(gemm, workspace, device_.queue().handle())
                              : launch(product_of(gemm)));
  if (order == labels) return absl::OkStatus();
  const Sizes strides = by_label(order, dense_strides(ordered), labels);
  return copy_strided(dtype, {result, strides}, sizes, out);
}

// ---- Reductions and lines

Status CudaEngine::reduce_dims(ReduceOp op, DType dtype, const std::byte* in,
                               absl::Span<const int64_t> sizes, const std::vector<bool>& is_reduced,
                               double divisor, std::byte* out) {
  const Sizes strides = dense_strides(sizes);
  Sizes kept_sizes, kept_strides, reduced_sizes, reduced_strides;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    (is_reduced[dim] ? reduced_sizes : kept_sizes).push_back(sizes[dim]);
    (is_reduced[dim] ? reduced_strides : kept_strides).push_back(strides[dim]);
  }
  const MergedSpace kept(kept_sizes, {kept_strides});
  const MergedSpace reduced(reduced_sizes, {reduced_strides});
  if (kept.sizes().size() > kMaxDims || reduced.sizes().size() > kMaxDims) {
    // Too many dims are kept and reduced in turn: copies the array with the kept dims first.
    Sizes apart_sizes = kept_sizes, apart_strides = kept_strides;
    apart_sizes.insert(apart_sizes.end(), reduced_sizes.begin(), reduced_sizes.end());
    apart_strides.insert(apart_strides.end(), reduced_strides.begin(), reduced_strides.end());
    TESSERA_ASSIGN_OR_RETURN(const Scratch apart, scratch(num_bytes(apart_sizes, dtype)));
    TESSERA_RETURN_IF_ERROR(
        copy_strided(dtype, {in, apart_strides}, apart_sizes, apart->mutable_data()));
    const int64_t two_dims[] = {num_elements(kept_sizes), num_elements(reduced_sizes)};
    return reduce_dims(op, dtype, apart->data(), two_dims, {false, true}, divisor, out);
  }
  if (reinterpret_cast<uintptr_t>(in) % kVectorBytes != 0 && num_elements(sizes) > 0) {
    TESSERA_ASSIGN_OR_RETURN(const Scratch aligned, scratch(num_bytes(sizes, dtype)));
    TESSERA_RETURN_IF_ERROR(copy_strided(dtype, {in, strides}, sizes, aligned->mutable_data()));
    return reduce_dims(op, dtype, aligned->data(), sizes, is_reduced, divisor, out);
  }
  ReduceDims level;
  level.op = reduction(op);
  level.from = element_type(dtype);
  level.kept = space_of(kept.sizes());
  set_strides(kept.strides(0), level.kept_strides);
  level.reduced = space_of(reduced.sizes());
  set_strides(reduced.strides(0), level.reduced_strides);
  level.num_kept = num_elements(kept_sizes);
  // Neighbouring threads read neighbouring elements.
  level.kept_is_fastest = !kept.sizes().empty() && kept.strides(0).back() == 1;
  level.divisor = divisor;
  level.in = in;
  if (level.num_kept == 0) return absl::OkStatus();
  return reduce_levels(level, dtype, num_elements(reduced_sizes), out);
}

Status CudaEngine::reduce_levels(ReduceDims level, DType dtype, int64_t num_terms, std::byte* out) {
  const double divisor = level.divisor;
  const bool is_half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  const DType wide = is_half ? DType::kFloat32 : dtype;
  for (Scratch before;;) {
    share_out(options_, num_terms, &level);
    const bool is_last = level.num_chunks == 1;
    level.to = element_type(is_last ? dtype : wide);
    level.divisor = is_last ? divisor : 1;
    Scratch partials;
    if (!is_last) {
      TESSERA_ASSIGN_OR_RETURN(partials,
                               scratch(level.num_kept * level.num_chunks * dtype_size(wide)));
    }
    level.out = is_last ? out : partials->mutable_data();
    TESSERA_RETURN_IF_ERROR(launch(level));
    if (is_last) return absl::OkStatus();
    level.in = level.out;
    level.from = level.to;
    level.kept = space_of({level.num_kept});
    level.kept_strides[0] = level.kept_is_fastest ? 1 : level.num_chunks;
    level.reduced = space_of({level.num_chunks});
    level.reduced_strides[0] = level.kept_is_fastest ? level.num_kept : 1;
    num_terms = level.num_chunks;
    before = std::move(partials);
  }
}

Status CudaEngine::cumsum(DType dtype, const std::byte* in, const Lines& lines, int64_t first,
                          int64_t count, std::byte* out) {
  CumSum sums;
  sums.type = element_type(dtype);
  sums.lines = shape_of(lines);
  sums.first = first;
  sums.count = count;
  sums.in = in;
  sums.out = out;
  sums.num_items = count == 0 ? 0 : items(lines.outer * lines.inner);
  return launch(sums);
}

Status CudaEngine::arg_extreme(bool is_max, DType dtype, const std::byte* in, const Lines& lines,
                               const LineIndices& numbers, int64_t* out) {
  ArgExtreme search;
  search.type = element_type(dtype);
  search.is_max = is_max;
  search.lines = shape_of(lines);
  search.numbers = {numbers.first, numbers.array};
  search.in = in;
  search.out = out;
  search.num_items = items(lines.outer * lines.inner);
  return launch(search);
}

StatusOr<CudaEngine::Scratch> CudaEngine::sorted_order(bool is_descending, DType dtype,
                                                       const std::byte* in,
                                                       const LineShape& lines) {
  const int64_t count = lines.outer * lines.size * lines.inner;
  Scratch order;
  for (int64_t width = 1; width < lines.size; width *= 2) {
    TESSERA_ASSIGN_OR_RETURN(Scratch merged,
                             scratch(count * static_cast<int64_t>(sizeof(int64_t))));
    MergePass pass;
    pass.type = element_type(dtype);
    pass.is_descending = is_descending;
    pass.lines = lines;
    pass.width = width;
    pass.in = in;
    pass.from = order == nullptr ? nullptr : reinterpret_cast<const int64_t*>(order->data());
    pass.to = reinterpret_cast<int64_t*>(merged->mutable_data());
    pass.num_items = items(count);
    TESSERA_RETURN_IF_ERROR(launch(pass));
    order = std::move(merged);
  }
  return order;
}

Status CudaEngine::sort_lines(bool is_descending, DType dtype, const std::byte* in,
                              const Lines& lines, const LineIndices& numbers, int64_t count,
                              std::byte* values, int64_t* indices) {
  if (lines.outer * lines.inner * count == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Scratch order,
                           sorted_order(is_descending, dtype, in, shape_of(lines)));
  TakeOrdered take;
  take.type = element_type(dtype);
  take.lines = shape_of(lines);
  take.numbers = {numbers.first, numbers.array};
  take.count = count;
  take.in = in;
  take.order = order == nullptr ? nullptr : reinterpret_cast<const int64_t*>(order->data());
  take.values = values;
  take.indices = indices;
  take.num_items = items(lines.outer * lines.inner * count);
  return launch(take);
}

// ---- Boxes and indices

Status CudaEngine::place_box(int64_t element_bytes, const std::byte* in, const Box& in_box,
                             const std::vector<int64_t>& begin, const Box& out_box,
                             std::byte* out) {
  const Box placed = {begin, in_box.sizes};
  const Box common = intersect(placed, out_box);
  if (common.is_empty()) return absl::OkStatus();
  CopyPlan plan;
  add_copy(common, in, placed, out, out_box, element_bytes, &plan);
  return device_.copy(plan);
}

Status CudaEngine::fill(DType dtype, const std::byte* element, std::byte* out,
                        int64_t num_elements) {
  return device_.fill(dtype, element, out, num_elements);
}

Status CudaEngine::check_indices(const IndexArray& indices, int64_t whole) {
  if (indices.count == 0) return absl::OkStatus();
  constexpr int64_t kNone = -1;
  TESSERA_ASSIGN_OR_RETURN(const Scratch words, scratch(3 * sizeof(int64_t)));
  auto* const on_gpu = reinterpret_cast<int64_t*>(words->mutable_data());
  TESSERA_RETURN_IF_ERROR(device_.fill(DType::kInt64, &kNone, words->mutable_data(), 1));
  CheckIndices check;
  check.indices = indices;
  check.whole = whole;
  check.first_wrong = reinterpret_cast<uint64_t*>(on_gpu);
  check.num_items = items(indices.count);
  TESSERA_RETURN_IF_ERROR(launch(check));
  ReportIndex report;
  report.indices = indices;
  report.first_wrong = check.first_wrong;
  report.out = on_gpu + 1;
  TESSERA_RETURN_IF_ERROR(launch(report));
  TESSERA_ASSIGN_OR_RETURN(const Scratch found,
                           Buffer::allocate(device_.pinned(), 2 * sizeof(int64_t)));
  TESSERA_RETURN_IF_ERROR(device_.copy_bytes(
      found->mutable_data(), reinterpret_cast<const std::byte*>(report.out), 2 * sizeof(int64_t)));
  device_.add_check([found, whole] {
    int64_t words[2];
    std::memcpy(words, found->data(), sizeof words);
    return words[0] < 0 ? absl::OkStatus() : kernels::index_error(words[1], words[0], whole);
  });
  return absl::OkStatus();
}

Status CudaEngine::take(int64_t element_bytes, const std::byte* in, const Lines& lines,
                        const DimPart& part, const Indices& indices, std::byte* out) {
  const IndexArray array = index_array(indices);
  TESSERA_RETURN_IF_ERROR(check_indices(array, part.whole));
  Take take;
  take.element_bytes = static_cast<int32_t>(element_bytes);
  take.lines = shape_of(lines);
  take.indices = array;
  take.first = part.first;
  take.in = in;
  take.out = out;
  take.num_items = items(lines.outer * indices.count * lines.inner);
  return launch(take);
}

Status CudaEngine::scatter_add(DType dtype, const std::byte* in, const Lines& lines,
                               const DimPart& part, const Indices& indices,
                               const std::byte* updates, std::byte* out) {
  const IndexArray array = index_array(indices);
  TESSERA_RETURN_IF_ERROR(check_indices(array, part.whole));
  // In the order of their values, and equal ones in that of their numbers.
  TESSERA_ASSIGN_OR_RETURN(const Scratch order,
                           sorted_order(false, indices.dtype, indices.data, {1, indices.count, 1}));
  ScatterAdd scatter;
  scatter.type = element_type(dtype);
  scatter.lines = shape_of(lines);
  scatter.indices = array;
  scatter.order = order == nullptr ? nullptr : reinterpret_cast<const int64_t*>(order->data());
  scatter.first = part.first;
  scatter.in = in;
  scatter.updates = updates;
  scatter.out = out;
  scatter.num_items = items(lines.outer * lines.size * lines.inner);
  return launch(scatter);
}

Status CudaEngine::one_hot(const Indices& indices, int64_t depth, float* out) {
  OneHot hot;
  hot.indices = index_array(indices);
  hot.depth = depth;
  hot.out = out;
  hot.num_items = items(indices.count * depth);
  return launch(hot);
}

// ---- Networks

namespace {

ImageWindow window_of(const kernels::Window& window) {
  return {window.size, window.stride, window.dilation, window.before};
}

ImagePart part_of(const BoxArray& array) {
  ImagePart part;
  part.data = array.data;
  std::copy_n(array.box.offsets.begin(), 4, part.offsets);
  std::copy_n(array.box.sizes.begin(), 4, part.sizes);
  return part;
}

}  // namespace

Status CudaEngine::image(const ImageCall& call, DType dtype, const BoxArray& a, const BoxArray* b,
                         const Box& out_box, std::byte* out) {
  static_assert(static_cast<int>(ImageFunction::kMaxPoolByValues) ==
                static_cast<int>(kernels::ImageKind::kMaxPoolByValues));
  Image image;
  image.function = static_cast<ImageFunction>(call.kind);
  image.type = element_type(dtype);
  image.height = window_of(call.height);
  image.width = window_of(call.width);
  image.rows = call.rows;
  image.columns = call.columns;
  image.a = part_of(a);
  if (b != nullptr) image.b = part_of(*b);
  std::copy_n(out_box.offsets.begin(), 4, image.out_offsets);
  std::copy_n(out_box.sizes.begin(), 4, image.out_sizes);
  image.out = out;
  image.num_items = items(out_box.num_elements());
  return launch(image);
}

Status CudaEngine::mask_later(DType dtype, const std::byte* in, const Box& box, int64_t shift,
                              std::byte* out) {
  MaskLater mask;
  mask.type = element_type(dtype);
  mask.queries = box.sizes[2];
  mask.keys = box.sizes[3];
  mask.shift = box.offsets[2] + shift - box.offsets[3];
  mask.in = in;
  mask.out = out;
  mask.num_items = items(box.num_elements());
  return launch(mask);
}

Status CudaEngine::pick(DType dtype, const std::byte* in, const Box& box, const DimPart& part,
                        const Indices& indices, std::byte* out) {
  const IndexArray array = index_array(indices);
  TESSERA_RETURN_IF_ERROR(check_indices(array, part.whole));
  Pick pick;
  pick.element_bytes = static_cast<int32_t>(dtype_size(dtype));
  pick.indices = array;
  pick.columns = box.sizes.back();
  pick.first = part.first;
  pick.in = in;
  pick.out = out;
  pick.num_items = items(indices.count);
  return launch(pick);
}

// ---- Random numbers

Status CudaEngine::optimizer_step(const kernels::OptimizerStep& step, DType dtype,
                                  const kernels::StepArrays& arrays, int64_t num_elements) {
  Step kind;
  kind.type = element_type(dtype);
  kind.step = step;
  kind.gradient = arrays.gradient;
  std::copy(std::begin(arrays.from), std::end(arrays.from), kind.from);
  std::copy(std::begin(arrays.to), std::end(arrays.to), kind.to);
  kind.num_items = items(num_elements);
  return launch(kind);
}

Status CudaEngine::random_box(const RandomSpec& spec, DType dtype, const Shape& shape,
                              const Box& box, std::byte* out) {
  static_assert(static_cast<int>(Distribution::kPermutation) ==
                static_cast<int>(kernels::RandomKind::kPermutation));
  if (box.is_empty()) return absl::OkStatus();
  const Sizes strides = dense_strides(shape);
  Draw kind;
  kind.distribution = static_cast<Distribution>(spec.kind);
  kind.type = element_type(dtype);
  std::copy(spec.key.begin(), spec.key.end(), kind.key);
  kind.a = spec.a;
  kind.b = spec.b;
  kind.low = spec.low;
  kind.high = spec.high;
  kind.least = spec.least;
  kind.range = spec.range;
  int64_t flat = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) flat += box.offsets[dim] * strides[dim];
  const MergedSpace merged(box.sizes, {strides});
  const auto give = [&](absl::Span<const int64_t> part, size_t cut,
                        absl::Span<const int64_t> begins, int64_t first) {
    Draw draw = kind;
    draw.space = space_of(part);
    set_strides(merged.strides(0).subspan(cut), draw.strides);
    draw.first = static_cast<uint64_t>(flat + begins[0]);
    draw.out = out + first * dtype_size(dtype);
    draw.num_items = items(num_elements(part));
    return launch(draw);
  };
  return for_each_part(merged, options_.most_elements, give);
}

}  // namespace tessera::cuda
