// SPDX-License-Identifier: Apache-2.0
//
// Verdicts: the agreement of the hosts of one group on the error of a failed run.
//
//   host a   decide(7, DeadlineExceeded)  ---> coordinator: series "verdict of 1f", number 7
//   host b   decide(7, Unavailable)       ---> the first one stands: both get DeadlineExceeded
//
// The coordinator keeps the latest numbers of a series (job/coordinator/proposals.h). That is
// enough: only late members ask for the verdict of an older run. Thread-safe.
#ifndef TESSERA_COLLECTIVES_SPAN_VERDICTS_H_
#define TESSERA_COLLECTIVES_SPAN_VERDICTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "collectives/signature.h"
#include "job/coordinator/coordinator.h"

namespace tessera::span {

// "4:text"; "0:" for OK.
std::string encode_status(const Status& status);
// Internal for texts that encode_status() did not write.
Status decode_status(absl::string_view text);

// The body of a letter with the verdict of a run, and the call of a member in it.
struct ToldVerdict {
  Signature call;
  Status status;
};
std::vector<std::byte> encode_verdict(const ToldVerdict& verdict);
// Nothing for bytes that encode_verdict() did not write.
std::optional<ToldVerdict> decode_verdict(absl::Span<const std::byte> body);

class Verdicts {
 public:
  // `series`: a name of the group, the same on all hosts.
  Verdicts(Coordinator& coordinator, std::string series)
      : coordinator_(coordinator), series_(std::move(series)) {}

  // Returns `error`, unless another host has decided this number before. Where the coordinator does
  // not answer by `limit`, `error` is valid on this host, and on each host that first learns it by
  // a letter.
  Status decide(uint32_t number, const Status& error, absl::Time limit) const;

 private:
  Coordinator& coordinator_;
  const std::string series_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_VERDICTS_H_
