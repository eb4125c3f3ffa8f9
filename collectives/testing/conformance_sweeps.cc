// SPDX-License-Identifier: Apache-2.0
//
// Sweeps: every dtype, reduction, root and size against the scalar oracle, for groups of 1 to 8;
// and boxes.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"
#include "collectives/testing/start_operation.h"

namespace tessera::conformance {
namespace {

constexpr int kGroupSizes[] = {1, 2, 3, 4, 7, 8};

std::vector<int64_t> sizes_for(int n) { return {0, 1, n - 1, n, n + 1, 1000 + n, 4099}; }

// Uneven parts, some of them empty, that are the same on every member.
std::vector<int64_t> uneven_counts(int n, uint64_t seed) {
  std::vector<int64_t> counts;
  for (int k = 0; k < n; ++k) {
    counts.push_back(static_cast<int64_t>(mix(seed, static_cast<uint64_t>(k)) % 4) * 37);
  }
  return counts;
}

template <class T>
Values<T> part_of(const Values<T>& whole, int64_t first, int64_t count) {
  Values<T> part(count);
  for (int64_t i = 0; i < count; ++i) part[i] = whole[first + i];
  return part;
}

template <class T>
Values<T> copy_of(const Values<T>& values) {
  return part_of(values, 0, values.size());
}

// all_reduce, reduce and reduce_scatter of one size, out of place and in place.
template <class T>
Status check_reductions(const Member& m, ReduceOp op, int64_t size, int root) {
  const Group& g = m.group;
  const int n = g.size();
  const uint64_t seed = mix(static_cast<uint64_t>(size), static_cast<uint64_t>(op));
  const auto in = values_of<T>(seed, m.position, size);
  Values<T> want(size);
  for (int64_t i = 0; i < size; ++i) want[i] = reduced_value<T>(op, seed, n, i);

  Values<T> out(size), rooted(size, T(1)), in_place = copy_of(in), rooted_in_place = copy_of(in);
  TESSERA_RETURN_IF_ERROR(g.all_reduce<T>(in.in(), out.out(), op).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(out.in(), want, "all_reduce"));
  TESSERA_RETURN_IF_ERROR(g.all_reduce<T>(in_place.out(), op).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(in_place.in(), want, "all_reduce in place"));
  TESSERA_RETURN_IF_ERROR(g.reduce<T>(in.in(), rooted.out(), op, root).await());
  TESSERA_RETURN_IF_ERROR(g.reduce<T>(rooted_in_place.out(), op, root).await());
  const bool is_root = m.position == root;
  TESSERA_RETURN_IF_ERROR(
      expect_equal<T>(rooted.in(), is_root ? want : Values<T>(size, T(1)), "reduce"));
  TESSERA_RETURN_IF_ERROR(
      expect_equal<T>(rooted_in_place.in(), is_root ? want : in, "reduce in place"));

  std::vector<int64_t> counts(n, size / n);
  counts[root] += size % n;
  const int64_t first = before(counts, m.position);
  Values<T> part(counts[m.position]), whole = copy_of(in);
  TESSERA_RETURN_IF_ERROR(g.reduce_scatter<T>(in.in(), part.out(), op, counts).await());
  const Values<T> want_part = part_of(want, first, part.size());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(part.in(), want_part, "reduce_scatter"));
  const absl::Span<T> target = whole.out().subspan(first, part.size());
  TESSERA_RETURN_IF_ERROR(g.reduce_scatter<T>(whole.in(), target, op, counts).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(target, want_part, "reduce_scatter in place"));
  return expect_equal<T>(in.in(), values_of<T>(seed, m.position, size), "in is not written");
}

template <class T>
Status sweep_reductions(const Member& m) {
  for (int op_number = 0; op_number < kNumReduceOps; ++op_number) {
    const auto op = static_cast<ReduceOp>(op_number);
    if (!validate_reduction(op, dtype_of<T>()).ok()) continue;
    int root = op_number;
    for (const int64_t size : sizes_for(m.group.size())) {
      const Status status = check_reductions<T>(m, op, size, root++ % m.group.size());
      if (!status.ok()) {
        return with_context(status, absl::StrCat(reduce_op_name(op), " of ", size, " elements"));
      }
    }
  }
  return absl::OkStatus();
}

// broadcast, gather, scatter and all_gather with these counts.
template <class T>
Status check_rooted_moves(const Member& m, const std::vector<int64_t>& counts, int root) {
  const Group& g = m.group;
  const int n = g.size();
  const uint64_t seed = static_cast<uint64_t>(total(counts)) + 1;
  const bool is_root = m.position == root;
  const int64_t first = before(counts, m.position);
  const int64_t mine = counts[m.position];
  const auto in = values_of<T>(seed, m.position, mine);
  Values<T> gathered(total(counts));
  for (int k = 0; k < n; ++k) {
    for (int64_t i = 0; i < counts[k]; ++i) {
      gathered[before(counts, k) + i] = value_of<T>(seed, k, i);
    }
  }

  Values<T> out(total(counts)), in_place(total(counts));
  TESSERA_RETURN_IF_ERROR(g.all_gather<T>(in.in(), out.out(), counts).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(out.in(), gathered, "all_gather"));
  const absl::Span<T> own = in_place.out().subspan(first, mine);
  std::copy(in.in().begin(), in.in().end(), own.begin());
  TESSERA_RETURN_IF_ERROR(g.all_gather<T>(own, in_place.out(), counts).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(in_place.in(), gathered, "all_gather in place"));

  Values<T> at_root(is_root ? total(counts) : 0);
  TESSERA_RETURN_IF_ERROR(g.gather<T>(in.in(), at_root.out(), root, counts).await());
  if (is_root) TESSERA_RETURN_IF_ERROR(expect_equal<T>(at_root.in(), gathered, "gather"));
  Values<T> root_memory(total(counts));
  const absl::Span<T> root_own = root_memory.out().subspan(first, mine);
  std::copy(in.in().begin(), in.in().end(), root_own.begin());
  TESSERA_RETURN_IF_ERROR(g.gather<T>(root_own, root_memory.out(), root, counts).await());
  if (is_root) {
    TESSERA_RETURN_IF_ERROR(expect_equal<T>(root_memory.in(), gathered, "gather in place"));
  }

  Values<T> part(mine);
  const Values<T> source = is_root ? copy_of(gathered) : Values<T>(0);
  TESSERA_RETURN_IF_ERROR(g.scatter<T>(source.in(), part.out(), root, counts).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(part.in(), in, "scatter"));
  const absl::Span<T> target = is_root ? root_own : part.out();
  TESSERA_RETURN_IF_ERROR(g.scatter<T>(root_memory.in(), target, root, counts).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(target, in, "scatter in place"));

  Values<T> copy(total(counts));
  TESSERA_RETURN_IF_ERROR(g.broadcast<T>(source.in(), copy.out(), root).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(copy.in(), gathered, "broadcast"));
  const absl::Span<T> everywhere = is_root ? root_memory.out() : copy.out();
  TESSERA_RETURN_IF_ERROR(g.broadcast<T>(everywhere, root).await());
  return expect_equal<T>(everywhere, gathered, "broadcast in place");
}

// Member r sends counts[r][k] elements to member k.
template <class T>
Status check_all_to_all(const Member& m, const std::vector<std::vector<int64_t>>& counts) {
  const int n = m.group.size();
  std::vector<int64_t> send = counts[m.position], recv;
  for (int k = 0; k < n; ++k) recv.push_back(counts[k][m.position]);
  const auto in = values_of<T>(9, m.position, total(send));
  Values<T> out(total(recv)), want(total(recv));
  int64_t next = 0;
  for (int k = 0; k < n; ++k) {
    const int64_t first = before(counts[k], m.position);
    for (int64_t i = 0; i < recv[k]; ++i) want[next++] = value_of<T>(9, k, first + i);
  }
  TESSERA_RETURN_IF_ERROR(m.group.all_to_all<T>(in.in(), out.out(), send, recv).await());
  return expect_equal<T>(out.in(), want, "all_to_all");
}

template <class T>
Status sweep_moves(const Member& m) {
  const int n = m.group.size();
  for (const int64_t size : {0, 1, 3, 1000}) {
    for (int root = 0; root < n; ++root) {
      TESSERA_RETURN_IF_ERROR(check_rooted_moves<T>(m, std::vector<int64_t>(n, size), root));
    }
    TESSERA_RETURN_IF_ERROR(check_all_to_all<T>(m, std::vector(n, std::vector<int64_t>(n, size))));
  }
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    TESSERA_RETURN_IF_ERROR(
        check_rooted_moves<T>(m, uneven_counts(n, seed), static_cast<int>(seed) % n));
    std::vector<std::vector<int64_t>> matrix;
    for (int k = 0; k < n; ++k) {
      matrix.push_back(uneven_counts(n, seed + 100 * static_cast<uint64_t>(k)));
    }
    TESSERA_RETURN_IF_ERROR(check_all_to_all<T>(m, matrix));
  }
  // Without counts every member has the same number of elements; to say so is no other call.
  const std::vector<int64_t> fives(m.position % 2 == 0 ? 0 : n, 5);
  const Values<T> in = values_of<T>(3, m.position, 5);
  Values<T> gathered(5 * n), part(5);
  TESSERA_RETURN_IF_ERROR(m.group.all_gather<T>(in.in(), gathered.out(), fives).await());
  TESSERA_RETURN_IF_ERROR(m.group.scatter<T>(gathered.in(), part.out(), n - 1, fives).await());
  TESSERA_RETURN_IF_ERROR(expect_equal<T>(part.in(), in, "all_gather, then scatter"));
  Values<T> in_place(5 * n);
  std::copy(in.in().begin(), in.in().end(), in_place.out().subspan(5 * m.position).begin());
  TESSERA_RETURN_IF_ERROR(m.group.all_gather<T>(in_place.out()).await());
  return expect_equal<T>(in_place.in(), gathered, "all_gather of one argument");
}

// ---- Boxes: a global array whose element at `index` has a value that any member can compute.

int64_t global_value(const std::vector<int64_t>& index) {
  uint64_t hash = 17;
  for (const int64_t i : index) hash = mix(hash, static_cast<uint64_t>(i));
  return static_cast<int64_t>(hash >> 8);
}

Values<int64_t> box_values(const Box& box, int64_t factor) {
  Values<int64_t> values(box.num_elements());
  int64_t next = 0;
  for_each_index(box, [&](const std::vector<int64_t>& index) {
    values[next++] = factor * (global_value(index) >> 8);
  });
  return values;
}

Status check_exchange(const Member& m, const std::vector<Box>& from, const std::vector<Box>& to) {
  const Box& in_box = from[m.position];
  const Box& out_box = to[m.position];
  const auto in = box_values(in_box, 1);
  Values<int64_t> out(out_box.num_elements(), -1);
  std::vector<BoxPull> pulls;
  for (int k = 0; k < m.group.size(); ++k) {
    const Box common = intersect(from[k], out_box);
    if (!common.is_empty()) pulls.push_back({k, from[k], common});
  }
  TESSERA_RETURN_IF_ERROR(
      m.group.exchange<int64_t>(in.in(), in_box, out.out(), out_box, pulls).await());
  return expect_equal<int64_t>(out.in(), box_values(out_box, 1), "exchange");
}

// Every member holds all of `shape`, times its position + 1; each wants the sum over its own box.
Status check_reduce_boxes(const Member& m, const Shape& shape, const std::vector<Box>& wanted) {
  const int n = m.group.size();
  const Box whole = whole_box(shape);
  const auto in = box_values(whole, m.position + 1);
  Values<int64_t> out(wanted[m.position].num_elements(), -1);
  std::vector<BoxPull> held;
  for (int k = 0; k < n; ++k) held.push_back({k, whole, wanted[m.position]});
  const BoxExchange boxes = {whole, wanted[m.position], std::move(held)};
  const Work work = internal::start_operation(
      m.group, {.kind = OpKind::kReduceBoxes, .dtype = DType::kInt64, .boxes = &boxes},
      {reinterpret_cast<const std::byte*>(in.in().data()), static_cast<int64_t>(in.size()),
       reinterpret_cast<std::byte*>(out.out().data()), static_cast<int64_t>(out.size())});
  TESSERA_RETURN_IF_ERROR(work.await());
  return expect_equal<int64_t>(out.in(), box_values(wanted[m.position], n * (n + 1) / 2),
                               "reduce_boxes");
}

Status sweep_boxes(const Member& m) {
  const int n = m.group.size();
  const Shape shapes[] = {{}, {1}, {5}, {0, 3}, {4, 6}, {5, 3}, {3, 1, 7}, {2, 3, 4, 5}};
  for (const Shape& shape : shapes) {
    const int rank = static_cast<int>(shape.size());
    std::vector<std::vector<Box>> splits = {std::vector<Box>(n, whole_box(shape))};
    for (int dim = 0; dim < rank; ++dim) splits.push_back(cut(shape, dim, n));
    for (const auto& from : splits) {
      for (const auto& to : splits) {
        const Status status = check_exchange(m, from, to);
        if (!status.ok()) return with_context(status, shape_to_string(shape));
      }
      TESSERA_RETURN_IF_ERROR(check_reduce_boxes(m, shape, from));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<Case> sweep_cases() {
  std::vector<Case> cases;
  for (const int n : kGroupSizes) {
    for (int dtype_number = 0; dtype_number < kNumDTypes; ++dtype_number) {
      const auto dtype = static_cast<DType>(dtype_number);
      cases.push_back(
          {absl::StrCat("reductions_", dtype_name(dtype), "_", n), n, [dtype](const Member& m) {
             return visit_dtype(dtype, [&]<class T>() { return sweep_reductions<T>(m); });
           }});
      // Bytes are moved: one type of each size is enough.
      if (dtype != DType::kBool && dtype != DType::kBFloat16 && dtype != DType::kInt32 &&
          dtype != DType::kFloat64) {
        continue;
      }
      cases.push_back(
          {absl::StrCat("moves_", dtype_name(dtype), "_", n), n, [dtype](const Member& m) {
             return visit_dtype(dtype, [&]<class T>() { return sweep_moves<T>(m); });
           }});
    }
    cases.push_back({absl::StrCat("boxes_", n), n, sweep_boxes});
  }
  return cases;
}

Case many_members_case(int num_members) {
  return {absl::StrCat("many_members_", num_members), num_members,
          [](const Member& m) { return expect_works(m.group); }};
}

Case over_2_gib_case() {
  return {"over_2_gib", 2, [](const Member& m) -> Status {
            const int64_t size = 2147483656;
            Values<uint8_t> all(size);  // in place, which takes half of the memory
            all[size - 1] = static_cast<uint8_t>(3 + m.position);
            TESSERA_RETURN_IF_ERROR(
                m.group.all_reduce<uint8_t>(all.in(), all.out(), ReduceOp::kSum).await());
            return expect(all[size - 1] == 7 && all[size - 2] == 0, "the last element is 7");
          }};
}

}  // namespace tessera::conformance
