// SPDX-License-Identifier: Apache-2.0
//
// TokenFile: distributes a job token to the clients of a host without a setting of the user.
//
//   host of the coordinator:  token = random_token(); file = TokenFile::publish(address, token)
//   other clients:            token = await_token(address, deadline)
//
// The file is RUNTIME/coordinator-PORT-NAMESPACES, of mode 0600, in a folder that belongs to the
// user alone: $XDG_RUNTIME_DIR/tessera, or /tmp/tessera-UID where that variable does not name a
// folder of the user.
//
// Invariants:
//   1. Only processes of the same user can read the token. It is in no command line and no output.
//   2. A file is seen complete or not at all, and names the process that published it by id and
//      start time: a file that a dead process left behind is never taken for a token, and goes away
//      with the next publish(). A file whose publisher cannot be judged, for lack of descriptors
//      say, is left alone.
//   3. At most one living process has published a token for a port.
#ifndef TESSERA_JOB_ENVIRONMENT_TOKEN_FILE_H_
#define TESSERA_JOB_ENVIRONMENT_TOKEN_FILE_H_

#include <sys/types.h>

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace tessera {

class TokenFile {
 public:
  // Publishes `token` for the service at `address` ("host:port") until destruction.
  //   Unavailable         another process of this user has published one for the port
  //   FailedPrecondition  there is no folder of this user alone, or it cannot be read or written
  static StatusOr<TokenFile> publish(const std::string& address, const std::string& token);

  TokenFile(TokenFile&& other) noexcept : path_(std::exchange(other.path_, "")), pid_(other.pid_) {}
  TokenFile& operator=(TokenFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~TokenFile();

 private:
  TokenFile(std::string path, pid_t pid) : path_(std::move(path)), pid_(pid) {}

  std::string path_;  // empty after a move
  pid_t pid_ = 0;     // of the process that published it: a forked child leaves the file alone
};

// Waits until a living process has published a token for the service at `address`. DeadlineExceeded
// names the service (by `service`, or as the coordinator), the folder and the remedy.
StatusOr<std::string> await_token(const std::string& address, absl::Time deadline,
                                  absl::string_view service = {});

// Whether `address` ("host:port") belongs to this host.
bool is_address_of_this_host(const std::string& address);

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_TOKEN_FILE_H_
