// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of collectives: the behaviour that every backend of Group must have, as one
// table.
//
//   {"sum_f64_ascending", 3, body}     each of 3 members runs body; OK means: exactly as expected
//
// A case knows the interface alone (group.h), so one table serves a client with many devices,
// clients that are threads, and clients that are processes: a setting is one MemberRunner.
// Results are compared exactly. Expected values come from slow scalar loops that share no code
// with a backend (conformance_values.h). Members never order their events by sleeping.
#ifndef TESSERA_COLLECTIVES_TESTING_CONFORMANCE_H_
#define TESSERA_COLLECTIVES_TESTING_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/group.h"
#include "device/cpu/arena.h"

namespace tessera::conformance {

// A member of a case, as it sees itself.
struct Member {
  Group group;  // all members, in order
  int position = 0;
  // The group of some members, by their positions in `group`; this member must be one.
  std::function<StatusOr<Group>(absl::Span<const int> positions)> subgroup;
  // Memory that the backend can use in place; null where it has none of its own.
  std::shared_ptr<ArenaPool> pool = nullptr;
};

// The program of each member. OK where everything was as expected; else names the difference.
using MemberBody = std::function<Status(const Member& member)>;

struct Case {
  std::string name;
  int num_members = 1;
  MemberBody body;
};
// GoogleTest prints a case by its name.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Runs `body` on every member of a new job with this many devices; the first error.
using MemberRunner = std::function<Status(int num_members, const MemberBody& body)>;

// The rows of tests/facts/collectives.md that need neither a lost process nor 2 GiB.
std::vector<Case> fact_cases();
// Sizes, dtypes, reductions, roots and counts against the oracle, for groups of 1 to 8.
std::vector<Case> sweep_cases();
// Sends and receives.
std::vector<Case> message_cases();
// Every error message, and that the group works after it.
std::vector<Case> error_cases();
// For a backend with its own order of addition (nccl::Sums): every dtype and reduction, within the
// tolerances of its table of numerics. The other cases require the bits of ascending order where
// is_of_ascending_order() is true.
std::vector<Case> numerics_cases();
bool is_of_ascending_order(const Case& c);
// All of the above, without the numerics.
std::vector<Case> all_cases();

// The largest groups for which a setting runs the sweeps. Bytes have no type while they move, and
// small groups add in every dtype: in large groups f32 represents the other dtypes.
struct SweepLimits {
  int f32 = 8;  // the sweep over boxes too
  int other_dtypes = 8;
};
// Removes the sweeps beyond the limits, and leaves all other cases.
void limit_sweeps(std::vector<Case>& cases, const SweepLimits& limits);

// all_reduce of u8 beyond 2^31 elements; about 8 GiB for two members.
Case over_2_gib_case();
// A random program of `num_members`, as below.
Case random_ops_case(int num_members, int num_ops, uint64_t seed);
// One all_reduce among many devices.
Case many_members_case(int num_members);

// Random collectives back to back: every kind, dtype and reduction; sizes from 0 to more than fits
// into an entry; even and uneven; in place or not; in the backend's memory or not. Half of them run
// at the same time on the groups along some axes of a mesh of all members, half on lists of members
// in any order. A member has several under way at once. Every result is compared with the oracle.
struct RandomProgram {
  uint64_t seed = 1;  // seed of all values; also determines the groups
  // Operations have numbers: a program can be run in parts.
  int64_t first_op = 0;
  int64_t num_ops = 100;
  int64_t largest_size = 4000;  // elements
  // A member may run ahead of its waits by fewer than so many operations.
  int64_t most_under_way = 12;
  // Every operation on all members, and the kinds in turn.
  bool on_all_members = false;
  // Decides whether a failed operation ends the program; OK continues. Unset: it ends the program.
  std::function<Status(const Status& error)> on_error = nullptr;
};
Status run_random_program(const Member& m, const RandomProgram& program);

}  // namespace tessera::conformance

#endif  // TESSERA_COLLECTIVES_TESTING_CONFORMANCE_H_
