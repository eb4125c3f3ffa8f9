// SPDX-License-Identifier: Apache-2.0
#include "dtensor/dtensor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "device/cpu/kernels.h"
#include "device/cuda/cuda_device.h"
#include "dtensor/relayout.h"
#include "dtensor/tensor_rep.h"

namespace tessera {
namespace internal {

std::shared_ptr<const Buffer> TensorRep::buffer_of(int ordinal) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (devices[i].ordinal == ordinal) return buffers[i];
  }
  return nullptr;
}

Status TensorRep::await(size_t local_device) const {
  const Buffer& buffer = *buffers[local_device];
  // The op that fills it may run on this thread, unless other devices of it wait for this thread.
  if (!buffer.ready().done() && devices.size() == 1) {
    runtime->stream(devices[0].ordinal).run_here(&buffer.filled());
  }
  return buffer.ready().wait();
}

StatusOr<TensorRep> new_tensor(DType dtype, Shared<Shape> shape, LayoutArg layout) {
  TESSERA_RETURN_IF_ERROR(layout.status());
  TESSERA_RETURN_IF_ERROR(layout->check_not_moved_from());
  auto runtime = std::dynamic_pointer_cast<Runtime>(layout->mesh().runtime());
  if (runtime == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("mesh ", layout->mesh().to_string(),
                     " is abstract: no devices stand behind it; make it with create_mesh(client, "
                     "...) to hold tensors"));
  }
  TESSERA_RETURN_IF_ERROR(runtime->check_open());
  TESSERA_RETURN_IF_ERROR(layout->validate_shape(*shape));
  TESSERA_RETURN_IF_ERROR(validate_shape(*shape, dtype));
  if (layout->is_partial()) {
    TESSERA_RETURN_IF_ERROR(with_context(validate_reduction(*layout->partial_op(), dtype),
                                         absl::StrCat("layout ", layout->to_string())));
  }
  TensorRep rep;
  rep.dtype = dtype;
  rep.shape = std::move(shape);
  rep.layout = *layout;
  rep.devices = runtime->local_devices_of(layout->mesh());
  rep.runtime = std::move(runtime);
  return rep;
}

DTensor failed_tensor(DType dtype, const Shape& shape, LayoutArg layout, Status error) {
  TensorRep rep;
  rep.dtype = dtype;
  rep.shape = shape;
  if (layout.ok()) rep.layout = *layout;
  rep.error = std::move(error);
  return std::move(rep).into_tensor();
}

bool holds_value(const Layout& layout, int64_t position) {
  if (!layout.is_partial()) return true;
  const ReduceOp op = *layout.partial_op();
  return (op != ReduceOp::kSum && op != ReduceOp::kProd) || layout.partial_index(position) == 0;
}

namespace {

// What fills a buffer of one local device; `gpu` is null of a CPU.
struct Filling {
  Stream& stream;
  cuda::CudaDevice* gpu;
  const Box& box;
  const std::shared_ptr<Buffer>& buffer;
};

// Fills a buffer with the identity of a reduction.
void make_identity(const Filling& filling, DType dtype, ReduceOp op) {
  Buffer& buffer = *filling.buffer;
  const int64_t count = filling.box.num_elements();
  const std::array<std::byte, 8> identity = identity_element(op, dtype);
  if (filling.gpu == nullptr) {
    cpu::fill_elements(dtype, identity.data(), buffer.mutable_data(), count);
    return buffer.mutable_ready().set(absl::OkStatus());
  }
  filling.gpu->produce("identity", filling.buffer,
                       [gpu = filling.gpu, dtype, identity, count](std::byte* out) {
                         return gpu->fill(dtype, identity.data(), out, count);
                       });
}

// Fills buffers with bytes that `write(out)` writes to memory of the host, once for each box: the
// devices of CPUs share a buffer anyway, those of GPUs are sent the same bytes.
class HostWriter {
 public:
  template <class Write>
  void fill(const Filling& filling, Write write) {
    Buffer& buffer = *filling.buffer;
    if (filling.gpu == nullptr) {
      write(buffer.mutable_data());
      return buffer.mutable_ready().set(absl::OkStatus());
    }
    std::shared_ptr<const Buffer>& sent = sent_[{filling.box.offsets, filling.box.sizes}];
    if (sent == nullptr) {
      StatusOr<std::shared_ptr<Buffer>> pinned =
          Buffer::allocate(filling.gpu->pinned(), buffer.size_bytes());
      if (!pinned.ok()) return filling.gpu->finish(filling.buffer, pinned.status());
      write((*pinned)->mutable_data());
      sent = *std::move(pinned);
    }
    filling.gpu->upload(sent, filling.buffer);
  }

 private:
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, std::shared_ptr<const Buffer>>
      sent_;
};

// Makes the local buffers: one for each distinct pair of box and (value or identity), shared by
// the devices that hold equal ones, but not by GPUs. `make` starts what fills a buffer of the
// value, on the stream of the first of those devices or at once; its error becomes the buffer's.
template <class Make>
DTensor create(DType dtype, const Shape& shape, LayoutArg layout, Make make) {
  StatusOr<TensorRep> rep = new_tensor(dtype, shape, layout);
  if (!rep.ok()) return failed_tensor(dtype, shape, layout, rep.status());
  using BoxKey = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  std::map<std::tuple<BoxKey, bool, int>, std::shared_ptr<const Buffer>> made;
  for (const LocalDevice& device : rep->devices) {
    const Box box = rep->box_of(device);
    const bool is_value = holds_value(*rep->layout, device.position);
    cuda::CudaDevice* const gpu = rep->runtime->gpu(device.ordinal);
    std::shared_ptr<const Buffer>& shared =
        made[{{box.offsets, box.sizes}, is_value, gpu == nullptr ? 0 : device.ordinal}];
    if (shared == nullptr) {
      StatusOr<std::shared_ptr<Buffer>> buffer =
          rep->runtime->new_buffer(device.ordinal, num_bytes(box.sizes, dtype));
      if (!buffer.ok()) {
        shared = Buffer::failed(buffer.status());
      } else {
        const Filling filling = {rep->runtime->stream(device.ordinal), gpu, box, *buffer};
        if (is_value) {
          make(filling);
        } else {
          make_identity(filling, dtype, *layout->partial_op());
        }
        shared = *std::move(buffer);
      }
    }
    rep->buffers.push_back(shared);
  }
  return std::move(*rep).into_tensor();
}

// The flat index of the first element of each row of `box`, and where the row is in the box.
template <class Fn>
void for_each_row(const Shape& shape, const Box& box, Fn&& fn) {
  const int rank = static_cast<int>(shape.size());
  if (box.is_empty()) return;
  if (rank == 0) return fn(int64_t{0}, int64_t{0}, int64_t{1});
  const int64_t row = box.sizes[rank - 1];
  std::vector<int64_t> index(rank, 0);
  for (int64_t done = 0; done < box.num_elements(); done += row) {
    int64_t flat = 0;
    for (int dim = 0; dim < rank; ++dim) flat = flat * shape[dim] + box.offsets[dim] + index[dim];
    fn(flat, done, row);
    for (int dim = rank - 2; dim >= 0 && ++index[dim] == box.sizes[dim]; --dim) index[dim] = 0;
  }
}

}  // namespace

DTensor full_raw(DType dtype, const Shape& shape, LayoutArg layout, const void* element) {
  std::array<std::byte, 8> value;
  std::memcpy(value.data(), element, dtype_size(dtype));
  return create(dtype, shape, layout, [&](const Filling& filling) {
    const int64_t count = filling.box.num_elements();
    if (cuda::CudaDevice* const gpu = filling.gpu) {
      return gpu->produce("full", filling.buffer, [=](std::byte* out) {
        return gpu->fill(dtype, value.data(), out, count);
      });
    }
    filling.stream.enqueue("full", [dtype, value, count, buffer = filling.buffer] {
      cpu::fill_elements(dtype, value.data(), buffer->mutable_data(), count);
      buffer->mutable_ready().set(absl::OkStatus());
      return absl::OkStatus();
    });
  });
}

DTensor iota_raw(DType dtype, const Shape& shape, LayoutArg layout) {
  return create(dtype, shape, layout, [&](const Filling& filling) {
    if (cuda::CudaDevice* const gpu = filling.gpu) {
      return gpu->produce("iota", filling.buffer,
                          [gpu, dtype, shape, box = filling.box](std::byte* out) {
                            return gpu->iota(dtype, shape, box, out);
                          });
    }
    filling.stream.enqueue("iota", [dtype, shape, box = filling.box, buffer = filling.buffer] {
      visit_dtype(dtype, [&]<class T>() {
        T* out = reinterpret_cast<T*>(buffer->mutable_data());
        for_each_row(shape, box, [&](int64_t flat, int64_t first, int64_t count) {
          for (int64_t i = 0; i < count; ++i) out[first + i] = T(flat + i);
        });
      });
      buffer->mutable_ready().set(absl::OkStatus());
      return absl::OkStatus();
    });
  });
}

DTensor from_host_raw(DType dtype, const std::byte* values, int64_t num_elements,
                      const Shape& shape, LayoutArg layout) {
  const Status shape_status = validate_shape(shape);
  if (shape_status.ok() && num_elements != tessera::num_elements(shape)) {
    return failed_tensor(dtype, shape, layout,
                         absl::InvalidArgumentError(absl::StrCat(
                             "from_host of shape ", shape_to_string(shape), " needs ",
                             tessera::num_elements(shape), " elements, got ", num_elements)));
  }
  if (values == nullptr && num_elements > 0) {
    return failed_tensor(dtype, shape, layout,
                         absl::InvalidArgumentError(
                             absl::StrCat("from_host of shape ", shape_to_string(shape),
                                          ": values is null and ", "its span has ", num_elements,
                                          " elements; pass memory that holds "
                                          "them")));
  }
  const Box whole = whole_box(shape);
  HostWriter writer;
  return create(dtype, shape, layout, [&](const Filling& filling) {
    writer.fill(filling, [&](std::byte* out) {
      cpu::copy_box(filling.box, {values, whole}, {out, filling.box}, dtype_size(dtype));
    });
  });
}

DTensor from_function_raw(DType dtype, const Shape& shape, LayoutArg layout, RawFill fill) {
  HostWriter writer;
  return create(dtype, shape, layout, [&](const Filling& filling) {
    writer.fill(filling, [&](std::byte* out) {
      if (!filling.box.is_empty()) fill(filling.box, out);
    });
  });
}

namespace {

// What is wrong with the shards that a client gave.
Status check_shards(const TensorRep& rep, absl::Span<const RawHostShard> local) {
  if (local.size() != rep.devices.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("from_shards on client ", rep.runtime->client_id(), ": expected ",
                     rep.devices.size(), " shards, one for each local device of ",
                     rep.layout->mesh().to_string(), ", got ", local.size()));
  }
  for (size_t i = 0; i < local.size(); ++i) {
    const Box box = rep.box_of(rep.devices[i]);
    const std::string device =
        absl::StrCat("from_shards: the shard of device ", rep.devices[i].device_id, " under ",
                     rep.layout->to_string());
    if (local[i].shape->size() != rep.shape->size()) {
      return absl::InvalidArgumentError(absl::StrCat(device, " has rank ", local[i].shape->size(),
                                                     ", and the tensor has rank ",
                                                     rep.shape->size()));
    }
    if (*local[i].shape != box.sizes) {
      return absl::InvalidArgumentError(absl::StrCat(device, " has shape ",
                                                     shape_to_string(*local[i].shape),
                                                     "; expected ", shape_to_string(box.sizes)));
    }
    if (local[i].num_elements != box.num_elements()) {
      return absl::InvalidArgumentError(
          absl::StrCat(device, " has ", local[i].num_elements, " elements; its shape ",
                       shape_to_string(box.sizes), " needs ", box.num_elements()));
    }
    const int64_t size_bytes = num_bytes(box.sizes, rep.dtype);
    for (size_t j = 0; j < i; ++j) {
      const LocalDevice& a = rep.devices[j];
      const LocalDevice& b = rep.devices[i];
      const bool replicas = rep.box_of(a) == box && rep.layout->partial_index(a.position) ==
                                                        rep.layout->partial_index(b.position);
      if (replicas && size_bytes > 0 &&
          std::memcmp(local[i].data, local[j].data, size_bytes) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            device, " differs from that of device ", a.device_id, ", and both hold the same box ",
            box.to_string(), "; replicas must be equal"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

DTensor from_shards_raw(DType dtype, const Shape& shape, LayoutArg layout,
                        absl::Span<const RawHostShard> local) {
  StatusOr<TensorRep> rep = new_tensor(dtype, shape, layout);
  if (!rep.ok()) return failed_tensor(dtype, shape, layout, rep.status());
  // Only this client sees its shards: the error goes into the buffers, so that the next collective
  // tells the others.
  const Status wrong = check_shards(*rep, local);
  for (size_t i = 0; i < rep->devices.size(); ++i) {
    if (!wrong.ok()) {
      rep->buffers.push_back(Buffer::failed(wrong));
      continue;
    }
    const Box box = rep->box_of(rep->devices[i]);
    const int64_t size_bytes = num_bytes(box.sizes, dtype);
    const int ordinal = rep->devices[i].ordinal;
    StatusOr<std::shared_ptr<Buffer>> buffer = rep->runtime->new_buffer(ordinal, size_bytes);
    if (!buffer.ok()) {
      rep->buffers.push_back(Buffer::failed(buffer.status()));
      continue;
    }
    HostWriter().fill({rep->runtime->stream(ordinal), rep->runtime->gpu(ordinal), box, *buffer},
                      [&](std::byte* out) {
                        if (size_bytes > 0) std::memcpy(out, local[i].data, size_bytes);
                      });
    rep->buffers.push_back(*std::move(buffer));
  }
  return std::move(*rep).into_tensor();
}

}  // namespace internal

const internal::TensorRep& DTensor::moved_from() {
  static const internal::TensorRep* const kNone = [] {
    auto* rep = new internal::TensorRep;
    rep->shape = Shape();
    rep->error = absl::FailedPreconditionError(
        "the tensor was moved from; use the tensor that it was moved to, or pass a copy");
    return rep;
  }();
  return *kNone;
}

DType DTensor::dtype() const { return rep().dtype; }

const Shape& DTensor::shape() const { return rep().shape; }

const Layout& DTensor::layout() const {
  if (rep().layout.has_value()) return *rep().layout;
  static const Layout* const kNone =
      new Layout(*Layout::replicated(*Mesh::create({{"none", 1}}), 0));
  return *kNone;
}

Status DTensor::await() const {
  Status first = rep().error;
  if (!rep().buffers.empty()) first.Update(rep().runtime->check_may_wait("await"));
  if (!first.ok()) return first;
  for (size_t i = 0; i < rep().buffers.size(); ++i) first.Update(rep().await(i));
  return first;
}

Status DTensor::status() const {
  Status first = rep().error;
  for (const std::shared_ptr<const Buffer>& buffer : rep().buffers) {
    first.Update(buffer->ready().status());
  }
  return first;
}

int DTensor::num_local_shards() const { return static_cast<int>(rep().buffers.size()); }

Status DTensor::check_dtype(absl::string_view function, DType dtype) const {
  if (dtype == rep().dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(function, "<", dtype_name(dtype),
                                                 "> of a tensor of ", dtype_name(rep().dtype),
                                                 "; read it as its own dtype"));
}

StatusOr<internal::RawShard> DTensor::raw_shard(int local_device, DType dtype) const {
  TESSERA_RETURN_IF_ERROR(rep().error);
  TESSERA_RETURN_IF_ERROR(check_dtype("shard", dtype));
  if (local_device < 0 || local_device >= num_local_shards()) {
    return absl::InvalidArgumentError(
        num_local_shards() == 0
            ? absl::StrCat("shard(", local_device, "): client ", rep().runtime->client_id(),
                           " holds no shard of a tensor on ", rep().layout->mesh().to_string())
            : absl::StrCat("shard(", local_device,
                           ") is out of range; this client holds shards 0 "
                           "to ",
                           num_local_shards() - 1));
  }
  TESSERA_RETURN_IF_ERROR(rep().runtime->check_may_wait("shard"));
  const std::shared_ptr<const Buffer>& buffer = rep().buffers[local_device];
  const LocalDevice& device = rep().devices[local_device];
  if (cuda::CudaDevice* const gpu = rep().runtime->gpu(device.ordinal)) {
    const std::shared_ptr<const Buffer> on_host =
        buffer->host_copy([&] { return gpu->download(buffer); });
    TESSERA_RETURN_IF_ERROR(on_host->ready().wait());
    return internal::RawShard{rep().box_of(device), on_host->data(), on_host};
  }
  TESSERA_RETURN_IF_ERROR(rep().await(local_device));
  return internal::RawShard{rep().box_of(device), buffer->data(), buffer};
}

StatusOr<internal::RawShard> DTensor::raw_to_host(DType dtype) const {
  TESSERA_RETURN_IF_ERROR(rep().error);
  if (num_local_shards() == 0 || dtype != rep().dtype) {
    TESSERA_RETURN_IF_ERROR(check_dtype("to_host", dtype));
    return absl::FailedPreconditionError(absl::StrCat(
        "to_host: client ", rep().runtime->client_id(), " owns no device of ",
        rep().layout->mesh().to_string(), "; relayout to a mesh that it belongs to first"));
  }
  TESSERA_RETURN_IF_ERROR(rep().runtime->check_may_wait("to_host"));
  if (rep().layout->is_fully_replicated()) return raw_shard(0, dtype);
  // One copy per client is enough: the first device of each client in the mesh gets it.
  std::map<int, int> first_device;
  for (const int id : rep().layout->mesh().device_ids()) {
    const auto [it, inserted] =
        first_device.try_emplace(rep().runtime->devices()[id].client_id, id);
    it->second = std::min(it->second, id);
  }
  std::vector<int> ids;
  for (const auto& [client, id] : first_device) ids.push_back(id);
  TESSERA_ASSIGN_OR_RETURN(const Mesh clients,
                           Mesh::create({{"client", static_cast<int64_t>(ids.size())}}, ids));
  const DTensor whole = relayout(*this, Layout::replicated(clients.with_runtime(rep().runtime),
                                                           static_cast<int>(rep().shape->size())));
  return whole.raw_shard(0, dtype);
}

}  // namespace tessera
