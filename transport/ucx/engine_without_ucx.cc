// SPDX-License-Identifier: Apache-2.0
//
// make_ucx_engine() of a CMake build without UCX. Bazel always builds with UCX.
#include <memory>

#include "transport/ucx/ucx_engine.h"

namespace tessera::ucx {

StatusOr<std::unique_ptr<transport::Engine>> make_ucx_engine(Coordinator& /*coordinator*/,
                                                             UcxOptions /*options*/) {
  return absl::UnimplementedError(
      "backend \"ucx\" between hosts: this build has no UCX; install libucx-dev and build again, "
      "or use \"gloo\"");
}

}  // namespace tessera::ucx
