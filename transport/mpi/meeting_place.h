// SPDX-License-Identifier: Apache-2.0
//
// MeetingPlace: the address of the coordinator of an MPI program, which rank 0 decides for all. The
// part of tessera/mpi.h that needs no MPI.
#ifndef TESSERA_TRANSPORT_MPI_MEETING_PLACE_H_
#define TESSERA_TRANSPORT_MPI_MEETING_PLACE_H_

#include <memory>
#include <string>

#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace mpi {

struct MeetingPlace {
  std::string address;                           // "host:port"
  std::string token;                             // the token of the job
  std::shared_ptr<const void> port_holder = {};  // reserves the port; null if it was given
};

// Takes `given` and `given_token` where they are not empty, then TESSERA_COORDINATOR and
// TESSERA_TOKEN, and else a free port of this host and a random token. The address is 127.0.0.1
// where all ranks are on one host, else the name of this host, which the others must be able to
// resolve.
StatusOr<MeetingPlace> choose_meeting_place(const std::string& given,
                                            const std::string& given_token, bool is_one_host);

}  // namespace mpi
}  // namespace tessera

#endif  // TESSERA_TRANSPORT_MPI_MEETING_PLACE_H_
