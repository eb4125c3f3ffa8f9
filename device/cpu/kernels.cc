// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "Eigen/Core"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tessera::cpu {
namespace {

// Containers and dims that need no memory from the heap.
constexpr size_t kInlineRank = 8;
constexpr size_t kInlineContainers = 9;

// Half-open interval of the first dim; unused for boxes of rank 0.
struct Rows {
  int64_t offset = 0;
  int64_t size = 1;
};
Rows rows_of(const Box& box) {
  return box.sizes.empty() ? Rows() : Rows{box.offsets[0], box.sizes[0]};
}

// The bytes of the second-level cache that a slab of copy_boxes() takes; the cache holds the
// sources' lines too.
constexpr int64_t kSlabBytes = 128 << 10;

// Those elements of a box that are in some rows of it, as they are in several row-major containers:
// rows that are contiguous in all of them, in as few loops as possible. All offsets and strides are
// in bytes.
class BoxWalk {
 public:
  template <class ContainerOf>  // ContainerOf(size_t c) -> const Box&
  BoxWalk(const Box& box, Rows rows, size_t num_containers, int64_t element_bytes,
          ContainerOf container_of)
      : num_containers_(num_containers),
        run_bytes_(element_bytes),
        offsets_(num_containers, 0),
        strides_(num_containers, element_bytes) {
    for (size_t dim = box.sizes.size(); dim-- > 0;) {
      const int64_t size = dim == 0 ? rows.size : box.sizes[dim];
      const int64_t offset = dim == 0 ? rows.offset : box.offsets[dim];
      if (size != 1) add_outer_loop(size);
      for (size_t c = 0; c < num_containers; ++c) {
        const Box& container = container_of(c);
        offsets_[c] += (offset - container.offsets[dim]) * strides_[c];
        strides_[c] *= container.sizes[dim];
      }
    }
  }

  int64_t run_bytes() const { return run_bytes_; }

  // Loops from the innermost on. Each repeats all that is inside it `size` times.
  size_t num_loops() const { return sizes_.size(); }
  int64_t size(size_t loop) const { return sizes_[loop]; }
  int64_t stride(size_t loop, size_t c) const { return loop_strides_[loop * num_containers_ + c]; }

  // Calls fn(offsets) once for each round of the loops from `first_loop` on, in row-major order.
  //
  // Loop invariant: offsets[c] is where `index` is in container c.
  template <class Fn>
  void for_each(size_t first_loop, Fn&& fn) const {
    absl::InlinedVector<int64_t, kInlineContainers> offsets = offsets_;
    absl::InlinedVector<int64_t, kInlineRank> index(num_loops(), 0);
    while (true) {
      fn(absl::MakeConstSpan(offsets));
      size_t loop = first_loop;
      for (; loop < num_loops(); ++loop) {
        const bool goes_on = ++index[loop] < size(loop);
        const int64_t steps = goes_on ? 1 : 1 - size(loop);
        for (size_t c = 0; c < num_containers_; ++c) offsets[c] += steps * stride(loop, c);
        if (goes_on) break;
        index[loop] = 0;
      }
      if (loop >= num_loops()) return;
    }
  }

 private:
  // A dim of `size` elements that are strides_[c] apart: it lengthens the run, or the outermost
  // loop so far, where it goes on where that ends in every container.
  void add_outer_loop(int64_t size) {
    if (sizes_.empty() && goes_on_after([&](size_t) { return run_bytes_; })) {
      run_bytes_ *= size;
    } else if (!sizes_.empty() && goes_on_after([&](size_t c) {
                 return sizes_.back() * stride(sizes_.size() - 1, c);
               })) {
      sizes_.back() *= size;
    } else {
      sizes_.push_back(size);
      loop_strides_.insert(loop_strides_.end(), strides_.begin(), strides_.end());
    }
  }

  template <class Extent>
  bool goes_on_after(Extent extent) const {
    for (size_t c = 0; c < num_containers_; ++c) {
      if (strides_[c] != extent(c)) return false;
    }
    return true;
  }

  size_t num_containers_;
  int64_t run_bytes_;
  absl::InlinedVector<int64_t, kInlineContainers> offsets_;  // of the first element
  absl::InlinedVector<int64_t, kInlineContainers> strides_;  // of the dim being added
  absl::InlinedVector<int64_t, kInlineRank> sizes_;
  absl::InlinedVector<int64_t, kInlineRank * kInlineContainers> loop_strides_;
};

// Without a fence: the caller's.
void reduce_run(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
                absl::Span<std::byte* const> outs, int64_t num_bytes, Stores stores) {
  if (terms.size() > 1) return reduce_dense({dtype, op, terms, outs, num_bytes, stores});
  for (std::byte* out : outs) {
    if (out == terms[0]) continue;
    copy_rows({.to = out, .from = terms[0], .row_bytes = num_bytes, .stores = stores});
  }
}

// Some rows of a copy. Container 0 is the source, 1 the target.
BoxWalk copy_walk(const BoxCopy& copy, Rows rows, const BoxView& to, int64_t element_bytes) {
  return BoxWalk(copy.box, rows, 2, element_bytes,
                 [&](size_t c) -> const Box& { return c == 0 ? copy.from.box : to.box; });
}

// Without a fence: the caller's.
void copy_walked(const BoxWalk& walk, ConstBoxView from, BoxView to, Stores stores) {
  RowCopy rows = {.row_bytes = walk.run_bytes(), .stores = stores};
  if (walk.num_loops() > 0) {
    rows.num_rows = walk.size(0);
    rows.from_stride = walk.stride(0, 0);
    rows.to_stride = walk.stride(0, 1);
  }
  walk.for_each(1, [&](absl::Span<const int64_t> offsets) {
    rows.from = from.data + offsets[0];
    rows.to = to.data + offsets[1];
    copy_rows(rows);
  });
}

void fence_after(Stores stores) {
  if (stores == Stores::kStreaming) fence_stores();
}

}  // namespace

Stores choose_stores(int64_t bytes_written, int64_t last_level_cache_bytes) {
  return bytes_written > last_level_cache_bytes / 2 ? Stores::kStreaming : Stores::kCached;
}

Stores stores_of_run(Stores asked, int64_t run_bytes) {
  return run_bytes >= kMinStreamingRunBytes ? asked : Stores::kCached;
}

int64_t last_level_cache_bytes() {
  static const int64_t bytes = [] {
    // Reads the size of one cache first; sysconf of some C libraries adds up all caches of a
    // socket. Some virtual machines hide the third level, and then the second is the last.
    for (const char* index : {"index3", "index2"}) {
      std::ifstream file(absl::StrCat("/sys/devices/system/cpu/cpu0/cache/", index, "/size"));
      int64_t size_kib = 0;
      char unit = 0;
      if (file >> size_kib >> unit && size_kib > 0 && unit == 'K') return size_kib << 10;
    }
    const int64_t size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return size > 0 ? size : int64_t{32} << 20;
  }();
  return bytes;
}

void reduce(DType dtype, ReduceOp op, absl::Span<const std::byte* const> terms,
            absl::Span<std::byte* const> outs, int64_t num_elements, Stores stores) {
  if (num_elements == 0 || outs.empty()) return;
  TESSERA_DCHECK(validate_reduction(op, dtype).ok());
  const int64_t num_bytes = num_elements * dtype_size(dtype);
  const Stores chosen = stores_of_run(stores, num_bytes);
  reduce_run(dtype, op, terms, outs, num_bytes, chosen);
  fence_after(chosen);
}

void copy_bytes(std::byte* to, const std::byte* from, int64_t num_bytes, Stores stores) {
  if (num_bytes == 0 || to == from) return;
  const Stores chosen = stores_of_run(stores, num_bytes);
  copy_rows({.to = to, .from = from, .row_bytes = num_bytes, .stores = chosen});
  fence_after(chosen);
}

void fill_elements(DType dtype, const void* element, std::byte* out, int64_t count) {
  visit_dtype(dtype, [&]<class T>() {
    T value;
    std::memcpy(&value, element, sizeof value);
    std::fill_n(reinterpret_cast<T*>(out), count, value);
  });
}

void copy_box(const Box& box, ConstBoxView from, BoxView to, int64_t element_bytes, Stores stores) {
  if (box.is_empty()) return;
  const BoxWalk walk = copy_walk({box, from}, rows_of(box), to, element_bytes);
  const Stores chosen = stores_of_run(stores, walk.run_bytes());
  copy_walked(walk, from, to, chosen);
  fence_after(chosen);
}

void copy_boxes(absl::Span<const BoxCopy> copies, BoxView to, int64_t element_bytes,
                Stores stores) {
  const Rows all = rows_of(to.box);
  const int64_t bytes = to.box.num_elements() * element_bytes;
  if (bytes == 0) return;
  const int64_t slab_rows = std::max<int64_t>(1, kSlabBytes / (bytes / all.size));
  const bool is_one_slab = copies.size() < 2 || slab_rows >= all.size;
  const bool has_short_runs = std::any_of(copies.begin(), copies.end(), [&](const BoxCopy& copy) {
    return !is_one_slab && !copy.box.is_empty() &&
           copy_walk(copy, rows_of(copy.box), to, element_bytes).run_bytes() <
               kMinStreamingRunBytes;
  });
  if (!has_short_runs) {
    for (const BoxCopy& c : copies) copy_box(c.box, c.from, to, element_bytes, stores);
    return;
  }
  // Loop invariant: the part of the copies before the slab is done.
  for (int64_t slab = all.offset; slab < all.offset + all.size; slab += slab_rows) {
    for (const BoxCopy& copy : copies) {
      if (copy.box.is_empty()) continue;
      const Rows own = rows_of(copy.box);
      const int64_t begin = std::max(slab, own.offset);
      const int64_t end = std::min(slab + slab_rows, own.offset + own.size);
      if (begin >= end) continue;
      copy_walked(copy_walk(copy, {begin, end - begin}, to, element_bytes), copy.from, to,
                  Stores::kCached);
    }
  }
}

void reduce_box(DType dtype, ReduceOp op, const Box& box, absl::Span<const ConstBoxView> terms,
                BoxView to, Stores stores) {
  if (box.is_empty()) return;
  TESSERA_DCHECK(validate_reduction(op, dtype).ok());
  const size_t n = terms.size();
  const BoxWalk walk(box, rows_of(box), n + 1, dtype_size(dtype),
                     [&](size_t c) -> const Box& { return c < n ? terms[c].box : to.box; });
  const Stores chosen = stores_of_run(stores, walk.run_bytes());
  absl::InlinedVector<const std::byte*, kInlineContainers> run_terms(n);
  walk.for_each(0, [&](absl::Span<const int64_t> offsets) {
    for (size_t k = 0; k < n; ++k) run_terms[k] = terms[k].data + offsets[k];
    std::byte* out = to.data + offsets[n];
    reduce_run(dtype, op, run_terms, absl::MakeConstSpan(&out, 1), walk.run_bytes(), chosen);
  });
  fence_after(chosen);
}

}  // namespace tessera::cpu
