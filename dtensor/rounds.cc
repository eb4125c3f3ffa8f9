// SPDX-License-Identifier: Apache-2.0
#include "dtensor/rounds.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/exception_status.h"
#include "base/wait_reports.h"
#include "dtensor/client_messages.h"
#include "dtensor/client_waits.h"
#include "dtensor/runtime.h"

namespace tessera::internal {
namespace {

constexpr size_t kMessageBytes = 60 << 10;
// The values of all clients together. Two series of rounds with their results, 32 messages each,
// take half of what the coordinator keeps.
constexpr size_t kBytesUnderWay = 4 << 20;
constexpr size_t kWindow = 32;  // messages of a result that are not acknowledged
// How often client 0, while it waits for a client, looks for losses of the others.
constexpr absl::Duration kSlice = absl::Seconds(1);

// A message is "+" and a part of a text that continues, or "." and its last part; or "!" and an
// error that ends the rounds of all clients: no part follows.
constexpr char kContinues = '+';
constexpr char kLast = '.';
constexpr char kEnds = '!';
constexpr absl::string_view kNext = "next";
constexpr absl::string_view kOver = "over";

// A text is "0", a blank and a value, or the code of an error in decimal, a blank and its message.
std::string encode(const Rounds::Value& value) {
  if (value.ok()) return absl::StrCat("0 ", *value);
  return absl::StrCat(static_cast<int>(value.status().code()), " ", value.status().message());
}

Rounds::Value decode(absl::string_view text) {
  const size_t blank = text.find(' ');
  int code = 0;
  if (blank == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, blank), &code)) {
    return absl::InternalError("a message between clients is malformed; this is a bug of Tessera");
  }
  text.remove_prefix(blank + 1);
  if (code == 0) return std::string(text);
  return Status(static_cast<absl::StatusCode>(code), text);
}

std::vector<std::string> cut(absl::string_view text, size_t size) {
  std::vector<std::string> parts;
  do {
    const absl::string_view part = text.substr(0, size);
    text.remove_prefix(part.size());
    parts.push_back(absl::StrCat(std::string(1, text.empty() ? kLast : kContinues), part));
  } while (!text.empty());
  return parts;
}

// Appends the part of a message to `text`. Whether it is the last one, or the error that ends the
// rounds.
StatusOr<bool> take_part(absl::string_view message, std::string* text) {
  if (message[0] == kEnds) return decode(message.substr(1)).status();
  text->append(message.substr(1).data(), message.size() - 1);
  return message[0] == kLast;
}

}  // namespace

Rounds& rounds_of(const Client& client) { return runtime_of(client)->rounds(); }

Status first_error(const Client& client, absl::Span<const Rounds::Value> values) {
  const auto failed = std::find_if(values.begin(), values.end(),
                                   [](const Rounds::Value& value) { return !value.ok(); });
  if (failed == values.end()) return absl::OkStatus();
  const bool is_of_all = std::all_of(values.begin(), values.end(), [&](const Rounds::Value& value) {
    return value.status() == failed->status();
  });
  if (is_of_all) return failed->status();
  return with_context(failed->status(),
                      describe_client(client, static_cast<int>(failed - values.begin())));
}

Rounds::Value Rounds::agree(const Client& client, absl::string_view operation, const Value& mine,
                            Combine combine) {
  return agree_all(client, operation, mine, [&](absl::Span<const Value> values) -> Value {
    TESSERA_RETURN_IF_ERROR(first_error(client, values));
    std::vector<std::string> texts;
    for (const Value& value : values) texts.push_back(*value);
    return combine(texts);
  });
}

Status Rounds::agree_ok(const Client& client, absl::string_view operation, const Status& mine) {
  const Value value = mine.ok() ? Value(std::string()) : Value(mine);
  return agree(client, operation, value,
               [](absl::Span<const std::string>) -> Value { return std::string(); })
      .status();
}

bool Rounds::is_broken() {
  std::lock_guard<std::mutex> lock(mutex_);
  return !broken_.ok();
}

Rounds::Value Rounds::agree_all(const Client& client, absl::string_view operation,
                                const Value& mine, CombineAll combine) {
  std::lock_guard<std::mutex> lock(mutex_);
  TESSERA_RETURN_IF_ERROR(broken_);
  if (client.client_id() != 0) {
    const Status sent = send(client, encode(mine));
    if (!sent.ok()) return end(client, sent);
    return await_result(client, operation);
  }
  std::vector<Value> values = {mine};
  for (int sender = 1; sender < client.num_clients(); ++sender) {
    const Value text = receive(client, sender, operation);
    if (!text.ok()) return end(client, text.status());
    values.push_back(decode(*text));
  }
  Value result = call_guarded<Value>([&] { return combine(values); });
  const Status published = publish(client, encode(result), operation);
  if (!published.ok()) return end(client, published);
  return result;
}

// On client 0 by the loss of a client. The others learn it as the result, or by the loss of client
// 0, to which another client tells the error that only it has.
Status Rounds::end(const Client& client, const Status& error) {
  broken_ = error;
  if (client.client_id() == 0) release_senders(client);
  std::string message = absl::StrCat(std::string(1, kEnds), encode(error));
  message.resize(std::min(message.size(), kMessageBytes));
  post_message(client, values_of(client.client_id()), message).IgnoreError();
  return broken_;
}

Status Rounds::send(const Client& client, absl::string_view value) {
  const size_t size = std::clamp(kBytesUnderWay / client.num_clients(), size_t{256}, kMessageBytes);
  const std::vector<std::string> parts = cut(value, size);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) {
      TESSERA_ASSIGN_OR_RETURN(const std::string request,
                               next_message(client, requests_to(client.client_id()), 0, ""));
      if (request == kOver) return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(post_message(client, values_of(client.client_id()), parts[i]));
  }
  return absl::OkStatus();
}

Rounds::Value Rounds::receive(const Client& client, int sender, absl::string_view operation) {
  std::string text;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const std::string message,
                             next_message(client, values_of(sender), sender, operation));
    const StatusOr<bool> is_last = take_part(message, &text);
    if (!is_last.ok()) return with_context(is_last.status(), describe_client(client, sender));
    if (*is_last) return text;
    TESSERA_RETURN_IF_ERROR(post_message(client, requests_to(sender), kNext));
  }
}

void Rounds::release_senders(const Client& client) {
  for (int other = 1; other < client.num_clients(); ++other) {
    post_message(client, requests_to(other), kOver).IgnoreError();
  }
}

Status Rounds::publish(const Client& client, absl::string_view result,
                       absl::string_view operation) {
  if (client.num_clients() == 1) return absl::OkStatus();
  const std::vector<std::string> parts = cut(result, kMessageBytes);
  for (size_t i = 0; i < parts.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(post_message(client, values_of(0), parts[i]));
    if ((i + 1) % kWindow != 0 || i + 1 == parts.size()) continue;
    for (int other = 1; other < client.num_clients(); ++other) {
      std::string none;
      TESSERA_ASSIGN_OR_RETURN(const std::string message,
                               next_message(client, values_of(other), other, operation));
      TESSERA_RETURN_IF_ERROR(
          with_context(take_part(message, &none).status(), describe_client(client, other)));
    }
  }
  return absl::OkStatus();
}

Rounds::Value Rounds::await_result(const Client& client, absl::string_view operation) {
  std::string text;
  for (size_t i = 0;; ++i) {
    const Value message = next_message(client, values_of(0), 0, operation);
    if (!message.ok()) return end(client, message.status());
    const StatusOr<bool> is_last = take_part(*message, &text);
    if (!is_last.ok()) return broken_ = is_last.status();
    if (*is_last) return decode(text);
    if ((i + 1) % kWindow != 0) continue;
    const Status acknowledged =
        post_message(client, values_of(client.client_id()), std::string(1, kLast));
    if (!acknowledged.ok()) return end(client, acknowledged);
  }
}

// Client 0 decides whether a round fails by the loss of a client for which it does not wait now.
// The others wait for client 0 alone, so that they return its verdict.
Rounds::Value Rounds::next_message(const Client& client, const std::string& series, int sender,
                                   absl::string_view operation) {
  const uint32_t number = taken_[series]++;
  const ReportedWait wait(operation.empty() ? nullptr : wait_reports_of(client),
                          std::string(operation),
                          [client, sender]() -> std::optional<WaitReports::Missing> {
                            return missing_client(client, sender);
                          });
  while (true) {
    Value message = await_post(client, series, number, sender, kSlice);
    if (!absl::IsDeadlineExceeded(message.status())) return message;
    if (client.client_id() == 0) TESSERA_RETURN_IF_ERROR(tessera::internal::first_loss(client));
  }
}

Status Rounds::post_message(const Client& client, const std::string& series,
                            absl::string_view value) {
  uint32_t& number = sent_[series];
  TESSERA_RETURN_IF_ERROR(post(client, series, number, value));
  ++number;
  return absl::OkStatus();
}

std::string Rounds::values_of(int client) const { return absl::StrCat(series_, " ", client); }

std::string Rounds::requests_to(int client) const { return absl::StrCat(series_, " to ", client); }

}  // namespace tessera::internal
