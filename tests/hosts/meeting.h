// SPDX-License-Identifier: Apache-2.0
//
// Meeting: all clients of a test wait for each other, threads or forked processes, through memory
// of the test: nothing passes over a network, unlike in a barrier of the product.
//
//   Meeting meeting(4);                                     made before run_clients
//   TESSERA_RETURN_IF_ERROR(meeting.wait(client.client_id()));
#ifndef TESSERA_TESTS_HOSTS_MEETING_H_
#define TESSERA_TESTS_HOSTS_MEETING_H_

#include <deque>

#include "base/status.h"
#include "tests/support/gate.h"

namespace tessera::testing {

class Meeting {
 public:
  explicit Meeting(int num_members) : may_leave_(num_members) {}

  // Returns when all members have called it as often. DeadlineExceeded after a minute.
  Status wait(int member) {
    if (member != 0) {
      arrived_.open();
      return may_leave_[member].wait();
    }
    for (size_t i = 1; i < may_leave_.size(); ++i) TESSERA_RETURN_IF_ERROR(arrived_.wait());
    for (Gate& gate : may_leave_) gate.open();
    return may_leave_[0].wait();
  }

 private:
  Gate arrived_;
  std::deque<Gate> may_leave_;  // one for each member, so that none takes another's turn
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_HOSTS_MEETING_H_
