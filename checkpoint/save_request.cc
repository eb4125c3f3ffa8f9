// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_request.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/exception_status.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writers.h"
#include "dtensor/client_messages.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "files/box_runs.h"
#include "files/json_reader.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr size_t kMostClientsNamed = 8;

// The bytes of the distinct boxes of this client.
int64_t local_bytes(const Client& client, const SavedTensor& tensor) {
  std::vector<Box> known;
  int64_t bytes = 0;
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = tensor.layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const Box box = tensor.layout.box(tensor.shape, *position);
    if (std::find(known.begin(), known.end(), box) != known.end()) continue;
    bytes += num_bytes(box.sizes, tensor.dtype);
    known.push_back(box);
  }
  return bytes;
}

Status check_tensors(const Client& client, absl::Span<const NamedTensor> tensors,
                     const SaveOptions& options) {
  if (options.min_split_bytes < 0 || options.max_bytes_per_second < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "min_split_bytes is ", options.min_split_bytes, " and max_bytes_per_second is ",
        options.max_bytes_per_second, "; give 0 or more"));
  }
  if (options.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step is ", options.step, "; give 0 or more"));
  }
  // The manifest is JSON, which has no other texts.
  for (const auto& [key, value] : options.metadata) {
    for (const std::string& text : {key, value}) {
      TESSERA_RETURN_IF_ERROR(
          with_context(files::check_utf8(text), absl::StrCat("metadata ", in_quotes(key))));
    }
  }
  std::set<absl::string_view> names;
  for (const NamedTensor& named : tensors) {
    TESSERA_RETURN_IF_ERROR(check_tensor_name(named.name));
    if (!names.insert(named.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two tensors are called ", in_quotes(named.name), "; names must differ"));
    }
    const std::string subject = absl::StrCat("tensor ", in_quotes(named.name));
    TESSERA_RETURN_IF_ERROR(with_context(tessera::internal::facts_of(named.tensor).error, subject));
    TESSERA_RETURN_IF_ERROR(
        tessera::internal::check_mesh_of(client, named.tensor.layout().mesh(), subject));
  }
  return absl::OkStatus();
}

}  // namespace

std::string progress_series(int client) { return absl::StrCat("save progress ", client); }

Status HeldTensor::copy(const Client& client, const SavedTensor& saved, int64_t min_split_bytes) {
  for (const Device& device : client.local_devices()) {
    const std::optional<int64_t> position = saved.layout.mesh().position_of_device(device.id);
    if (!position.has_value()) continue;
    const std::optional<Box> box =
        written_box(saved.layout, saved.shape, saved.dtype, saved.name, min_split_bytes, *position);
    if (!box.has_value()) continue;
    TESSERA_ASSIGN_OR_RETURN(const ShardBytes shard, shard_of(client, device.id));
    auto bytes = std::make_shared<std::vector<std::byte>>(
        static_cast<size_t>(num_bytes(box->sizes, saved.dtype)));
    files::for_each_run(shard.box, *box, *box, dtype_size(saved.dtype),
                        [&](int64_t from, int64_t to, int64_t count) {
                          std::copy_n(shard.data + from, count, bytes->data() + to);
                        });
    copies_[device.id] = {*box, bytes->data(), bytes};
  }
  tensor_.reset();
  return absl::OkStatus();
}

StatusOr<ShardBytes> HeldTensor::shard_of(const Client& client, int device) const {
  if (!tensor_.has_value()) return copies_.at(device);
  // Shards are numbered by the local devices of the mesh, by ordinal.
  int index = 0;
  for (const Device& local : client.local_devices()) {
    if (local.id == device) break;
    if (tensor_->layout().mesh().position_of_device(local.id).has_value()) ++index;
  }
  TESSERA_ASSIGN_OR_RETURN(tessera::internal::RawShard shard,
                           tessera::internal::raw_shard(*tensor_, index));
  return ShardBytes{std::move(shard.box), shard.data, std::move(shard.buffer)};
}

std::unique_ptr<SaveRequest> make_request(const Client& client, absl::string_view path,
                                          absl::Span<const NamedTensor> tensors,
                                          const SaveOptions& options) {
  auto request = std::make_unique<SaveRequest>(client);
  request->path = std::string(path);
  request->options = options;
  request->state = std::make_shared<SaveState>(request->path);
  request->refused = check_tensors(client, tensors, options);
  for (const NamedTensor& named : tensors) {
    if (!tessera::internal::facts_of(named.tensor).error.ok()) continue;
    // The other clients reduce it too, whether or not this one refuses the save.
    const Layout layout = named.tensor.layout().without_partial();
    DTensor tensor =
        named.tensor.layout().is_partial() ? relayout(named.tensor, layout) : named.tensor;
    request->tensors.push_back({named.name, tensor.dtype(), tensor.shape(), layout});
    request->held.emplace_back(std::move(tensor));
    request->held_bytes += local_bytes(client, request->tensors.back());
  }
  return request;
}

void copy_tensors(SaveRequest& request) {
  for (size_t i = 0; i < request.held.size() && request.refused.ok(); ++i) {
    const SavedTensor& tensor = request.tensors[i];
    const Status copied = call_guarded<Status>([&] {
      return request.held[i].copy(request.client, tensor, request.options.min_split_bytes);
    });
    request.refused = with_context(copied, absl::StrCat("tensor ", in_quotes(tensor.name)));
  }
}

void SaveState::start(const Client& client, uint32_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  client_ = client;
  number_ = number;
}

void SaveState::finish(const Status& status) {
  std::optional<Client> released;  // after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_done_ = true;
    status_ = status;
    released.swap(client_);
  }
  done_.notify_all();
}

bool SaveState::is_done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return is_done_;
}

bool SaveState::take(Status* status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_done_ || is_taken_) return false;
  is_taken_ = true;
  *status = status_;
  return true;
}

void SaveState::disown() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_taken_ = true;
}

Status SaveState::await(absl::Duration timeout) {
  std::optional<Client> client;
  uint32_t number;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_done = [this] { return is_done_; };
    if (!is_done_) {
      // A thread that the save waits for, and a child that has no saver, would wait for ever.
      TESSERA_RETURN_IF_ERROR(tessera::internal::check_may_wait(*client_, "Pending::await"));
    }
    if (timeout == absl::InfiniteDuration()) {
      done_.wait(lock, is_done);
    } else {
      done_.wait_until(lock, to_chrono_steady(steady_now() + timeout), is_done);
    }
    if (is_done_) {
      is_taken_ = true;
      return status_;
    }
    client = client_;
    number = number_;
  }
  return not_in_time(*client, number, timeout);
}

Status SaveState::not_in_time(const Client& client, uint32_t number, absl::Duration timeout) const {
  using tessera::internal::await_post;
  std::vector<std::string> texts;
  size_t num_more = 0;
  for (int other = 0; other < client.num_clients(); ++other) {
    const auto report = [&](uint32_t k) {
      return await_post(client, progress_series(other), number * kReportsOfSave + k, other,
                        absl::ZeroDuration());
    };
    if (report(kWritten).ok()) continue;
    if (texts.size() == kMostClientsNamed) {
      ++num_more;
      continue;
    }
    std::string bytes = "nothing";
    if (other == client.client_id()) {
      bytes = format_bytes(bytes_written.load());
    } else {
      for (uint32_t k = kWritten; k-- > 0;) {
        const StatusOr<std::string> found = report(k);
        if (absl::IsUnavailable(found.status())) bytes = "nothing more, for it is lost";
        if (found.ok()) bytes = *found;
        if (!absl::IsDeadlineExceeded(found.status())) break;
      }
    }
    texts.push_back(
        absl::StrCat(tessera::internal::describe_client(client, other), " has written ", bytes));
  }
  const std::string subject =
      absl::StrCat("save ", quoted_whole(path), ": ",
                   tessera::not_in_time("it was not complete", timeout, "after"));
  if (texts.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat(subject, ": all data is written, and client 0 has yet to write the manifest"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      subject, ": ", absl::StrJoin(texts, ", "),
      num_more > 0 ? absl::StrCat(", and ", num_more, " more clients are not done") : ""));
}

}  // namespace tessera::checkpoint::internal
