// SPDX-License-Identifier: Apache-2.0
//
// HostParts: the terms of a reduction by host: which parts of the partial axes tell the devices of
// one host apart, and which tell hosts apart. Internal to relayout/.
//
//   {node=2, gpu=4}, 4 devices per host:  sum{node,gpu}   near gpu        far node
//   {x=8}, 4 devices per host:            sum{x}          near x:(2)4     far x:(1)2
//
// Devices that hold terms of one element are on one host exactly where they differ in near parts
// alone. Nothing depends on how the devices of a host are dealt to processes.
#ifndef TESSERA_RELAYOUT_HOST_PARTS_H_
#define TESSERA_RELAYOUT_HOST_PARTS_H_

#include <optional>

#include "mesh/mesh.h"
#include "relayout/digits.h"
#include "relayout/topology.h"

namespace tessera::internal {

struct HostParts {
  Parts near;
  Parts far;
};

// The parts of `parts` along which devices stay on their hosts, and the rest: each part is cut once
// at most, near its minor end or its major end. O(divisors of its size) a part where ids are
// positions and hosts blocks of them, else as often O(devices).
HostParts parts_by_host(const Mesh& mesh, const Parts& parts, const Topology& topology);

// The same where both are something and hosts are told apart as above; else nothing, as where two
// hosts have terms of one element and different numbers of them.
std::optional<HostParts> terms_by_host(const Mesh& mesh, const Parts& partial,
                                       const Topology& topology);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_HOST_PARTS_H_
