// SPDX-License-Identifier: Apache-2.0
#include "distribute/strategy_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "base/text.h"
#include "distribute/replica_run.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "mesh/mesh_runtime.h"
#include "ops/pointwise.h"
#include "ops/reductions.h"
#include "ops/shapes.h"
#include "ops/tape.h"

namespace tessera::distribute::internal {
namespace {

using tessera::internal::assemble;
using tessera::internal::part_of;

// A record of an exchange is the size of the text, and as much of it as fits.
constexpr int64_t kSizeBytes = sizeof(int64_t);
constexpr int64_t kMostCallBytes = 1 << 30;

Status unreadable(const std::string& replica, int64_t num_bytes) {
  return absl::InternalError(
      absl::StrCat("the call of ", replica, ", of ", num_bytes,
                   " bytes, cannot be read; build all clients from ",
                   "one Tessera; where they are, report this as a bug of Tessera"));
}

std::string sub_axis_text(const Mesh& mesh, const SubAxis& axis) {
  const MeshAxis& whole = mesh.axes()[axis.axis];
  if (axis.size == whole.size) return whole.name;
  return absl::StrCat(whole.name, ":(", axis.pre, ")", axis.size);
}

// A result made from `from`, through which no gradient passes.
DTensor passed_on(DTensor result, absl::Span<const DTensor> from) {
  return tessera::internal::without_gradient(
      std::move(result), from,
      "gradient: no gradient passes between the replicas of a strategy and tensors outside of "
      "them; take it in the replica function, with a tape made there, or stop_gradient() what is "
      "to have none");
}

bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

}  // namespace

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
  TESSERA_RETURN_IF_ERROR(state->set_replicas());
  return state;
}

Status StrategyState::set_axes(absl::Span<const std::string> replica_axes) {
  is_replica_axis_.assign(mesh_.rank(), false);
  for (const std::string& axis : replica_axes) {
    TESSERA_ASSIGN_OR_RETURN(const int index, mesh_.axis_index(axis));
    if (is_replica_axis_[index]) {
      return absl::InvalidArgumentError(absl::StrCat("replica axis ", axis, " is named twice"));
    }
    is_replica_axis_[index] = true;
  }
  for (int axis = 0; axis < mesh_.rank(); ++axis) {
    if (is_replica_axis_[axis]) replica_axes_.push_back(mesh_.axes()[axis].name);
  }
  return absl::OkStatus();
}

std::vector<std::vector<int64_t>> StrategyState::first_coordinates() const {
  std::vector<std::vector<int64_t>> firsts = {{}};
  for (int axis = 0; axis < mesh_.rank(); ++axis) {
    const int64_t size = is_replica_axis_[axis] ? mesh_.axes()[axis].size : 1;
    std::vector<std::vector<int64_t>> next;
    for (const std::vector<int64_t>& first : firsts) {
      for (int64_t i = 0; i < size; ++i) {
        next.push_back(first);
        next.back().push_back(i);
      }
    }
    firsts = std::move(next);
  }
  return firsts;
}

StatusOr<Mesh> StrategyState::replica_mesh(absl::Span<const int64_t> coordinates) const {
  if (static_cast<int>(replica_axes_.size()) == mesh_.rank()) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t position, mesh_.position(coordinates));
    TESSERA_ASSIGN_OR_RETURN(const Mesh one,
                             Mesh::create({{"device", 1}}, {*mesh_.device_at(position)}));
    return tessera::internal::with_runtime(one, tessera::internal::runtime_of(mesh_));
  }
  std::vector<std::pair<std::string, int64_t>> fixed;
  for (int axis = 0; axis < mesh_.rank(); ++axis) {
    if (is_replica_axis_[axis]) fixed.emplace_back(mesh_.axes()[axis].name, coordinates[axis]);
  }
  return mesh_.slice(fixed);
}

std::string StrategyState::replica_name(int replica) const {
  std::set<int> clients;
  const absl::Span<const int> ids = meshes_[replica].device_ids();
  for (const int id : ids) clients.insert(client_.devices()[id].client_id);
  const std::string where = is_of_one_client_
                                ? ""
                                : absl::StrCat(clients.size() == 1 ? "client " : "clients ",
                                               absl::StrJoin(clients, ", "), ", ");
  return absl::StrCat("replica ", replica, " (", where, ids.size() == 1 ? "device " : "devices ",
                      absl::StrJoin(ids, ", "), ")");
}

// Clients exchange calls by their first device.
Status StrategyState::set_clients() {
  const absl::Span<const Device> devices = client_.devices();
  std::map<int, int64_t> first_positions;  // in the mesh, by client
  for (int64_t position = mesh_.size() - 1; position >= 0; --position) {
    first_positions[devices[*mesh_.device_at(position)].client_id] = position;
  }
  is_of_one_client_ = first_positions.size() == 1;
  const Mesh& control = options_.cross_device_ops->control_mesh(mesh_);
  std::vector<int> ids;
  for (const auto& [client, position] : first_positions) {
    ids.push_back(*control.device_at(position));
    replicas_of_client_[client] = {};
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh clients,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  TESSERA_ASSIGN_OR_RETURN(
      call_rows_, Layout::batch_sharded(tessera::internal::with_runtime(
                                            clients, tessera::internal::runtime_of(control)),
                                        "client", 2));
  return absl::OkStatus();
}

Status StrategyState::set_replicas() {
  const absl::Span<const Device> devices = client_.devices();
  TESSERA_RETURN_IF_ERROR(set_clients());
  for (const std::vector<int64_t>& coordinates : first_coordinates()) {
    const int replica = static_cast<int>(meshes_.size());
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, replica_mesh(coordinates));
    std::vector<int64_t>& positions = positions_.emplace_back();
    std::set<int> owners;
    for (const int id : mesh.device_ids()) {
      positions.push_back(*mesh_.position_of_device(id));
      owners.insert(devices[id].client_id);
    }
    for (const int owner : owners) replicas_of_client_[owner].push_back(replica);
    if (owners.count(client_.client_id()) > 0) local_.push_back(replica);
    meshes_.push_back(std::move(mesh));
    names_.push_back(replica_name(replica));
  }
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
  const DeviceType type = client_.devices()[*mesh_.device_at(0)].type;
  if (options.implementation == CommunicationImplementation::kNccl && type == DeviceType::kCpu) {
    return absl::FailedPreconditionError("NCCL moves bytes between GPUs, and the devices are CPUs");
  }
  return options;
}

bool StrategyState::is_replicated(const Layout& layout) const {
  const auto names_no_replica_axis = [&](absl::Span<const SubAxis> axes) {
    return std::none_of(axes.begin(), axes.end(),
                        [&](const SubAxis& axis) { return is_replica_axis_[axis.axis]; });
  };
  for (const std::vector<SubAxis>& axes : layout.dim_axes()) {
    if (!names_no_replica_axis(axes)) return false;
  }
  return names_no_replica_axis(layout.partial_axes());
}

std::vector<std::string> StrategyState::names_of_axes(absl::Span<const SubAxis> axes,
                                                      bool of_replicas) const {
  std::vector<std::string> names;
  for (const SubAxis& axis : axes) {
    if (is_replica_axis_[axis.axis] == of_replicas) names.push_back(sub_axis_text(mesh_, axis));
  }
  return names;
}

std::optional<StrategyState::PartForm> StrategyState::part_form(const Layout& layout,
                                                                const Shape& shape,
                                                                int replica) const {
  std::vector<DimSharding> dims;
  for (const std::vector<SubAxis>& axes : layout.dim_axes()) {
    dims.push_back(names_of_axes(axes, /*of_replicas=*/false));
  }
  StatusOr<Layout> inner = Layout::create(meshes_[replica], std::move(dims));
  if (!inner.ok()) return std::nullopt;
  const std::vector<std::string> partial =
      names_of_axes(layout.partial_axes(), /*of_replicas=*/false);
  if (!partial.empty()) {
    inner = inner->with_partial(partial, *layout.partial_op());
    if (!inner.ok()) return std::nullopt;
  }
  const absl::Span<const int64_t> positions = positions_[replica];
  Shape begin(shape.size(), 0);
  Shape sizes(shape.size(), 0);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t first = INT64_MAX;
    int64_t end = INT64_MIN;
    for (const int64_t position : positions) {
      const Box box = layout.box(shape, position);
      if (box.sizes[dim] == 0) continue;
      first = std::min(first, box.offsets[dim]);
      end = std::max(end, box.offsets[dim] + box.sizes[dim]);
    }
    if (first > end) continue;
    begin[dim] = first;
    sizes[dim] = end - first;
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    const Box whole = layout.box(shape, positions[i]);
    const Box part = inner->box(sizes, static_cast<int64_t>(i));
    if (whole.sizes != part.sizes) return std::nullopt;
    if (part.is_empty()) continue;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      if (whole.offsets[dim] != begin[dim] + part.offsets[dim]) return std::nullopt;
    }
  }
  return PartForm{*std::move(inner), std::move(sizes)};
}

StatusOr<Layout> StrategyState::separated(const Layout& layout) const {
  std::vector<DimSharding> dims;
  for (const std::vector<SubAxis>& axes : layout.dim_axes()) {
    DimSharding of_replicas = names_of_axes(axes, /*of_replicas=*/true);
    dims.push_back(of_replicas.empty() ? names_of_axes(axes, false) : std::move(of_replicas));
  }
  TESSERA_ASSIGN_OR_RETURN(Layout result, Layout::create(mesh_, std::move(dims)));
  if (!layout.is_partial()) return result;
  std::vector<std::string> partial = names_of_axes(layout.partial_axes(), true);
  if (partial.empty()) return result;
  return result.with_partial(std::move(partial), *layout.partial_op());
}

StatusOr<std::vector<DTensor>> StrategyState::parts_of(const DistributedValues& value) const {
  if (const PerReplica* const per_replica = value.per_replica(); per_replica != nullptr) {
    const ValueAccess::Rep& rep = ValueAccess::rep(*per_replica);
    if (rep.strategy->num_replicas() != num_replicas()) {
      return absl::InvalidArgumentError(absl::StrCat("a value of ", rep.strategy->num_replicas(),
                                                     " replicas is given to a strategy of ",
                                                     num_replicas()));
    }
    if (rep.strategy.get() != this &&
        (rep.strategy->mesh_ != mesh_ || rep.strategy->replica_axes_ != replica_axes_)) {
      return absl::InvalidArgumentError(absl::StrCat("a value of a strategy on ",
                                                     rep.strategy->mesh_.to_string(),
                                                     " is given to one on ", mesh_.to_string()));
    }
    TESSERA_RETURN_IF_ERROR(rep.error);
    return rep.tensors;
  }
  const DTensor& tensor = *value.tensor();
  TESSERA_RETURN_IF_ERROR(tessera::internal::facts_of(tensor).error);
  if (tensor.layout().mesh() != mesh_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor on ", tensor.layout().mesh().to_string(),
                     " is given to a strategy on ", mesh_.to_string(), "; relayout() it"));
  }
  // Looks at all replicas, so that all clients decide alike.
  DTensor source = tensor;
  std::vector<std::optional<PartForm>> forms;
  const auto find_forms = [&] {
    forms.clear();
    for (int replica = 0; replica < num_replicas(); ++replica) {
      forms.push_back(part_form(source.layout(), source.shape(), replica));
      if (!forms.back().has_value()) return false;
    }
    return true;
  };
  if (!find_forms()) {
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, separated(tensor.layout()));
    source = relayout(tensor, layout);
    if (!find_forms())
      return absl::InternalError(absl::StrCat("layout ", source.layout().to_string(),
                                              " gives a replica no box of its own; report this "
                                              "as a bug of Tessera, with the layout ",
                                              tensor.layout().to_string(), " of the tensor"));
  }
  std::vector<DTensor> parts;
  for (const int replica : local_) {
    parts.push_back(
        passed_on(part_of(source, forms[replica]->layout, forms[replica]->shape), {source}));
  }
  return parts;
}

DTensor StrategyState::on_replica(const DTensor& tensor, int replica) const {
  if (!tessera::internal::facts_of(tensor).error.ok()) return tensor;
  const Mesh& mesh = tensor.layout().mesh();
  if (mesh == meshes_[replica]) return tensor;
  if (mesh == mesh_) {
    const std::optional<PartForm> form = part_form(tensor.layout(), tensor.shape(), replica);
    if (form.has_value()) return passed_on(part_of(tensor, form->layout, form->shape), {tensor});
  }
  return relayout(tensor,
                  Layout::replicated(meshes_[replica], static_cast<int>(tensor.shape().size())));
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
  if (is_of_one_client_) return local;
  if (options.timeout.has_value()) {
    TESSERA_RETURN_IF_ERROR(call_rows_->mesh().barrier("calls of replicas", *options.timeout));
  }
  std::vector<std::string> texts;
  for (const Call& call : local) texts.push_back(encode_call(call));
  size_t num_records = 0;  // of each client
  for (const auto& [client, replicas] : replicas_of_client_) {
    num_records = std::max(num_records, replicas.size());
  }
  const auto num_clients = static_cast<int64_t>(replicas_of_client_.size());
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
  for (const auto& [client, replicas] : replicas_of_client_) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      const absl::string_view text = record_at(first + static_cast<int64_t>(i));
      std::optional<Call> call = decode_call(text);
      if (!call.has_value()) return unreadable(names_[replicas[i]], int64_t(text.size()));
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
  TESSERA_RETURN_IF_ERROR(check_calls(calls, names_, freedom));
  return calls;
}

StatusOr<std::vector<DTensor>> StrategyState::alike(std::vector<DTensor> parts,
                                                    absl::Span<const Call> calls, int index) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Mesh& mesh = meshes_[local_[i]];
    TESSERA_ASSIGN_OR_RETURN(Layout layout, Layout::parse(mesh, calls[0].tensors[index].layout));
    layout = layout.without_partial();
    if (parts[i].layout() != layout) parts[i] = relayout(parts[i], layout);
  }
  return parts;
}

StatusOr<Layout> StrategyState::on_whole_mesh(const Layout& layout) const {
  std::vector<DimSharding> dims(layout.dims().begin(), layout.dims().end());
  if (replica_axes_.size() == static_cast<size_t>(mesh_.rank())) {
    for (DimSharding& dim : dims) dim.clear();
  }
  return Layout::create(mesh_, std::move(dims));
}

StatusOr<DTensor> StrategyState::whole_of_terms(absl::Span<const DTensor> parts,
                                                ReduceOp op) const {
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, on_whole_mesh(parts[0].layout()));
  TESSERA_ASSIGN_OR_RETURN(const Layout partial, whole.with_partial(replica_axes_, op));
  return passed_on(assemble(parts, parts[0].dtype(), partial, parts[0].shape()), parts);
}

StatusOr<DTensor> StrategyState::whole_of_pieces(absl::Span<const DTensor> parts, int64_t dim,
                                                 int64_t size) const {
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, on_whole_mesh(parts[0].layout()));
  std::vector<DimSharding> dims(whole.dims().begin(), whole.dims().end());
  dims[dim] = replica_axes_;
  TESSERA_ASSIGN_OR_RETURN(const Layout split, Layout::create(mesh_, std::move(dims)));
  Shape shape = parts[0].shape();
  shape[dim] = size;
  return passed_on(assemble(parts, parts[0].dtype(), split, shape), parts);
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
    part = relayout(part, Layout::replicated(meshes_[local_[i]], rank));
  }
  const ReduceOp across = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
  const PerReplica value = ValueAccess::make(shared_from_this(), std::move(parts));
  TESSERA_ASSIGN_OR_RETURN(DTensor result,
                           reduce_across(across, value, Layout::replicated(mesh_, rank), options));
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
    parts[i] = relayout(parts[i], Layout::replicated(meshes_[local_[i]], rank));
    if (is_even) continue;
    std::vector<int64_t> none(rank, 0);
    std::vector<int64_t> high(rank, 0);
    high[dim] = largest - parts[i].shape()[dim];
    parts[i] = ops::pad(parts[i], none, high);
  }
  TESSERA_ASSIGN_OR_RETURN(const DTensor pieces,
                           whole_of_pieces(parts, dim, largest * num_replicas()));
  DTensor padded = relayout(pieces, Layout::replicated(mesh_, rank));
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
  TESSERA_ASSIGN_OR_RETURN(const Layout first, Layout::replicated(meshes_[0], rank));
  const bool is_here = !local_.empty() && local_[0] == 0;
  const DTensor source = is_here ? relayout(part, first) : assemble({}, dtype, first, shape);
  return relayout(source, Layout::replicated(mesh_, rank));
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

void StrategyState::push_run(const ReplicaRun* run) {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.push_back(run);
}
void StrategyState::pop_run() {
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.pop_back();
}

}  // namespace tessera::distribute::internal
