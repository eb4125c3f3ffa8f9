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

DTensor failed(LayoutArg destination, Status error) {
  return tessera::internal::failed_tensor(DType::kFloat32, {}, destination, std::move(error));
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

class RelayoutOps : public CrossDeviceOps {
 public:
  // 0: packs by bytes.
  explicit RelayoutOps(int num_packs) : num_packs_(num_packs) {}

  DTensor reduce(ReduceOp op, const PerReplica& value, LayoutArg destination,
                 const CommunicationOptions&) override {
    const ValueAccess::Rep& rep = ValueAccess::rep(value);
    if (!rep.error.ok()) return failed(destination, rep.error);
    const StatusOr<DTensor> terms = rep.replicas->whole_of_terms(rep.tensors, op);
    if (!terms.ok()) return failed(destination, terms.status());
    return move(*terms, destination);
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

 protected:
  virtual DTensor move(const DTensor& terms, LayoutArg destination) {
    return relayout(terms, destination);
  }

 private:
  int64_t limit_of(absl::Span<const internal::PackItem> items,
                   const CommunicationOptions& options) const {
    if (num_packs_ == 0) return options.bytes_per_pack.value_or(0);
    int64_t bytes = 0;
    for (const internal::PackItem& item : items) bytes += item.bytes;
    return std::max<int64_t>(1, (bytes + num_packs_ - 1) / num_packs_);
  }

  const int num_packs_;
};

// On the devices of a mesh beside the strategy's.
class OpsOnMesh final : public RelayoutOps {
 public:
  explicit OpsOnMesh(Mesh mesh) : RelayoutOps(0), mesh_(std::move(mesh)) {}

  Status check(const Client& client, const Mesh& mesh) const override {
    const auto refuse = [&](const std::string& why) {
      return absl::InvalidArgumentError(absl::StrCat("all_reduce_on(", mesh_.to_string(),
                                                     ") for a strategy on ", mesh.to_string(), ": ",
                                                     why));
    };
    if (tessera::internal::runtime_of(mesh_) == nullptr) return refuse("the mesh is abstract");
    if (mesh_.axes() != mesh.axes()) return refuse("the meshes have other axes");
    for (int64_t i = 0; i < mesh.size(); ++i) {
      const Device& own = client.devices()[*mesh_.device_at(i)];
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
  const Mesh& control_mesh(const Mesh&) const override { return mesh_; }

 protected:
  DTensor move(const DTensor& terms, LayoutArg destination) override {
    const DTensor sum = relayout(tessera::internal::seen_by(terms, mesh_),
                                 terms.layout().without_partial().with_mesh(mesh_));
    return relayout(tessera::internal::seen_by(sum, terms.layout().mesh()), destination);
  }

 private:
  const Mesh mesh_;
};

class OneDeviceOps final : public CrossDeviceOps {
 public:
  explicit OneDeviceOps(std::optional<int> device_id) : device_id_(device_id) {}

  Status check(const Client&, const Mesh& mesh) const override {
    if (!device_id_.has_value() || mesh.position_of_device(*device_id_).has_value()) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("reduction_to_one_device: device ", *device_id_,
                                                   " is not one of mesh ", mesh.to_string()));
  }

  DTensor reduce(ReduceOp op, const PerReplica& value, LayoutArg destination,
                 const CommunicationOptions&) override {
    const ValueAccess::Rep& rep = ValueAccess::rep(value);
    if (!rep.error.ok()) return failed(destination, rep.error);
    const StatusOr<DTensor> terms = rep.replicas->whole_of_terms(rep.tensors, op);
    if (!terms.ok()) return failed(destination, terms.status());
    const Mesh& mesh = rep.replicas->mesh();
    const StatusOr<Mesh> one =
        Mesh::create({{"device", 1}}, {device_id_.value_or(*mesh.device_at(0))});
    if (!one.ok()) return failed(destination, one.status());
    const int rank = static_cast<int>(terms->shape().size());
    const DTensor there = relayout(
        *terms,
        Layout::replicated(
            tessera::internal::with_runtime(*one, tessera::internal::runtime_of(mesh)), rank));
    return relayout(there, destination);
  }

 private:
  const std::optional<int> device_id_;
};

class NcclOps final : public RelayoutOps {
 public:
  using RelayoutOps::RelayoutOps;

  Status check(const Client& client, const Mesh& mesh) const override {
    if (client.devices()[*mesh.device_at(0)].type == DeviceType::kCuda) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "nccl_all_reduce: NCCL moves bytes between GPUs, and the devices are CPUs; use "
        "collective_all_reduce()");
  }
};

Status check_num_packs(int num_packs) {
  if (num_packs >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("num_packs is ", num_packs, "; it should be 0 or more"));
}

}  // namespace

Status CrossDeviceOps::check(const Client&, const Mesh&) const { return absl::OkStatus(); }

std::vector<DTensor> CrossDeviceOps::batch_reduce(ReduceOp op, absl::Span<const PerReplica> values,
                                                  absl::Span<const Layout> destinations,
                                                  const CommunicationOptions& options) {
  std::vector<DTensor> results;
  for (size_t i = 0; i < values.size(); ++i) {
    results.push_back(reduce(op, values[i], destinations[i], options));
  }
  return results;
}

DTensor CrossDeviceOps::broadcast(const DTensor& value, LayoutArg destination,
                                  const CommunicationOptions&) {
  return relayout(value, destination);
}

std::shared_ptr<CrossDeviceOps> collective_all_reduce() { return std::make_shared<RelayoutOps>(0); }

std::shared_ptr<CrossDeviceOps> all_reduce_on(Mesh communication) {
  return std::make_shared<OpsOnMesh>(std::move(communication));
}

StatusOr<std::shared_ptr<CrossDeviceOps>> reduction_to_one_device(std::optional<int> device_id) {
  if (device_id.has_value() && *device_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction_to_one_device: there is no device ", *device_id));
  }
  return std::make_shared<OneDeviceOps>(device_id);
}

StatusOr<std::shared_ptr<CrossDeviceOps>> hierarchical_copy_all_reduce(int num_packs) {
  TESSERA_RETURN_IF_ERROR(check_num_packs(num_packs));
  return std::make_shared<RelayoutOps>(num_packs);
}

StatusOr<std::shared_ptr<CrossDeviceOps>> nccl_all_reduce(int num_packs) {
  TESSERA_RETURN_IF_ERROR(check_num_packs(num_packs));
  return std::make_shared<NcclOps>(num_packs);
}

}  // namespace tessera::distribute
