// SPDX-License-Identifier: Apache-2.0
//
// CrossDeviceOps: how Strategy::reduce_to, all_reduce and batch_reduce_to move bytes.
//
// The default lets the planner of relayouts choose. The others are for experiments, and carry the
// names of tf.distribute. Under each of them small tensors of a batch travel together. Terms are
// added in ascending order everywhere, so on CPU devices all of them give the same bits.
#ifndef TESSERA_DISTRIBUTE_CROSS_DEVICE_OPS_H_
#define TESSERA_DISTRIBUTE_CROSS_DEVICE_OPS_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/public.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "device/device.h"
#include "distribute/options.h"
#include "distribute/values.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

// Values are of replicas that agree: of one dtype, shape and layout. Calls are collective over the
// clients of the strategy.
class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps() = default;

  // OK if it can be used on devices of this type. Asked when a strategy is made.
  virtual Status check(const Client&, const Mesh&) const { return absl::OkStatus(); }
  // Where the clients of a strategy on `mesh` tell each other which calls they make: that mesh, or
  // another with the same axes.
  virtual const Mesh& control_mesh(const Mesh& mesh) const { return mesh; }

  virtual DTensor reduce(ReduceOp op, const PerReplica& value, const LayoutArg& destination,
                         const CommunicationOptions& options) = 0;
  // By default reduces one value after the other.
  virtual std::vector<DTensor> batch_reduce(ReduceOp op, absl::Span<const PerReplica> values,
                                            absl::Span<const Layout> destinations,
                                            const CommunicationOptions& options);
  virtual DTensor broadcast(const DTensor& value, const LayoutArg& destination,
                            const CommunicationOptions& options);
};

// The default: one relayout, which the planner chooses.
std::shared_ptr<CrossDeviceOps> collective_all_reduce();
// As collective_all_reduce(), on CPU devices of their own: on a mesh with the axes of the
// strategy's mesh, whose i-th devices have the same client. A device does one thing at a time, so
// the devices of the replicas go on while their values travel: with the rest of a backward pass, or
// with the next step. Nothing is copied more. Worth it where the network takes time that the cores
// do not need. InvalidArgument, when the strategy is made, for a mesh that does not fit.
std::shared_ptr<CrossDeviceOps> all_reduce_on(Mesh communication);
// All terms to one device of the strategy, which adds them in order; then to the destination.
// Without an id: the first device. InvalidArgument for a negative id.
StatusOr<std::shared_ptr<CrossDeviceOps>> reduction_to_one_device(
    std::optional<int> device_id = {});
// Inside each host, then between hosts: the planner does this where it is faster. A batch travels
// in so many packs; 0: as the default.
StatusOr<std::shared_ptr<CrossDeviceOps>> hierarchical_copy_all_reduce(int num_packs = 1);
// By NCCL. FailedPrecondition on CPU devices, when the strategy is made.
StatusOr<std::shared_ptr<CrossDeviceOps>> nccl_all_reduce(int num_packs = 1);

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_DISTRIBUTE_CROSS_DEVICE_OPS_H_
