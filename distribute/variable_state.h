// SPDX-License-Identifier: Apache-2.0
//
// The state of a DistributedVariable. Internal to distribute/.
#ifndef TESSERA_DISTRIBUTE_VARIABLE_STATE_H_
#define TESSERA_DISTRIBUTE_VARIABLE_STATE_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "distribute/strategy.h"
#include "distribute/variable.h"
#include "dtensor/dtensor.h"
#include "ops/variable.h"

namespace tessera::distribute {

struct DistributedVariable::State {
  const Strategy strategy;
  const std::string name;
  const DType dtype;
  const Shape shape;
  const VariableOptions options;
  // For kOnWrite, on the parameter mesh.
  Variable variable;
  // For kOnRead, by local replica.
  std::vector<DTensor> components = {};
  // Guards the components, from the read of a call that changes them to its write.
  std::unique_ptr<std::mutex> changing = std::make_unique<std::mutex>();

  std::vector<DTensor> all_components() const {
    std::lock_guard<std::mutex> lock(*changing);
    return components;
  }
};

}  // namespace tessera::distribute

#endif  // TESSERA_DISTRIBUTE_VARIABLE_STATE_H_
