// SPDX-License-Identifier: Apache-2.0
//
// The tensors that the fault tests save and read back: a large one that is split, a small one that
// is replicated, and a scalar. All elements depend on a number, the base, which tells saves apart.
#ifndef TESSERA_TESTS_CHECKPOINT_SAVED_VALUES_H_
#define TESSERA_TESTS_CHECKPOINT_SAVED_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "checkpoint/options.h"
#include "dtensor/client.h"
#include "dtensor/dtensor.h"
#include "files/array_files.h"
#include "mesh/mesh.h"

namespace tessera::testing {

// A mesh {x} of all devices.
StatusOr<Mesh> mesh_of_all(const Client& client);
// "ROOT/step-0000000100".
std::string step_path(const std::string& root, int64_t step);

std::vector<NamedTensor> tensors_of(const Mesh& mesh, int64_t base);
// The targets of restore(), in the order of tensors_of().
std::vector<checkpoint::Target> targets_on(const Mesh& mesh);

// The base of these tensors; an error where two elements disagree on it.
StatusOr<int64_t> base_of(absl::Span<const DTensor> tensors);
// As base_of(), for the first tensor alone.
StatusOr<int64_t> base_of(const DTensor& tensor);

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_CHECKPOINT_SAVED_VALUES_H_
