// SPDX-License-Identifier: Apache-2.0
//
// PreparedCollectives: the collectives that one member has started last, for the next call of the
// same operation. So a loop prepares what it does once.
//
// Bounded: a few of them, of groups of a size at which each is small. Thread-safe. Threads that
// call at the same time do not wait for each other: one of them finds nothing.
#ifndef TESSERA_COLLECTIVES_PREPARED_H_
#define TESSERA_COLLECTIVES_PREPARED_H_

#include <array>
#include <atomic>
#include <cstddef>

#include "collectives/collective.h"

namespace tessera {

class PreparedCollectives {
 public:
  // The Collective that make() makes of the two; null where it is not kept.
  Collective::Ptr find(GroupPlace place, const CollectiveSpec& spec);
  // Keeps it in place of the one kept first. Not one with boxes of the caller's.
  void keep(const Collective::Ptr& collective);

 private:
  std::atomic<bool> busy_{false};  // true: a thread uses what follows
  std::array<Collective::Ptr, 4> kept_;
  size_t next_ = 0;  // in kept_, to be replaced
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PREPARED_H_
