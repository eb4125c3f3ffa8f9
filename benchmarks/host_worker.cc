// SPDX-License-Identifier: Apache-2.0
//
// Tessera as a contestant of tools/bench, by its public API only.
//
//   host_worker PREFIX REGION_BYTES         one client; the environment names the job
//
//   all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier     on Group, one device
//       memory=arena     buffers in the memory of tensors, which peers map (the default)
//       memory=private   buffers of this process alone, which are copied through an arena
//   mesh_barrier         Mesh::barrier
//   relayout             "rows= cols= element=4|8 mesh=x:2,y:2 devices=0,1,2,3 from_layout=[x,y]
//                        to_devices=... to_layout=... replicas=shared", any number of devices
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "benchmarks/peers/worker.h"
#include "tessera/tessera.h"

namespace tessera::bench {
namespace {

std::string text_of(const Status& status) {
  return status.ok() ? "" : std::string(status.ToString());
}

// Element (row, col) of the matrices: small whole numbers, so that sums of 8 terms are exact.
int64_t element(int64_t row, int64_t col) { return (row * 131 + col * 31) & 0xFFFF; }

// Calls fn(row, col, index) for the elements of a box of a matrix, every `stride`-th row and
// column.
template <class Fn>
void for_each_element(const Box& box, int64_t row_stride, int64_t col_stride, Fn fn) {
  for (int64_t r = 0; r < box.sizes[0]; r += row_stride) {
    for (int64_t c = 0; c < box.sizes[1]; c += col_stride) {
      fn(box.offsets[0] + r, box.offsets[1] + c, r * box.sizes[1] + c);
    }
  }
}

// One relayout of a matrix, repeated: a source and the latest result for each set.
template <class T>
class Relayout {
 public:
  Relayout(Shape shape, Layout from, Layout to, Replicas replicas)
      : shape_(std::move(shape)), from_(std::move(from)), to_(std::move(to)), replicas_(replicas) {}

  Status make_sources(int64_t sets) {
    for (int64_t s = 0; s < sets; ++s) {
      sources_.push_back(from_.is_partial() ? make_terms() : make_values());
      TESSERA_RETURN_IF_ERROR(sources_.back().await());
    }
    results_.resize(sets);
    return absl::OkStatus();
  }

  Status call(int set) {
    results_[set] = relayout(sources_[set], to_, replicas_);
    return results_[set]->await();
  }

  // Overwrites the block that the next result will reuse with another value.
  void poison(int set) {
    results_[set].reset();
    full<T>(shape_, T(-1), to_).await().IgnoreError();
  }

  Status check(int set, bool full) const {
    const int64_t terms = from_.num_partial_terms();
    const DTensor& result = *results_[set];
    for (int i = 0; i < result.num_local_shards(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const ShardView<T> shard, result.shard<T>(i));
      const int64_t row_stride = full ? 1 : std::max<int64_t>(1, shard.shape[0] / 31);
      const int64_t col_stride = full ? 1 : std::max<int64_t>(1, shard.shape[1] / 37);
      bool is_right = true;
      for_each_element(shard.box, row_stride, col_stride, [&](int64_t r, int64_t c, int64_t at) {
        is_right &= shard.data[at] == T(terms * element(r, c) + terms * (terms - 1) / 2);
      });
      if (!is_right) {
        return absl::InternalError(absl::StrCat("wrong result in shard ", shard.box.to_string()));
      }
    }
    return absl::OkStatus();
  }

 private:
  DTensor make_values() const {
    return from_function<T>(shape_, from_, [](const Box& box, absl::Span<T> out) {
      for_each_element(box, 1, 1,
                       [&](int64_t r, int64_t c, int64_t at) { out[at] = T(element(r, c)); });
    });
  }
  // Term t of each element is the element plus t.
  DTensor make_terms() const {
    return local_map(from_, shape_, dtype_of<T>(), {}, [layout = from_](LocalContext& local) {
      const int64_t position = *layout.mesh().position_of_device(local.device_id());
      const int64_t term = layout.partial_index(position);
      const absl::Span<T> out = local.output<T>().data;
      for_each_element(local.output_box(), 1, 1, [&](int64_t r, int64_t c, int64_t at) {
        out[at] = T(element(r, c) + term);
      });
    });
  }

  const Shape shape_;
  const Layout from_;
  const Layout to_;
  const Replicas replicas_;
  std::vector<DTensor> sources_;
  std::vector<std::optional<DTensor>> results_;
};

class HostWorker : public Contestant {
 public:
  static StatusOr<std::unique_ptr<HostWorker>> create(int64_t region_bytes) {
    ClientOptions options;
    options.heartbeat_interval = absl::Seconds(20);  // idle clients do not disturb the others
    options.collective_timeout = absl::Minutes(2);
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect(options));
    auto worker = std::unique_ptr<HostWorker>(new HostWorker(std::move(client), region_bytes));
    TESSERA_RETURN_IF_ERROR(worker->start());
    return worker;
  }

  int rank() const override { return client_.client_id(); }
  int size() const override { return client_.num_clients(); }

  std::string barrier() override {
    return group_.has_value() ? text_of(group_->barrier().await())
                              : text_of(client_.sync_devices());
  }

  std::string prepare(const Command& command, Operation* operation) override {
    if (command.operation == "relayout") {
      const bool is_double = command.number("element", 4) == 8;
      return text_of(is_double ? prepare_relayout<double>(command, operation)
                               : prepare_relayout<float>(command, operation));
    }
    if (!group_.has_value()) return "collectives need clients of one device";
    if (command.operation == "barrier" || command.operation == "mesh_barrier") {
      const bool of_mesh = command.operation == "mesh_barrier";
      operation->call = [this, of_mesh](int) {
        return of_mesh ? text_of(mesh_->barrier()) : barrier();
      };
      operation->poison = [](int, bool) {};
      operation->check = [](int, bool) { return std::string(); };
      return "";
    }
    if (command.text("memory") == "private" && private_.in() == nullptr) {
      private_ = Regions::allocate(region_bytes_, rank());
    }
    return prepare_collective(
        command, rank(), size(), command.text("memory") == "private" ? private_ : arena_,
        [this, name = command.operation](const std::byte* in, std::byte* out, int64_t bytes) {
          return text_of(collective(name, in, out, bytes));
        },
        operation);
  }

  void release() override { private_.free(); }

  Status shutdown() { return client_.shutdown(); }

 private:
  HostWorker(Client client, int64_t region_bytes)
      : client_(std::move(client)), region_bytes_(region_bytes) {}

  Status start() {
    const int64_t num_devices = static_cast<int64_t>(client_.devices().size());
    TESSERA_ASSIGN_OR_RETURN(mesh_, create_mesh(client_, {{"all", num_devices}}));
    if (client_.local_devices().size() != 1) return absl::OkStatus();
    std::vector<int> ids;
    for (const Device& device : client_.devices()) ids.push_back(device.id);
    TESSERA_ASSIGN_OR_RETURN(group_, client_.group(ids));
    // Only tensors have memory that peers can map. So both regions are the shard of a tensor that
    // only this worker has.
    std::byte* memory = nullptr;
    holder_ =
        from_function<uint8_t>({num_devices * 2 * region_bytes_}, Layout::parse(*mesh_, "[all]"),
                               [&](const Box&, absl::Span<uint8_t> out) {
                                 memory = reinterpret_cast<std::byte*>(out.data());
                               });
    TESSERA_RETURN_IF_ERROR(holder_->await());
    arena_ = Regions(memory, memory + region_bytes_, region_bytes_, rank());
    return absl::OkStatus();
  }

  Status collective(const std::string& name, const std::byte* in, std::byte* out,
                    int64_t bytes) const {
    const int64_t part = bytes / size();
    const auto values = [&](int64_t count) {
      return absl::MakeConstSpan(reinterpret_cast<const float*>(in), count / 4);
    };
    const auto results = [&](int64_t count) {
      return absl::MakeSpan(reinterpret_cast<float*>(out), count / 4);
    };
    const auto raw_in = [&](int64_t count) {
      return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(in), count);
    };
    const auto raw_out = absl::MakeSpan(reinterpret_cast<uint8_t*>(out), bytes);
    if (name == "all_reduce") {
      return group_->all_reduce(values(bytes), results(bytes), ReduceOp::kSum).await();
    }
    if (name == "reduce_scatter") {
      return group_->reduce_scatter(values(bytes), results(part), ReduceOp::kSum).await();
    }
    if (name == "all_gather") return group_->all_gather(raw_in(part), raw_out).await();
    if (name == "all_to_all") return group_->all_to_all(raw_in(bytes), raw_out).await();
    if (name == "broadcast") return group_->broadcast(raw_in(bytes), raw_out, 0).await();
    return absl::InvalidArgumentError(absl::StrCat("host_worker cannot ", name));
  }

  // "x:2,y:2" over "0,1,2,3". Keeps each mesh, because creating one is a collective.
  StatusOr<Mesh> mesh_of(const std::string& axes, const std::string& devices) {
    const auto it = meshes_.find({axes, devices});
    if (it != meshes_.end()) return it->second;
    std::vector<MeshAxis> mesh_axes;
    for (absl::string_view axis : absl::StrSplit(axes, ',')) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(axis, ':');
      int64_t size = 0;
      if (!absl::SimpleAtoi(parts.second, &size)) {
        return absl::InvalidArgumentError(absl::StrCat("mesh \"", axes, "\""));
      }
      mesh_axes.push_back({parts.first, size});
    }
    std::vector<int> ids;
    for (absl::string_view device : absl::StrSplit(devices, ',')) {
      if (!absl::SimpleAtoi(device, &ids.emplace_back())) {
        return absl::InvalidArgumentError(absl::StrCat("devices \"", devices, "\""));
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client_, mesh_axes, ids));
    meshes_.emplace(std::make_pair(axes, devices), mesh);
    return mesh;
  }

  template <class T>
  Status prepare_relayout(const Command& command, Operation* operation) {
    TESSERA_ASSIGN_OR_RETURN(const Mesh from_mesh,
                             mesh_of(command.text("mesh"), command.text("devices")));
    TESSERA_ASSIGN_OR_RETURN(const Mesh to_mesh,
                             mesh_of(command.text("mesh"), command.text("to_devices")));
    TESSERA_ASSIGN_OR_RETURN(Layout from, Layout::parse(from_mesh, command.text("from_layout")));
    TESSERA_ASSIGN_OR_RETURN(Layout to, Layout::parse(to_mesh, command.text("to_layout")));
    auto work = std::make_shared<Relayout<T>>(
        Shape{command.number("rows", 0), command.number("cols", 0)}, std::move(from), std::move(to),
        command.text("replicas") == "shared" ? Replicas::kShared : Replicas::kOwn);
    TESSERA_RETURN_IF_ERROR(work->make_sources(command.number("sets", 1)));
    operation->call = [work](int set) { return text_of(work->call(set)); };
    operation->poison = [work](int set, bool full) {
      if (full) work->poison(set);
    };
    operation->check = [work](int set, bool full) { return text_of(work->check(set, full)); };
    return absl::OkStatus();
  }

  Client client_;
  const int64_t region_bytes_;
  std::optional<Mesh> mesh_;
  std::optional<Group> group_;
  std::optional<DTensor> holder_;  // of the memory of arena_
  Regions arena_;
  Regions private_;
  std::map<std::pair<std::string, std::string>, Mesh> meshes_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using tessera::bench::HostWorker;
  if (argc != 3) {
    std::fprintf(stderr, "usage: host_worker PREFIX REGION_BYTES; tools/bench starts it\n");
    return 2;
  }
  return tessera::bench::serve_and_shutdown("host_worker", HostWorker::create(std::atoll(argv[2])),
                                            argv[1]);
}
