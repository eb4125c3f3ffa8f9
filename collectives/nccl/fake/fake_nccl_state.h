// SPDX-License-Identifier: Apache-2.0
//
// The state of the fake of NCCL: communicators, the worlds of which they are ranks, and the work
// that is given to their streams. Used by FakeNccl alone, under its mutex.
//
//   fake_nccl.cc          communicators: made, polled, revoked, finalised, destroyed, aborted
//   fake_nccl_memory.cc   memory of NCCL's own
//   fake_nccl_calls.cc    the calls of threads: groups, sends, receives, collectives
//   fake_nccl_streams.cc  the work of streams: given, and run
#ifndef TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_STATE_H_
#define TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_STATE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/nccl/api.h"

namespace tessera::nccl::fake {

struct Comm;
using Bytes = std::pair<const std::byte*, uint64_t>;  // begin, number

// The request of one end to the other.
struct Transfer {
  int peer;
  std::byte* memory;  // only read of a send
  uint64_t num_bytes;
  std::string call;  // the call that both ends must make: "send/recv", "broadcast from 2"
};

// A send that its stream has reached.
struct Letter {
  Transfer transfer;
  bool taken = false;
  bool read = false;
};

// The reduction that a rank computes from the terms of all, once it has them.
struct Reduction {
  std::string call;  // as Transfer::call
  DType dtype;
  ReduceOp op;
  // The part of its elements that it sends to each rank, and keeps for itself.
  const std::byte* from;
  struct Part {
    uint64_t first;
    uint64_t count;
  };
  std::vector<Part> parts;
  std::byte* to;  // where its own part of the result goes
  // The first rank whose chunk is in the own part, in chunks of `chunk` elements: the terms of a
  // chunk are added from the rank after its owner on.
  int first_owner;
  uint64_t chunk;
  std::vector<std::vector<std::byte>> terms = {};  // of the own part, by rank

  void run();
};

struct Operation {
  std::vector<Transfer> sends;
  std::vector<Transfer> recvs;
  // A rank's own part of a collective.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t num_bytes = 0;
  std::shared_ptr<Reduction> reduction;
  bool never_ends = false;

  bool is_message() const { return from == nullptr && to == nullptr && reduction == nullptr; }
  // The GPU memory that it reads and writes.
  std::vector<Bytes> memory() const;
};

// One call of the interface, as it waits for the end of its group.
struct Call {
  std::shared_ptr<Comm> comm;
  StreamHandle stream;
  Operation operation;
};

struct ThreadGroup {
  int depth = 0;
  std::vector<Call> calls;
  std::set<int> freed_on;  // GPUs of communicators that ended in the group
};

struct World {
  uint64_t number = 0;
  int num_ranks = 0;
  std::map<int, std::shared_ptr<Comm>> ranks;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Letter>>> mail;  // by (from, to)
};

struct Comm {
  enum class State { kMaking, kReady, kRevoked, kFinalized };

  std::shared_ptr<World> world;
  int rank = 0;
  int gpu = 0;
  int seat = 0;
  std::thread::id maker;
  State state = State::kMaking;
  bool ended = false;  // its work must finish
  int stalled_polls = 0;
  int queued = 0;            // operations that its streams were given and have not done
  int running = 0;           // of these, running now
  int queued_ungrouped = 0;  // of these, sends and receives outside of a group
  std::optional<Status> error;
  // Calls of a group whose end is in progress.
  std::vector<Call> deferred;
};

}  // namespace tessera::nccl::fake

#endif  // TESSERA_COLLECTIVES_NCCL_FAKE_FAKE_NCCL_STATE_H_
