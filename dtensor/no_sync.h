// SPDX-License-Identifier: Apache-2.0
//
// NoSync: a thread that must not call sync_devices(), because others have yet to give the devices
// what it would wait for. Internal, for distribute/.
#ifndef TESSERA_DTENSOR_NO_SYNC_H_
#define TESSERA_DTENSOR_NO_SYNC_H_

#include <memory>

#include "dtensor/client.h"

namespace tessera::internal {

// For the calling thread, as long as the object lives, on the same thread.
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
