// SPDX-License-Identifier: Apache-2.0
//
// Rounds of real clients: short and long values, errors, and clients that are lost in each phase.
#include "dtensor/rounds.h"

#include <signal.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "dtensor/client.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "mesh/mesh.h"
#include "tests/support/clients.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/job_forms.h"
#include "tests/support/matchers.h"
#include "tests/support/tensors.h"

namespace tessera::testing {
namespace {

using absl::StatusCode;
using internal::Rounds;
using internal::rounds_of;
using ::testing::HasSubstr;

// More than the messages of a result that are under way at a time.
constexpr size_t kLong = size_t{5} << 20;

class RoundsTest : public JobFormTest {};
INSTANTIATE_TEST_SUITE_P(Forms, RoundsTest, ::testing::ValuesIn(kJobForms), job_form_name);

// Bytes that differ by client and place.
std::string value_of(int client, size_t size) {
  std::string value(size, '\0');
  for (size_t i = 0; i < size; ++i) value[i] = static_cast<char>(client * 31 + i / 7 + i);
  return value;
}

TEST_P(RoundsTest, AllGetOneResult) {
  EXPECT_THAT(run([](Client& client) -> Status {
                for (const size_t size : {size_t{0}, size_t{10}, size_t{61'440}, kLong}) {
                  const Rounds::Value result = rounds_of(client).agree(
                      client, "test", value_of(client.client_id(), size),
                      [&](absl::Span<const std::string> values) -> Rounds::Value {
                        std::string all;
                        for (const std::string& value : values) all += value;
                        return all;
                      });
                  TESSERA_RETURN_IF_ERROR(result.status());
                  std::string all;
                  for (int i = 0; i < client.num_clients(); ++i) all += value_of(i, size);
                  TESSERA_REQUIRE(*result == all, size);
                }
                return absl::OkStatus();
              }),
              IsOk());
}

TEST_P(RoundsTest, ErrorsAreOfAll) {
  EXPECT_THAT(run([](Client& client) -> Status {
                Rounds& rounds = rounds_of(client);
                const int last = client.num_clients() - 1;
                const Status mine = client.client_id() == last
                                        ? absl::NotFoundError("nothing is there")
                                        : absl::OkStatus();
                TESSERA_RETURN_IF_ERROR(expect_error(rounds.agree_ok(client, "test", mine),
                                                     StatusCode::kNotFound, {"nothing is there"}));
                const auto thrower = [](absl::Span<const std::string>) -> Rounds::Value {
                  // NOTIDY(banned): what an allocation may do
                  throw std::runtime_error("no memory");
                };
                TESSERA_RETURN_IF_ERROR(
                    expect_error(rounds.agree(client, "test", std::string(), thrower).status(),
                                 StatusCode::kUnknown, {"no memory"}));
                TESSERA_REQUIRE(!rounds.is_broken());
                return rounds.agree_ok(client, "test", absl::OkStatus());
              }),
              IsOk());
}

// A client that is lost before its value, in the middle of it, and while the result is sent.
TEST(RoundsLossTest, ALossEndsTheRoundOfAll) {
  const JobSpec spec = {.setting = Setting::kProcesses, .num_clients = 4};
  for (const int phase : {0, 1, 2}) {
    SCOPED_TRACE(phase);
    Gate done, combining;
    const std::vector<Status> statuses = run_processes(spec, [&](Client& client) -> Status {
      Rounds& rounds = rounds_of(client);
      TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, live_mesh(client, "{x=4}"));
      TESSERA_RETURN_IF_ERROR(rounds.agree_ok(client, "begin", absl::OkStatus()));
      const bool dies = client.client_id() == 2;
      if (dies && phase == 0) raise(SIGKILL);
      std::thread killer;
      if (dies && phase > 0) {
        killer = std::thread([&] {
          if (phase == 2) {
            combining.wait().IgnoreError();
          } else {
            // sleep: no event tells that a part of the value is sent.
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
          }
          raise(SIGKILL);
        });
      }
      // In phase 1 client 0 does not ask for more than the first message, as client 1 is late; in
      // phase 2 it is late with the result. Both wait at a barrier, which the loss ends.
      const auto await_loss = [&] { return mesh.barrier("loss", absl::Seconds(60)); };
      if (phase == 1 && client.client_id() == 1) {
        TESSERA_REQUIRE(absl::IsUnavailable(await_loss()));
      }
      const Rounds::Value result =
          rounds.agree(client, "test", value_of(0, phase == 1 ? kLong : 10),
                       [&](absl::Span<const std::string>) -> Rounds::Value {
                         if (phase == 2) {
                           combining.open();
                           TESSERA_REQUIRE(absl::IsUnavailable(await_loss()));
                         }
                         return value_of(0, kLong);
                       });
      TESSERA_REQUIRE(rounds.is_broken());
      TESSERA_REQUIRE(rounds.agree_ok(client, "later", absl::OkStatus()) == result.status());
      if (killer.joinable()) killer.join();
      // Client 0 has the coordinator: it ends last.
      if (client.client_id() != 0) {
        done.open();
      } else {
        for (int others = 0; others < 2; ++others) TESSERA_RETURN_IF_ERROR(done.wait());
      }
      return result.status();
    });
    for (const int client : {0, 1, 3}) {
      EXPECT_THAT(statuses[client], StatusIs(StatusCode::kUnavailable, HasSubstr("client 2")));
      EXPECT_EQ(statuses[client], statuses[0]);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
