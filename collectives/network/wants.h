// SPDX-License-Identifier: Apache-2.0
//
// What a member of a group that spans hosts wants of the members on other hosts.
//
//                    first               then, of what others have added
//   pulls            the boxes           -
//   own sum          every term of it    -
//   sum for all      every term of its   the chunks of the other hosts, dealt to the members of
//   or the root      own chunk           this host
//
// Terms cross the network one by one, so that a member adds all of them in ascending order: the
// bits are those of one host. P members on H hosts, L each, S bytes: an all_reduce brings
// (P - L) S / H + S (H - 1) / H bytes to a host.
//
// Pure. Both ends compute what they need from the Collective alone, or from a request.
#ifndef TESSERA_COLLECTIVES_NETWORK_WANTS_H_
#define TESSERA_COLLECTIVES_NETWORK_WANTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/network/engine.h"

namespace tessera::network {

// Where the members of a group are.
class Places {
 public:
  // By position: whether the member is on this host.
  explicit Places(std::vector<bool> is_here);

  int num_members() const { return static_cast<int>(local_index_.size()); }
  bool is_here(int member) const { return local_index_[member] >= 0; }
  // Among the members on this host, in order.
  int local_index(int member) const { return local_index_[member]; }
  int num_here() const { return num_here_; }

 private:
  std::vector<int> local_index_;  // -1: on another host
  int num_here_ = 0;
};

// A box of what one member holds, dense and row-major on its way.
struct Want {
  int server = 0;  // the member that sends it
  Box box;
  Box held;  // what the server has in memory: its input, or the sum that it has made
};

// Of the terms or inputs. `pulls`: those of the member, where the Collective has no reduction.
std::vector<Want> wants_of_inputs(const Collective& collective, absl::Span<const BoxPull> pulls,
                                  const Places& places);
// Of sums that others have made. Nothing of a Collective whose sums stay with their member.
std::vector<Want> wants_of_sums(const Collective& collective, const Places& places);
// Whether members make sums for others at all.
bool has_second_step(const Collective& collective);
// The box of a member's chunk, for memory that holds nothing else.
Box chunk_box(const Collective& collective, int member);

// What a member asks of another one, in one letter.
struct Request {
  struct Part {
    Box box;
    Box held;
    Tag tag = 0;  // under which the server sends it
  };
  bool of_sums = false;
  std::vector<Part> parts;
};
std::vector<std::byte> encode(const Request& request);
// InvalidArgument where the bytes are no request.
StatusOr<Request> decode_request(absl::Span<const std::byte> bytes);

}  // namespace tessera::network

#endif  // TESSERA_COLLECTIVES_NETWORK_WANTS_H_
