// SPDX-License-Identifier: Apache-2.0
//
// Prints the speed of the CPU kernels on one thread, beside memcpy of as many bytes as the kernel
// writes. Both are measured in turns in the same run (docs/performance.md explains the table).
//
//   kernels_benchmark [instruction set]      default: the best of the CPU
//
// Exit status 1 if a kernel's result differs from a loop over its elements.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "device/cpu/kernels.h"
#include "device/cpu/kernels_simd.h"

namespace tessera::benchmarks {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kArenaBytes = 256 * kMiB;
constexpr int kNumRounds = 5;
// Short runs are repeated until about this much has been written.
constexpr int64_t kBytesARound = 64 * kMiB;

// All pages are touched before anything is measured.
std::byte* arena(int value) {
  void* memory =
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TESSERA_CHECK(memory != MAP_FAILED, "memory for the benchmark");
  std::memset(memory, value, kArenaBytes);
  return static_cast<std::byte*>(memory);
}

struct Arenas {
  std::byte* from = arena(1);
  std::byte* to = arena(0);
};

struct Case {
  std::string name;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  cpu::Stores stores = cpu::Stores::kCached;
  std::function<void()> run;
  std::function<bool()> is_right;
  std::vector<double> seconds = {};
  std::vector<double> memcpy_seconds = {};
};

template <class Fn>
double seconds_of(int64_t bytes_written, Fn&& fn) {
  const int64_t repeats = std::max<int64_t>(1, kBytesARound / bytes_written);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repeats; ++i) fn();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(repeats);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

cpu::Stores stores_for(int64_t bytes_written) {
  return cpu::choose_stores(bytes_written, cpu::last_level_cache_bytes());
}

template <class T>
Case reduction(const Arenas& arenas, int num_terms, int num_outs, int64_t bytes) {
  const DType dtype = dtype_of<T>();
  std::vector<const std::byte*> terms;
  std::vector<std::byte*> outs;
  for (int k = 0; k < num_terms; ++k) terms.push_back(arenas.from + k * bytes);
  for (int k = 0; k < num_outs; ++k) outs.push_back(arenas.to + k * bytes);
  const cpu::Stores stores = stores_for(num_outs * bytes);
  const int64_t count = bytes / dtype_size(dtype);
  Case c;
  c.name = absl::StrFormat("%s sum, %d terms of %d KiB to %d %s", dtype_name(dtype), num_terms,
                           bytes / kKiB, num_outs, num_outs == 1 ? "output" : "outputs");
  c.bytes_read = num_terms * bytes;
  c.bytes_written = num_outs * bytes;
  c.stores = cpu::stores_of_run(stores, bytes);
  c.run = [=] { cpu::reduce(dtype, ReduceOp::kSum, terms, outs, count, stores); };
  c.is_right = [=] {
    T element;
    std::memcpy(static_cast<void*>(&element), terms[0], sizeof(T));
    const T want = static_cast<T>(static_cast<float>(element) * static_cast<float>(num_terms));
    for (std::byte* out : outs) {
      for (int64_t i = 0; i < count; i += 997) {
        if (std::memcmp(out + i * sizeof(T), &want, sizeof(T)) != 0) return false;
      }
    }
    return true;
  };
  return c;
}

struct Pull {
  Box box;
  const std::byte* from;
  Box from_box;
  std::byte* to;
  Box to_box;
};

// The pulls of one step, `bytes` in all in runs of `run_bytes`. Consecutive pulls into one buffer
// are copied together.
Case copies(std::string name, int64_t element_bytes, int64_t bytes, int64_t run_bytes,
            std::vector<Pull> pulls) {
  const cpu::Stores stores = stores_for(bytes);
  Case c;
  c.name = std::move(name);
  c.bytes_read = c.bytes_written = bytes;
  c.stores = cpu::stores_of_run(stores, run_bytes);
  c.run = [=] {
    std::vector<cpu::BoxCopy> into_one;
    for (size_t k = 0; k < pulls.size(); ++k) {
      into_one.push_back({pulls[k].box, {pulls[k].from, pulls[k].from_box}});
      if (k + 1 < pulls.size() && pulls[k + 1].to == pulls[k].to) continue;
      cpu::copy_boxes(into_one, {pulls[k].to, pulls[k].to_box}, element_bytes, stores);
      into_one.clear();
    }
  };
  // The last element of each pull.
  c.is_right = [=] {
    return std::all_of(pulls.begin(), pulls.end(), [&](const Pull& p) {
      const auto last_of = [&](const Box& container) {
        int64_t place = 0;
        for (size_t dim = 0; dim < container.sizes.size(); ++dim) {
          place = place * container.sizes[dim] + p.box.offsets[dim] + p.box.sizes[dim] - 1 -
                  container.offsets[dim];
        }
        return place * element_bytes;
      };
      return std::memcmp(p.from + last_of(p.from_box), p.to + last_of(p.to_box), element_bytes) ==
             0;
    });
  };
  return c;
}

// The rows of an n x n matrix of doubles on 4 clients become its columns on the same clients.
Case rows_to_columns(const Arenas& arenas, int64_t n) {
  const int64_t part = n / 4, part_bytes = n * part * 8;
  std::vector<Pull> pulls;
  for (int64_t target = 0; target < 4; ++target) {
    const Box columns = {{0, target * part}, {n, part}};
    for (int64_t source = 0; source < 4; ++source) {
      const Box rows = {{source * part, 0}, {part, n}};
      pulls.push_back({intersect(rows, columns), arenas.from + source * part_bytes, rows,
                       arenas.to + target * part_bytes, columns});
    }
  }
  return copies(absl::StrFormat("rows to columns, %d x %d f64", n, n), 8, n * n * 8, part * 8,
                std::move(pulls));
}

// Interleaves the runs of 4 dense arrays into one array, or separates them again.
Case four_way(const Arenas& arenas, bool interleave, int64_t run_bytes, int64_t bytes) {
  const int64_t element = std::min<int64_t>(run_bytes, 8), run = run_bytes / element;
  const int64_t rows = bytes / 4 / run_bytes;
  const Box whole = {{0, 0}, {rows, 4 * run}};
  std::vector<Pull> pulls;
  for (int64_t k = 0; k < 4; ++k) {
    const Box part = {{0, k * run}, {rows, run}};
    const int64_t offset = k * (bytes / 4);
    if (interleave) {
      pulls.push_back({part, arenas.from + offset, part, arenas.to, whole});
    } else {
      pulls.push_back({part, arenas.from, whole, arenas.to + offset, part});
    }
  }
  return copies(
      absl::StrFormat("%s 4 ways, runs of %d B, %d KiB", interleave ? "interleave" : "deinterleave",
                      run_bytes, bytes / kKiB),
      element, bytes, run_bytes, std::move(pulls));
}

std::vector<Case> all_cases(const Arenas& arenas) {
  std::vector<Case> cases;
  for (const int64_t bytes : {64 * kMiB, 64 * kKiB}) {
    for (const auto& [num_terms, num_outs] :
         std::vector<std::pair<int, int>>{{2, 1}, {4, 1}, {2, 4}, {4, 4}}) {
      cases.push_back(reduction<float>(arenas, num_terms, num_outs, bytes));
    }
    cases.push_back(reduction<Eigen::bfloat16>(arenas, 4, 1, bytes));
    cases.push_back(reduction<Eigen::half>(arenas, 4, 1, bytes));
  }
  cases.push_back(reduction<float>(arenas, 16, 1, 16 * kMiB));
  for (const int64_t bytes : {128 * kMiB, 256 * kKiB}) {
    const Box whole = {{0}, {bytes / 8}};
    cases.push_back(copies(absl::StrFormat("contiguous copy, %d KiB", bytes / kKiB), 8, bytes,
                           bytes, {{whole, arenas.from, whole, arenas.to, whole}}));
  }
  cases.push_back(rows_to_columns(arenas, 4096));
  for (const int64_t bytes : {64 * kMiB, 256 * kKiB}) {
    for (const int64_t run_bytes : {4, 8, 64}) {
      cases.push_back(four_way(arenas, true, run_bytes, bytes));
      cases.push_back(four_way(arenas, false, run_bytes, bytes));
    }
  }
  return cases;
}

void measure(const Arenas& arenas, std::vector<Case>& cases) {
  for (int round = 0; round < kNumRounds; ++round) {
    for (Case& c : cases) {
      c.memcpy_seconds.push_back(seconds_of(c.bytes_written, [&] {
        std::memcpy(arenas.to, arenas.from, static_cast<size_t>(c.bytes_written));
        // Keeps the compiler from merging the repeats.
        asm volatile("" : : "r"(arenas.to) : "memory");
      }));
      c.seconds.push_back(seconds_of(c.bytes_written, c.run));
    }
  }
}

// Numbers slightly above 1, equal in all terms: sums of 2, 4 and 16 terms are exact.
template <class T>
void fill(const Arenas& arenas) {
  const T one(1.5f);
  for (int64_t i = 0; i < kArenaBytes; i += sizeof(T)) {
    std::memcpy(arenas.from + i, static_cast<const void*>(&one), sizeof(T));
  }
}

bool are_right(const Arenas& arenas, std::vector<Case>& cases) {
  bool all_right = true;
  for (Case& c : cases) {
    if (c.name.starts_with("f16")) {
      fill<Eigen::half>(arenas);
    } else if (c.name.starts_with("bf16")) {
      fill<Eigen::bfloat16>(arenas);
    } else {
      fill<float>(arenas);
    }
    std::memset(arenas.to, 0, static_cast<size_t>(c.bytes_written));
    c.run();
    if (c.is_right()) continue;
    all_right = false;
    std::cerr << c.name << ": wrong result\n";
  }
  return all_right;
}

int main_of(int argc, char** argv) {
  int64_t used = cpu::instruction_sets()[0];
  for (const int64_t set : cpu::instruction_sets()) {
    if (argc > 1 && cpu::instruction_set_name(set) == argv[1]) used = set;
  }
  cpu::use_instruction_set(used);
  const Arenas arenas;
  std::vector<Case> cases = all_cases(arenas);
  if (!are_right(arenas, cases)) return 1;
  measure(arenas, cases);
  std::cout << "instruction set " << cpu::instruction_set_name(used) << ", last-level cache "
            << cpu::last_level_cache_bytes() / kMiB << " MiB\n"
            << "| kernel | stores | GB/s | memcpy GB/s | time / memcpy |\n"
            << "| --- | --- | ---: | ---: | ---: |\n";
  for (const Case& c : cases) {
    std::vector<double> ratios;
    for (int round = 0; round < kNumRounds; ++round) {
      ratios.push_back(c.seconds[round] / c.memcpy_seconds[round]);
    }
    const auto rate = [](int64_t bytes, double seconds) {
      return static_cast<double>(bytes) / seconds / 1e9;
    };
    std::cout << absl::StrFormat("| %s | %s | %.1f | %.1f | %.2f |\n", c.name,
                                 c.stores == cpu::Stores::kStreaming ? "streaming" : "cached",
                                 rate(c.bytes_read + c.bytes_written, median(c.seconds)),
                                 rate(2 * c.bytes_written, median(c.memcpy_seconds)),
                                 median(ratios));
  }
  return 0;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) { return tessera::benchmarks::main_of(argc, argv); }
