// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/meetings.h"

#include <utility>

#include "collectives/host/verdicts.h"

namespace tessera::host {

Meetings::Meetings(HostGroup& group, Rendezvous rendezvous)
    : group_(group), rendezvous_(std::move(rendezvous)), progress_(rendezvous_.records().size()) {
  for (int m = 0; m < rendezvous_.records().size(); ++m) {
    // Continues the numbers of an earlier group of the same devices.
    const uint32_t next = group_.is_local(m) ? rendezvous_.records().next_seq(m) : 0;
    if (next == 0) continue;
    progress_[m].next_seq = next;
    set_done(m, next - 1);
  }
}

void Meetings::close() {
  quarantine_.clear();
  if (!rendezvous_.is_open()) return;
  for (int m = 0; m < rendezvous_.records().size(); ++m) {
    if (group_.is_local(m)) rendezvous_.records().next_seq(m) = progress_[m].next_seq;
  }
  rendezvous_.close();
}

void Meetings::fail_pending(const Status& reason) {
  for (int m = 0; m < rendezvous_.records().size(); ++m) {
    if (group_.is_local(m))
      settle_arrived(rendezvous_.records(), m, done(m), give_up_from(), reason);
  }
}

}  // namespace tessera::host
