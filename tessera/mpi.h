// SPDX-License-Identifier: Apache-2.0
//
// Tessera inside an MPI program: the ranks of a communicator become the clients of a job, and bytes
// between hosts go by that MPI.
//
//   int provided;
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
//   StatusOr<ClientOptions> options = tessera::mpi::adopt(MPI_COMM_WORLD);
//   StatusOr<Client> client = Client::connect(*options);
//   ...
//   Status s = client->shutdown();
//   MPI_Finalize();
//
// Header only, because every MPI has an ABI of its own: compile it with the MPI of the program. The
// library itself links no MPI.
//
// What is done with MPI: the communicator is duplicated, so that no message of the program meets
// one of ours. Errors on the duplicate are returned, the program's own communicators keep their
// handlers. MPI is neither initialized nor finalized here. MPI_Finalize() frees the duplicate; a
// client that still lives then loses its connections to other hosts.
//
// Which process runs on which host is found as without MPI; the clients of one host use its shared
// memory.
#ifndef TESSERA_TESSERA_MPI_H_
#define TESSERA_TESSERA_MPI_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/status.h"
#include "dtensor/client_options.h"
#include "transport/mpi/calls.h"
#include "transport/mpi/meeting_place.h"

namespace TESSERA_PUBLIC tessera {
namespace mpi {
namespace internal {

inline Status to_status(const char* call, int code) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int size = 0;
  MPI_Error_string(code, text, &size);
  return absl::UnavailableError(absl::StrCat(call, ": ", text));
}

template <class Handle>
uint64_t bits_of(Handle handle) {
  static_assert(sizeof handle <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &handle, sizeof handle);
  return bits;
}

template <class Handle>
Handle of_bits(uint64_t bits) {
  Handle handle;
  std::memcpy(&handle, &bits, sizeof handle);
  return handle;
}

// Calls on a communicator, from its duplication to MPI_Finalize().
class Communicator final : public Calls {
 public:
  // Collective over `original`.
  static StatusOr<std::shared_ptr<Communicator>> duplicate(MPI_Comm original) {
    std::shared_ptr<Communicator> self(new Communicator);
    TESSERA_RETURN_IF_ERROR(to_status("MPI_Comm_dup", MPI_Comm_dup(original, &self->handle_)));
    MPI_Comm_set_errhandler(self->handle_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(self->handle_, &self->rank_);
    MPI_Comm_size(self->handle_, &self->num_ranks_);
    // MPI_Finalize() begins with the end of the attributes of MPI_COMM_SELF.
    int key = 0;
    auto* const held = new std::shared_ptr<Communicator>(self);
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &key, nullptr);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, held);
    MPI_Comm_free_keyval(&key);
    return self;
  }

  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }
  MPI_Comm handle() const { return handle_; }

  // Holds the address of the job on the host of rank 0.
  MeetingPlace place;

  StatusOr<Request> send(int rank, int tag, absl::Span<const std::byte> bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(check_open());
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_RETURN_IF_ERROR(
        to_status("MPI_Isend", MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE,
                                         rank, tag, handle_, &request)));
    return bits_of(request);
  }

  StatusOr<std::optional<Arrived>> probe(int tag) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(check_open());
    int is_there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    TESSERA_RETURN_IF_ERROR(to_status(
        "MPI_Improbe", MPI_Improbe(MPI_ANY_SOURCE, tag, handle_, &is_there, &message, &status)));
    if (is_there == 0) return std::nullopt;
    int num_bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &num_bytes);
    return Arrived{.message = bits_of(message),
                   .rank = status.MPI_SOURCE,
                   .num_bytes = static_cast<size_t>(num_bytes)};
  }

  StatusOr<Request> receive(Message taken, absl::Span<std::byte> bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(check_open());
    MPI_Message message = of_bits<MPI_Message>(taken);
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_RETURN_IF_ERROR(to_status(
        "MPI_Imrecv",
        MPI_Imrecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, &message, &request)));
    return bits_of(request);
  }

  StatusOr<bool> is_done(Request& bits) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TESSERA_RETURN_IF_ERROR(check_open());
    MPI_Request request = of_bits<MPI_Request>(bits);
    int has_ended = 0;
    TESSERA_RETURN_IF_ERROR(
        to_status("MPI_Test", MPI_Test(&request, &has_ended, MPI_STATUS_IGNORE)));
    bits = bits_of(request);
    return has_ended != 0;
  }

 private:
  Communicator() = default;

  Status check_open() const {
    return is_open_ ? absl::OkStatus() : absl::UnavailableError("MPI_Finalize() was called");
  }

  static int on_finalize(MPI_Comm, int, void* attribute, void*) {
    auto* const held = static_cast<std::shared_ptr<Communicator>*>(attribute);
    {
      std::lock_guard<std::mutex> lock((*held)->mutex_);
      (*held)->is_open_ = false;
      MPI_Comm_free(&(*held)->handle_);
    }
    delete held;
    return MPI_SUCCESS;
  }

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int num_ranks_ = 0;
  std::mutex mutex_;     // guards what follows, and every call of MPI here
  bool is_open_ = true;  // MPI_Finalize() has not begun
};

inline Status check_mpi() {
  int is_initialized = 0, is_finalized = 0, level = 0;
  MPI_Initialized(&is_initialized);
  MPI_Finalized(&is_finalized);
  if (is_finalized != 0) return absl::FailedPreconditionError("MPI_Finalize() was called");
  if (is_initialized == 0) {
    return absl::FailedPreconditionError(
        "MPI is not initialized; call MPI_Init_thread() with MPI_THREAD_MULTIPLE first");
  }
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "MPI was initialized for fewer threads than MPI_THREAD_MULTIPLE; a client has a thread of "
      "its "
      "own: call MPI_Init_thread() with MPI_THREAD_MULTIPLE");
}

inline bool is_one_host(MPI_Comm communicator) {
  MPI_Comm host = MPI_COMM_NULL;
  int num_here = 0, num_ranks = 0;
  MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_size(host, &num_here);
  MPI_Comm_size(communicator, &num_ranks);
  MPI_Comm_free(&host);
  return num_here == num_ranks;
}

// Collective: the text of rank 0.
inline Status broadcast(MPI_Comm communicator, std::string& text) {
  int size = static_cast<int>(text.size());
  TESSERA_RETURN_IF_ERROR(to_status("MPI_Bcast", MPI_Bcast(&size, 1, MPI_INT, 0, communicator)));
  text.resize(size);
  return to_status("MPI_Bcast", MPI_Bcast(text.data(), size, MPI_CHAR, 0, communicator));
}

}  // namespace internal

// Options of this process as the client with its rank in `communicator`, with Backend::kMpi.
// Collective: every rank calls it. Rank 0 decides on address and token of the job for all, where
// neither its options nor its environment (TESSERA_COORDINATOR, TESSERA_TOKEN) give them; on
// several hosts the name of its host must then mean its address everywhere. The rest of `options`
// is taken over.
//   FailedPrecondition   MPI is not initialized, or without MPI_THREAD_MULTIPLE
//   Unavailable          MPI's own error
inline StatusOr<ClientOptions> adopt(MPI_Comm communicator, ClientOptions options = {}) {
  TESSERA_RETURN_IF_ERROR(internal::check_mpi());
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<internal::Communicator> own,
                           internal::Communicator::duplicate(communicator));
  const bool is_one_host = internal::is_one_host(own->handle());
  Status chosen;
  if (own->rank() == 0) {
    StatusOr<MeetingPlace> place =
        choose_meeting_place(options.coordinator, options.token, is_one_host);
    chosen = place.status();
    if (place.ok()) own->place = *std::move(place);
  }
  options.coordinator = own->place.address;
  options.token = own->place.token;
  TESSERA_RETURN_IF_ERROR(internal::broadcast(own->handle(), options.coordinator));
  TESSERA_RETURN_IF_ERROR(internal::broadcast(own->handle(), options.token));
  TESSERA_RETURN_IF_ERROR(chosen);
  if (options.coordinator.empty()) {
    return absl::UnavailableError("rank 0 has no address for the coordinator of the job");
  }
  options.client_id = own->rank();
  options.num_clients = own->num_ranks();
  options.backend = Backend::kMpi;
  options.mpi = own;
  return options;
}

}  // namespace mpi
}  // namespace tessera

#endif  // TESSERA_TESSERA_MPI_H_
