// SPDX-License-Identifier: Apache-2.0
//
// UcxApi: the functions of UCX that the engine calls, loaded when it is first needed.
//
// Programs do not link libucp: linking it adds 1.6 ms of CPU time to the start of every process
// (0.4 ms without), and its constructors install signal handlers and change the code of libc.
// open_ucx_api() loads it once per process, restores the handlers, keeps libc as it is unless the
// environment chooses_transports(), and keeps UCX's messages for error texts: by default it prints
// them to the program's standard output.
//
// Thread-safe. last_message() returns the last message of the calling thread.
#ifndef TESSERA_TRANSPORT_UCX_UCX_API_H_
#define TESSERA_TRANSPORT_UCX_UCX_API_H_

#include <ucp/api/ucp.h>

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

// The functions, by name.
#define TESSERA_UCX_FUNCTIONS(X) \
  X(ucp_init_version)            \
  X(ucp_cleanup)                 \
  X(ucp_config_read)             \
  X(ucp_config_modify)           \
  X(ucp_config_release)          \
  X(ucp_worker_create)           \
  X(ucp_worker_destroy)          \
  X(ucp_worker_get_address)      \
  X(ucp_worker_release_address)  \
  X(ucp_worker_get_efd)          \
  X(ucp_worker_arm)              \
  X(ucp_worker_progress)         \
  X(ucp_ep_create)               \
  X(ucp_ep_close_nbx)            \
  X(ucp_tag_send_nbx)            \
  X(ucp_tag_recv_nbx)            \
  X(ucp_request_cancel)          \
  X(ucp_request_free)            \
  X(ucs_status_string)

namespace tessera::ucx {

struct UcxApi {
#define TESSERA_UCX_MEMBER(name) decltype(&::name) name = nullptr;
  TESSERA_UCX_FUNCTIONS(TESSERA_UCX_MEMBER)
#undef TESSERA_UCX_MEMBER
};

// Unimplemented, with what to install, where a library is missing or too old. The libraries stay
// loaded. The default names are loaded once; others, for tests, at each call.
StatusOr<UcxApi> open_ucx_api(const std::string& ucs_library = "libucs.so.0",
                              const std::string& ucp_library = "libucp.so.0");

// Whether the environment has the setting UCX_`setting`.
bool is_set(absl::string_view setting);
// Whether it chooses transports, such as RDMA; else the engine uses TCP.
bool chooses_transports();

// Keeps UCX's messages on this thread from now on instead of printing them. With UCX_LOG_LEVEL set
// UCX prints them too.
void keep_messages_of_this_thread();

// "WHAT: Destination is unreachable (UCX: the last message of UCX on this thread)". Clears that.
std::string describe_error(const UcxApi& api, absl::string_view what, ucs_status_t status);

}  // namespace tessera::ucx

#endif  // TESSERA_TRANSPORT_UCX_UCX_API_H_
