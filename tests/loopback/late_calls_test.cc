// SPDX-License-Identifier: Apache-2.0
//
// A member that left out a call which the others have given up: its next call is not taken for that
// one, also where the verdict of the first is still on its way to it.
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/span/letters.h"
#include "dtensor/client.h"
#include "dtensor/client_hooks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/matchers.h"
#include "transport/engine.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using span::Letter;
using transport::Engine;

constexpr absl::Duration kSoon = absl::Milliseconds(300);
// Beyond the deadline of every test.
constexpr absl::Duration kNever = absl::Hours(1);
// More than the records of a group, which the failed call must have left free.
constexpr int kRounds = 20;

// Holds back verdicts that the client receives, and with them all later letters of their senders,
// until the client has sent the entry of its next call. `held` is opened for each verdict. Letters
// after the entry are not held back: the call waits for them.
class HoldingEngine final : public Engine {
 public:
  HoldingEngine(std::unique_ptr<Engine> engine, Gate& held)
      : engine_(std::move(engine)), held_(held) {}
  ~HoldingEngine() override { stop(); }

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect(clients, deadline);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect_all(clients, deadline);
  }
  void send(int client, transport::Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override {
    if (tag != kLetters || !is_of(Letter::Kind::kEntries, bytes)) {
      return engine_->send(client, tag, bytes, std::move(keeper), std::move(done));
    }
    engine_->send(client, tag, bytes, std::move(keeper),
                  [this, done = std::move(done)](const Status& status) mutable {
                    done(status);
                    release();
                  });
  }
  void receive(int client, transport::Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
               Done done) override {
    if (tag != kLetters) {
      return engine_->receive(client, tag, bytes, std::move(keeper), std::move(done));
    }
    engine_->receive(client, tag, bytes, std::move(keeper),
                     [this, bytes, done = std::move(done)](const Status& status) mutable {
                       if (!status.ok() || !is_of(Letter::Kind::kVerdict, bytes)) {
                         return done(status);
                       }
                       std::unique_lock<std::mutex> lock(mutex_);
                       if (has_sent_entry_) {
                         lock.unlock();
                         return done(status);
                       }
                       verdicts_.push_back(std::move(done));
                       lock.unlock();
                       held_.open();
                     });
  }
  void cut(int client, const Status& reason) override { engine_->cut(client, reason); }
  void wait(Wait& wait, absl::Duration limit) override { engine_->wait(wait, limit); }
  void wake(Wait& wait) override { engine_->wake(wait); }
  void set_lost_listener(LostListener listener) override {
    engine_->set_lost_listener(std::move(listener));
  }
  void stop() override {
    release();
    engine_->stop();
  }

 private:
  static constexpr transport::Tag kLetters = 0;

  // The first message of a letter begins with its kind. The rest of one is never as large.
  static bool is_of(Letter::Kind kind, absl::Span<const std::byte> bytes) {
    constexpr size_t kPageBytes = 256;
    Letter::Kind found = {};
    if (bytes.size() == kPageBytes) std::memcpy(&found, bytes.data(), sizeof(found));
    return bytes.size() == kPageBytes && found == kind;
  }
  void release() {
    std::vector<Done> verdicts;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      has_sent_entry_ = true;
      verdicts.swap(verdicts_);
    }
    for (Done& done : verdicts) done(absl::OkStatus());
  }

  const std::unique_ptr<Engine> engine_;
  Gate& held_;
  std::mutex mutex_;
  bool has_sent_entry_ = false;  // guarded by mutex_, as the members below
  std::vector<Done> verdicts_;
};

// All calls that follow pass.
Status expect_usable(const Mesh& mesh) {
  for (int round = 0; round < kRounds; ++round) {
    TESSERA_RETURN_IF_ERROR(mesh.barrier(absl::StrCat("round ", round), kNever));
  }
  return absl::OkStatus();
}

// Client 2 is alone on its host: it knows of the deadline by a question.
TEST(LateCallsTest, NextCallDoesNotTakeAVerdictThatIsOnItsWay) {
  Gate held;
  JobSpec spec = {.num_clients = 3, .hooks = {.host_ids = on_hosts(3, 2)}};
  spec.hooks.wrap_engine =
      [&held](std::unique_ptr<Engine> engine) -> StatusOr<std::unique_ptr<Engine>> {
    return std::make_unique<HoldingEngine>(std::move(engine), held);
  };
  EXPECT_THAT(
      run_clients(spec,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
                    if (client.client_id() == 2) {
                      TESSERA_RETURN_IF_ERROR(held.wait());
                    } else {
                      TESSERA_RETURN_IF_ERROR(expect_error(
                          mesh.barrier("left out", kSoon), StatusCode::kDeadlineExceeded,
                          {"barrier \"left out\"", "missing client 2"}));
                    }
                    return expect_usable(mesh);
                  }),
      IsOk());
}

// Client 2 shares the host of the member whose deadline passes, and no letter tells it.
TEST(LateCallsTest, NextCallDoesNotTakeTheVerdictOfItsHost) {
  Gate given_up;
  const JobSpec spec = {.num_clients = 3, .hooks = {.host_ids = {"host-a", "host-b", "host-b"}}};
  EXPECT_THAT(
      run_clients(spec,
                  [&](Client& client) -> Status {
                    TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
                    if (client.client_id() == 2) {
                      TESSERA_RETURN_IF_ERROR(given_up.wait());
                      TESSERA_RETURN_IF_ERROR(given_up.wait());
                    } else {
                      const absl::Duration limit = client.client_id() == 1 ? kSoon : kNever;
                      TESSERA_RETURN_IF_ERROR(expect_error(
                          mesh.barrier("left out", limit), StatusCode::kDeadlineExceeded,
                          {"barrier \"left out\"", "missing client 2"}));
                      given_up.open();
                    }
                    return expect_usable(mesh);
                  }),
      IsOk());
}

// A call equal to the call that was given up is late, and is told so.
TEST(LateCallsTest, TheSameCallTakesTheVerdict) {
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"host-a", "host-a", "host-b"}, {"host-a", "host-b", "host-b"}}) {
    Gate given_up;
    const JobSpec spec = {.num_clients = 3, .hooks = {.host_ids = hosts}};
    EXPECT_THAT(
        run_clients(spec,
                    [&](Client& client) -> Status {
                      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, create_mesh(client, {{"x", 3}}));
                      if (client.client_id() == 2) {
                        TESSERA_RETURN_IF_ERROR(given_up.wait());
                        TESSERA_RETURN_IF_ERROR(given_up.wait());
                      }
                      const absl::Duration limit = client.client_id() == 1 ? kSoon : kNever;
                      TESSERA_RETURN_IF_ERROR(
                          expect_error(mesh.barrier("late", limit), StatusCode::kDeadlineExceeded,
                                       {"barrier \"late\"", "2 of 3 clients", "missing client 2"}));
                      if (client.client_id() != 2) given_up.open();
                      return expect_usable(mesh);
                    }),
        IsOk());
  }
}

}  // namespace
}  // namespace tessera::testing
