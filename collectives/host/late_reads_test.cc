// SPDX-License-Identifier: Apache-2.0
//
// A member is delayed while it reads an input that another member has lent it. The lender learns of
// a loss or shuts down, and reuses the memory. The reader returns an error, or the right bytes.
//
//   client 0   broadcast .. OK, drops the input, is told of a loss, fills all free memory
//   client 1   broadcast, at its first read [held up                                      ] reads
//   client 2   broadcast .. OK
//
// The clients are threads of one process with mappings of their own, and each is told separately of
// a loss: client 1 knows nothing but the record of the operation. It is delayed by a page fault,
// because its mapping of the input is not readable.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/wait_report.h"
#include "base/wait_reports.h"
#include "collectives/arguments.h"
#include "collectives/collective.h"
#include "collectives/group.h"
#include "collectives/host/host_backend.h"
#include "collectives/host/testing/held_up_reads.h"
#include "collectives/host/testing/host_job.h"
#include "collectives/testing/start_operation.h"
#include "device/buffer.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"

namespace tessera::host {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::EndsWith;
using testing::Gate;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::StartsWith;
using testing::StatusIs;

constexpr int64_t kPage = 4096;
constexpr int64_t kBytes = 4 * kPage;
constexpr std::byte kSent{0x11};
constexpr std::byte kReused{0x77};

class LateReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_ASSERT_OK_AND_ASSIGN(job_, HostJob::create(std::vector<int>{1, 1, 1}));
    for (int device = 0; device < 3; ++device) {
      TESSERA_ASSERT_OK_AND_ASSIGN(Group group, job_->group(device, {0, 1, 2}));
      groups_.push_back(std::make_unique<Group>(std::move(group)));
    }
  }

  std::shared_ptr<Buffer> new_buffer(int client, int64_t bytes, std::byte value) {
    StatusOr<std::shared_ptr<Buffer>> buffer = Buffer::allocate(job_->client(client).pool, bytes);
    EXPECT_THAT(buffer.status(), IsOk());
    std::memset((*buffer)->mutable_data(), static_cast<int>(value), bytes);
    return *buffer;
  }

  Work broadcast(int device, std::shared_ptr<const Buffer> in, std::shared_ptr<Buffer> out) {
    const int64_t count = out->size_bytes();
    const int64_t in_count = in == nullptr ? 0 : in->size_bytes();
    return internal::start_operation(*groups_[device], {.kind = OpKind::kBroadcast, .count = count},
                                     {.in_count = in_count, .out_count = count},
                                     {.in_buffer = std::move(in), .out_buffer = std::move(out)});
  }

  // Lends the input of client 0 and delays client 1 at its first read of it. Calls `act`, which
  // returns when client 0 does not use the input any more, and lets client 1 continue. Returns the
  // result of client 1's broadcast.
  template <class Act>
  Status read_late(Act act) {
    // Aligned to pages within, so that client 1 is held up by no other access.
    std::shared_ptr<Buffer> input = new_buffer(0, kBytes + kPage, kSent);
    input->mutable_ready().set(absl::OkStatus());
    const uintptr_t first = reinterpret_cast<uintptr_t>(input->data());
    const auto offset = static_cast<int64_t>((first + kPage - 1) / kPage * kPage - first);
    const auto address = job_->client(0).link->memory().locate(input->data() + offset, kBytes);
    EXPECT_TRUE(address.has_value());
    std::shared_ptr<Buffer> outputs[3];
    std::optional<Work> works[3];
    for (int c = 0; c < 3; ++c) outputs[c] = new_buffer(c, input->size_bytes(), std::byte{0});
    Gate reached, resume;
    const HeldUpReads held_up(*job_->client(1).link->memory().resolve(*address, kBytes), kBytes,
                              reached, resume);
    for (int c = 0; c < 3; ++c) works[c] = broadcast(c, c == 0 ? input : nullptr, outputs[c]);
    EXPECT_THAT(works[0]->await(), IsOk());
    EXPECT_THAT(works[2]->await(), IsOk());
    EXPECT_THAT(reached.wait(), IsOk());
    works[0].reset();
    input.reset();
    outputs[0].reset();
    act();
    // Whatever of that size is free in client 0 has other contents now.
    std::vector<std::shared_ptr<Buffer>> reused;
    for (int i = 0; i < 4; ++i) reused.push_back(new_buffer(0, kBytes + kPage, kReused));
    resume.open();
    const Status status = works[1]->await();
    for (int64_t i = 0; status.ok() && i < outputs[1]->size_bytes(); ++i) {
      if (outputs[1]->data()[i] != kSent) {
        ADD_FAILURE() << "OK with a wrong byte " << i;
        break;
      }
    }
    return status;
  }

  testing::TestDeadline deadline_{absl::Seconds(60), "late_reads_test"};
  std::unique_ptr<HostJob> job_;
  std::vector<std::unique_ptr<Group>> groups_;
};

TEST_F(LateReadsTest, ALossEndsTheReadBeforeTheMemoryIsReused) {
  const Status status = read_late([&] {
    job_->client(0).link->liveness().report_lost(2, absl::UnavailableError("client 2 is lost"));
    job_->client(0).backend->wait_until_read();
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable,
                               AllOf(HasSubstr("broadcast"), HasSubstr("client 2 is lost"))));
}

TEST_F(LateReadsTest, AWaitForTheReaderIsReported) {
  HostBackend& backend = *job_->client(0).backend;
  Gate reported;
  std::mutex mutex;
  WaitReport report;  // guarded by mutex
  WaitReports reports({.subject = "client 0",
                       .sink =
                           [&](const WaitReport& one) {
                             std::lock_guard<std::mutex> lock(mutex);
                             report = one;
                             reported.open();
                           },
                       .unit = absl::Milliseconds(20)});
  ASSERT_THAT(reports.start(), IsOk());
  backend.set_wait_reports(&reports, [](int client) {
    return WaitReports::Missing{absl::StrCat("client ", client, " (host-a, pid 7)"), {client}};
  });
  std::thread syncing;
  const Status status = read_late([&] {
    syncing = std::thread([&] { backend.wait_until_read(); });
    EXPECT_THAT(reported.wait(), IsOk());
  });
  syncing.join();
  reports.stop();
  EXPECT_THAT(status, IsOk());
  EXPECT_THAT(report.text, AllOf(StartsWith("client 0 has waited for "),
                                 EndsWith(" in sync_devices: its tensors are still read by client "
                                          "1 (host-a, pid 7)")));
  EXPECT_THAT(report.missing, ::testing::ElementsAre(1));
}

// A thread that allocates may hold what every call of its client needs, and has no deadline.
TEST_F(LateReadsTest, AnAllocationDoesNotWaitForTheReader) {
  const Status status = read_late([&] {
    // The pool has no free block of these sizes.
    for (int64_t bytes = 64; bytes < 8 << 20; bytes *= 2) new_buffer(0, bytes, kReused);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Group group, job_->group(0, {0, 2}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Group other, job_->group(2, {0, 2}));
    const Work work = group.barrier();
    EXPECT_THAT(other.barrier().await(), IsOk());
    EXPECT_THAT(work.await(), IsOk());
  });
  EXPECT_THAT(status, IsOk());
}

// The next call of the group releases lent inputs, too.
TEST_F(LateReadsTest, ALossEndsTheReadBeforeTheNextCall) {
  const Status status = read_late([&] {
    job_->client(0).link->liveness().report_lost(2, absl::UnavailableError("client 2 is lost"));
    const std::shared_ptr<Buffer> out = new_buffer(0, 64, std::byte{0});
    EXPECT_THAT(broadcast(0, out, out).await(), StatusIs(StatusCode::kUnavailable));
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable, HasSubstr("client 2 is lost")));
}

TEST_F(LateReadsTest, AStopEndsTheReadBeforeTheMemoryIsReused) {
  const Status status = read_late([&] {
    for (const auto& stream : job_->client(0).streams) stream->stop();
    job_->client(0).backend->stop();
  });
  EXPECT_THAT(status, StatusIs(StatusCode::kCancelled, HasSubstr("the client is shutting down")));
}

}  // namespace
}  // namespace tessera::host
