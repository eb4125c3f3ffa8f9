// SPDX-License-Identifier: Apache-2.0
//
// Transfers: the letters and blocks of one run that are under way between hosts, and the results of
// the ended ones.
//
// Not thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_TRANSFERS_H_
#define TESSERA_COLLECTIVES_SPAN_TRANSFERS_H_

#include <map>

#include "base/status.h"

namespace tessera::span {

class Transfers {
 public:
  // A letter, a block that is sent to a client, or a block that a client sends here.
  enum Kind { kLetter, kSend, kReceive };

  void begin(Kind kind, int client) {
    ++num_under_way_;
    if (kind == kReceive) ++awaited_[client];
  }
  void end(Kind kind, int client, const Status& status) {
    --num_under_way_;
    if (kind == kReceive && --awaited_[client] == 0) awaited_.erase(client);
    has_failed_ |= !status.ok();
    // FailedPrecondition: the connection is being made again.
    const bool is_broken = absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
    if (!is_broken) error_.Update(status);
  }

  // Whether all have ended, none with an error.
  bool are_done() const { return num_under_way_ == 0 && !has_failed_; }
  // The first error that is not of a broken connection.
  const Status& error() const { return error_; }
  // The number of awaited blocks, by the client that sends them.
  const std::map<int, int>& awaited() const { return awaited_; }

 private:
  int num_under_way_ = 0;
  bool has_failed_ = false;
  std::map<int, int> awaited_;
  Status error_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_TRANSFERS_H_
