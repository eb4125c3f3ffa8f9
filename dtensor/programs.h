// SPDX-License-Identifier: Apache-2.0
//
// Programs: prepared objects for the operations of one client, each made once: groups of devices,
// programs of relayouts and fetches, plans of barriers. Internal to dtensor/.
//
// Invariants:
//   1. equal arguments give the same program, as long as it is kept;
//   2. no kept object holds a mesh that holds the runtime, which would then never end;
//   3. when groups take more memory than a bound, all kept objects are released.
//
// Thread-safe.
#ifndef TESSERA_DTENSOR_PROGRAMS_H_
#define TESSERA_DTENSOR_PROGRAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/group_backend.h"
#include "collectives/shared.h"
#include "dtensor/bounded_cache.h"
#include "dtensor/job_connection.h"
#include "dtensor/mesh_devices.h"
#include "dtensor/program.h"
#include "dtensor/replicas.h"
#include "dtensor/step_program.h"
#include "dtensor/turns.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/fetch.h"

namespace tessera {

// The shared data of all barriers on one mesh.
struct BarrierPlan {
  Mesh mesh;
  SharedText where;  // "on {x=2}"
  MeshDevices local;
  std::shared_ptr<GroupBackend> group = {};       // null where no device is local
  std::vector<Collective::Ptr> collectives = {};  // of `local`
};

class Programs {
 public:
  // Both must outlive the object.
  Programs(const JobConnection& job, const Turns& turns);

  // FailedPrecondition after shutdown; other errors as ClientDevices::group().
  StatusOr<std::shared_ptr<GroupBackend>> group(absl::Span<const int> device_ids);

  // The key of a program, owned by the caller.
  struct RelayoutArgs {
    const Layout& from;
    const Layout& to;
    const Shape& shape;
    DType dtype;
    Replicas replicas;
  };
  // This client's part of each program.
  StatusOr<std::shared_ptr<const RelayoutProgram>> relayout(const RelayoutArgs& args);
  StatusOr<std::shared_ptr<const StepProgram>> fetch(const std::shared_ptr<const Fetch>& fetch);
  StatusOr<std::shared_ptr<const BarrierPlan>> barrier(const Mesh& mesh);

  // The number of kept programs.
  size_t size() const { return relayouts_.size() + fetches_.size() + barriers_.size(); }

 private:
  const JobConnection& job_;
  const Turns& turns_;
  const std::function<StatusOr<std::shared_ptr<GroupBackend>>(absl::Span<const int>)> find_group_;
  const ProgramClient client_;
  // When groups take so many bytes, all kept objects are released.
  std::atomic<uint64_t> most_group_bytes_;

  struct RelayoutKey {
    Layout from;
    Layout to;
    Shape shape;
    DType dtype;
    Replicas replicas;
    RelayoutArgs args() const { return {from, to, shape, dtype, replicas}; }
  };
  // Finds a program without a copy of its key.
  struct RelayoutHash {
    size_t operator()(const RelayoutArgs& args) const {
      return absl::HashOf(args.from, args.to, args.shape, args.dtype, args.replicas);
    }
    size_t operator()(const RelayoutKey& key) const { return (*this)(key.args()); }
  };
  struct SameRelayout {
    bool operator()(const RelayoutKey& key, const RelayoutArgs& b) const {
      const RelayoutArgs a = key.args();
      return a.dtype == b.dtype && a.replicas == b.replicas && a.shape == b.shape &&
             a.from == b.from && a.to == b.to;
    }
    bool operator()(const RelayoutKey& a, const RelayoutKey& b) const {
      return (*this)(a, b.args());
    }
  };
  BoundedCache<RelayoutKey, RelayoutProgram, RelayoutHash, SameRelayout> relayouts_;

  // A key is the fetch itself, which it keeps: no other one has its address.
  using FetchKey = std::shared_ptr<const Fetch>;
  BoundedCache<FetchKey, StepProgram, absl::Hash<FetchKey>, std::equal_to<>> fetches_;
  BoundedCache<Mesh, BarrierPlan, absl::Hash<Mesh>, std::equal_to<>> barriers_;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_PROGRAMS_H_
