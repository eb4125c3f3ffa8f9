// SPDX-License-Identifier: Apache-2.0
//
// The boxes that a member of a group over several hosts wants of members on other hosts.
//
//                         first                  then, of what others have added
//   pulls                 the boxes              -
//   pulls that all have   a part of the boxes,   -
//                         which it copies to the members of its host
//   own sum               the terms of it        -
//   sum for all           the terms of its       the chunks of the other hosts, dealt to the
//   members or the root           own chunk              of this host
//
// The terms:
// - In a reduction by host (adds_by_host()), the sum of each other host. The member there makes it
//   that has the same place on its host.
// - Otherwise every term, so that the member adds all of them in ascending order, and the bits
//   equal the bits of one host.
//
// P members on H hosts, L on each, S bytes: an all_reduce brings 2 S (H - 1) / H bytes to a host by
// host, and with every term (P - L) S / H + S (H - 1) / H.
//
// Pure. Both ends compute their needs from the Collective alone, or from a request.
#ifndef TESSERA_COLLECTIVES_SPAN_WANTS_H_
#define TESSERA_COLLECTIVES_SPAN_WANTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/shape.h"
#include "collectives/collective.h"
#include "transport/engine.h"

namespace tessera::span {

// The places of the members of a group.
class Places {
 public:
  // By position: a number for the host of the member. `here`: the number of this client's host.
  Places(absl::Span<const int> hosts, int here);

  int num_members() const { return static_cast<int>(host_of_.size()); }
  bool is_here(int member) const { return host_of_[member] == here_; }
  // The index among the members on its host, in order.
  int local_index(int member) const { return local_index_[member]; }
  int num_here() const { return static_cast<int>(members_on_[here_].size()); }
  // The members of each host, ascending; hosts in the order of their first members.
  absl::Span<const std::vector<int>> by_host() const { return members_on_; }
  int here() const { return here_; }  // in by_host()

 private:
  std::vector<int> host_of_;  // in by_host(), by member
  std::vector<int> local_index_;
  std::vector<std::vector<int>> members_on_;
  int here_ = 0;
};

// A box of the memory of one member; dense and row-major while it is sent.
struct Want {
  int server = 0;  // the member that sends it
  Box box;
  Box held;  // the server's memory: its input, or the sum that it has made
};

// Whether the members of this host divide the boxes to fetch: see above.
bool is_divided(const Collective& collective, const Places& places);
// The terms or inputs that the member wants, in a reduction by host in the order of the hosts.
// `pulls`: the member's pulls, where the Collective has no reduction.
std::vector<Want> wants_of_inputs(const Collective& collective, absl::Span<const BoxPull> pulls,
                                  const Places& places);
// The sums of others that the member wants. Empty for a Collective whose sums stay with their
// member.
std::vector<Want> wants_of_sums(const Collective& collective, const Places& places);
// Whether members make sums for others.
bool has_second_step(const Collective& collective);
// How many members ask this one in each step. Nothing: every member of other hosts asks, even if it
// needs nothing, because this one cannot know what they want.
std::optional<int> num_askers_of_inputs(const Collective& collective, const Places& places);
int num_askers_of_sums(const Collective& collective, const Places& places);
// The box of a member's chunk, for memory that holds nothing else.
Box chunk_box(const Collective& collective, int member);

// The request of one member to another member, in one letter.
struct Request {
  struct Part {
    Box box;
    Box held;
    transport::Tag tag = 0;  // under which the server sends it
  };
  bool of_sums = false;
  std::vector<Part> parts;
};
std::vector<std::byte> encode(const Request& request);
// Nothing for bytes that encode() did not write.
std::optional<Request> decode_request(absl::Span<const std::byte> bytes);

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_WANTS_H_
