// SPDX-License-Identifier: Apache-2.0
#include "distribute/replicas.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "mesh/mesh_runtime.h"
#include "ops/tape.h"

namespace tessera::distribute::internal {
namespace {

using tessera::internal::assemble;
using tessera::internal::part_of;

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

}  // namespace

std::vector<DTensor> column(const Rows& rows, size_t index) {
  std::vector<DTensor> tensors;
  for (const std::vector<DTensor>& row : rows) tensors.push_back(row[index]);
  return tensors;
}

StatusOr<Mesh> Replicas::replica_mesh(absl::Span<const int64_t> coordinates) const {
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

std::string Replicas::replica_name(int replica) const {
  std::set<int> clients;
  const absl::Span<const int> ids = meshes_[replica].device_ids();
  for (const int id : ids) clients.insert(client_.devices()[id].client_id);
  const std::string where = is_of_one_client()
                                ? ""
                                : absl::StrCat(clients.size() == 1 ? "client " : "clients ",
                                               absl::StrJoin(clients, ", "), ", ");
  return absl::StrCat("replica ", replica, " (", where, ids.size() == 1 ? "device " : "devices ",
                      absl::StrJoin(ids, ", "), ")");
}

Status Replicas::set_replicas(absl::Span<const std::string> replica_axes) {
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
  const absl::Span<const Device> devices = client_.devices();
  for (const int id : mesh_.device_ids()) replicas_of_client_[devices[id].client_id] = {};
  for (int64_t position = 0; position < mesh_.size(); ++position) {
    const std::vector<int64_t> coordinates = mesh_.coordinates(position);
    bool is_first = true;  // of its replica
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      is_first &= is_replica_axis_[axis] || coordinates[axis] == 0;
    }
    if (!is_first) continue;
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

bool Replicas::is_mirrored(const Layout& layout) const {
  if (layout.mesh() != mesh_) return false;
  bool names_replica_axis = !names_of_axes(layout.partial_axes(), /*of_replicas=*/true).empty();
  for (const std::vector<SubAxis>& axes : layout.dim_axes()) {
    names_replica_axis |= !names_of_axes(axes, /*of_replicas=*/true).empty();
  }
  return !names_replica_axis;
}

std::vector<std::string> Replicas::names_of_axes(absl::Span<const SubAxis> axes,
                                                 bool of_replicas) const {
  std::vector<std::string> names;
  for (const SubAxis& axis : axes) {
    if (is_replica_axis_[axis.axis] == of_replicas) names.push_back(sub_axis_text(mesh_, axis));
  }
  return names;
}

std::optional<Replicas::PartForm> Replicas::part_form(const Layout& layout, const Shape& shape,
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

StatusOr<Layout> Replicas::separated(const Layout& layout) const {
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

StatusOr<std::vector<DTensor>> Replicas::parts_of(const DistributedValues& value) const {
  if (const PerReplica* const per_replica = value.per_replica(); per_replica != nullptr) {
    const ValueAccess::Rep& rep = ValueAccess::rep(*per_replica);
    if (rep.replicas->num_replicas() != num_replicas()) {
      return absl::InvalidArgumentError(absl::StrCat("a value of ", rep.replicas->num_replicas(),
                                                     " replicas is given to a strategy of ",
                                                     num_replicas()));
    }
    if (rep.replicas.get() != this &&
        (rep.replicas->mesh_ != mesh_ || rep.replicas->replica_axes_ != replica_axes_)) {
      return absl::InvalidArgumentError(absl::StrCat("a value of a strategy on ",
                                                     rep.replicas->mesh_.to_string(),
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

StatusOr<Rows> Replicas::rows_of(absl::Span<const DistributedValues> values) const {
  Rows rows(local_.size());
  for (const DistributedValues& value : values) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<DTensor> parts, parts_of(value));
    for (size_t i = 0; i < parts.size(); ++i) rows[i].push_back(parts[i]);
  }
  return rows;
}

DTensor Replicas::on_replica(const DTensor& tensor, int replica) const {
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

Rows Replicas::on_replicas(absl::Span<const DTensor> tensors) const {
  Rows rows(local_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (const DTensor& tensor : tensors) rows[i].push_back(on_replica(tensor, local_[i]));
  }
  return rows;
}

StatusOr<Layout> Replicas::on_whole_mesh(const Layout& layout) const {
  std::vector<DimSharding> dims(layout.dims().begin(), layout.dims().end());
  if (replica_axes_.size() == static_cast<size_t>(mesh_.rank())) {
    for (DimSharding& dim : dims) dim.clear();
  }
  return Layout::create(mesh_, std::move(dims));
}

StatusOr<DTensor> Replicas::whole_of_terms(absl::Span<const DTensor> parts, ReduceOp op) const {
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, on_whole_mesh(parts[0].layout()));
  TESSERA_ASSIGN_OR_RETURN(const Layout partial, whole.with_partial(replica_axes_, op));
  return passed_on(assemble(parts, parts[0].dtype(), partial, parts[0].shape()), parts);
}

StatusOr<DTensor> Replicas::whole_of_pieces(absl::Span<const DTensor> parts, int64_t dim,
                                            int64_t size) const {
  TESSERA_ASSIGN_OR_RETURN(const Layout whole, on_whole_mesh(parts[0].layout()));
  std::vector<DimSharding> dims(whole.dims().begin(), whole.dims().end());
  dims[dim] = replica_axes_;
  TESSERA_ASSIGN_OR_RETURN(const Layout split, Layout::create(mesh_, std::move(dims)));
  Shape shape = parts[0].shape();
  shape[dim] = size;
  return passed_on(assemble(parts, parts[0].dtype(), split, shape), parts);
}

}  // namespace tessera::distribute::internal
