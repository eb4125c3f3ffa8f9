// SPDX-License-Identifier: Apache-2.0
//
// make_gloo_engine() of a build that found no Gloo.
#include <memory>

#include "transport/gloo/gloo_engine.h"

namespace tessera::gloo {

StatusOr<std::unique_ptr<transport::Engine>> make_gloo_engine(Coordinator& /*coordinator*/,
                                                              GlooOptions /*options*/) {
  return absl::UnimplementedError(
      "backend \"gloo\" between hosts: this build has no Gloo; install libgloo-dev, set GLOO_HOME "
      "to it where it is not in /usr, and build again, or use \"auto\" or \"ucx\"");
}

}  // namespace tessera::gloo
