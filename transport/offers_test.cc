// SPDX-License-Identifier: Apache-2.0
//
// Offers of all clients reach all clients, with few calls of the coordinator, and all clients learn
// of an error of one client.
#include "transport/offers.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/text.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/coordinator/fake_coordinator.h"
#include "tests/support/matchers.h"

namespace tessera::transport {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::FakeJob;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

constexpr int kClients = 12;

// Client c is on host c / 3.
bool are_apart(int a, int b) { return a / 3 != b / 3; }

class OffersTest : public ::testing::Test {
 protected:
  OffersTest() {
    for (int client = 0; client < kClients; ++client) {
      job_.set_host_id(client, absl::StrCat("host ", client / 3));
    }
  }

  // Exchanges as every client at the same time. Leaves the texts that a client has for the others
  // in texts_.
  template <class TextOf, class EngineOf>
  std::vector<Status> exchange(TextOf text_of, EngineOf engine_of,
                               absl::Duration timeout = absl::Minutes(1)) {
    std::vector<Status> statuses(kClients);
    std::vector<std::thread> threads;
    texts_.assign(kClients, std::vector<std::string>(kClients));
    for (int own = 0; own < kClients; ++own) {
      threads.emplace_back([&, own] {
        std::vector<OfferExchange> exchanges;
        for (int other = 0; other < kClients; ++other) {
          if (!are_apart(own, other)) continue;
          exchanges.push_back({other, {.number = 1, .text = text_of(own, other)}, ""});
        }
        statuses[own] = exchange_through_client_0(job_.coordinator(own), engine_of(own), exchanges,
                                                  steady_now() + timeout);
        for (OfferExchange& e : exchanges) texts_[own][e.client] = e.peer_text;
        if (!statuses[own].ok()) return;
        statuses[own] = exchange_offers(job_.coordinator(own), engine_of(own), exchanges,
                                        steady_now() + timeout);
        for (OfferExchange& e : exchanges) texts_[own][e.client] = e.peer_text;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  FakeJob job_{std::vector<int>(kClients, 1)};
  std::vector<std::vector<std::string>> texts_;
};

std::string ucx(int) { return "UCX"; }

TEST_F(OffersTest, OneTextOfEachClientTakesFewCalls) {
  const auto text_of = [](int own, int) { return absl::StrCat("address of ", own); };
  EXPECT_THAT(exchange(text_of, ucx), Each(IsOk()));
  for (int own = 0; own < kClients; ++own) {
    for (int other = 0; other < kClients; ++other) {
      if (!are_apart(own, other)) continue;
      EXPECT_EQ(texts_[own][other], text_of(other, own));
    }
  }
  EXPECT_LE(job_.num_calls(), 3 * kClients);
}

TEST_F(OffersTest, TextsOfPairsAreExchangedByPairs) {
  // Clients 0 to 2 have one text for all.
  const auto text_of = [](int own, int other) {
    return own < 3 ? absl::StrCat("address of ", own) : absl::StrCat("pair ", own, " ", other);
  };
  EXPECT_THAT(exchange(text_of, ucx), Each(IsOk()));
  for (int own = 0; own < kClients; ++own) {
    for (int other = 0; other < kClients; ++other) {
      if (!are_apart(own, other)) continue;
      EXPECT_EQ(texts_[own][other], text_of(other, own));
    }
  }
}

// Client 0 leaves a code, and then as many lines as there are clients.
TEST(UnreadableOffersTest, AreNamedWithTheirClientAndWhatToDo) {
  for (const char* text : {"", "x", "\x1b[2J", "0\nUCX one", "0\nUCX a\nUCX b\nUCX c"}) {
    FakeJob job(std::vector<int>(2, 1));
    ASSERT_THAT(job.coordinator(0).put("tessera/engine/all", text), IsOk());
    std::vector<OfferExchange> exchanges = {{0, {.number = 1, .text = "an address"}, ""}};
    const Status status = exchange_through_client_0(job.coordinator(1), "UCX", exchanges,
                                                    steady_now() + absl::Minutes(1));
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kInternal,
                 AllOf(HasSubstr("the addresses of all clients for messages between hosts, which "
                                 "client 0 ("),
                       HasSubstr(" gave to client 1 ("),
                       HasSubstr(absl::StrCat(
                           "), cannot be read: ", in_quotes(text),
                           "; build all programs of a job from one Tessera; where they are, "
                           "report this as a bug of Tessera")))));
  }
}

TEST_F(OffersTest, EnginesThatDifferAreNamed) {
  const auto text_of = [](int own, int) { return absl::StrCat("address of ", own); };
  const std::vector<Status> statuses =
      exchange(text_of, [](int client) { return client == 11 ? "Gloo" : "UCX"; });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("client 0 has \"UCX\" between hosts"),
                                          HasSubstr(" has \"Gloo\"; give all clients of a job one "
                                                    "backend"))));
  EXPECT_THAT(statuses[11], StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("client 11 has \"Gloo\" between hosts, client 0")));
}

TEST_F(OffersTest, AllAreToldOfALostClient) {
  job_.declare_lost(7, absl::UnavailableError("client 7 is lost"));
  std::vector<Status> statuses(kClients);
  std::vector<std::thread> threads;
  for (int own = 0; own < kClients; ++own) {
    if (own == 7) continue;
    threads.emplace_back([&, own] {
      std::vector<OfferExchange> exchanges = {
          {are_apart(own, 0) ? 0 : 11, {.number = 1, .text = "address"}, ""}};
      statuses[own] = exchange_through_client_0(job_.coordinator(own), "UCX", exchanges,
                                                steady_now() + absl::Minutes(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int own = 0; own < kClients; ++own) {
    if (own == 7) continue;
    EXPECT_THAT(statuses[own],
                StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("connecting to client 7"),
                                                               HasSubstr("client 7 is lost"))));
  }
}

}  // namespace
}  // namespace tessera::transport
