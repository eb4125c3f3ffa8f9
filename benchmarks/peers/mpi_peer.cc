// SPDX-License-Identifier: Apache-2.0
//
// Open MPI, and ScaLAPACK on top of it, as contestants of tools/bench.
//
//   mpirun -np N mpi_peer PREFIX REGION_BYTES
//
//   all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier
//   alltoallw   a relayout in one call, with a subarray type for each peer
//   pdgemr2d    a relayout between two block grids
#include <malloc.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/peers/worker.h"

#ifdef TESSERA_BENCH_SCALAPACK
extern "C" {
void Cblacs_get(int context, int what, int* value);
void Cblacs_gridmap(int* context, int* map, int leading, int rows, int cols);
void Cblacs_gridexit(int context);
void Cpdgemr2d(int m, int n, double* a, int ia, int ja, int* desc_a, double* b, int ib, int jb,
               int* desc_b, int context);
void Cpsgemr2d(int m, int n, float* a, int ia, int ja, int* desc_a, float* b, int ib, int jb,
               int* desc_b, int context);
}
#endif

namespace tessera::bench {
namespace {

std::string error_of(int code) {
  return code == MPI_SUCCESS ? "" : "MPI error " + std::to_string(code);
}

// The types of one rank of an MPI_Alltoallw. Freed with the last copy of the operation.
struct MoveTypes {
  std::vector<int> send_counts, recv_counts, zeros;
  std::vector<MPI_Datatype> send_types, recv_types;

  ~MoveTypes() {
    for (std::vector<MPI_Datatype>* types : {&send_types, &recv_types}) {
      for (MPI_Datatype& type : *types) {
        if (type != MPI_BYTE) MPI_Type_free(&type);
      }
    }
  }
};

// The part `piece` of a stored block. MPI_BYTE if it is empty; nothing is then sent.
MPI_Datatype subarray(const Block& block, const Block& piece, int64_t element_bytes) {
  if (piece.is_empty()) return MPI_BYTE;
  const int sizes[] = {static_cast<int>(block.rows()), static_cast<int>(block.cols())};
  const int subsizes[] = {static_cast<int>(piece.rows()), static_cast<int>(piece.cols())};
  const int starts[] = {static_cast<int>(piece.row - block.row),
                        static_cast<int>(piece.col - block.col)};
  MPI_Datatype type;
  MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C,
                           element_bytes == 8 ? MPI_DOUBLE : MPI_FLOAT, &type);
  MPI_Type_commit(&type);
  return type;
}

std::shared_ptr<MoveTypes> make_types(const MatrixMove& move, int rank) {
  auto types = std::make_shared<MoveTypes>();
  for (int peer = 0; peer < static_cast<int>(move.from.size()); ++peer) {
    const Block send = move.piece(rank, peer);
    const Block recv = move.piece(peer, rank);
    types->send_counts.push_back(send.is_empty() ? 0 : 1);
    types->recv_counts.push_back(recv.is_empty() ? 0 : 1);
    types->send_types.push_back(subarray(move.from[rank], send, move.element_bytes));
    types->recv_types.push_back(subarray(move.to[rank], recv, move.element_bytes));
    types->zeros.push_back(0);
  }
  return types;
}

#ifdef TESSERA_BENCH_SCALAPACK
// One side of a pdgemr2d: ranks in a grid, one block each. ScaLAPACK stores matrices column by
// column, so its matrix is the transpose of ours: its first dim is our columns.
struct Grid {
  int context = -1;
  int descriptor[9] = {};

  ~Grid() {
    if (context >= 0) Cblacs_gridexit(context);
  }
};

// False if the blocks are not a grid of distinct blocks. Replaces `blocks` by the blocks of
// ScaLAPACK's split rule, in which all ranks before the last have equal sizes.
bool make_grid(std::vector<Block>* blocks, int rank, Grid* grid) {
  std::set<int64_t> row_starts, col_starts;
  int64_t rows = 0, cols = 0;
  for (const Block& block : *blocks) {
    row_starts.insert(block.row);
    col_starts.insert(block.col);
    rows = std::max(rows, block.row_end);
    cols = std::max(cols, block.col_end);
  }
  const int64_t grid_rows = static_cast<int64_t>(row_starts.size());
  const int64_t grid_cols = static_cast<int64_t>(col_starts.size());
  if (grid_rows * grid_cols != static_cast<int64_t>(blocks->size())) return false;
  const int64_t block_rows = (rows + grid_rows - 1) / grid_rows;
  const int64_t block_cols = (cols + grid_cols - 1) / grid_cols;
  std::vector<int> map(blocks->size(), -1);  // column by column: our column is the fast index
  for (size_t r = 0; r < blocks->size(); ++r) {
    Block& block = (*blocks)[r];
    const int64_t i = std::distance(row_starts.begin(), row_starts.find(block.row));
    const int64_t j = std::distance(col_starts.begin(), col_starts.find(block.col));
    map[i * grid_cols + j] = static_cast<int>(r);
    block = {std::min(rows, i * block_rows), std::min(rows, (i + 1) * block_rows),
             std::min(cols, j * block_cols), std::min(cols, (j + 1) * block_cols)};
  }
  if (std::find(map.begin(), map.end(), -1) != map.end()) return false;
  Cblacs_get(0, 0, &grid->context);
  Cblacs_gridmap(&grid->context, map.data(), static_cast<int>(grid_cols),
                 static_cast<int>(grid_cols), static_cast<int>(grid_rows));
  const int leading = static_cast<int>(std::max<int64_t>(1, (*blocks)[rank].cols()));
  const int descriptor[9] = {1,
                             grid->context,
                             static_cast<int>(cols),
                             static_cast<int>(rows),
                             static_cast<int>(block_cols),
                             static_cast<int>(block_rows),
                             0,
                             0,
                             leading};
  std::copy(descriptor, descriptor + 9, grid->descriptor);
  return true;
}
#endif

class MpiPeer : public Contestant {
 public:
  explicit MpiPeer(int64_t region_bytes) : region_bytes_(region_bytes) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    regions_ = Regions::allocate(region_bytes_, rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string barrier() override { return error_of(MPI_Barrier(MPI_COMM_WORLD)); }
  void release() override {
    regions_.free();
    malloc_trim(0);  // frees memory that the tuned malloc would keep
  }

  std::string prepare(const Command& command, Operation* operation) override {
    if (regions_.in() == nullptr) regions_ = Regions::allocate(region_bytes_, rank_);
    if (regions_.in() == nullptr) return "no memory";
    if (command.operation == "barrier") {
      operation->call = [this](int) { return barrier(); };
      operation->poison = [](int, bool) {};
      operation->check = [](int, bool) { return std::string(); };
      return "";
    }
    if (command.operation == "alltoallw") return prepare_alltoallw(command, operation);
    if (command.operation == "pdgemr2d") return prepare_gemr2d(command, operation);
    return prepare_collective(
        command, rank_, size_, regions_,
        [this, name = command.operation](const std::byte* in, std::byte* out, int64_t bytes) {
          return collective(name, in, out, bytes);
        },
        operation);
  }

 private:
  std::string collective(const std::string& name, const std::byte* in, std::byte* out,
                         int64_t bytes) const {
    const MPI_Comm world = MPI_COMM_WORLD;
    const int count = static_cast<int>(bytes);
    const int part = count / size_;
    if (name == "all_reduce") {
      return error_of(MPI_Allreduce(in, out, count / 4, MPI_FLOAT, MPI_SUM, world));
    }
    if (name == "reduce_scatter") {
      return error_of(MPI_Reduce_scatter_block(in, out, part / 4, MPI_FLOAT, MPI_SUM, world));
    }
    if (name == "all_gather") {
      return error_of(MPI_Allgather(in, part, MPI_BYTE, out, part, MPI_BYTE, world));
    }
    if (name == "all_to_all") {
      return error_of(MPI_Alltoall(in, part, MPI_BYTE, out, part, MPI_BYTE, world));
    }
    if (name == "broadcast") return error_of(MPI_Bcast(out, count, MPI_BYTE, 0, world));
    return "mpi_peer cannot " + name;
  }

  std::string prepare_alltoallw(const Command& command, Operation* operation) {
    const MatrixMove move = MatrixMove::parse(command);
    const std::shared_ptr<MoveTypes> types = make_types(move, rank_);
    return prepare_move(
        command, move, rank_, regions_,
        [types](const std::byte* in, std::byte* out) {
          return error_of(MPI_Alltoallw(in, types->send_counts.data(), types->zeros.data(),
                                        types->send_types.data(), out, types->recv_counts.data(),
                                        types->zeros.data(), types->recv_types.data(),
                                        MPI_COMM_WORLD));
        },
        operation);
  }

  std::string prepare_gemr2d(const Command& command, Operation* operation) {
#ifdef TESSERA_BENCH_SCALAPACK
    MatrixMove move = MatrixMove::parse(command);
    auto grids = std::make_shared<std::pair<Grid, Grid>>();
    if (!make_grid(&move.from, rank_, &grids->first) ||
        !make_grid(&move.to, rank_, &grids->second)) {
      return "pdgemr2d needs one block per rank, all different";
    }
    const bool is_double = move.element_bytes == 8;
    return prepare_move(
        command, move, rank_, regions_,
        [grids, is_double](const std::byte* in, std::byte* out) {
          Grid& from = grids->first;
          Grid& to = grids->second;
          const int m = from.descriptor[2];
          const int n = from.descriptor[3];
          auto* source = const_cast<std::byte*>(in);
          if (is_double) {
            Cpdgemr2d(m, n, reinterpret_cast<double*>(source), 1, 1, from.descriptor,
                      reinterpret_cast<double*>(out), 1, 1, to.descriptor, from.context);
          } else {
            Cpsgemr2d(m, n, reinterpret_cast<float*>(source), 1, 1, from.descriptor,
                      reinterpret_cast<float*>(out), 1, 1, to.descriptor, from.context);
          }
          return std::string();
        },
        operation);
#else
    (void)command;
    (void)operation;
    return "built without ScaLAPACK";
#endif
  }

  const int64_t region_bytes_;
  int rank_ = 0;
  int size_ = 1;
  Regions regions_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  MPI_Init(&argc, &argv);
  int code = 0;
  {
    tessera::bench::MpiPeer peer(std::atoll(argv[2]));
    code = tessera::bench::serve(peer, argv[1]);
  }
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}
