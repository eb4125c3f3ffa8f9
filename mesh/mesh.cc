// SPDX-License-Identifier: Apache-2.0
#include "mesh/mesh.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "mesh/mesh_runtime.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDevices = std::numeric_limits<int>::max();

std::vector<std::string> names_of(absl::Span<const MeshAxis> axes) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes) names.push_back(axis.name);
  return names;
}

template <class... Parts>
Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Checks invariants 1 and 2 of the header, except the number of ids. Returns the number of devices.
StatusOr<int64_t> checked_size(absl::Span<const MeshAxis> axes) {
  if (axes.empty()) return refuse("mesh {} has no axis; a mesh needs an axis, as in {x=4}");
  const std::string text = absl::StrCat("mesh ", axes_to_string(axes));
  int64_t size = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (!is_name(axis.name)) {
      return refuse(text, " has axis name ", in_quotes(axis.name),
                    "; a name is a letter or _, then letters, digits or _ "
                    "([A-Za-z_][A-Za-z0-9_]*)");
    }
    for (const MeshAxis& earlier : axes.first(i)) {
      if (earlier.name == axis.name) {
        return refuse(text, " names axis ", in_quotes(axis.name),
                      " twice; give each axis a name of its own");
      }
    }
    if (axis.size < 1) {
      return refuse(text, " has size ", axis.size, " for axis ", in_quotes(axis.name),
                    "; a size is 1 or more");
    }
    if (axis.size > kMaxDevices / size) {
      return refuse(text, " has more than ", kMaxDevices, " devices; use smaller sizes");
    }
    size *= axis.size;
  }
  return size;
}

}  // namespace

std::string axes_to_string(absl::Span<const MeshAxis> axes) {
  return absl::StrCat("{",
                      absl::StrJoin(axes, ", ",
                                    [](std::string* out, const MeshAxis& axis) {
                                      absl::StrAppend(out, axis.name, "=", axis.size);
                                    }),
                      "}");
}

// A mesh over 0..n-1 builds its list of ids when it is first asked for, so that an abstract mesh
// costs O(rank) whatever its size.
struct Mesh::Rep {
  std::vector<MeshAxis> axes;
  std::vector<int64_t> strides;  // Positions between neighbours along each axis.
  int64_t size = 1;
  bool ids_are_positions = true;
  std::vector<std::pair<int, int64_t>> id_to_position;  // Sorted; empty if ids_are_positions.
  uint64_t hash = 0;

  absl::Span<const int> device_ids() const {
    if (ids_are_positions) {
      std::call_once(ids_made, [this] {
        ids.resize(size);
        std::iota(ids.begin(), ids.end(), 0);
      });
    }
    return ids;
  }

  // Fixed on construction, or made once by device_ids().
  mutable std::vector<int> ids;
  mutable std::once_flag ids_made;
};

const Mesh::Rep& Mesh::empty() {
  static const Rep* const kEmpty = [] {
    auto* rep = new Rep;
    rep->size = 0;
    return rep;
  }();
  return *kEmpty;
}

Status Mesh::check_valid(absl::string_view function) const {
  return valid() ? absl::OkStatus()
                 : internal::empty_handle(absl::StrCat("Mesh::", function), "Mesh");
}

StatusOr<Mesh> Mesh::create(std::vector<MeshAxis> axes) {
  auto rep = std::make_shared<Rep>();
  TESSERA_ASSIGN_OR_RETURN(rep->size, checked_size(axes));
  rep->axes = std::move(axes);
  rep->strides.resize(rep->axes.size());
  int64_t stride = rep->size;
  for (size_t i = 0; i < rep->axes.size(); ++i) {
    stride /= rep->axes[i].size;
    rep->strides[i] = stride;
    rep->hash = stable_hash(rep->axes[i].name, rep->hash);
    rep->hash = stable_hash(absl::MakeConstSpan(&rep->axes[i].size, 1), rep->hash);
  }
  return Mesh(std::move(rep));
}

StatusOr<Mesh> Mesh::create(std::vector<MeshAxis> axes, std::vector<int> device_ids) {
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create(std::move(axes)));
  const std::string text = mesh.to_string();
  if (static_cast<int64_t>(device_ids.size()) != mesh.size()) {
    return refuse("mesh ", text, " has ", mesh.size(),
                  mesh.size() == 1 ? " device, " : " devices, ", device_ids.size(),
                  device_ids.size() == 1 ? " id was" : " ids were",
                  " given; give one id per device");
  }
  std::vector<std::pair<int, int64_t>> id_to_position;
  bool ids_are_positions = true;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    const int id = device_ids[position];
    if (id < 0) {
      return refuse("mesh ", text, " names device ", id, " at position ", position,
                    "; device ids are 0 or more");
    }
    ids_are_positions = ids_are_positions && id == position;
    id_to_position.emplace_back(id, position);
  }
  if (ids_are_positions) return mesh;
  std::sort(id_to_position.begin(), id_to_position.end());
  for (size_t i = 1; i < id_to_position.size(); ++i) {
    if (id_to_position[i - 1].first == id_to_position[i].first) {
      return refuse("mesh ", text, " names device ", id_to_position[i].first,
                    " twice, at positions ", id_to_position[i - 1].second, " and ",
                    id_to_position[i].second, "; a device has one place in a mesh");
    }
  }
  auto rep = std::make_shared<Rep>();
  rep->axes = mesh.rep_->axes;
  rep->strides = mesh.rep_->strides;
  rep->size = mesh.rep_->size;
  rep->ids_are_positions = false;
  rep->id_to_position = std::move(id_to_position);
  rep->hash = stable_hash(absl::MakeConstSpan(device_ids), mesh.rep_->hash);
  rep->ids = std::move(device_ids);
  return Mesh(std::move(rep));
}

StatusOr<Mesh> Mesh::parse(absl::string_view text) {
  TextCursor cursor("mesh", text);
  if (!cursor.consume('{')) return cursor.expected("\"{\"");
  std::vector<MeshAxis> axes;
  while (!cursor.consume('}')) {
    if (!axes.empty() && !cursor.consume(',')) return cursor.expected("\",\" or \"}\"");
    const absl::string_view name = cursor.read_name();
    if (name.empty()) return cursor.expected("the name of an axis");
    if (!cursor.consume('=')) return cursor.expected("\"=\"");
    const std::optional<int64_t> size = cursor.read_integer();
    if (!size.has_value()) return cursor.expected("the size of the axis");
    axes.push_back({std::string(name), *size});
  }
  if (cursor.at_end()) return create(std::move(axes));

  TextCursor before_on = cursor;
  if (cursor.read_name() != "on") return before_on.expected("the end or \"on\" and device ids");
  std::vector<int> device_ids;
  do {
    TextCursor before_id = cursor;
    const std::optional<int64_t> id = cursor.read_integer();
    if (!id.has_value() || *id < 0 || *id > kMaxDevices)
      return before_id.expected("a device id (0 to 2147483647)");
    device_ids.push_back(static_cast<int>(*id));
  } while (cursor.consume(','));
  if (!cursor.at_end()) return cursor.expected("\",\" or the end");
  return create(std::move(axes), std::move(device_ids));
}

absl::Span<const MeshAxis> Mesh::axes() const { return rep().axes; }

int Mesh::rank() const { return static_cast<int>(rep().axes.size()); }

int64_t Mesh::size() const { return rep().size; }

StatusOr<int64_t> Mesh::axis_size(absl::string_view axis) const {
  TESSERA_RETURN_IF_ERROR(check_valid("axis_size()"));
  TESSERA_ASSIGN_OR_RETURN(const int index, axis_index(axis));
  return rep().axes[index].size;
}

StatusOr<int> Mesh::axis_index(absl::string_view axis) const {
  TESSERA_RETURN_IF_ERROR(check_valid("axis_index()"));
  for (int i = 0; i < rank(); ++i) {
    if (rep().axes[i].name == axis) return i;
  }
  const std::vector<std::string> names = names_of(axes());
  return refuse("mesh ", axes_to_string(axes()), " has no axis ", in_quotes(axis), "; it has ",
                quoted_list(names), did_you_mean(axis, names));
}

absl::Span<const int> Mesh::device_ids() const { return rep().device_ids(); }

std::optional<int> Mesh::device_at(int64_t position) const {
  if (position < 0 || position >= size()) return std::nullopt;
  return rep().ids_are_positions ? static_cast<int>(position) : rep().ids[position];
}

bool Mesh::ids_are_positions() const { return rep().ids_are_positions; }

std::vector<int64_t> Mesh::coordinates(int64_t position) const {
  if (position < 0 || position >= size()) return {};
  std::vector<int64_t> coordinates(rank());
  for (int i = 0; i < rank(); ++i) {
    coordinates[i] = position / rep().strides[i] % rep().axes[i].size;
  }
  return coordinates;
}

StatusOr<int64_t> Mesh::position(absl::Span<const int64_t> coordinates) const {
  TESSERA_RETURN_IF_ERROR(check_valid("position()"));
  if (static_cast<int>(coordinates.size()) != rank()) {
    return refuse("mesh ", axes_to_string(axes()), " has ", rank(), " axes, ", coordinates.size(),
                  " coordinates were given; give one per axis");
  }
  int64_t position = 0;
  for (int i = 0; i < rank(); ++i) {
    const MeshAxis& axis = rep().axes[i];
    if (coordinates[i] < 0 || coordinates[i] >= axis.size) {
      return refuse("mesh ", axes_to_string(axes()), " has no coordinate ", coordinates[i],
                    " on axis ", in_quotes(axis.name), "; coordinates of it are 0 to ",
                    axis.size - 1);
    }
    position += coordinates[i] * rep().strides[i];
  }
  return position;
}

std::optional<int64_t> Mesh::position_of_device(int device_id) const {
  if (rep().ids_are_positions) {
    if (device_id < 0 || device_id >= size()) return std::nullopt;
    return device_id;
  }
  const auto& table = rep().id_to_position;
  const auto found = std::lower_bound(table.begin(), table.end(), std::pair(device_id, int64_t{0}));
  if (found == table.end() || found->first != device_id) return std::nullopt;
  return found->second;
}

StatusOr<std::vector<int64_t>> Mesh::group(int64_t position,
                                           absl::Span<const std::string> axes) const {
  TESSERA_RETURN_IF_ERROR(check_valid("group()"));
  const std::string text = axes_to_string(this->axes());
  if (position < 0 || position >= size()) {
    return refuse("position ", position, " is not in mesh ", text, "; positions are 0 to ",
                  size() - 1);
  }
  std::vector<bool> varies(rank(), false);
  for (const std::string& axis : axes) {
    TESSERA_ASSIGN_OR_RETURN(const int index, axis_index(axis));
    if (varies[index]) {
      return refuse("a group of mesh ", text, " names axis ", in_quotes(axis),
                    " twice; name it once");
    }
    varies[index] = true;
  }
  int64_t first = position;
  for (int i = 0; i < rank(); ++i) {
    if (varies[i]) first -= position / rep().strides[i] % rep().axes[i].size * rep().strides[i];
  }
  // Invariant: `members` is the group along the axes seen so far, in row-major order.
  std::vector<int64_t> members = {first};
  for (int i = 0; i < rank(); ++i) {
    if (!varies[i]) continue;
    std::vector<int64_t> longer;
    longer.reserve(members.size() * rep().axes[i].size);
    for (int64_t member : members) {
      for (int64_t c = 0; c < rep().axes[i].size; ++c) {
        longer.push_back(member + c * rep().strides[i]);
      }
    }
    members = std::move(longer);
  }
  return members;
}

StatusOr<Mesh> Mesh::slice(absl::Span<const std::pair<std::string, int64_t>> fixed) const {
  TESSERA_RETURN_IF_ERROR(check_valid("slice()"));
  const std::string text = axes_to_string(axes());
  std::vector<bool> is_fixed(rank(), false);
  int64_t first = 0;
  for (const auto& [axis, coordinate] : fixed) {
    TESSERA_ASSIGN_OR_RETURN(const int index, axis_index(axis));
    if (is_fixed[index]) {
      return refuse("a slice of mesh ", text, " fixes axis ", in_quotes(axis),
                    " twice; fix it once");
    }
    if (coordinate < 0 || coordinate >= rep().axes[index].size) {
      return refuse("a slice of mesh ", text, " fixes axis ", in_quotes(axis), " at ", coordinate,
                    "; coordinates of it are 0 to ", rep().axes[index].size - 1);
    }
    is_fixed[index] = true;
    first += coordinate * rep().strides[index];
  }
  std::vector<MeshAxis> kept;
  std::vector<std::string> kept_names;
  for (int i = 0; i < rank(); ++i) {
    if (is_fixed[i]) continue;
    kept.push_back(rep().axes[i]);
    kept_names.push_back(rep().axes[i].name);
  }
  if (kept.empty()) {
    return refuse("a slice of mesh ", text, " fixes every axis; leave at least one free");
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> positions, group(first, kept_names));
  std::vector<int> ids;
  ids.reserve(positions.size());
  for (int64_t position : positions) {
    ids.push_back(rep().ids_are_positions ? static_cast<int>(position) : rep().ids[position]);
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create(std::move(kept), std::move(ids)));
  return internal::with_runtime(mesh, runtime_);
}

Status Mesh::barrier(absl::string_view name, std::optional<absl::Duration> timeout) const {
  TESSERA_RETURN_IF_ERROR(check_valid("barrier()"));
  if (runtime_ != nullptr) return runtime_->barrier(*this, name, timeout);
  return absl::FailedPreconditionError(
      absl::StrCat("barrier ", in_quotes(name), " on ", to_string(),
                   ": the mesh is abstract, no device stands behind it; make a live one with "
                   "create_mesh(client, axes)"));
}

std::string Mesh::to_string() const {
  if (!valid()) return "";
  std::string text = axes_to_string(axes());
  if (!rep().ids_are_positions) absl::StrAppend(&text, " on ", absl::StrJoin(rep().ids, ","));
  return text;
}

bool operator==(const Mesh& a, const Mesh& b) {
  if (a.rep_ == b.rep_) return true;
  return a.rep().hash == b.rep().hash && a.rep().axes == b.rep().axes &&
         a.rep().ids_are_positions == b.rep().ids_are_positions &&
         (a.rep().ids_are_positions || a.rep().ids == b.rep().ids);
}

uint64_t Mesh::hash() const { return rep().hash; }

}  // namespace tessera
