// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/kernels.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/shape.h"
#include "device/cuda/kernel_plan.h"

namespace tessera::benchmarks {
namespace {

constexpr double kShareToReach = 0.80;
constexpr int64_t kShortestRunOfTheGoal = 64;
constexpr int64_t kRuns[] = {16, 32, 64, 128, 256, 512, 1024, 4096};
constexpr int64_t kWord = 4;
constexpr int kMostTerms = 8;

// One measurement: its name, the kernels, the bytes that they read and write, the expected output.
struct Job {
  std::string what;
  std::vector<cuda::Kernel> kernels;
  int64_t bytes_moved;
  // The expected 4-byte word at this place of the output, and the places that the kernel writes.
  std::function<uint32_t(int64_t word)> value;
  int64_t num_words;
  bool is_in_goal = false;
};

class Kernels {
 public:
  Kernels(Gpu& gpu, const KernelSizes& sizes) : gpu_(gpu), sizes_(sizes) {}

  Status prepare() {
    TESSERA_ASSIGN_OR_RETURN(from_, gpu_.allocate(2 * sizes_.payload_bytes));
    TESSERA_ASSIGN_OR_RETURN(to_, gpu_.allocate(2 * sizes_.payload_bytes));
    return number(from_, 2 * sizes_.payload_bytes / kWord);
  }
  Status measure(Report* report);

 private:
  // Sets word i of the memory to i.
  Status number(std::byte* memory, int64_t num_words) {
    for (const cuda::Iota& iota :
         cuda::plan_iota(DType::kInt32, {num_words}, {{0}, {num_words}}, memory)) {
      TESSERA_RETURN_IF_ERROR(gpu_.api().launch(iota, gpu_.stream()));
    }
    return gpu_.wait();
  }
  void add_box_copies(std::vector<Job>* jobs) const;
  void add_others(std::vector<Job>* jobs) const;
  std::vector<Job> sums_of(DType dtype) const;
  Status fill_terms(DType dtype);
  int64_t term_bytes() const { return 2 * sizes_.payload_bytes / kMostTerms; }
  Status launch(const Job& job) {
    for (const cuda::Kernel& kernel : job.kernels) {
      TESSERA_RETURN_IF_ERROR(gpu_.api().launch(kernel, gpu_.stream()));
    }
    return absl::OkStatus();
  }
  Status check(const Job& job);
  Status check_words(const Job& job, int64_t first, int64_t count);

  Gpu& gpu_;
  const KernelSizes sizes_;
  std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
};

// Copies in a matrix with rows of two runs: the right half to a dense matrix, a dense matrix to the
// right half, and the left half to another matrix's left half.
void Kernels::add_box_copies(std::vector<Job>* jobs) const {
  for (const int64_t run : kRuns) {
    const int64_t rows = sizes_.payload_bytes / run;
    const Box whole = {{0, 0}, {rows, 2 * run}};
    const Box left = {{0, 0}, {rows, run}};
    const Box right = {{0, run}, {rows, run}};
    const int64_t words = run / kWord;
    const auto add = [&](const char* name, const Box& box, const Box& from_box, const Box& to_box,
                         const std::function<uint32_t(int64_t)>& value, int64_t num_words) {
      cuda::CopyPlan plan;
      add_copy(box, from_, from_box, to_, to_box, 1, &plan);
      Job job = {absl::StrCat(name, ", runs of ", run, " B"),
                 {},
                 2 * rows * run,
                 value,
                 num_words,
                 run >= kShortestRunOfTheGoal};
      for (const cuda::CopyBatch& batch : plan.batches) job.kernels.emplace_back(batch);
      jobs->push_back(std::move(job));
    };
    add(
        "pack", right, whole, right,
        [words](int64_t i) {
          return static_cast<uint32_t>(i / words * 2 * words + words + i % words);
        },
        rows * words);
    // The left runs of each row keep their value, ones.
    add(
        "unpack", right, right, whole,
        [words](int64_t i) {
          const int64_t column = i % (2 * words);
          return column < words ? 0xffffffff
                                : static_cast<uint32_t>(i / (2 * words) * words + column - words);
        },
        2 * rows * words);
    add(
        "strided copy", left, whole, whole,
        [words](int64_t i) {
          return i % (2 * words) < words ? static_cast<uint32_t>(i) : 0xffffffff;
        },
        2 * rows * words);
  }
}

// One element, as it is in memory.
std::vector<std::byte> element_of(DType dtype, float value) {
  std::vector<std::byte> bytes(dtype_size(dtype));
  const Eigen::bfloat16 rounded(value);
  std::memcpy(bytes.data(), dtype == DType::kFloat32 ? static_cast<const void*>(&value) : &rounded,
              bytes.size());
  return bytes;
}

// Term k is k + 1 everywhere.
Status Kernels::fill_terms(DType dtype) {
  for (int k = 0; k < kMostTerms; ++k) {
    const std::vector<std::byte> element = element_of(dtype, static_cast<float>(k + 1));
    TESSERA_RETURN_IF_ERROR(
        gpu_.api().launch(cuda::plan_fill(dtype, element.data(), from_ + k * term_bytes(),
                                          term_bytes() / dtype_size(dtype)),
                          gpu_.stream()));
  }
  return absl::OkStatus();
}

std::vector<Job> Kernels::sums_of(DType dtype) const {
  std::vector<Job> jobs;
  for (const int num_terms : {2, 4, kMostTerms}) {
    std::vector<const std::byte*> terms;
    for (int k = 0; k < num_terms; ++k) terms.push_back(from_ + k * term_bytes());
    const std::vector<std::byte> sum =
        element_of(dtype, static_cast<float>(num_terms * (num_terms + 1) / 2));
    uint32_t word = 0;
    for (size_t at = 0; at < sizeof word; at += sum.size()) {
      std::memcpy(reinterpret_cast<std::byte*>(&word) + at, sum.data(), sum.size());
    }
    Job job = {absl::StrCat("sum of ", num_terms, " terms of ", dtype_name(dtype)),
               {},
               (num_terms + 1) * term_bytes(),
               [word](int64_t) { return word; },
               term_bytes() / kWord};
    for (const cuda::Reduce& reduce :
         cuda::plan_reduce(dtype, ReduceOp::kSum, terms, absl::MakeConstSpan(&to_, 1),
                           term_bytes() / dtype_size(dtype))) {
      job.kernels.emplace_back(reduce);
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

void Kernels::add_others(std::vector<Job>* jobs) const {
  const int64_t bytes = sizes_.payload_bytes;
  const float fill = 1.5f;
  jobs->push_back({"fill of f32",
                   {cuda::plan_fill(DType::kFloat32, &fill, to_, bytes / kWord)},
                   bytes,
                   [](int64_t) { return 0x3fc00000u; },
                   bytes / kWord});
  Job iota = {
      "iota of i32", {}, bytes, [](int64_t i) { return static_cast<uint32_t>(i); }, bytes / kWord};
  for (const cuda::Iota& part :
       cuda::plan_iota(DType::kInt32, {bytes / kWord}, {{0}, {bytes / kWord}}, to_)) {
    iota.kernels.emplace_back(part);
  }
  jobs->push_back(std::move(iota));
  const auto as_float = [](int64_t i) {
    const auto value = static_cast<float>(static_cast<int32_t>(i));
    uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    return word;
  };
  jobs->push_back({"cast of i32 to f32",
                   {cuda::plan_cast(DType::kInt32, DType::kFloat32, from_, to_, bytes / kWord)},
                   2 * bytes,
                   as_float,
                   bytes / kWord});
}

Status Kernels::check_words(const Job& job, int64_t first, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                           gpu_.read(to_ + first * kWord, count * kWord));
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i * kWord, sizeof word);
    if (word == job.value(first + i)) continue;
    return absl::InternalError(
        absl::StrCat(job.what, ": word ", first + i, " is ", word, ", not ", job.value(first + i)));
  }
  return absl::OkStatus();
}

// Both ends, and places in between.
Status Kernels::check(const Job& job) {
  const uint32_t ones = 0xffffffff;
  TESSERA_RETURN_IF_ERROR(gpu_.api().launch(
      cuda::plan_fill(DType::kInt32, &ones, to_, 2 * sizes_.payload_bytes / kWord), gpu_.stream()));
  TESSERA_RETURN_IF_ERROR(launch(job));
  const int64_t count = std::min<int64_t>(job.num_words, 4096);
  TESSERA_RETURN_IF_ERROR(check_words(job, 0, count));
  TESSERA_RETURN_IF_ERROR(check_words(job, job.num_words - count, count));
  std::mt19937_64 random(1);
  for (int i = 0; i < 16; ++i) {
    const auto places = static_cast<uint64_t>(job.num_words - count + 1);
    TESSERA_RETURN_IF_ERROR(check_words(job, static_cast<int64_t>(random() % places), count));
  }
  return absl::OkStatus();
}

Status Kernels::measure(Report* report) {
  std::vector<Job> jobs;
  add_box_copies(&jobs);
  add_others(&jobs);
  for (const Job& job : jobs) TESSERA_RETURN_IF_ERROR(check(job));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TESSERA_RETURN_IF_ERROR(fill_terms(dtype));
    for (Job& job : sums_of(dtype)) {
      TESSERA_RETURN_IF_ERROR(check(job));
      jobs.push_back(std::move(job));
    }
  }

  const int64_t copied = 2 * sizes_.payload_bytes;
  std::vector<Contestant> contestants = {
      {"device-to-device copy", [&] {
         return gpu_.time(sizes_.repeats, [&] {
           return gpu_.api().copy(to_, from_, static_cast<uint64_t>(sizes_.payload_bytes),
                                  gpu_.stream());
         });
       }}};
  for (const Job& job : jobs) {
    contestants.push_back(
        {job.what, [&] { return gpu_.time(sizes_.repeats, [&] { return launch(job); }); }});
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Times> times,
                           measure_in_turn(contestants, sizes_.rounds));
  const auto rate = [](int64_t bytes, const Times& of) {
    return static_cast<double>(bytes) / (median(of) * 1e3);  // GB/s
  };
  const double copy = rate(copied, times[0]);
  report->rows.push_back(
      {"kernels", contestants[0].name, times[0], absl::StrFormat("%.0f GB/s", copy), "", {}});
  const Job* slowest = nullptr;
  double least = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const double own = rate(jobs[i].bytes_moved, times[i + 1]);
    report->rows.push_back({"kernels", jobs[i].what, times[i + 1],
                            absl::StrFormat("%.0f GB/s", own),
                            absl::StrFormat("%.2f of the copy's rate", own / copy), times[0]});
    if (!jobs[i].is_in_goal || (slowest != nullptr && own >= least)) continue;
    least = own;
    slowest = &jobs[i];
  }
  report->goals.push_back(
      {"pack, unpack and strided copies of runs of 64 B and more, at least 0.80 of the copy's rate",
       absl::StrFormat("%.2f (%s)", least / copy, slowest->what), true,
       least / copy >= kShareToReach});
  return absl::OkStatus();
}

}  // namespace

Status measure_kernels(Gpu& gpu, const KernelSizes& sizes, Report* report) {
  Kernels kernels(gpu, sizes);
  TESSERA_RETURN_IF_ERROR(kernels.prepare());
  return kernels.measure(report);
}

}  // namespace tessera::benchmarks
