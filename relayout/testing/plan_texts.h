// SPDX-License-Identifier: Apache-2.0
//
// Layouts from their texts and plans as text, which make tables of tests readable; and the topology
// that most of them plan for.
#ifndef TESSERA_RELAYOUT_TESTING_PLAN_TEXTS_H_
#define TESSERA_RELAYOUT_TESTING_PLAN_TEXTS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "layout/layout.h"
#include "mesh/mesh.h"
#include "relayout/plan.h"
#include "relayout/topology.h"

namespace tessera::testing {

// Require legal texts.
inline Mesh mesh_of(absl::string_view text) { return *Mesh::parse(text); }
inline Layout layout_of(absl::string_view mesh, absl::string_view text) {
  return *Layout::parse(mesh_of(mesh), text);
}

// The end of to_string(): "reduce_scatter{x}, all_gather{x,z}".
inline std::string steps_of(const RelayoutPlan& plan) {
  const std::string text = plan.to_string();
  return text.substr(text.rfind(": ") + 2);
}

// Nodes of four GPUs of a process each, with NVLink inside a node: tools/topologies/h100.json.
inline Topology gpu_nodes() {
  const LinkCosts costs{{12e-6, 1 / 300e9}, {12e-6, 1 / 300e9}, {30e-6, 1 / 50e9}};
  return *Topology::uniform(1, 4, costs);
}

}  // namespace tessera::testing

#endif  // TESSERA_RELAYOUT_TESTING_PLAN_TEXTS_H_
