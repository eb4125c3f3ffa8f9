// SPDX-License-Identifier: Apache-2.0
//
// The messages of the clients of a host over their unix sockets (peer_sockets.h).
//
//   connects                          listens
//   kHello, its control region  --->  compares both incarnations with the job's members
//                               <---  kHello, its control region; nothing before
//   kArena, the arena           <-->  for each arena of the sender
//   kAskArena                   --->  kArena again, or kNoArena
//   kGoodbye                    --->  the hang-up that follows is no loss
//
// Messages have one size; a descriptor goes with kHello and kArena.
#ifndef TESSERA_SHM_LINK_MESSAGE_H_
#define TESSERA_SHM_LINK_MESSAGE_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "job/environment/file_descriptor.h"

namespace tessera::shm {

struct LinkMessage {
  enum Kind : uint32_t { kHello, kArena, kAskArena, kNoArena, kGoodbye };
  Kind kind = kHello;
  int32_t client = 0;  // that sends it
  int32_t arena = 0;
  int32_t unused = 0;
  uint64_t size_bytes = 0;  // of the file that goes with it
  // Valid in a hello. The coordinator tells these only to members of the job.
  uint64_t from_incarnation = 0;
  uint64_t to_incarnation = 0;
};
static_assert(sizeof(LinkMessage) == 40);

// The error of a failed system call: ResourceExhausted where this process, the user or the system
// is out of descriptors or memory, Unavailable else. `error` is an errno.
Status link_error(absl::string_view what, int error);

enum class SendResult {
  kSent,
  kFull,              // try again when the socket can be written
  kTooManyInTransit,  // descriptors of this user that were not received yet; try again later
  kOver,              // the connection is
};
// Sends a message, with a descriptor unless `fd` is negative, without waiting.
SendResult send_message(int socket, const LinkMessage& message, int fd);

struct ReceivedMessage {
  LinkMessage message;
  FileDescriptor fd;
  // Not OK where a descriptor was sent that this process could not take.
  Status fd_error;
};
// Waits for a message; nullopt when the connection is over, or the bytes are no message.
std::optional<ReceivedMessage> receive_message(int socket);

// The effective user of the process at the other end, where it is not this one's.
std::optional<uid_t> other_user(int socket);

// Calls epoll_ctl(2) for a descriptor that is its own data. Returns whether it worked.
bool watch_descriptor(int epoll, int operation, int fd, uint32_t events);

}  // namespace tessera::shm

#endif  // TESSERA_SHM_LINK_MESSAGE_H_
