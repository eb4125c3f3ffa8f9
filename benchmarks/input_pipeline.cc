// SPDX-License-Identifier: Apache-2.0
//
// The speed of reading a data set: mapped and batched records of one size, beside a plain loop with
// the same result.
//
//   input_pipeline [RECORDS [BYTES [BATCH]]]         100000, 784 (an image of MNIST), 128
//
// The file is in the page cache. Each record becomes scaled floats, as images do. Numbers are the
// best of 5 passes, in records and in processor time of all threads, which other programs on the
// machine affect less. The rows are:
//
// - two rows with the cost of a round of two clients, by steps of two elements;
// - the plain loop, which reads a batch with one system call into one buffer;
// - the data set in this process;
// - the data set as tensors on two devices of one client, read by the caller and read ahead.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

struct Sizes {
  int64_t num_records = 100000;
  int64_t record_bytes = 784;
  int64_t batch = 128;
};

void scale(absl::Span<const uint8_t> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = static_cast<float>(from[i]) / 255;
}
StatusOr<input::Element> to_floats(input::Element element) {
  const absl::Span<const uint8_t> bytes = element[0].view<uint8_t>();
  HostArray floats{DType::kFloat32, element[0].shape,
                   std::vector<std::byte>(bytes.size() * sizeof(float))};
  scale(bytes, floats.view<float>().data());
  input::Element result;
  result.push_back(std::move(floats));
  return result;
}

// Records of pseudo-random bytes.
Status write_records(const std::string& path, const Sizes& sizes) {
  FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return absl::InternalError(absl::StrCat("cannot create ", path));
  std::vector<uint8_t> record(static_cast<size_t>(sizes.record_bytes));
  uint32_t x = 1;
  for (int64_t i = 0; i < sizes.num_records; ++i) {
    for (uint8_t& byte : record) byte = static_cast<uint8_t>((x = x * 1664525 + 1013904223) >> 24);
    std::fwrite(record.data(), 1, record.size(), file);
  }
  return std::fclose(file) == 0 ? absl::OkStatus()
                                : absl::InternalError(absl::StrCat("cannot write ", path));
}

// The loop of a program without a data set. Uses a float of each batch, so that nothing is
// optimized away.
StatusOr<double> plain_loop(const std::string& path, const Sizes& sizes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<uint8_t> bytes(static_cast<size_t>(sizes.batch * sizes.record_bytes));
  double sum = 0;
  for (;;) {
    const ssize_t got = read(file, bytes.data(), bytes.size());
    if (got <= 0) break;
    std::vector<float> batch(static_cast<size_t>(got));
    scale(absl::MakeConstSpan(bytes.data(), batch.size()), batch.data());
    sum += batch.back();
  }
  close(file);
  return sum;
}

StatusOr<double> in_this_process(const input::Dataset& dataset) {
  TESSERA_ASSIGN_OR_RETURN(input::HostIterator iterator, dataset.iterate());
  double sum = 0;
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Element> batch, iterator.next());
    if (!batch.has_value()) return sum;
    sum += (*batch)[0].view<float>().back();
  }
}

StatusOr<double> as_tensors(const input::Loader& loader) {
  TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
  double sum = 0;
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const std::optional<input::Batch> batch, iterator.next());
    if (!batch.has_value()) return sum;
    const DTensor& tensor = batch->tensors[0];
    TESSERA_ASSIGN_OR_RETURN(const ShardView<float> last,
                             tensor.shard<float>(tensor.num_local_shards() - 1));
    if (!last.data.empty()) sum += last.data.back();
  }
}

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Prints a row, and checks that it has read the same data as the first row.
Status measure(const char* name, const Sizes& sizes, double* expected,
               const std::function<StatusOr<double>()>& pass) {
  absl::Duration best = absl::InfiniteDuration();
  double best_cpu = 1e9;
  for (int i = 0; i < 5; ++i) {
    const absl::Time start = absl::Now();
    const double start_cpu = cpu_seconds();
    TESSERA_ASSIGN_OR_RETURN(const double sum, pass());
    best = std::min(best, absl::Now() - start);
    best_cpu = std::min(best_cpu, cpu_seconds() - start_cpu);
    if (*expected == 0) *expected = sum;
    if (std::abs(sum - *expected) > 1e-6) return absl::InternalError("other records were read");
  }
  const double seconds = absl::ToDoubleSeconds(best);
  const auto records = static_cast<double>(sizes.num_records);
  std::printf("%-24s %9.0f records/s %6.0f MB/s %7.0f ns of processor time per record\n", name,
              records / seconds, records * static_cast<double>(sizes.record_bytes) / seconds / 1e6,
              best_cpu / records * 1e9);
  return absl::OkStatus();
}

// Steps of two clients in two processes, which read one element each, with and without a round per
// step. Prints microseconds per step on client 0.
Status measure_rounds() {
  constexpr int64_t kSteps = 5000;
  const auto same = [](input::Element element) -> StatusOr<input::Element> { return element; };
  return spawn(2, [&](const Client& client) -> Status {
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}}));
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::batch_sharded(mesh, "batch", 1));
    for (const bool has_rounds : {false, true}) {
      input::Dataset dataset = input::Dataset::range(2 * kSteps);
      if (has_rounds) dataset = dataset.map(same);
      TESSERA_ASSIGN_OR_RETURN(
          const input::Loader loader,
          input::distribute(client, dataset.batch(2), {layout}, {.prefetch = 0}));
      absl::Duration best = absl::InfiniteDuration();
      for (int i = 0; i < 5; ++i) {
        TESSERA_ASSIGN_OR_RETURN(input::Iterator iterator, loader.iterate());
        const absl::Time start = absl::Now();
        for (int64_t step = 0; step < kSteps; ++step) {
          TESSERA_RETURN_IF_ERROR(iterator.next().status());
        }
        best = std::min(best, absl::Now() - start);
      }
      if (client.client_id() != 0) continue;
      std::printf("two clients, %-11s %8.2f us per step\n", has_rounds ? "rounds" : "no rounds",
                  absl::ToDoubleMicroseconds(best) / kSteps);
      std::fflush(stdout);
    }
    return mesh.barrier("end");
  });
}

Status run(const Sizes& sizes) {
  const char* const folder = std::getenv("TMPDIR");
  const std::string path =
      absl::StrCat(folder == nullptr ? "/tmp" : folder, "/input_pipeline.", getpid());
  TESSERA_RETURN_IF_ERROR(write_records(path, sizes));
  TESSERA_ASSIGN_OR_RETURN(const input::Dataset records,
                           input::Dataset::fixed_records({path}, sizes.record_bytes));
  const input::Dataset batches = records.map(to_floats).batch(sizes.batch);
  const input::Dataset parallel = records.map(to_floats, 2).batch(sizes.batch);
  const input::Dataset shuffled = records.shuffle(1).map(to_floats).batch(sizes.batch);
  TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({.num_local_devices = 2}));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"batch", 2}}));
  TESSERA_ASSIGN_OR_RETURN(const Layout layout, Layout::batch_sharded(mesh, "batch", 2));
  double sum = 0;
  TESSERA_RETURN_IF_ERROR(
      measure("plain loop", sizes, &sum, [&] { return plain_loop(path, sizes); }));
  TESSERA_RETURN_IF_ERROR(
      measure("data set", sizes, &sum, [&] { return in_this_process(batches); }));
  TESSERA_RETURN_IF_ERROR(
      measure("data set, two threads", sizes, &sum, [&] { return in_this_process(parallel); }));
  double sum_of_shuffled = 0;
  TESSERA_RETURN_IF_ERROR(measure("data set, shuffled", sizes, &sum_of_shuffled,
                                  [&] { return in_this_process(shuffled); }));
  for (const int prefetch : {0, 1}) {
    TESSERA_ASSIGN_OR_RETURN(const input::Loader loader,
                             input::distribute(client, batches, {layout}, {.prefetch = prefetch}));
    TESSERA_RETURN_IF_ERROR(measure(prefetch == 0 ? "as tensors" : "as tensors, read ahead", sizes,
                                    &sum, [&] { return as_tensors(loader); }));
  }
  unlink(path.c_str());
  return client.shutdown();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Sizes sizes;
  int64_t* const numbers[] = {&sizes.num_records, &sizes.record_bytes, &sizes.batch};
  for (int i = 1; i < argc; ++i) {
    if (i > 3 || !absl::SimpleAtoi(argv[i], numbers[i - 1]) || *numbers[i - 1] < 1) {
      std::fprintf(stderr, "input_pipeline [RECORDS [BYTES [BATCH]]]: numbers of 1 and more\n");
      return 2;
    }
  }
  tessera::Status status = tessera::measure_rounds();  // before this process has threads
  if (status.ok()) status = tessera::run(sizes);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
