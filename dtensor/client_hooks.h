// SPDX-License-Identifier: Apache-2.0
//
// ClientHooks: fakes and faults that tests and benchmarks of this tree give to a client, and access
// to the client's Runtime. Internal: no public header includes it, and no program needs it.
//
//   StatusOr<Client> client =
//       internal::connect(options, {.cuda = cuda::fake_libraries(cuda::FakeCuda::create())});
//   ClientDevices& devices = internal::runtime_of(*client)->devices();
#ifndef TESSERA_DTENSOR_CLIENT_HOOKS_H_
#define TESSERA_DTENSOR_CLIENT_HOOKS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/public.h"
#include "base/status.h"
#include "device/arithmetic.h"
#include "dtensor/client_options.h"
#include "mesh/mesh.h"
#include "relayout/topology.h"

namespace TESSERA_PUBLIC tessera {
class Client;
}  // namespace tessera

namespace tessera {

class Runtime;
namespace cuda {
struct Libraries;
}  // namespace cuda
namespace nccl {
class Api;
}  // namespace nccl
namespace transport {
class Engine;
}  // namespace transport

namespace internal {

// All empty in a program.
struct ClientHooks {
  // The term that a device adds to the sum of a barrier, instead of 1.
  std::function<int(int device_id)> barrier_term = {};
  // Replaces the hosts and links by which relayouts are planned.
  std::optional<Topology> topology = {};
  // The host of each client, by id, for jobs over several hosts on one machine. Empty: the real
  // one.
  std::vector<std::string> host_ids = {};
  // The pretended arithmetic of each client's CPU, by id. Empty: the real one.
  std::vector<Arithmetic> arithmetic = {};
  // Replaces the CUDA runtime of this machine, and the libraries that compute on its GPUs, for
  // devices of kCuda.
  std::shared_ptr<const cuda::Libraries> cuda = {};
  // Replaces NCCL, between the GPUs of several clients.
  std::shared_ptr<nccl::Api> nccl = {};
  // Replaces $TESSERA_SHARE_GPUS (docs/gpu.md): whether clients with GPUs, each a process of its
  // own, may share them. Equal on all clients.
  std::optional<bool> share_gpus = {};
  // Wraps the engine between hosts.
  std::function<StatusOr<std::unique_ptr<transport::Engine>>(std::unique_ptr<transport::Engine>)>
      wrap_engine = {};
  // Replaces 10 s in the times at which long waits are reported. Zero: 10 s.
  absl::Duration wait_report_unit = absl::ZeroDuration();
};

// As Client::connect() and spawn() (of //dtensor:spawn).
StatusOr<Client> connect(const ClientOptions& options, const ClientHooks& hooks);
Status spawn(int num_clients, absl::FunctionRef<Status(const Client& client)> fn,
             const ClientOptions& options, const ClientHooks& hooks);

// Null for a client that was moved from.
const std::shared_ptr<Runtime>& runtime_of(const Client& client);
// The argument of with_runtime() (mesh/mesh_runtime.h) that makes an abstract mesh live without the
// agreement of create_mesh().
std::shared_ptr<MeshRuntime> mesh_runtime_of(const Client& client);

}  // namespace internal
}  // namespace tessera

#endif  // TESSERA_DTENSOR_CLIENT_HOOKS_H_
