// SPDX-License-Identifier: Apache-2.0
//
// RemoteVariable: a tensor whose value is on parameter servers, cut along dim 0.
//
//   StatusOr<RemoteVariable> v = coordinator.variable("v", HostArray::scalar(0.0f));
//   coordinator.schedule("add", {*v});        functions on workers pull from it and push to it
//
// A handle: cheap to copy, immutable, safe to use from any thread. Valid only with the
// ClusterCoordinator that made it. The value lives until the parameter servers end; the chief saves
// it by a function that pulls it (docs/guide/6_saving.md, "What a run holds"). TF: a
// variable made in the scope of a ParameterServerStrategy.
#ifndef TESSERA_SERVERS_REMOTE_VARIABLE_H_
#define TESSERA_SERVERS_REMOTE_VARIABLE_H_

#include <memory>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/public.h"
#include "base/shape.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {

struct VariableAccess;
struct VariablePlace;

}  // namespace internal

class RemoteVariable {
 public:
  // A move copies: the moved-from handle stays valid.
  RemoteVariable(const RemoteVariable&) = default;
  RemoteVariable& operator=(const RemoteVariable&) = default;

  const std::string& name() const;
  DType dtype() const;
  // The shape of the whole tensor.
  const Shape& shape() const;
  int num_shards() const;

 private:
  friend struct internal::VariableAccess;
  explicit RemoteVariable(std::shared_ptr<const internal::VariablePlace> place)
      : place_(std::move(place)) {}

  std::shared_ptr<const internal::VariablePlace> place_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_REMOTE_VARIABLE_H_
