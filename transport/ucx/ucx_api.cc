// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_api.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucm/api/ucm.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::ucx {
namespace {

thread_local bool keeps_messages = false;
thread_local std::string last_message;

ucs_log_func_rc_t take_message(const char*, unsigned, const char*, ucs_log_level_t level,
                               const ucs_log_component_config_t*, const char* message,
                               va_list arguments) {
  if (!keeps_messages || level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  if (level <= UCS_LOG_LEVEL_WARN) {
    char text[256];
    va_list copy;
    va_copy(copy, arguments);
    std::vsnprintf(text, sizeof text, message, copy);
    va_end(copy);
    last_message = text;
  }
  return std::getenv("UCX_LOG_LEVEL") == nullptr ? UCS_LOG_FUNC_RC_STOP : UCS_LOG_FUNC_RC_CONTINUE;
}

Status missing(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what,
                   "; clients on several hosts need UCX 1.13 or later: install libucx0, or set "
                   "LD_LIBRARY_PATH to where it is"));
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Restores, once per process, the signal handlers that the constructors of libucs replace. Takes
// the messages of UCX.
void tame(void* ucs) {
  static std::once_flag once;
  std::call_once(once, [ucs] {
    decltype(&::ucs_log_push_handler) push_handler;
    if (find(ucs, "ucs_log_push_handler", push_handler)) push_handler(take_message);
    // The signals whose handlers were replaced.
    decltype(&::ucs_debug_disable_signal) disable_signal;
    if (find(ucs, "ucs_debug_disable_signal", disable_signal)) {
      for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) disable_signal(signal);
    }
  });
}

// The constructor of libucs writes jumps into the code of mmap(), munmap(), brk() and others, so
// that UCX notices when registered memory of a network card is unmapped. A thread that runs such a
// function at that moment crashes, rarely; threads of gRPC already run. TCP registers nothing. This
// function must run first, since libucm writes the jumps only once.
void keep_code_of_libc() {
  if (chooses_transports() || is_set("MEM_EVENTS") || is_set("MEM_MMAP_HOOK_MODE")) return;
  // Lazily: it has references to libucs, which needs it in turn.
  void* const ucm = dlopen("libucm.so.0", RTLD_LAZY | RTLD_LOCAL);
  if (ucm == nullptr) return;
  decltype(&::ucm_set_global_opts) set_options = nullptr;
  auto* const options = static_cast<ucm_global_config_t*>(dlsym(ucm, "ucm_global_opts"));
  if (options == nullptr || !find(ucm, "ucm_set_global_opts", set_options)) return;
  options->enable_events = 0;
  set_options(options);
}

StatusOr<UcxApi> load(const std::string& ucs_library, const std::string& ucp_library) {
  keep_code_of_libc();
  void* const ucs = dlopen(ucs_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (ucs == nullptr) return missing(absl::StrCat("no UCX: ", dlerror()));
  void* const ucp = dlopen(ucp_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr) return missing(absl::StrCat("no UCX: ", dlerror()));

  tame(ucs);
  UcxApi api;
#define TESSERA_UCX_LOAD(name)                                                            \
  if (!find(ucp, #name, api.name) && !find(ucs, #name, api.name)) {                       \
    return missing(absl::StrCat(ucp_library, " is too old: it has no function ", #name)); \
  }
  TESSERA_UCX_FUNCTIONS(TESSERA_UCX_LOAD)
#undef TESSERA_UCX_LOAD
  return api;
}

}  // namespace

StatusOr<UcxApi> open_ucx_api(const std::string& ucs_library, const std::string& ucp_library) {
  if (ucs_library != "libucs.so.0" || ucp_library != "libucp.so.0") {
    return load(ucs_library, ucp_library);
  }
  static std::mutex mutex;  // guards `loaded`
  static StatusOr<UcxApi> loaded = absl::UnknownError("not loaded yet");
  std::lock_guard<std::mutex> lock(mutex);
  if (!loaded.ok()) loaded = load(ucs_library, ucp_library);
  return loaded;
}

bool is_set(absl::string_view setting) {
  return std::getenv(absl::StrCat("UCX_", setting).c_str()) != nullptr;
}

bool chooses_transports() { return is_set("TLS") || is_set("NET_DEVICES"); }

void keep_messages_of_this_thread() { keeps_messages = true; }

std::string describe_error(const UcxApi& api, absl::string_view what, ucs_status_t status) {
  std::string text = absl::StrCat(what, ": ", api.ucs_status_string(status));
  if (!last_message.empty()) absl::StrAppend(&text, " (UCX: ", last_message, ")");
  last_message.clear();
  return text;
}

}  // namespace tessera::ucx
