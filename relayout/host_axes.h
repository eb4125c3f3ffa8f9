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

// Whether devices whose positions differ in this digit alone are on one host.
bool is_intra_host(const Mesh& mesh, const Digit& digit, const Topology& topology);

// Cuts each of `parts` at most once, at its minor end or at its major end: into the sub-axis along
// which devices stay on their hosts, and the rest. A part takes O(divisors of its size) where ids
// are positions and hosts are blocks of them; otherwise O(devices) for each divisor.
HostAxes split_by_host(const Mesh& mesh, const SubAxes& parts, const Topology& topology);

// As split_by_host(), for partial axes. Nothing where one of the two lists is empty. Nothing where
// two hosts have different numbers of terms of an element: some devices that hold terms of one
// element then differ in inter-host sub-axes although they are on one host.
std::optional<HostAxes> terms_by_host(const Mesh& mesh, const SubAxes& partial,
                                      const Topology& topology);

}  // namespace tessera::internal

#endif  // TESSERA_RELAYOUT_HOST_AXES_H_
