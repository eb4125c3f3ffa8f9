// SPDX-License-Identifier: Apache-2.0
//
// SaveRequest: one save as the saver runs it, and SaveState, its progress as Pending shows it.
//
// make_request() is the part of a save that the calling thread does: checks, the reduction of
// partial tensors, and with Staging::kCopy the copies. Internal to checkpoint/.
#ifndef TESSERA_CHECKPOINT_SAVE_REQUEST_H_
#define TESSERA_CHECKPOINT_SAVE_REQUEST_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/public.h"
#include "base/shape.h"
#include "base/status.h"
#include "checkpoint/options.h"
#include "checkpoint/save_plan.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/array_files.h"

namespace tessera::checkpoint::internal {

// Bytes of a tensor in memory of the host.
struct ShardBytes {
  Box box;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

// The value of a tensor at the time of the call.
class HeldTensor {
 public:
  explicit HeldTensor(DTensor tensor) : tensor_(std::move(tensor)) {}

  // Replaces the tensor by copies of the boxes that the devices of this client write.
  Status copy(const Client& client, const SavedTensor& saved, int64_t min_split_bytes);
  // Memory that has the box which this local device writes. Waits for it.
  StatusOr<ShardBytes> shard_of(const Client& client, int device) const;

 private:
  std::optional<DTensor> tensor_;     // nothing after copy()
  std::map<int, ShardBytes> copies_;  // by device
};

// The progress and the result of a save. Thread-safe.
class TESSERA_INTERNAL SaveState {
 public:
  explicit SaveState(std::string path) : path(std::move(path)) {}

  const std::string path;
  std::atomic<int64_t> bytes_written{0};

  // The save has begun to wait in the queue of this client; `number` is its place among all saves.
  void start(const Client& client, uint32_t number);
  void finish(const Status& status);
  bool is_done() const;
  // The result has been given to the program, or will be by this call: once. False before the end.
  bool take(Status* status);
  // No caller will ask for the result: it has another error.
  void disown();
  Status await(absl::Duration timeout);

 private:
  Status not_in_time(const Client& client, uint32_t number, absl::Duration timeout) const;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable done_;
  bool is_done_ = false;
  bool is_taken_ = false;
  Status status_;
  std::optional<Client> client_;  // until the end: the last handle may be one of the saver
  uint32_t number_ = 0;
};

struct SaveRequest {
  explicit SaveRequest(Client saving) : client(std::move(saving)) {}

  Client client;
  std::string path;
  SaveOptions options;
  std::vector<SavedTensor> tensors;
  std::vector<HeldTensor> held;  // by tensor
  int64_t held_bytes = 0;        // the bytes that this client keeps alive
  // The error by which this client refuses the save. It takes part in the first round with it.
  Status refused;
  // Called on the thread of the saver of client 0, when the checkpoint is complete.
  std::function<void()> when_complete;
  std::shared_ptr<SaveState> state;
};

// The request of a call. An error of its arguments becomes `refused`.
std::unique_ptr<SaveRequest> make_request(const Client& client, absl::string_view path,
                                          absl::Span<const NamedTensor> tensors,
                                          const SaveOptions& options);
// Staging::kCopy: waits for the tensors of the request and copies them. An error becomes `refused`.
void copy_tensors(SaveRequest& request);

// Progress that a client reports to the others (client_messages.h): a series, of which each save
// has kReportsOfSave numbers. The last number says that all bytes are written, the others how many
// are.
inline constexpr uint32_t kReportsOfSave = 16;
inline constexpr uint32_t kWritten = kReportsOfSave - 1;
std::string progress_series(int client);

}  // namespace tessera::checkpoint::internal

#endif  // TESSERA_CHECKPOINT_SAVE_REQUEST_H_
