// SPDX-License-Identifier: Apache-2.0
//
// The memory bandwidth of the machine: two processes that copy, one at a time or together.
//
//   memory_peer RANK PREFIX REGION_BYTES
//
//   copy   bytes= processes=1|2 stores=plain|streaming     memcpy of glibc, or non-temporal stores
//
// With one process, the other waits in the barrier, asleep.
#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "benchmarks/peers/worker.h"

namespace tessera::bench {
namespace {

constexpr int kProcesses = 2;
constexpr int kSpins = 2000;

// Copies whole lines past the caches. Requires 64-byte alignment and sizes.
void copy_streaming(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
#ifdef __AVX512F__
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(from + i));
#else
    for (int k = 0; k < 64; k += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i + k)));
    }
#endif
  }
  _mm_sfence();
}

// Shared by both processes, in a file beside the pipes.
struct Meeting {
  std::atomic<uint32_t> arrived;
};

class MemoryPeer : public Contestant {
 public:
  MemoryPeer(int rank, Meeting* meeting, int64_t region_bytes)
      : rank_(rank), meeting_(meeting), regions_(Regions::allocate(region_bytes, 0)) {}

  int rank() const override { return rank_; }
  int size() const override { return kProcesses; }

  std::string barrier() override {
    const uint32_t goal = (meeting_->arrived.fetch_add(1) / kProcesses + 1) * kProcesses;
    auto* word = reinterpret_cast<uint32_t*>(&meeting_->arrived);
    if (meeting_->arrived.load() == goal) syscall(SYS_futex, word, FUTEX_WAKE, kProcesses);
    for (int spins = 0; static_cast<int32_t>(meeting_->arrived.load() - goal) < 0; ++spins) {
      const uint32_t seen = meeting_->arrived.load();
      if (spins < kSpins) {
        _mm_pause();
      } else if (static_cast<int32_t>(seen - goal) < 0) {
        syscall(SYS_futex, word, FUTEX_WAIT, seen, nullptr);
      }
    }
    return "";
  }

  std::string prepare(const Command& command, Operation* operation) override {
    if (command.operation != "copy") return "memory_peer cannot " + command.operation;
    const bool takes_part = rank_ < command.number("processes", 1);
    const bool streaming = command.text("stores") == "streaming";
    // Checked as a broadcast from each process to itself.
    Command own = command;
    own.operation = "all_gather";
    const std::string error = prepare_collective(
        own, 0, 1, regions_,
        [=](const std::byte* in, std::byte* out, int64_t bytes) -> std::string {
          if (!takes_part) return "";
          if (streaming) {
            copy_streaming(out, in, bytes);
          } else {
            std::memcpy(out, in, bytes);
          }
          return "";
        },
        operation);
    if (!takes_part) {
      operation->check = [](int, bool) { return std::string(); };
    }
    return error;
  }

 private:
  const int rank_;
  Meeting* const meeting_;
  Regions regions_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  if (argc != 4) return 2;
  const int rank = std::atoi(argv[1]);
  const std::string path = std::string(argv[2]) + ".meeting";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Meeting)) != 0) {
    std::perror(path.c_str());
    return 1;
  }
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 1;

  MemoryPeer peer(rank, static_cast<Meeting*>(memory), std::atoll(argv[3]));
  return serve(peer, argv[2]);
}
