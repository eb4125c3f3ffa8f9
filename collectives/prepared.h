// SPDX-License-Identifier: Apache-2.0
//
// PreparedCollectives: the collectives that a member has started last, for the next call of the
// same operation, so that a loop prepares each operation only once.
//
// Bounded: keeps a few collectives, of groups that are small enough. Thread-safe. Threads that call
// at the same time do not wait for each other: find() returns null in one of them.
#ifndef TESSERA_COLLECTIVES_PREPARED_H_
#define TESSERA_COLLECTIVES_PREPARED_H_

#include <array>
#include <atomic>
#include <cstddef>

#include "collectives/collective.h"

namespace tessera {

class PreparedCollectives {
 public:
  // The Collective that make() makes from these arguments; null where it is not kept.
  Collective::Ptr find(GroupPlace place, const CollectiveSpec& spec);
  // Keeps it in place of the oldest. Ignores a collective with boxes of the caller.
  void keep(const Collective::Ptr& collective);

 private:
  std::atomic<bool> busy_{false};  // true: a thread uses the members below
  std::array<Collective::Ptr, 4> kept_;
  size_t next_ = 0;  // index in kept_ of the next to be replaced
};

}  // namespace tessera

#endif  // TESSERA_COLLECTIVES_PREPARED_H_
