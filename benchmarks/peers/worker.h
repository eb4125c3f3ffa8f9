// SPDX-License-Identifier: Apache-2.0
//
// The common part of every process of tools/bench: it receives commands, repeats an operation,
// checks its results and answers with times. Our processes and the peers differ only in the
// operation.
//
//   driver  --  "all_reduce bytes=1024 calls=100 ..."  -->  PREFIX.RANK.in    of every rank
//   driver  <--  {"seconds": [...], "cpu": 0.1,        --   PREFIX.RANK.out
//                 "at": 12.3, "value": 0.5, "error": ""}
//
// - "cpu": the CPU time of the process for one call.
// - "at": when the command ended, by CLOCK_MONOTONIC, which all processes share.
// - "value": present if the operation has a value and the command says full=1. The driver compares
//   it with the values of the other contestants.
//
// A worker that waits for a command blocks in read() and takes no time from the others.
//
// A measurement poisons the results of set 0, calls once, and checks. Then it does this
// `repetitions` times: meet in a barrier, and time `calls` calls, each on the next of `sets` sets
// of buffers. At the end it checks again. A rank reports its own seconds per call, and the driver
// takes the slowest rank.
//
// Inputs are never written. Byte b of the input region of rank r comes from the pattern, a float of
// 20 bits for each 4 bytes, so sums of 8 ranks are exact and every result is known.
#ifndef TESSERA_BENCHMARKS_PEERS_WORKER_H_
#define TESSERA_BENCHMARKS_PEERS_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::bench {

// "operation name=value name=value ..."
struct Command {
  std::string operation;
  std::map<std::string, std::string> fields;

  static Command parse(const std::string& line);
  int64_t number(const std::string& name, int64_t otherwise) const;
  std::string text(const std::string& name) const;
};

// The operation that a command repeats. A function that can fail returns the error, or "".
struct Operation {
  std::function<std::string(int set)> call;
  // Destroys the results of a set, all of them or the places that check() reads.
  std::function<void(int set, bool full)> poison;
  std::function<std::string(int set, bool full)> check;
  // A number computed from the result of the operation. Called after the first call and its check.
  std::function<double()> value = {};
  // Removes what calls have left. Called before the first call, before each repetition and at the
  // end; not timed.
  std::function<std::string()> reset = {};
};

class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string barrier() = 0;
  virtual std::string prepare(const Command& command, Operation* operation) = 0;
  // Frees memory that a later command can allocate again.
  virtual void release() {}
};

// Reports that it is ready, answers commands until "quit", and returns the exit code.
int serve(Contestant& contestant, const std::string& prefix);

// Serves with a process of Tessera, a StatusOr<std::unique_ptr<...>> whose shutdown() leaves the
// job. Prints errors after the name of the program. Returns the exit code.
template <class Made>
int serve_and_shutdown(const char* program, const Made& worker, const std::string& prefix) {
  auto status = worker.status();
  int code = 1;
  if (worker.ok()) {
    code = serve(**worker, prefix);
    status = (*worker)->shutdown();
  }
  if (status.ok()) return code;
  std::fprintf(stderr, "%s: %s\n", program, status.ToString().c_str());
  return 1;
}

// Element i of the input region of `rank`.
float pattern(int rank, int64_t i);
std::byte pattern_byte(int rank, int64_t byte);

// Element i of the input with that seed, in benchmarks of operations: in [-0.5, 0.5).
float noise(uint32_t seed, int64_t i);

// The input region, which holds the pattern, and the output region of one rank, equally large.
class Regions {
 public:
  Regions() = default;
  // Over memory with another owner, `size_bytes` each.
  Regions(std::byte* in, std::byte* out, int64_t size_bytes, int rank);
  // Private memory of the process, as malloc returns it for large blocks.
  static Regions allocate(int64_t size_bytes, int rank);
  void free();

  std::byte* in() const { return in_; }
  std::byte* out() const { return out_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Fills the input of an operation, at the first call.
  void fill(int64_t end_bytes);

 private:
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t filled_bytes_ = 0;
  int rank_ = 0;
};

// Runs a collective on `in` and `out`. `bytes` is the size of the result of all_gather, of the
// vector of all_reduce and broadcast, and of the input of reduce_scatter and all_to_all.
using CollectiveCall =
    std::function<std::string(const std::byte* in, std::byte* out, int64_t bytes)>;
// The collective that the command names, on regions of floats if it reduces, else of bytes.
// broadcast is from rank 0, which passes its input as its output.
std::string prepare_collective(const Command& command, int rank, int size, Regions& regions,
                               CollectiveCall call, Operation* operation);

// Rows [row, row_end) and columns [col, col_end) of a matrix; stored row by row.
struct Block {
  int64_t row = 0;
  int64_t row_end = 0;
  int64_t col = 0;
  int64_t col_end = 0;

  int64_t rows() const { return row_end - row; }
  int64_t cols() const { return col_end - col; }
  bool is_empty() const { return rows() <= 0 || cols() <= 0; }
  bool contains(const Block& other) const;
  Block intersect(const Block& other) const;
};

// The move of a matrix from one block per rank to another block per rank:
// "element=8 from=R:R:C:C,... to=R:R:C:C,...".
struct MatrixMove {
  int64_t element_bytes = 4;
  std::vector<Block> from;
  std::vector<Block> to;

  static MatrixMove parse(const Command& command);
  // The block that `target` takes from `source`. A target that holds everything takes it from
  // itself.
  Block piece(int source, int target) const;
  int64_t from_bytes(int rank) const;
  int64_t to_bytes(int rank) const;
};

using MoveCall = std::function<std::string(const std::byte* in, std::byte* out)>;
// Uses the regions as prepare_collective() does: the pattern fills the matrix.
std::string prepare_move(const Command& command, const MatrixMove& move, int rank, Regions& regions,
                         MoveCall call, Operation* operation);

}  // namespace tessera::bench

#endif  // TESSERA_BENCHMARKS_PEERS_WORKER_H_
