// SPDX-License-Identifier: Apache-2.0
//
// HostAxes: the terms of a reduction by host: which sub-axes of the partial axes tell the devices
// of one host apart (intra-host), and which tell hosts apart (inter-host). Internal to relayout/.
//
//   {node=2, gpu=4}, 4 devices per host:  sum{node,gpu}   intra gpu       inter node
//   {x=8}, 4 devices per host:            sum{x}          intra x:(2)4    inter x:(1)2
//
// Devices that hold terms of one element are on one host exactly where they differ in intra-host
// sub-axes alone. Nothing depends on how the devices of a host are dealt to processes.
#ifndef TESSERA_RELAYOUT_HOST_AXES_H_
#define TESSERA_RELAYOUT_HOST_AXES_H_

#include <optional>

#include "mesh/mesh.h"
#include "relayout/sub_axes.h"
#include "relayout/topology.h"

namespace tessera::internal {

struct HostAxes {
  SubAxes intra_host;
  SubAxes inter_host;
};

// The parts of `parts` along which devices stay on their hosts, and the rest: each part is cut once
// at most, near its minor end or its major end. O(divisors of its size) a part where ids are
// positions and hosts blocks of them, else as often O(devices).
HostAxes split_by_host(const Mesh& mesh, const SubAxes& parts, const Topology& topology);

// The same where both are something and hosts are told apart as above; else nothing, as where two
// hosts have terms of one element and different numbers of them.
std::optional<HostAxes> terms_by_host(const Mesh& mesh, const SubAxes& partial,
                                      const Topology& topology);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_HOST_AXES_H_
