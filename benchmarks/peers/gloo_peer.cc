// SPDX-License-Identifier: Apache-2.0
//
// Gloo over TCP as a contestant of tools/bench. It has no transport in shared memory, and no
// reduce-scatter of this form.
//
//   gloo_peer RANK SIZE PREFIX REGION_BYTES FOLDER ADDRESS
//                               FOLDER: empty, where the ranks meet; ADDRESS: of this rank's host
//
//   all_reduce, all_gather, all_to_all, broadcast, barrier
//   alltoallv   a relayout: packs a message for each rank, sends, unpacks
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/peers/worker.h"

namespace tessera::bench {
namespace {

using gloo::rendezvous::Context;

std::shared_ptr<Context> connect(int rank, int size, const std::string& folder,
                                 const std::string& address) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<Context>(rank, size);
  context->connectFullMesh(store, device);
  return context;
}

// Copies a piece from a stored block to a packed block, or back.
void copy_piece(const Block& block, const Block& piece, int64_t element_bytes, std::byte* stored,
                std::byte* packed, bool pack) {
  const int64_t row_bytes = piece.cols() * element_bytes;
  for (int64_t r = piece.row; r < piece.row_end; ++r, packed += row_bytes) {
    std::byte* row =
        stored + ((r - block.row) * block.cols() + piece.col - block.col) * element_bytes;
    std::memcpy(pack ? packed : row, pack ? row : packed, row_bytes);
  }
}

class GlooPeer : public Contestant {
 public:
  GlooPeer(std::shared_ptr<Context> context, int64_t region_bytes)
      : context_(std::move(context)),
        region_bytes_(region_bytes),
        regions_(Regions::allocate(region_bytes, context_->rank)) {}

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  void release() override {
    regions_.free();
    send_ = std::vector<std::byte>();
    recv_ = std::vector<std::byte>();
  }

  std::string barrier() override {
    return caught([this] {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    });
  }

  std::string prepare(const Command& command, Operation* operation) override {
    if (regions_.in() == nullptr) regions_ = Regions::allocate(region_bytes_, rank());
    if (regions_.in() == nullptr) return "no memory";
    if (command.operation == "barrier") {
      operation->call = [this](int) { return barrier(); };
      operation->poison = [](int, bool) {};
      operation->check = [](int, bool) { return std::string(); };
      return "";
    }
    if (command.operation == "alltoallv") return prepare_alltoallv(command, operation);
    return prepare_collective(
        command, rank(), size(), regions_,
        [this, name = command.operation](const std::byte* in, std::byte* out, int64_t bytes) {
          return caught([&] { collective(name, const_cast<std::byte*>(in), out, bytes); });
        },
        operation);
  }

 private:
  template <class Fn>
  static std::string caught(Fn fn) {
    try {
      fn();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  void collective(const std::string& name, std::byte* in, std::byte* out, int64_t bytes) {
    auto* source = reinterpret_cast<uint8_t*>(in);
    auto* target = reinterpret_cast<uint8_t*>(out);
    const int64_t part = bytes / size();
    if (name == "all_reduce") {
      gloo::AllreduceOptions options(context_);
      options.setInput(reinterpret_cast<float*>(in), bytes / 4);
      options.setOutput(reinterpret_cast<float*>(out), bytes / 4);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    } else if (name == "all_gather") {
      gloo::AllgatherOptions options(context_);
      options.setInput(source, part);
      options.setOutput(target, bytes);
      gloo::allgather(options);
    } else if (name == "all_to_all") {
      gloo::AlltoallOptions options(context_);
      options.setInput(source, bytes);
      options.setOutput(target, bytes);
      gloo::alltoall(options);
    } else {
      gloo::BroadcastOptions options(context_);
      options.setRoot(0);
      options.setOutput(target, bytes);
      gloo::broadcast(options);
    }
  }

  std::string prepare_alltoallv(const Command& command, Operation* operation) {
    const MatrixMove move = MatrixMove::parse(command);
    std::vector<int64_t> send_counts, recv_counts;
    int64_t send_bytes = 0, recv_bytes = 0;
    for (int peer = 0; peer < size(); ++peer) {
      const Block send = move.piece(rank(), peer);
      const Block recv = move.piece(peer, rank());
      send_counts.push_back(send.is_empty() ? 0 : send.rows() * send.cols() * move.element_bytes);
      recv_counts.push_back(recv.is_empty() ? 0 : recv.rows() * recv.cols() * move.element_bytes);
      send_bytes += send_counts.back();
      recv_bytes += recv_counts.back();
    }
    send_.resize(send_bytes);
    recv_.resize(recv_bytes);
    return prepare_move(
        command, move, rank(), regions_,
        [=, this](const std::byte* in, std::byte* out) {
          return caught([&] { alltoallv(move, send_counts, recv_counts, in, out); });
        },
        operation);
  }

  void alltoallv(const MatrixMove& move, const std::vector<int64_t>& send_counts,
                 const std::vector<int64_t>& recv_counts, const std::byte* in, std::byte* out) {
    std::byte* packed = send_.data();
    for (int peer = 0; peer < size(); packed += send_counts[peer++]) {
      if (send_counts[peer] == 0) continue;
      copy_piece(move.from[rank()], move.piece(rank(), peer), move.element_bytes,
                 const_cast<std::byte*>(in), packed, true);
    }
    gloo::AlltoallvOptions options(context_);
    options.setInput(reinterpret_cast<uint8_t*>(send_.data()), send_counts);
    options.setOutput(reinterpret_cast<uint8_t*>(recv_.data()), recv_counts);
    gloo::alltoallv(options);
    packed = recv_.data();
    for (int peer = 0; peer < size(); packed += recv_counts[peer++]) {
      if (recv_counts[peer] == 0) continue;
      copy_piece(move.to[rank()], move.piece(peer, rank()), move.element_bytes, out, packed, false);
    }
  }

  const std::shared_ptr<Context> context_;
  const int64_t region_bytes_;
  Regions regions_;
  std::vector<std::byte> send_;
  std::vector<std::byte> recv_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  try {
    tessera::bench::GlooPeer peer(
        tessera::bench::connect(std::atoi(argv[1]), std::atoi(argv[2]), argv[5], argv[6]),
        std::atoll(argv[4]));
    return tessera::bench::serve(peer, argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gloo_peer: %s\n", error.what());
    return 1;
  }
}
