// SPDX-License-Identifier: Apache-2.0
//
// Rounds: agreements of all clients of a job, in which each gives a value and all get one result.
//
//   client 0   agree("rows 8")   --+                      +-->  "rows 8"
//   client 1   agree("rows 8")   --+--> combine() on 0 ---+-->  "rows 8"
//   client 2   agree(an error)   --+                      +-->  then all get the error, naming 2
//
// A round uses no device and no collective, so that a save in the background can make rounds
// between the operations of the program. In a job of one client it is a call of combine().
//
// Steps: each client posts its value, client 0 reads all, combines them and posts the result. A
// value is cut into messages of 4 MiB / clients, 60 KiB at most, and client 0 asks for each but the
// first, so that all values under way fit into the memory of the coordinator. The result is cut
// into messages of 60 KiB, of which 32 at most are not acknowledged.
//
// Invariants:
//   1. all clients return one Status or value, except clients that are lost;
//   2. a client that is lost ends the round of the others with its loss, and so does a client that
//      cannot go on with it. Later rounds return that error too, without waiting.
//
// Internal, for files/ and checkpoint/. All clients make the same rounds of one series in the same
// order. Thread-safe: rounds of several threads run one after the other.
#ifndef TESSERA_DTENSOR_ROUNDS_H_
#define TESSERA_DTENSOR_ROUNDS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "dtensor/client.h"

namespace tessera::internal {

class Rounds {
 public:
  using Value = StatusOr<std::string>;
  // The result of the values of all clients, by id.
  using Combine = absl::FunctionRef<Value(absl::Span<const std::string> values)>;
  using CombineAll = absl::FunctionRef<Value(absl::Span<const Value> values)>;

  // `series`: names the rounds among all rounds of the job, "checkpoint".
  explicit Rounds(std::string series) : series_(std::move(series)) {}

  // `operation` names the wait in reports: "save \"run/step-0000000100\"". `combine` is called on
  // client 0, if no client gives an error; else the result is first_error(). Its exception is an
  // error of all clients.
  Value agree(const Client& client, absl::string_view operation, const Value& mine,
              Combine combine);
  // As agree(), for a `combine` that judges errors itself.
  Value agree_all(const Client& client, absl::string_view operation, const Value& mine,
                  CombineAll combine);
  // A round without a value: OK, or the first error.
  Status agree_ok(const Client& client, absl::string_view operation, const Status& mine);
  // Whether an error has ended the rounds.
  bool is_broken();

 private:
  // Sends the value to client 0, which awaits the same number of messages.
  Status send(const Client& client, absl::string_view value);
  // Reads the value of one other client, on client 0.
  Value receive(const Client& client, int sender, absl::string_view operation);
  // The result, on client 0 and on the others.
  Status publish(const Client& client, absl::string_view result, absl::string_view operation);
  Value await_result(const Client& client, absl::string_view operation);
  // Waits for the next message of a series; `sender` 0 sends to all.
  Value next_message(const Client& client, const std::string& series, int sender,
                     absl::string_view operation);
  Status post_message(const Client& client, const std::string& series, absl::string_view value);
  // Ends the rounds of all clients; the error.
  Status end(const Client& client, const Status& error);
  // Tells the clients that wait for a request of client 0 that the round is over.
  void release_senders(const Client& client);

  std::string values_of(int client) const;    // series of the messages of a client
  std::string requests_to(int client) const;  // series of the requests of client 0 to a client

  const std::string series_;
  std::mutex mutex_;                       // held in a round; guards the members below
  std::map<std::string, uint32_t> sent_;   // messages, by series
  std::map<std::string, uint32_t> taken_;  // messages, by series
  Status broken_;                          // the error that ended a round
};

// The rounds of calls of this client by the threads of the program. Valid while the client or a
// copy of it exists. Requires a client that was not moved from.
Rounds& rounds_of(const Client& client);

// The first error by client id: unchanged where all clients have this error, else with the client's
// name before it. OK where no client has an error.
Status first_error(const Client& client, absl::Span<const Rounds::Value> values);

}  // namespace tessera::internal

#endif  // TESSERA_DTENSOR_ROUNDS_H_
