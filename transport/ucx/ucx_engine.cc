// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_engine.h"

#include "base/check.h"
#include "transport/threaded_engine.h"
#include "transport/ucx/connections.h"

namespace tessera::ucx {
namespace {

constexpr int kMostClients = 1 << 23;  // see Connections

}  // namespace

StatusOr<std::unique_ptr<transport::Engine>> make_ucx_engine(Coordinator& coordinator,
                                                             UcxOptions options) {
  TESSERA_CHECK(coordinator.num_clients() <= kMostClients, "clients fit the tags of UCX");
  return transport::make_threaded_engine(
      coordinator, {.name = "ucx", .wait_policy = options.wait_policy},
      [&](const Coordinator& job, transport::Connections::Site& site) {
        return std::make_unique<Connections>(job, options.interface, site);
      });
}

}  // namespace tessera::ucx
