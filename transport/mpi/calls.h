// SPDX-License-Identifier: Apache-2.0
//
// Calls: the functions of MPI that the engine on MPI needs, without a type of MPI.
//
// Every MPI has types and constants of its own, so nothing that is built beforehand can call it.
// tessera/mpi.h implements Calls in the user's program, with the user's MPI. The library calls MPI
// through this table alone, and builds where no MPI is installed.
//
// All messages go through one communicator, which has no other users. A message to a rank arrives
// after all earlier messages to it with the same tag.
//
// Thread-safe. After MPI_Finalize() has begun, all functions fail as Unavailable.
#ifndef TESSERA_TRANSPORT_MPI_CALLS_H_
#define TESSERA_TRANSPORT_MPI_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace mpi {

class Calls {
 public:
  // MPI's own values, by their bits.
  using Request = uint64_t;
  using Message = uint64_t;
  struct Arrived {
    Message message = 0;
    int rank = 0;  // of the sender
    size_t num_bytes = 0;
  };

  virtual ~Calls() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;

  // Starts a send (MPI_Isend). The bytes are MPI's until is_done().
  virtual StatusOr<Request> send(int rank, int tag, absl::Span<const std::byte> bytes) = 0;
  // Removes the next message with the tag from MPI's matching (MPI_Improbe); nullopt: there is
  // none.
  virtual StatusOr<std::optional<Arrived>> probe(int tag) = 0;
  // Starts to receive the message of probe() (MPI_Imrecv). The bytes are MPI's until is_done().
  virtual StatusOr<Request> receive(Message message, absl::Span<std::byte> bytes) = 0;
  // Whether the request has ended (MPI_Test). After that, and after an error, it must not be used
  // again.
  virtual StatusOr<bool> is_done(Request& request) = 0;

  // MPI cannot be made to give up a request, so the memory of unfinished requests lives as long as
  // this object, which lasts until MPI_Finalize().
  void keep(std::unique_ptr<std::byte[]> bytes) {
    std::lock_guard<std::mutex> lock(kept_mutex_);
    kept_.push_back(std::move(bytes));
  }

 private:
  std::mutex kept_mutex_;  // guards the members below
  std::vector<std::unique_ptr<std::byte[]>> kept_;
};

}  // namespace mpi
}  // namespace tessera

#endif  // TESSERA_TRANSPORT_MPI_CALLS_H_
