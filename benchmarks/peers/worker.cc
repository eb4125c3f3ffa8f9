// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/peers/worker.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

namespace tessera::bench {
namespace {

constexpr int64_t kLine = 64;
// Places of a large result that every check reads; the first check reads all places.
constexpr int64_t kSamples = 997;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

double now_seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The CPU time of all threads, in the kernel too.
double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t stride_of(int64_t count, bool full) {
  return full ? 1 : std::max<int64_t>(1, count / kSamples);
}

// A JSON string: quotes and control characters of a message must not end it.
std::string in_quotes(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + "\"";
}

// The times of a command, in seconds a call, and the value of the operation.
struct Times {
  std::vector<double> of_repetitions;
  double cpu = 0;
  std::optional<double> value;
};

std::string measure(Contestant& contestant, const Command& command, Times* times) {
  Operation operation;
  std::string error = contestant.prepare(command, &operation);
  if (!error.empty()) return error;
  const bool full = command.number("full", 0) != 0;
  const int64_t sets = command.number("sets", 1);
  const int64_t calls = command.number("calls", 1);
  if (operation.reset && !(error = operation.reset()).empty()) return error;
  operation.poison(0, full);
  // Peers write into results, so all must be poisoned before any process starts.
  if (error = contestant.barrier(); !error.empty()) return error;
  if (error = operation.call(0); !error.empty()) return error;
  if (error = operation.check(0, full); !error.empty()) return error;
  if (full && operation.value) times->value = operation.value();
  int64_t set = 0;
  const int64_t repetitions = command.number("repetitions", 1);
  double cpu = 0;
  for (int64_t i = 0; i < repetitions; ++i) {
    if (operation.reset && !(error = operation.reset()).empty()) return error;
    if (error = contestant.barrier(); !error.empty()) return error;
    const double cpu_before = cpu_seconds();
    const double start = now_seconds();
    for (int64_t k = 0; k < calls; ++k) {
      set = set + 1 < sets ? set + 1 : 0;
      if (error = operation.call(static_cast<int>(set)); !error.empty()) return error;
    }
    times->of_repetitions.push_back((now_seconds() - start) / static_cast<double>(calls));
    cpu += cpu_seconds() - cpu_before;
  }
  times->cpu = cpu / static_cast<double>(repetitions * calls);
  if (error = operation.check(static_cast<int>(set), false); !error.empty()) return error;
  if (operation.reset && !(error = operation.reset()).empty()) return error;
  // No rank may prepare another operation on this memory while a peer may be using it.
  return contestant.barrier();
}

}  // namespace

Command Command::parse(const std::string& line) {
  Command command;
  std::istringstream words(line);
  words >> command.operation;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    command.fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return command;
}

int64_t Command::number(const std::string& name, int64_t otherwise) const {
  const auto it = fields.find(name);
  return it == fields.end() ? otherwise : std::atoll(it->second.c_str());
}

std::string Command::text(const std::string& name) const {
  const auto it = fields.find(name);
  return it == fields.end() ? "" : it->second;
}

int serve(Contestant& contestant, const std::string& prefix) {
  const std::string path = prefix + "." + std::to_string(contestant.rank());
  std::FILE* in = std::fopen((path + ".in").c_str(), "r");
  std::FILE* out = std::fopen((path + ".out").c_str(), "w");
  if (in == nullptr || out == nullptr) {
    std::fprintf(stderr, "cannot open %s.in and %s.out\n", path.c_str(), path.c_str());
    return 1;
  }
  // The first collective of the job. The job has started when it returns.
  const std::string first = contestant.barrier();
  std::fprintf(out, "{\"ready\": %.9f, \"error\": %s}\n", now_seconds(), in_quotes(first).c_str());
  std::fflush(out);
  char* line = nullptr;
  size_t capacity = 0;
  int code = 1;  // the driver has ended
  while (getline(&line, &capacity, in) > 0) {
    const Command command = Command::parse(line);
    if (command.operation == "quit") {
      code = 0;
      break;
    }
    Times times;
    std::string error;
    if (command.operation == "release") {
      contestant.release();
    } else {
      error = measure(contestant, command, &times);
    }
    const double ended = now_seconds();
    std::fputs("{\"seconds\": [", out);
    for (size_t i = 0; i < times.of_repetitions.size(); ++i) {
      std::fprintf(out, "%s%.9g", i == 0 ? "" : ", ", times.of_repetitions[i]);
    }
    std::fprintf(out, "], \"cpu\": %.9g, \"at\": %.9f, ", times.cpu, ended);
    // JSON has no infinities.
    if (times.value.has_value() && std::isfinite(*times.value)) {
      std::fprintf(out, "\"value\": %.9g, ", *times.value);
    }
    std::fprintf(out, "\"error\": %s}\n", in_quotes(error).c_str());
    std::fflush(out);
  }
  std::free(line);
  std::fclose(in);
  std::fclose(out);
  return code;
}

float pattern(int rank, int64_t i) {
  uint32_t h =
      static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 40503u * 65599u;
  h ^= h >> 15;
  h *= 2246822519u;
  return static_cast<float>(static_cast<int32_t>(h >> 12));
}

float noise(uint32_t seed, int64_t i) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return static_cast<float>(h >> 8) / 16777216.0f - 0.5f;  // exact
}

std::byte pattern_byte(int rank, int64_t byte) {
  const float value = pattern(rank, byte / 4);
  std::byte bytes[4];
  std::memcpy(bytes, &value, 4);
  return bytes[byte % 4];
}

Regions::Regions(std::byte* in, std::byte* out, int64_t size_bytes, int rank)
    : in_(in), out_(out), size_bytes_(size_bytes), rank_(rank) {}

Regions Regions::allocate(int64_t size_bytes, int rank) {
  size_bytes = round_up(size_bytes, 4096);
  void* memory =
      mmap(nullptr, 2 * size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  auto* in = static_cast<std::byte*>(memory);
  return Regions(in, in + size_bytes, size_bytes, rank);
}

void Regions::free() {
  if (in_ != nullptr) munmap(in_, 2 * size_bytes_);
  *this = Regions();
}

void Regions::fill(int64_t end_bytes) {
  float* values = reinterpret_cast<float*>(in_);
  for (int64_t i = filled_bytes_ / 4; i < end_bytes / 4; ++i) values[i] = pattern(rank_, i);
  // Also maps the pages of the results before the first measurement.
  if (end_bytes > filled_bytes_) {
    std::memset(out_ + filled_bytes_, 0, end_bytes - filled_bytes_);
  }
  filled_bytes_ = std::max(filled_bytes_, end_bytes);
}

namespace {

// Bytes of a result that should equal bytes of the input region of a rank.
struct Run {
  int64_t at;
  int64_t count;
  int64_t from;
  int source;
};

// The place of a wrong byte, or -1. Reads every `stride`-th element.
int64_t find_wrong(const Run& run, const std::byte* out, int64_t stride) {
  if ((run.at | run.count | run.from) % 4 == 0) {
    const float* values = reinterpret_cast<const float*>(out + run.at);
    for (int64_t i = 0; i < run.count / 4; i += stride) {
      if (values[i] != pattern(run.source, run.from / 4 + i)) return run.at + 4 * i;
    }
    return -1;
  }
  for (int64_t i = 0; i < run.count; i += stride) {
    if (out[run.at + i] != pattern_byte(run.source, run.from + i)) return run.at + i;
  }
  return -1;
}

// The regions that a collective reads and writes on one rank, and the expected result.
struct CollectiveShape {
  std::string operation;
  int rank;
  int size;
  int64_t bytes;

  bool reduces() const { return operation == "all_reduce" || operation == "reduce_scatter"; }
  int64_t in_bytes() const { return operation == "all_gather" ? bytes / size : bytes; }
  int64_t out_bytes() const { return operation == "reduce_scatter" ? bytes / size : bytes; }
  // The expected result of a move, for the set that begins at `base`.
  std::vector<Run> runs(int64_t base) const {
    if (operation == "broadcast") return {{0, bytes, base, 0}};
    const int64_t part = bytes / size;
    const int64_t first = operation == "all_gather" ? base : base + rank * part;
    std::vector<Run> result;
    for (int source = 0; source < size; ++source) {
      result.push_back({source * part, part, first, source});
    }
    return result;
  }
  float sum(int64_t base, int64_t i) const {
    const int64_t first = operation == "reduce_scatter" ? rank * (bytes / size) : 0;
    float total = 0;
    for (int r = 0; r < size; ++r) total += pattern(r, (base + first) / 4 + i);
    return total;
  }
};

std::string wrong_at(const std::string& what, int rank, int64_t at) {
  return what + ": wrong result on rank " + std::to_string(rank) + " at " + std::to_string(at);
}

std::string check_collective(const CollectiveShape& shape, int64_t base, const std::byte* out,
                             bool full) {
  if (shape.reduces()) {
    const float* sums = reinterpret_cast<const float*>(out);
    const int64_t count = shape.out_bytes() / 4;
    for (int64_t i = 0; i < count; i += stride_of(count, full)) {
      if (sums[i] != shape.sum(base, i)) return wrong_at(shape.operation, shape.rank, i);
    }
    return "";
  }
  for (const Run& run : shape.runs(base)) {
    const int64_t wrong = find_wrong(run, out, stride_of(run.count / 4, full));
    if (wrong >= 0) return wrong_at(shape.operation, shape.rank, wrong);
  }
  return "";
}

void poison_bytes(std::byte* out, int64_t count, int64_t unit, bool full) {
  if (full) {
    std::memset(out, 0xA5, count);
    return;
  }
  const int64_t stride = stride_of(count / unit, false) * unit;
  for (int64_t i = 0; i + unit <= count; i += stride) std::memset(out + i, 0xA5, unit);
}

std::string needs_more(int64_t bytes, const Regions& regions) {
  if (bytes <= regions.size_bytes()) return "";
  return "the regions have " + std::to_string(regions.size_bytes()) + " bytes, " +
         std::to_string(bytes) + " are needed";
}

}  // namespace

std::string prepare_collective(const Command& command, int rank, int size, Regions& regions,
                               CollectiveCall call, Operation* operation) {
  const CollectiveShape shape = {command.operation, rank, size, command.number("bytes", 0)};
  if (shape.bytes % (size * (shape.reduces() ? 4 : 1)) != 0) return "bytes do not divide";
  const int64_t in_stride = round_up(shape.in_bytes(), kLine);
  const int64_t out_stride = round_up(shape.out_bytes(), kLine);
  const int64_t end = command.number("sets", 1) * std::max(in_stride, out_stride);
  if (const std::string error = needs_more(end, regions); !error.empty()) return error;
  regions.fill(end);
  const bool in_place = command.operation == "broadcast" && rank == 0;
  const auto out_of = [=, &regions](int set) {
    return in_place ? regions.in() + set * in_stride : regions.out() + set * out_stride;
  };
  operation->call = [=, &regions](int set) {
    return call(regions.in() + set * in_stride, out_of(set), shape.bytes);
  };
  operation->poison = [=](int set, bool full) {
    if (!in_place) poison_bytes(out_of(set), shape.out_bytes(), shape.reduces() ? 4 : 1, full);
  };
  operation->check = [=](int set, bool full) {
    return check_collective(shape, set * in_stride, out_of(set), full);
  };
  return "";
}

bool Block::contains(const Block& other) const {
  return row <= other.row && other.row_end <= row_end && col <= other.col &&
         other.col_end <= col_end;
}

Block Block::intersect(const Block& other) const {
  return {std::max(row, other.row), std::min(row_end, other.row_end), std::max(col, other.col),
          std::min(col_end, other.col_end)};
}

MatrixMove MatrixMove::parse(const Command& command) {
  const auto blocks = [&](const std::string& name) {
    std::vector<Block> result;
    std::istringstream text(command.text(name));
    for (std::string one; std::getline(text, one, ',');) {
      Block block;
      long long v[4] = {};
      std::sscanf(one.c_str(), "%lld:%lld:%lld:%lld", &v[0], &v[1], &v[2], &v[3]);
      block = {v[0], v[1], v[2], v[3]};
      result.push_back(block);
    }
    return result;
  };
  return {command.number("element", 4), blocks("from"), blocks("to")};
}

Block MatrixMove::piece(int source, int target) const {
  if (from[target].contains(to[target])) return source == target ? to[target] : Block();
  return from[source].intersect(to[target]);
}

int64_t MatrixMove::from_bytes(int rank) const {
  return from[rank].rows() * from[rank].cols() * element_bytes;
}
int64_t MatrixMove::to_bytes(int rank) const {
  return to[rank].rows() * to[rank].cols() * element_bytes;
}

namespace {

// The offset of element (row, col) of the matrix in a stored block.
int64_t offset_in(const Block& block, int64_t row, int64_t col, int64_t element_bytes) {
  return ((row - block.row) * block.cols() + (col - block.col)) * element_bytes;
}

std::string check_move(const MatrixMove& move, int rank, int64_t base, const std::byte* out,
                       bool full) {
  const int64_t size = move.element_bytes;
  const Block& mine = move.to[rank];
  for (size_t source = 0; source < move.from.size(); ++source) {
    const Block piece = move.piece(static_cast<int>(source), rank);
    if (piece.is_empty()) continue;
    // Primes, so that samples are spread over the columns.
    const int64_t row_stride = full ? 1 : std::max<int64_t>(1, piece.rows() / 31);
    const int64_t stride = full ? 1 : std::max<int64_t>(1, piece.cols() / 37);
    for (int64_t r = piece.row; r < piece.row_end; r += row_stride) {
      const Run run = {offset_in(mine, r, piece.col, size), piece.cols() * size,
                       base + offset_in(move.from[source], r, piece.col, size),
                       static_cast<int>(source)};
      const int64_t wrong = find_wrong(run, out, stride);
      if (wrong >= 0) return wrong_at("relayout", rank, wrong);
    }
  }
  return "";
}

}  // namespace

std::string prepare_move(const Command& command, const MatrixMove& move, int rank, Regions& regions,
                         MoveCall call, Operation* operation) {
  // Equal on every rank, because the values of a set depend on its start.
  int64_t in_stride = 0;
  int64_t out_stride = 0;
  for (int r = 0; r < static_cast<int>(move.from.size()); ++r) {
    in_stride = std::max(in_stride, round_up(move.from_bytes(r), kLine));
    out_stride = std::max(out_stride, round_up(move.to_bytes(r), kLine));
  }
  const int64_t end = command.number("sets", 1) * std::max(in_stride, out_stride);
  if (const std::string error = needs_more(end, regions); !error.empty()) return error;
  regions.fill(end);
  operation->call = [=, &regions](int set) {
    return call(regions.in() + set * in_stride, regions.out() + set * out_stride);
  };
  operation->poison = [=, &regions](int set, bool) {
    std::memset(regions.out() + set * out_stride, 0xA5, move.to_bytes(rank));
  };
  operation->check = [=, &regions](int set, bool full) {
    return check_move(move, rank, set * in_stride, regions.out() + set * out_stride, full);
  };
  return "";
}

}  // namespace tessera::bench
