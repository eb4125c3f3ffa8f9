// SPDX-License-Identifier: Apache-2.0
#include "distribute/cross_device_ops.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "distribute/packs.h"
#include "distribute/replicas.h"
#include "distribute/value_access.h"
#include "dtensor/device_op.h"
#include "dtensor/parts.h"
#include "dtensor/relayout.h"
#include "mesh/mesh_runtime.h"
#include "ops/shapes.h"

namespace tessera::distribute {
namespace {

using internal::ValueAccess;

DTensor failed(const LayoutArg& destination, Status error) {
  return tessera::internal::failed_tensor(DType::kFloat32, {}, destination.layout(),
                                          std::move(error));
}

// Flat tensors of each replica, next to each other.
PerReplica packed(absl::Span<const PerReplica> values, absl::Span<const int> pack) {
  const ValueAccess::Rep& first = ValueAccess::rep(values[pack[0]]);
  std::vector<DTensor> tensors;
  for (size_t replica = 0; replica < first.tensors.size(); ++replica) {
    std::vector<DTensor> flat;
    for (const int i : pack) {
      const DTensor& tensor = ValueAccess::rep(values[i]).tensors[replica];
      flat.push_back(ops::reshape(tensor, {num_elements(tensor.shape())}));
    }
    tensors.push_back(ops::concat(flat, 0));
  }
  return ValueAccess::make(first.replicas, std::move(tensors));
}

// The way in which bytes move. The names of tf.distribute differ only in it.
struct Way {
  int num_packs = 0;  // per batch; 0: a limit in bytes decides
  bool needs_gpus = false;
  // All terms go to one device, which adds them: device_id, or the first device of the mesh.
  bool is_by_one_device = false;
  std::optional<int> device_id = {};
  // All terms are added by the devices of another mesh, and travel between these.
  std::optional<Mesh> beside = {};
};

class RelayoutOps final : public CrossDeviceOps {
 public:
  explicit RelayoutOps(Way way) : way_(std::move(way)) {}

  Status check(const Client& client, const Mesh& mesh) const override {
    if (way_.needs_gpus && client.devices()[*mesh.device_at(0)].type != DeviceType::kCuda) {
      return absl::FailedPreconditionError(
          "nccl_all_reduce: NCCL moves bytes between GPUs, and the devices are CPUs; use "
          "collective_all_reduce()");
    }
    if (way_.device_id.has_value() && !mesh.position_of_device(*way_.device_id).has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("reduction_to_one_device: device ",
                                                     *way_.device_id, " is not one of mesh ",
                                                     mesh.to_string()));
    }
    return way_.beside.has_value() ? check_beside(client, mesh) : absl::OkStatus();
  }
  const Mesh& control_mesh(const Mesh& mesh) const override {
    return way_.beside.has_value() ? *way_.beside : mesh;
  }

  DTensor reduce(ReduceOp op, const PerReplica& value, const LayoutArg& destination,
                 const CommunicationOptions&) override {
    const ValueAccess::Rep& rep = ValueAccess::rep(value);
    if (!rep.error.ok()) return failed(destination, rep.error);
    const StatusOr<DTensor> terms = rep.replicas->whole_of_terms(rep.tensors, op);
    if (!terms.ok()) return failed(destination, terms.status());
    return add(*terms, destination);
  }

  std::vector<DTensor> batch_reduce(ReduceOp op, absl::Span<const PerReplica> values,
                                    absl::Span<const Layout> destinations,
                                    const CommunicationOptions& options) override {
    std::vector<std::optional<DTensor>> found(values.size());
    // Whole tensors of replicas that go to all devices can travel as parts of a larger one.
    std::vector<int> small;
    std::vector<internal::PackItem> items;
    for (size_t i = 0; i < values.size(); ++i) {
      const ValueAccess::Rep& rep = ValueAccess::rep(values[i]);
      if (!rep.error.ok() || !destinations[i].is_fully_replicated() ||
          !rep.tensors[0].layout().is_fully_replicated()) {
        continue;
      }
      const DTensor& tensor = rep.tensors[0];
      small.push_back(static_cast<int>(i));
      items.push_back({tensor.dtype(), num_bytes(tensor.shape(), tensor.dtype())});
    }
    for (const std::vector<int>& pack : internal::make_packs(items, limit_of(items, options))) {
      if (pack.size() == 1) continue;
      std::vector<int> indices;
      std::vector<int64_t> sizes;
      for (const int item : pack) {
        indices.push_back(small[item]);
        sizes.push_back(num_elements(ValueAccess::rep(values[small[item]]).tensors[0].shape()));
      }
      const StatusOr<Layout> flat = Layout::replicated(destinations[indices[0]].mesh(), 1);
      const DTensor sum = reduce(op, packed(values, indices), flat, options);
      const std::vector<DTensor> pieces = ops::split(sum, sizes, 0);
      for (size_t k = 0; k < indices.size(); ++k) {
        const Shape& shape = ValueAccess::rep(values[indices[k]]).tensors[0].shape();
        found[indices[k]] = ops::reshape(pieces[k], shape);
      }
    }
    std::vector<DTensor> results;
    for (size_t i = 0; i < values.size(); ++i) {
      results.push_back(found[i].has_value() ? *std::move(found[i])
                                             : reduce(op, values[i], destinations[i], options));
    }
    return results;
  }

 private:
  Status check_beside(const Client& client, const Mesh& mesh) const {
    const Mesh& own_mesh = *way_.beside;
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat("all_reduce_on(", own_mesh.to_string(),
                                                     ") for a strategy on ", mesh.to_string(), ": ",
                                                     why));
    };
    if (tessera::internal::runtime_of(own_mesh) == nullptr) return refuse("the mesh is abstract");
    if (own_mesh.axes() != mesh.axes()) return refuse("the meshes have other axes");
    for (int64_t i = 0; i < mesh.size(); ++i) {
      const Device& own = client.devices()[*own_mesh.device_at(i)];
      const Device& of_replica = client.devices()[*mesh.device_at(i)];
      if (own.client_id != of_replica.client_id) {
        return refuse(absl::StrCat("device ", own.id, " is of client ", own.client_id,
                                   ", and device ", of_replica.id, " of client ",
                                   of_replica.client_id));
      }
      if (own.type != DeviceType::kCpu || of_replica.type != DeviceType::kCpu) {
        return refuse("devices that are not CPUs cannot look into memory of each other");
      }
      if (mesh.position_of_device(own.id).has_value()) {
        return refuse(absl::StrCat("device ", own.id, " is one of the strategy's"));
      }
    }
    return absl::OkStatus();
  }

  DTensor add(const DTensor& terms, const LayoutArg& destination) const {
    const Mesh& mesh = terms.layout().mesh();
    if (way_.beside.has_value()) {
      const DTensor sum = relayout(tessera::internal::seen_by(terms, *way_.beside),
                                   terms.layout().without_partial().with_mesh(*way_.beside));
      return relayout(tessera::internal::seen_by(sum, mesh), destination);
    }
    if (!way_.is_by_one_device) return relayout(terms, destination);
    const StatusOr<Mesh> one =
        Mesh::create({{"device", 1}}, {way_.device_id.value_or(*mesh.device_at(0))});
    if (!one.ok()) return failed(destination, one.status());
    const DTensor sum = relayout(
        terms, Layout::replicated(
                   tessera::internal::with_runtime(*one, tessera::internal::runtime_of(mesh)),
                   static_cast<int>(terms.shape().size())));
    return relayout(sum, destination);
  }

  int64_t limit_of(absl::Span<const internal::PackItem> items,
                   const CommunicationOptions& options) const {
    if (way_.num_packs == 0) return options.bytes_per_pack.value_or(0);
    int64_t bytes = 0;
    for (const internal::PackItem& item : items) bytes += item.bytes;
    return std::max<int64_t>(1, (bytes + way_.num_packs - 1) / way_.num_packs);
  }

  const Way way_;
};

StatusOr<std::shared_ptr<CrossDeviceOps>> with_packs(Way way) {
  if (way.num_packs >= 0) return std::make_shared<RelayoutOps>(std::move(way));
  return absl::InvalidArgumentError(
      absl::StrCat("num_packs is ", way.num_packs, "; it should be 0 or more"));
}

}  // namespace

std::vector<DTensor> CrossDeviceOps::batch_reduce(ReduceOp op, absl::Span<const PerReplica> values,
                                                  absl::Span<const Layout> destinations,
                                                  const CommunicationOptions& options) {
  std::vector<DTensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    results.push_back(reduce(op, values[i], destinations[i], options));
  }
  return results;
}

DTensor CrossDeviceOps::broadcast(const DTensor& value, const LayoutArg& destination,
                                  const CommunicationOptions&) {
  return relayout(value, destination);
}

std::shared_ptr<CrossDeviceOps> collective_all_reduce() {
  return std::make_shared<RelayoutOps>(Way());
}

std::shared_ptr<CrossDeviceOps> all_reduce_on(Mesh communication) {
  return std::make_shared<RelayoutOps>(Way{.beside = std::move(communication)});
}

StatusOr<std::shared_ptr<CrossDeviceOps>> reduction_to_one_device(std::optional<int> device_id) {
  if (device_id.has_value() && *device_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction_to_one_device: there is no device ", *device_id));
  }
  return std::make_shared<RelayoutOps>(Way{.is_by_one_device = true, .device_id = device_id});
}

StatusOr<std::shared_ptr<CrossDeviceOps>> hierarchical_copy_all_reduce(int num_packs) {
  return with_packs({.num_packs = num_packs});
}

StatusOr<std::shared_ptr<CrossDeviceOps>> nccl_all_reduce(int num_packs) {
  return with_packs({.num_packs = num_packs, .needs_gpus = true});
}

}  // namespace tessera::distribute
