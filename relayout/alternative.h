// SPDX-License-Identifier: Apache-2.0
//
// Alternative: a plan that plan_relayout() has compared with others.
#ifndef TESSERA_RELAYOUT_ALTERNATIVE_H_
#define TESSERA_RELAYOUT_ALTERNATIVE_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "base/public.h"

namespace TESSERA_PUBLIC tessera {

struct Alternative {
  std::string name;               // "direct", "cheapest", "far_links_first", ..., or its steps.
  absl::Duration predicted_time;  // By the topology's costs.
  int64_t received_bytes;         // The most that any device receives.
  int64_t peak_bytes;
  bool chosen;
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_ALTERNATIVE_H_
