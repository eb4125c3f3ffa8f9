// SPDX-License-Identifier: Apache-2.0
#include "distribute/exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/shape.h"
#include "base/text.h"
#include "device/device.h"
#include "dtensor/device_op.h"
#include "mesh/mesh_runtime.h"

namespace tessera::distribute::internal {
namespace {

// A record is the size of the text, and as much of it as fits.
constexpr int64_t kSizeBytes = sizeof(int64_t);
constexpr int64_t kMostCallBytes = 1 << 30;

Status unreadable(const std::string& replica, int64_t num_bytes) {
  return absl::InternalError(
      absl::StrCat("the call of ", replica, ", of ", num_bytes,
                   " bytes, cannot be read; build all clients from ",
                   "one Tessera; where they are, report this as a bug of Tessera"));
}

// Where several clients have a replica, the call of the first counts, or the first with an error.
void add_call(Call call, std::optional<Call>& known) {
  if (!known.has_value()) {
    known = std::move(call);
    return;
  }
  if (known->text != call.text && known->error.ok() && call.error.ok()) {
    known->error = absl::InvalidArgumentError(
        absl::StrCat("its clients called ", known->text, " and ", call.text,
                     "; all clients must make the same calls in the same order"));
  }
  if (known->error.ok() && !call.error.ok()) known = std::move(call);
}

}  // namespace

Call call_of(std::string text, absl::Span<const DTensor> tensors,
             const CommunicationOptions& options) {
  if (!options.name.empty()) absl::StrAppend(&text, " ", in_quotes(options.name));
  Call call = {.text = std::move(text)};
  for (const DTensor& tensor : tensors) {
    const Status& error = tessera::internal::facts_of(tensor).error;
    if (call.error.ok() && !error.ok()) call.error = error;
    call.tensors.push_back({tensor.dtype(), tensor.shape(), tensor.layout().to_string()});
  }
  return call;
}

// The first device of each client sends.
StatusOr<Exchange> Exchange::create(const Replicas& replicas, const Mesh& control) {
  const absl::Span<const Device> devices = replicas.client().devices();
  const Mesh& mesh = replicas.mesh();
  std::map<int, int64_t> first_positions;  // in the mesh, by client
  for (int64_t position = mesh.size() - 1; position >= 0; --position) {
    first_positions[devices[*mesh.device_at(position)].client_id] = position;
  }
  std::vector<int> ids;
  for (const auto& [client, position] : first_positions)
    ids.push_back(*control.device_at(position));
  TESSERA_ASSIGN_OR_RETURN(const Mesh clients,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  TESSERA_ASSIGN_OR_RETURN(
      Layout records, Layout::batch_sharded(tessera::internal::with_runtime(
                                                clients, tessera::internal::runtime_of(control)),
                                            "client", 2));
  return Exchange(replicas, std::move(records));
}

// Where a record does not hold its text, a second exchange has the whole texts, and later records
// are as large: a program makes the same calls again and again.
StatusOr<std::vector<Call>> Exchange::calls_of_all(std::vector<Call> local,
                                                   const CommunicationOptions& options) const {
  if (replicas_.is_of_one_client()) return local;
  if (options.timeout.has_value()) {
    TESSERA_RETURN_IF_ERROR(records_.mesh().barrier("calls of replicas", *options.timeout));
  }
  std::vector<std::string> texts;
  for (const Call& call : local) texts.push_back(encode_call(call));
  size_t num_records = 0;  // per client
  for (const auto& [client, replicas] : replicas_.replicas_of_client()) {
    num_records = std::max(num_records, replicas.size());
  }
  const auto num_clients = static_cast<int64_t>(replicas_.replicas_of_client().size());
  const auto exchange_bytes = [&](int64_t bytes) -> StatusOr<HostTensor<uint8_t>> {
    const auto fill = [&](const Box&, absl::Span<uint8_t> out) {
      std::fill(out.begin(), out.end(), uint8_t{0});
      for (size_t i = 0; i < texts.size(); ++i) {
        uint8_t* const record = out.data() + static_cast<int64_t>(i) * bytes;
        const auto size = static_cast<int64_t>(texts[i].size());
        std::memcpy(record, &size, kSizeBytes);
        std::memcpy(record + kSizeBytes, texts[i].data(), std::min(size, bytes - kSizeBytes));
      }
    };
    const Shape shape = {num_clients, static_cast<int64_t>(num_records) * bytes};
    return from_function<uint8_t>(shape, records_, fill).template to_host<uint8_t>();
  };
  int64_t bytes = record_bytes_;
  TESSERA_ASSIGN_OR_RETURN(HostTensor<uint8_t> rows, exchange_bytes(bytes));
  const auto record_at = [&](int64_t index) {  // its size may be more than it holds
    const char* const record = reinterpret_cast<const char*>(rows.data.data()) + index * bytes;
    int64_t size = 0;
    std::memcpy(&size, record, kSizeBytes);
    return absl::string_view(record + kSizeBytes, static_cast<size_t>(size));
  };
  const int64_t end = num_clients * static_cast<int64_t>(num_records);
  int64_t largest = 0;
  for (int64_t i = 0; i < end; ++i) {
    const auto size = static_cast<int64_t>(record_at(i).size());
    if (size < 0 || size > kMostCallBytes) return unreadable("a replica", size);
    largest = std::max(largest, size);
  }
  if (largest > bytes - kSizeBytes) {
    bytes = record_bytes_ = largest + kSizeBytes;
    TESSERA_ASSIGN_OR_RETURN(rows, exchange_bytes(bytes));
  }
  std::vector<std::optional<Call>> known(replicas_.num_replicas());
  int64_t first = 0;
  for (const auto& [client, replicas] : replicas_.replicas_of_client()) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      const absl::string_view text = record_at(first + static_cast<int64_t>(i));
      std::optional<Call> call = decode_call(text);
      if (!call.has_value()) {
        return unreadable(replicas_.names()[replicas[i]], int64_t(text.size()));
      }
      add_call(*std::move(call), known[replicas[i]]);
    }
    first += static_cast<int64_t>(num_records);
  }
  std::vector<Call> calls;
  for (std::optional<Call>& each : known) calls.push_back(*std::move(each));
  return calls;
}

StatusOr<std::vector<Call>> Exchange::agree(std::vector<Call> local, const Freedom& freedom,
                                            const CommunicationOptions& options) const {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Call> calls, calls_of_all(std::move(local), options));
  TESSERA_RETURN_IF_ERROR(check_calls(calls, replicas_.names(), freedom));
  return calls;
}

StatusOr<std::vector<Call>> Exchange::agree(const std::string& text, const Rows& rows,
                                            const Freedom& freedom,
                                            const CommunicationOptions& options) const {
  std::vector<Call> local;
  for (const std::vector<DTensor>& row : rows) local.push_back(call_of(text, row, options));
  return agree(std::move(local), freedom, options);
}

}  // namespace tessera::distribute::internal
