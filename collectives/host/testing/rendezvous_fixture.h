// SPDX-License-Identifier: Apache-2.0
//
// Fixture of the tests of Rendezvous: the members of one client.
#ifndef TESSERA_COLLECTIVES_HOST_TESTING_RENDEZVOUS_FIXTURE_H_
#define TESSERA_COLLECTIVES_HOST_TESTING_RENDEZVOUS_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous.h"
#include "collectives/label.h"
#include "collectives/op_kind.h"
#include "collectives/signature.h"
#include "device/cpu/arena.h"
#include "gtest/gtest.h"
#include "shm/host_link.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera::host {

inline constexpr uint32_t kRecords = 4;
inline const Label kLabel = "all_reduce";
inline constexpr Signature kSum = {.kind = OpKind::kAllReduce,
                                   .dtype = DType::kFloat32,
                                   .reduction = ReduceOp::kSum,
                                   .root = 0,
                                   .count = 8,
                                   .detail_hash = 0};

// One client of n devices, and the rendezvous of all of them.
class RendezvousTest : public ::testing::Test {
 protected:
  void open(int num_members) {
    job_ = std::make_unique<testing::FakeJob>(std::vector<int>{num_members});
    pool_ = ArenaPool::create();
    TESSERA_ASSERT_OK_AND_ASSIGN(
        link_, shm::HostLink::create(job_->coordinator(0), pool_, absl::InfiniteFuture()));
    std::vector<shm::GroupMember> members;
    for (int m = 0; m < num_members; ++m) members.push_back({m, 0, m});
    TESSERA_ASSERT_OK_AND_ASSIGN(Rendezvous opened,
                                 Rendezvous::open(*link_, members, kRecords, /*salt=*/0));
    group_ = std::make_unique<Rendezvous>(std::move(opened));
  }

  static Rendezvous::Op op(uint32_t seq, int member, absl::Time deadline = absl::InfiniteFuture()) {
    return {.seq = seq,
            .member = member,
            .label = &kLabel,
            .detail_field = "counts",
            .name_hash = 0,
            .holds_device = true,
            .start = steady_now(),
            .deadline = deadline};
  }
  static Rendezvous::Op op_that_waits(uint32_t seq, int member, absl::Duration timeout) {
    Rendezvous::Op result = op(seq, member);
    result.deadline = result.start + timeout;
    return result;
  }

  Status arrive(uint32_t seq, int member, const Signature& signature = kSum) {
    group_->records().entry(seq, member).signature = signature;
    return group_->arrive(op(seq, member));
  }
  OpRecord& record(uint32_t seq) {
    return reinterpret_cast<OpRecord*>(&group_->records().entry(seq, 0))[-1];
  }
  // Puts the group into the state after operation `last`, which all members have finished.
  void have_finished(uint32_t last) {
    for (uint32_t seq = last, i = 0; i < kRecords; ++i, seq = seq_before(seq, 1)) {
      const auto n = static_cast<uint32_t>(group_->records().size());
      record(seq).state = State{.seq = seq, .finished = n, .phase = Phase::kRunning}.pack();
      for (uint32_t m = 0; m < n; ++m) group_->records().entry(seq, static_cast<int>(m)).seq = seq;
    }
  }
  Status wait_and_finish(uint32_t seq, int member) {
    TESSERA_RETURN_IF_ERROR(group_->wait_arrived(op(seq, member)));
    TESSERA_RETURN_IF_ERROR(group_->finish(seq, 1));
    return group_->wait_finished(op(seq, member), Rendezvous::From::kOpen);
  }

  testing::TestDeadline deadline_{absl::Seconds(30), "rendezvous_test"};
  std::unique_ptr<testing::FakeJob> job_;
  std::shared_ptr<ArenaPool> pool_;
  std::unique_ptr<shm::HostLink> link_;
  std::unique_ptr<Rendezvous> group_;
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_TESTING_RENDEZVOUS_FIXTURE_H_
