// SPDX-License-Identifier: Apache-2.0
#include "transport/offers.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/text.h"
#include "job/environment/build.h"

namespace tessera::transport {
namespace {

// The peer's offer, of which the name of its engine comes first.
StatusOr<std::string> take_offer(const Coordinator& coordinator, const std::string& engine,
                                 int client, const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  if (parts.first == engine) return parts.second;
  return absl::InvalidArgumentError(
      absl::StrCat("client ", coordinator.client_id(), " has ", in_quotes(engine),
                   " between hosts, ", coordinator.members()[client].to_string(), " has ",
                   in_quotes(parts.first), "; give all clients of a job one backend"));
}

// Client 0 has left a text at the coordinator that is not a list of the addresses of all clients.
Status unreadable(const Coordinator& coordinator, const std::string& text) {
  return absl::InternalError(
      absl::StrCat("the addresses of all clients for messages between hosts, which ",
                   coordinator.members()[0].to_string(), " gave to ",
                   coordinator.members()[coordinator.client_id()].to_string(),
                   ", cannot be read: ", in_quotes(text), "; ", kOneBuildAdvice));
}

// The texts that the clients give, by client.
StatusOr<std::vector<std::string>> gather(Coordinator& coordinator, const std::string& own,
                                          absl::Time deadline) {
  const auto key_of = [](int client) { return absl::StrCat("tessera/engine/of ", client); };
  constexpr char kAll[] = "tessera/engine/all";
  const int num_clients = coordinator.num_clients();
  if (coordinator.client_id() != 0) {
    TESSERA_RETURN_IF_ERROR(coordinator.put(key_of(coordinator.client_id()), own));
    TESSERA_ASSIGN_OR_RETURN(const std::string text, coordinator.get(kAll, 0, deadline));
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 1));
    int code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) return unreadable(coordinator, text);
    if (code != 0) return Status(static_cast<absl::StatusCode>(code), parts.second);
    std::vector<std::string> all = absl::StrSplit(parts.second, '\n');
    if (static_cast<int>(all.size()) != num_clients) return unreadable(coordinator, text);
    return all;
  }
  // Ends early enough to tell the others which offer is missing.
  const absl::Time end = steady_now() + 0.9 * (deadline - steady_now());
  std::vector<std::string> all = {own};
  Status status;
  for (int client = 1; client < num_clients && status.ok(); ++client) {
    StatusOr<std::string> text = coordinator.get(key_of(client), client, end);
    if (text.ok()) {
      all.push_back(*std::move(text));
    } else {
      status = with_context(
          text.status(), absl::StrCat("connecting to ", coordinator.members()[client].to_string()));
    }
  }
  const std::string result = status.ok() ? absl::StrJoin(all, "\n") : std::string(status.message());
  TESSERA_RETURN_IF_ERROR(
      coordinator.put(kAll, absl::StrCat(static_cast<int>(status.code()), "\n", result)));
  TESSERA_RETURN_IF_ERROR(status);
  return all;
}

}  // namespace

Status exchange_offers(Coordinator& coordinator, const std::string& engine,
                       std::vector<OfferExchange>& exchanges, absl::Time deadline) {
  const auto key_of = [](int from, int to, uint64_t number) {
    return absl::StrCat("tessera/engine/", from, "/", to, "/", number);
  };
  const int own = coordinator.client_id();
  for (const OfferExchange& exchange : exchanges) {
    if (!exchange.peer_text.empty()) continue;
    TESSERA_RETURN_IF_ERROR(coordinator.put(key_of(own, exchange.client, exchange.offer.number),
                                            absl::StrCat(engine, " ", exchange.offer.text)));
  }
  Status first;
  for (OfferExchange& exchange : exchanges) {
    if (!exchange.peer_text.empty()) continue;
    const StatusOr<std::string> text = coordinator.get(
        key_of(exchange.client, own, exchange.offer.number), exchange.client, deadline);
    if (!text.ok()) {
      const std::string peer = coordinator.members()[exchange.client].to_string();
      first.Update(
          with_context(text.status(), absl::StrCat("connecting to ", peer, " from ",
                                                   Address::parse(exchange.offer.text).place)));
      continue;
    }
    StatusOr<std::string> offer = take_offer(coordinator, engine, exchange.client, *text);
    first.Update(offer.status());
    if (offer.ok()) exchange.peer_text = *std::move(offer);
  }
  return first;
}

Status exchange_through_client_0(Coordinator& coordinator, const std::string& engine,
                                 std::vector<OfferExchange>& exchanges, absl::Time deadline) {
  const bool is_one_text =
      std::all_of(exchanges.begin(), exchanges.end(), [&](const OfferExchange& exchange) {
        return exchange.offer.text == exchanges[0].offer.text;
      });
  const std::string own = !exchanges.empty() && is_one_text ? exchanges[0].offer.text : "";
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           gather(coordinator, absl::StrCat(engine, " ", own), deadline));
  for (OfferExchange& exchange : exchanges) {
    TESSERA_ASSIGN_OR_RETURN(
        std::string text, take_offer(coordinator, engine, exchange.client, all[exchange.client]));
    // Both ends see whether both have given one.
    if (!own.empty()) exchange.peer_text = std::move(text);
  }
  return absl::OkStatus();
}

}  // namespace tessera::transport
