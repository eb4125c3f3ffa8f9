// SPDX-License-Identifier: Apache-2.0
//
// NoSync: marks a thread that must not call sync_devices(), because other threads have yet to give
// the devices the work for which it would wait. Internal, for distribute/.
#ifndef TESSERA_DTENSOR_NO_SYNC_H_
#define TESSERA_DTENSOR_NO_SYNC_H_

#include <memory>

#include "dtensor/client.h"

namespace tessera::internal {

// Applies to the calling thread while the object lives, on the same thread.
class NoSync {
 public:
  explicit NoSync(const Client& client);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  const std::shared_ptr<Runtime> runtime_;
};

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_NO_SYNC_H_
