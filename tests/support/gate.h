// SPDX-License-Identifier: Apache-2.0
//
// Gate: orders events between the clients of a test, threads or forked processes, without sleeps.
//
//   Gate arrived;                    made before run_clients
//   arrived.open(2);                 lets two waiters through
//   TESSERA_RETURN_IF_ERROR(arrived.wait());
#ifndef TESSERA_TESTS_SUPPORT_GATE_H_
#define TESSERA_TESTS_SUPPORT_GATE_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/status.h"

namespace tessera::testing {

class Gate {
 public:
  Gate() : fd_(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) {}
  ~Gate() { close(fd_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open(uint64_t times = 1) { (void)!write(fd_, &times, sizeof times); }

  // DeadlineExceeded after a minute: a test that waits so long has failed.
  Status wait() {
    pollfd waiting = {fd_, POLLIN, 0};
    uint64_t one;
    while (poll(&waiting, 1, 60'000) > 0) {
      if (read(fd_, &one, sizeof one) == sizeof one) return absl::OkStatus();
    }
    return absl::DeadlineExceededError("a gate of the test stayed closed for a minute");
  }

 private:
  const int fd_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_GATE_H_
