// SPDX-License-Identifier: Apache-2.0
//
// Exchange: tells each client of a strategy the calls of all replicas. Internal to distribute/.
//
// Several clients: a collective call, by one device of each client. One client: nothing is sent.
// Results and errors are equal on all clients. Used by one thread at a time.
#ifndef TESSERA_DISTRIBUTE_EXCHANGE_H_
#define TESSERA_DISTRIBUTE_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "distribute/call.h"
#include "distribute/options.h"
#include "distribute/replicas.h"
#include "dtensor/dtensor.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::distribute::internal {

// A call with these tensors, and the first error that one of them carries. A name in the options is
// a part of its text.
Call call_of(std::string text, absl::Span<const DTensor> tensors,
             const CommunicationOptions& options);

class Exchange {
 public:
  // `control`: the mesh whose devices send, with the axes of the replicas' mesh. `replicas` must
  // outlive the exchange.
  static StatusOr<Exchange> create(const Replicas& replicas, const Mesh& control);

  // Sends the calls of the local replicas, and returns the calls of all. DeadlineExceeded where a
  // client does not arrive within the timeout of the options. Internal for a call that cannot be
  // read.
  StatusOr<std::vector<Call>> calls_of_all(std::vector<Call> local,
                                           const CommunicationOptions& options) const;
  // As calls_of_all(), and the error of check_calls() where the replicas do not agree.
  StatusOr<std::vector<Call>> agree(std::vector<Call> local, const Freedom& freedom,
                                    const CommunicationOptions& options) const;
  // Calls of one text, each with the tensors of a row.
  StatusOr<std::vector<Call>> agree(const std::string& text, const Rows& rows,
                                    const Freedom& freedom,
                                    const CommunicationOptions& options) const;

 private:
  Exchange(const Replicas& replicas, Layout records)
      : replicas_(replicas), records_(std::move(records)) {}

  const Replicas& replicas_;
  // A row on each client, in order, with a record for each of its replicas.
  const Layout records_;
  // The size of a record; equal on all clients.
  mutable int64_t record_bytes_ = 256;
};

}  // namespace tessera::distribute::internal

#endif  // TESSERA_DISTRIBUTE_EXCHANGE_H_
