// SPDX-License-Identifier: Apache-2.0
//
// WaitReport: the report of a long wait: a line on stderr, or the argument of a function of the
// program (ClientOptions::on_wait).
#ifndef TESSERA_BASE_WAIT_REPORT_H_
#define TESSERA_BASE_WAIT_REPORT_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

// docs/errors.md, "Long waits", has the texts.
struct WaitReport {
  // "client 0 has waited for 10 s in relayout #7 [x, -] -> [-, x] on {x=2}, f32 [8, 6]: 1 of 2
  // clients arrived; missing client 1 (host-a, pid 7), in user code for 12 s since relayout #6".
  std::string text;
  std::string operation;     // "relayout #7 [x, -] -> [-, x] on {x=2}, f32 [8, 6]"
  absl::Duration waited;     // so far
  std::vector<int> missing;  // clients that the wait needs, ascending; empty: none is known
};

}  // namespace tessera

#endif  // TESSERA_BASE_WAIT_REPORT_H_
