// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/worker.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "job/environment/interface.h"

namespace tessera::ucx {
namespace {

// The first address of an interface.
StatusOr<std::string> address_of(const std::string& interface) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<NetworkInterface> all, list_interfaces());
  for (const NetworkInterface& one : all) {
    if (one.name == interface && !one.addresses.empty()) return one.addresses[0];
  }
  return absl::InvalidArgumentError(
      absl::StrCat("network interface ", in_quotes(interface),
                   " does not exist or has no address; this host has ", describe_interfaces(all)));
}

}  // namespace

StatusOr<std::shared_ptr<const Context>> Context::create(const std::string& interface) {
  TESSERA_ASSIGN_OR_RETURN(const UcxApi api, open_ucx_api());
  std::shared_ptr<Context> context(new Context(api));
  TESSERA_RETURN_IF_ERROR(context->start(interface));
  return context;
}

Status Context::start(const std::string& interface) {
  place_ = "any interface";
  if (!interface.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string address, address_of(interface));
    place_ = absl::StrCat(address, " (interface ", in_quotes(interface), ")");
  }
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) {
    return absl::InvalidArgumentError(describe_error(api_, "cannot read UCX's settings", status));
  }
  const auto set = [&](const char* key, const char* value) {
    if (!is_set(key)) api_.ucp_config_modify(config, key, value);
  };
  // Heartbeats are the coordinator's. UCX's own hide losses from the kernel's.
  set("KEEPALIVE_INTERVAL", "inf");
  if (!chooses_transports()) {
    set("TLS", "tcp");
    // A cache of registered memory would change the code of libc; ucx_api.cc says why not.
    set("RCACHE_ENABLE", "no");
    // The answer to a request of rendezvous would wait behind data on the same socket; receives are
    // posted before their sends in any case.
    set("RNDV_THRESH", "inf");
    // A block of a tensor in one piece: with UCX's 8 KiB a byte costs up to 1.6 times the CPU time.
    // ucp_config_modify() knows the keys of a transport without its name, the environment with it.
    for (const char* const key : {"TX_SEG_SIZE", "RX_SEG_SIZE"}) {
      if (!is_set(absl::StrCat("TCP_", key))) set(key, "320k");
    }
    // A connection is made again on the thread that moves the bytes of all others: by default UCX
    // blocks it there while a peer does not answer, up to two minutes.
    if (!is_set("TCP_CONN_NB")) set("CONN_NB", "y");
  }
  if (!interface.empty()) set("NET_DEVICES", interface.c_str());

  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &handle_);
  api_.ucp_config_release(config);
  if (status != UCS_OK) {
    return absl::UnavailableError(
        describe_error(api_, absl::StrCat("cannot start UCX on ", place_), status));
  }
  return absl::OkStatus();
}

Context::~Context() {
  if (handle_ != nullptr) api_.ucp_cleanup(handle_);
}

StatusOr<std::unique_ptr<Worker>> Worker::create(std::shared_ptr<const Context> context) {
  std::unique_ptr<Worker> worker(new Worker(std::move(context)));
  TESSERA_RETURN_IF_ERROR(worker->start());
  return worker;
}

Status Worker::start() {
  const UcxApi& api = context_->api();
  const auto fail = [&](absl::string_view what, ucs_status_t status) {
    return absl::UnavailableError(
        describe_error(api, absl::StrCat("cannot ", what, " on ", context_->place()), status));
  };
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = api.ucp_worker_create(context_->handle(), &params, &handle_);
  if (status != UCS_OK) return fail("make a UCX worker", status);
  status = api.ucp_worker_get_efd(handle_, &event_fd_);
  if (status != UCS_OK) return fail("wait for a UCX worker", status);
  ucp_address_t* address = nullptr;
  size_t size_bytes = 0;
  status = api.ucp_worker_get_address(handle_, &address, &size_bytes);
  if (status != UCS_OK) return fail("get the address of a UCX worker", status);
  address_.assign(reinterpret_cast<const char*>(address), size_bytes);
  api.ucp_worker_release_address(handle_, address);
  return absl::OkStatus();
}

Worker::~Worker() {
  if (handle_ != nullptr) context_->api().ucp_worker_destroy(handle_);
}

}  // namespace tessera::ucx
