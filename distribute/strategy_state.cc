// SPDX-License-Identifier: Apache-2.0
#include "distribute/strategy_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "base/text.h"
#include "distribute/cross_device_ops.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "mesh/mesh_runtime.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"

namespace tessera::distribute::internal {
namespace {

using tessera::internal::assemble;

// A record of an exchange is the size of the text, and as much of it as fits.
constexpr int64_t kSizeBytes = sizeof(int64_t);
constexpr int64_t kMostCallBytes = 1 << 30;

Status unreadable(const std::string& replica, int64_t num_bytes) {
  return absl::InternalError(
      absl::StrCat("the call of ", replica, ", of ", num_bytes,
                   " bytes, cannot be read; build all clients from ",
                   "one Tessera; where they are, report this as a bug of Tessera"));
}

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

}  // namespace

DTensor failed_on(const Mesh& mesh, Status error) {
  return tessera::internal::failed_tensor(DType::kFloat32, {}, Layout::replicated(mesh, 0),
                                          std::move(error));
}

std::vector<DTensor> all_failed(absl::Span<const DTensor> tensors, const Status& error) {
  std::vector<DTensor> result;
  for (const DTensor& each : tensors) {
    result.push_back(
        tessera::internal::failed_tensor(each.dtype(), each.shape(), each.layout(), error));
  }
  return result;
}

DTensor tensor_of(const Mesh& mesh, absl::FunctionRef<DTensor()> fn) {
  const StatusOr<DTensor> tensor = call_guarded<StatusOr<DTensor>>(fn);
  return tensor.ok() ? *tensor : failed_on(mesh, tensor.status());
}

StatusOr<std::shared_ptr<StrategyState>> StrategyState::create(
    const Client& client, Mesh mesh, std::vector<std::string> replica_axes, StrategyOptions options,
    std::optional<Mesh> parameter_mesh) {
  if (tessera::internal::runtime_of(mesh) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a strategy needs a live mesh; ", mesh.to_string(),
                     " is abstract: make it with create_mesh(client, ...)"));
  }
  if (replica_axes.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a strategy needs one replica axis or more of mesh ", mesh.to_string()));
  }
  TESSERA_RETURN_IF_ERROR(check_options(options.communication));
  if (options.cross_device_ops == nullptr) options.cross_device_ops = collective_all_reduce();
  TESSERA_RETURN_IF_ERROR(
      call_guarded<Status>([&] { return options.cross_device_ops->check(client, mesh); }));

  Mesh parameters = parameter_mesh.has_value() ? *std::move(parameter_mesh) : mesh;
  std::shared_ptr<StrategyState> state(
      new StrategyState(client, std::move(mesh), std::move(parameters)));
  state->options_ = std::move(options);
  TESSERA_RETURN_IF_ERROR(state->set_axes(replica_axes));
  TESSERA_RETURN_IF_ERROR(state->options_of({}).status());
  TESSERA_RETURN_IF_ERROR(state->set_call_rows());
  TESSERA_RETURN_IF_ERROR(state->set_replicas());
  return state;
}

// Clients exchange calls by their first device.
Status StrategyState::set_call_rows() {
  const absl::Span<const Device> devices = client().devices();
  std::map<int, int64_t> first_positions;  // in the mesh, by client
  for (int64_t position = mesh().size() - 1; position >= 0; --position) {
    first_positions[devices[*mesh().device_at(position)].client_id] = position;
  }
  const Mesh& control = options_.cross_device_ops->control_mesh(mesh());
  std::vector<int> ids;
  for (const auto& [client, position] : first_positions)
    ids.push_back(*control.device_at(position));
  TESSERA_ASSIGN_OR_RETURN(const Mesh clients,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  TESSERA_ASSIGN_OR_RETURN(
      call_rows_, Layout::batch_sharded(tessera::internal::with_runtime(
                                            clients, tessera::internal::runtime_of(control)),
                                        "client", 2));
  return absl::OkStatus();
}

Status StrategyState::check_options(const CommunicationOptions& options) {
  if (options.bytes_per_pack.has_value() && *options.bytes_per_pack < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes_per_pack is ", *options.bytes_per_pack, "; it should be 0 or more"));
  }
  if (options.timeout.has_value() && *options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "timeout is ", absl::FormatDuration(*options.timeout), "; it should be above 0"));
  }
  return absl::OkStatus();
}

StatusOr<CommunicationOptions> StrategyState::options_over(const CommunicationOptions& base,
                                                           const CommunicationOptions& call) const {
  TESSERA_RETURN_IF_ERROR(check_options(call));
  CommunicationOptions options = base;
  if (call.bytes_per_pack.has_value()) options.bytes_per_pack = call.bytes_per_pack;
  if (call.timeout.has_value()) options.timeout = call.timeout;
  if (call.implementation != CommunicationImplementation::kAuto) {
    options.implementation = call.implementation;
  }
  if (!call.name.empty()) options.name = call.name;
  const DeviceType type = client().devices()[*mesh().device_at(0)].type;
  if (options.implementation == CommunicationImplementation::kNccl && type == DeviceType::kCpu) {
    return absl::FailedPreconditionError("NCCL moves bytes between GPUs, and the devices are CPUs");
  }
  return options;
}

Call StrategyState::call_of(const std::string& text, absl::Span<const DTensor> tensors) {
  Call call = {.text = text};
  for (const DTensor& tensor : tensors) {
    const Status& error = tessera::internal::facts_of(tensor).error;
    if (call.error.ok() && !error.ok()) call.error = error;
    call.tensors.push_back({tensor.dtype(), tensor.shape(), tensor.layout().to_string()});
  }
  return call;
}

// Where a record does not hold its text, a second exchange has the whole texts, and later records
// are as large: a program makes the same calls again and again.
StatusOr<std::vector<Call>> StrategyState::exchange(std::vector<Call> local,
                                                    const CommunicationOptions& options) const {
  if (is_of_one_client()) return local;
  if (options.timeout.has_value()) {
    TESSERA_RETURN_IF_ERROR(call_rows_->mesh().barrier("calls of replicas", *options.timeout));
  }
  std::vector<std::string> texts;
  for (const Call& call : local) texts.push_back(encode_call(call));
  size_t num_records = 0;  // of each client
  for (const auto& [client, replicas] : replicas_of_client()) {
    num_records = std::max(num_records, replicas.size());
  }
  const auto num_clients = static_cast<int64_t>(replicas_of_client().size());
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
    return from_function<uint8_t>(shape, call_rows_, fill).template to_host<uint8_t>();
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
  std::vector<Call> calls(num_replicas());
  std::vector<bool> has_call(num_replicas(), false);
  int64_t first = 0;
  for (const auto& [client, replicas] : replicas_of_client()) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      const absl::string_view text = record_at(first + static_cast<int64_t>(i));
      std::optional<Call> call = decode_call(text);
      if (!call.has_value()) return unreadable(names()[replicas[i]], int64_t(text.size()));
      // Where several clients have a replica, the first of them counts, or the first with an error.
      Call& known = calls[replicas[i]];
      if (has_call[replicas[i]]) {
        if (known.text != call->text && known.error.ok() && call->error.ok()) {
          known.error = absl::InvalidArgumentError(
              absl::StrCat("its clients called ", known.text, " and ", call->text,
                           "; all clients must make the same calls in the same order"));
        }
        if (!known.error.ok() || call->error.ok()) continue;
      }
      known = *std::move(call);
      has_call[replicas[i]] = true;
    }
    first += static_cast<int64_t>(num_records);
  }
  return calls;
}

StatusOr<std::vector<Call>> StrategyState::agree(const std::string& text,
                                                 absl::Span<const DTensor> parts,
                                                 const Freedom& freedom,
                                                 const CommunicationOptions& options) const {
  const std::string named =
      options.name.empty() ? text : absl::StrCat(text, " ", quoted(options.name));
  std::vector<Call> local;
  for (const DTensor& part : parts) local.push_back(call_of(named, {part}));
  TESSERA_ASSIGN_OR_RETURN(std::vector<Call> calls, exchange(std::move(local), options));
  TESSERA_RETURN_IF_ERROR(check_calls(calls, names(), freedom));
  return calls;
}

StatusOr<std::vector<DTensor>> StrategyState::alike(std::vector<DTensor> parts,
                                                    absl::Span<const Call> calls, int index) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Mesh& mesh = mesh_of(local_replicas()[i]);
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::parse(mesh, calls[0].tensors[index].layout));
    layout = layout.without_partial();
    if (parts[i].layout() != layout) parts[i] = relayout(parts[i], layout);
  }
  return parts;
}

StatusOr<DTensor> StrategyState::reduce_across(ReduceOp op, const PerReplica& value,
                                               LayoutArg destination,
                                               const CommunicationOptions& options) const {
  return call_guarded<StatusOr<DTensor>>(
      [&] { return options_.cross_device_ops->reduce(op, value, destination, options); });
}

StatusOr<std::vector<DTensor>> StrategyState::batch_reduce_across(
    ReduceOp op, absl::Span<const PerReplica> values, absl::Span<const Layout> destinations,
    const CommunicationOptions& options) const {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<DTensor> results, call_guarded<StatusOr<std::vector<DTensor>>>([&] {
        return options_.cross_device_ops->batch_reduce(op, values, destinations, options);
      }));
  if (results.size() == values.size()) return results;
  return absl::InternalError(absl::StrCat("batch_reduce() of the strategy's CrossDeviceOps gave ",
                                          results.size(), " tensors for ", values.size(),
                                          " values"));
}

StatusOr<DTensor> StrategyState::broadcast_across(const DTensor& value, LayoutArg destination,
                                                  const CommunicationOptions& options) const {
  return call_guarded<StatusOr<DTensor>>(
      [&] { return options_.cross_device_ops->broadcast(value, destination, options); });
}

StatusOr<DTensor> StrategyState::reduce_parts(ReduceOp op, std::vector<DTensor> parts,
                                              absl::Span<const Call> calls,
                                              const std::optional<Layout>& destination,
                                              const CommunicationOptions& options) const {
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, parts[0].dtype()));
  TESSERA_ASSIGN_OR_RETURN(parts, alike(std::move(parts), calls, 0));
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, on_whole_mesh(parts[0].layout()));
  const PerReplica value = ValueAccess::make(shared_from_this(), std::move(parts));
  return reduce_across(op, value, destination.value_or(whole), options);
}

StatusOr<DTensor> StrategyState::reduce_dims(ReduceOp op, std::vector<DTensor> parts,
                                             absl::Span<const Call> calls,
                                             absl::Span<const int64_t> dims,
                                             const CommunicationOptions& options) const {
  const DType dtype = parts[0].dtype();
  const Shape shape = parts[0].shape();
  TESSERA_RETURN_IF_ERROR(validate_reduction(op, dtype));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> reduced,
                           normal_dims(dims, static_cast<int64_t>(shape.size())));
  double count = 0;
  for (const Call& call : calls) {
    double elements = 1;
    for (const int64_t dim : reduced) elements *= static_cast<double>(call.tensors[0].shape[dim]);
    count += elements;
  }
  if (count == 0 && (op == ReduceOp::kMax || op == ReduceOp::kMin)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduce(", reduce_op_name(op),
                     "): no replica has an element, and of none there is no ", reduce_op_name(op)));
  }
  const int rank = static_cast<int>(shape.size() - reduced.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    DTensor& part = parts[i];
    if (is_half(dtype)) part = ops::cast(part, DType::kFloat32);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        part = ops::sum(part, reduced);
        break;
      case ReduceOp::kProd:
        part = ops::prod(part, reduced);
        break;
      case ReduceOp::kMax:
        part = dtype == DType::kBool ? ops::any(part, reduced) : ops::max(part, reduced);
        break;
      case ReduceOp::kMin:
        part = dtype == DType::kBool ? ops::all(part, reduced) : ops::min(part, reduced);
        break;
    }
    part = relayout(part, Layout::replicated(mesh_of(local_replicas()[i]), rank));
  }
  const ReduceOp across = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  const PerReplica value = ValueAccess::make(shared_from_this(), std::move(parts));
  TESSERA_ASSIGN_OR_RETURN(DTensor result,
                           reduce_across(across, value, Layout::replicated(mesh(), rank), options));
  if (op == ReduceOp::kAvg) result = ops::div(result, count);
  return is_half(dtype) ? ops::cast(result, dtype) : result;
}

StatusOr<DTensor> StrategyState::gather_parts(std::vector<DTensor> parts,
                                              absl::Span<const Call> calls, int64_t dim) const {
  int64_t largest = 0;
  bool is_even = true;
  for (const Call& call : calls) {
    const int64_t size = call.tensors[0].shape[dim];
    largest = std::max(largest, size);
    is_even &= size == calls[0].tensors[0].shape[dim];
  }
  const int rank = static_cast<int>(parts[0].shape().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = relayout(parts[i], Layout::replicated(mesh_of(local_replicas()[i]), rank));
    if (is_even) continue;
    std::vector<int64_t> none(rank, 0);
    std::vector<int64_t> high(rank, 0);
    high[dim] = largest - parts[i].shape()[dim];
    parts[i] = ops::pad(parts[i], none, high);
  }
  TESSERA_ASSIGN_OR_RETURN(const DTensor pieces,
                           whole_of_pieces(parts, dim, largest * num_replicas()));
  DTensor padded = relayout(pieces, Layout::replicated(mesh(), rank));
  if (is_even) return padded;
  std::vector<DTensor> kept;
  for (int replica = 0; replica < num_replicas(); ++replica) {
    std::vector<int64_t> starts(rank, 0);
    std::vector<int64_t> limits = padded.shape();
    starts[dim] = replica * largest;
    limits[dim] = starts[dim] + calls[replica].tensors[0].shape[dim];
    kept.push_back(ops::slice(padded, starts, limits));
  }
  return ops::concat(kept, dim);
}

StatusOr<DTensor> StrategyState::from_first(const DTensor& part, DType dtype,
                                            const Shape& shape) const {
  const int rank = static_cast<int>(shape.size());
  TESSERA_ASSIGN_OR_RETURN(const Layout first, Layout::replicated(mesh_of(0), rank));
  const bool is_here = !local_replicas().empty() && local_replicas()[0] == 0;
  const DTensor source = is_here ? relayout(part, first) : assemble({}, dtype, first, shape);
  return relayout(source, Layout::replicated(mesh(), rank));
}

bool StrategyState::is_in_replica() const {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  return !runs_.empty() && runs_.back()->is_replica_thread();
}

Status StrategyState::check_not_in_replica(const char* call, const char* counterpart) const {
  if (!is_in_replica()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      call, " is called in a replica function, where it would run once for each replica; use ",
      counterpart));
}

void StrategyState::push_run(const RunningFunctions* run) {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.push_back(run);
}
void StrategyState::pop_run() {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.pop_back();
}

}  // namespace tessera::distribute::internal
