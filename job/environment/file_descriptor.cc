// SPDX-License-Identifier: Apache-2.0
#include "job/environment/file_descriptor.h"

#include <sys/resource.h>

namespace tessera {

void raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace tessera
