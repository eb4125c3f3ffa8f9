// SPDX-License-Identifier: Apache-2.0
//
// Circles: finds devices that wait for each other in a circle which no host sees whole, and ends
// their waits. Each client has one.
//
// A run waits for the members that have not arrived, and each of these may wait in a run of another
// group. The first member of a run that has arrived sends a search to the missing ones:
//
//   kSearch   from a device that waits to the missing ones, with the path so far. It ends at a
//             device that has arrived there or waits in nothing, and at a run that searches by
//             itself: a run over several hosts whose id is smaller. A search that reaches the run
//             from which it came has found a circle.
//   kConfirm  once around the circle: every device still waits in the same run.
//   kEnd      once more: every run of the circle ends, with one text.
//
// Two barriers of one name, on groups that overlap, are treated as a circle of two.
//
// Invariants:
//   1. The waits of a circle that is ended were all there at one moment. A device waits in one run
//      at a time, and a member that is missing does not arrive while it waits elsewhere; so an edge
//      that both rounds have seen was there in between.
//   2. Where a circle stays, the search of one of its runs finds it: that of the smallest id among
//      the runs over several hosts. Searches are repeated, so that a lost letter delays.
//   3. Every run of a circle ends; none is done because a device of another one was free to join
//      it. A run ends after the run that waits for its device, and the first device is held until
//      the last run has ended.
//
// The rounds are those of Chandy, Misra and Haas, "Distributed Deadlock Detection" (1983), for
// waits for all, with runs in the place of processes and a round that confirms, since deadlines end
// waits.
//
// Thread-safe. The functions of a site are called without a lock.
#ifndef TESSERA_COLLECTIVES_NETWORK_CIRCLES_H_
#define TESSERA_COLLECTIVES_NETWORK_CIRCLES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"

namespace tessera::network {

// A run of a group, the same on all clients.
struct RunId {
  uint64_t group = 0;
  uint32_t seq = 0;

  friend auto operator<=>(const RunId&, const RunId&) = default;
};

// A device that waits in a run.
struct CircleHop {
  int device = 0;
  RunId run;
  uint64_t name_hash = 0;  // of a named barrier
  std::string label;
  std::vector<int> group;  // the ids of its devices
};

struct CircleWait {
  CircleHop hop;
  bool spans_hosts = false;
  // The devices that have not arrived, as far as is known here: one may have, meanwhile.
  std::vector<int> missing;
};

struct CircleLetter {
  enum class Round : uint32_t { kSearch, kConfirm, kEnd };

  Round round = Round::kSearch;
  uint32_t number = 0;  // of the search, on the client of its first device
  uint32_t at = 0;      // kConfirm and kEnd: hops that it has reached
  // kSearch: the path; the last of these misses the receiver. Else the circle: each waits for the
  // next one.
  std::vector<CircleHop> hops;
};

std::vector<std::byte> encode(const CircleLetter& letter);
// Nothing for bytes that encode() did not write.
std::optional<CircleLetter> decode_circle(absl::Span<const std::byte> bytes);

// What a search needs of a client and its devices.
class CircleSite {
 public:
  virtual ~CircleSite() = default;

  // The run in which a device of this client waits; nothing for a run that has ended, or misses
  // none, or at which the device is arriving.
  virtual std::optional<CircleWait> wait_of(int device) = 0;
  // Whether a device of this client has arrived in the run, which may be over.
  virtual bool has_arrived(int device, const RunId& run) = 0;
  // To Circles::read() of the device's client, this one maybe. May lose letters.
  virtual void send(int device, const CircleLetter& letter) = 0;
  // Ends the run if a device of this client still waits in it, and then calls `next`, in any case.
  // Does not block. `is_held`: the device begins nothing else until release(), which may be lost.
  virtual void end(const CircleHop& hop, const std::vector<CircleHop>& circle, bool is_held,
                   std::function<void()> next) = 0;
  virtual void release(const CircleHop& hop) = 0;
};

class Circles {
 public:
  // The site must outlive it.
  explicit Circles(CircleSite& site) : site_(site) {}

  // Searches from a device of this client. Call it again while the device waits.
  void search(int device);
  // A letter to a device of this client.
  void read(int device, CircleLetter letter);

 private:
  void read_search(int device, CircleLetter letter);
  void read_end(int device, CircleLetter letter);
  void confirm(std::vector<CircleHop> circle);
  // Whether neither the search nor a later one of its origin has reached the device before.
  bool is_first_visit(int device, const CircleLetter& letter);

  CircleSite& site_;
  std::mutex mutex_;  // guards what follows
  uint32_t last_number_ = 0;
  // The last search of each origin that has reached a device.
  std::map<std::tuple<int, RunId, int>, uint32_t> visits_;
};

}  // namespace tessera::network

#endif  // TESSERA_COLLECTIVES_NETWORK_CIRCLES_H_
