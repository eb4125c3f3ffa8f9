// SPDX-License-Identifier: Apache-2.0
//
// RemoteVariable: a tensor whose value is on parameter servers, cut along dim 0.
//
//   StatusOr<RemoteVariable> v = coordinator.variable("v", HostArray::scalar(0.0f));
//   coordinator.schedule("add", {*v});        functions on workers pull from it and push to it
//
// A handle: cheap to copy, immutable, safe to use from any thread, and of the ClusterCoordinator
// that made it. The value lives until the parameter servers end.
// TF: a variable made in the scope of a ParameterServerStrategy.
#ifndef TESSERA_SERVERS_REMOTE_VARIABLE_H_
#define TESSERA_SERVERS_REMOTE_VARIABLE_H_

#include <memory>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/shape.h"
#include "servers/variable_place.h"

namespace tessera::distribute {

namespace internal {

struct VariableAccess;

}  // namespace internal

class RemoteVariable {
 public:
  // A move copies: the moved-from handle stays valid.
  RemoteVariable(const RemoteVariable&) = default;
  RemoteVariable& operator=(const RemoteVariable&) = default;

  const std::string& name() const { return place_->name; }
  DType dtype() const { return place_->dtype; }
  // The shape of the whole tensor.
  const Shape& shape() const { return place_->shape; }
  int num_shards() const { return static_cast<int>(place_->ps.size()); }

 private:
  friend struct internal::VariableAccess;
  explicit RemoteVariable(std::shared_ptr<const internal::VariablePlace> place)
      : place_(std::move(place)) {}

  std::shared_ptr<const internal::VariablePlace> place_;
};

namespace internal {

struct VariableAccess {
  static RemoteVariable make(VariablePlace place) {
    return RemoteVariable(std::make_shared<const VariablePlace>(std::move(place)));
  }
  static const VariablePlace& place(const RemoteVariable& variable) { return *variable.place_; }
};

}  // namespace internal
}  // namespace tessera::distribute

#endif  // TESSERA_SERVERS_REMOTE_VARIABLE_H_
