// SPDX-License-Identifier: Apache-2.0
//
// Exchange: how the clients of a strategy tell each other the calls of their replicas. Internal to
// distribute/.
//
// Collective where there are several clients, by one device of each; else nothing is sent. Results
// are equal on all clients.
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

// A call with these tensors. A name in the options is a part of its text.
Call call_of(std::string text, absl::Span<const DTensor> tensors,
             const CommunicationOptions& options);

class Exchange {
 public:
  // `control`: the mesh whose devices send, with the axes of that of the replicas. Requires
  // replicas that outlive the exchange.
  static StatusOr<Exchange> create(const Replicas& replicas, const Mesh& control);

  // The calls of all replicas, for those of the local ones.
  StatusOr<std::vector<Call>> calls_of_all(std::vector<Call> local,
                                           const CommunicationOptions& options) const;
  // The same, once they agree.
  StatusOr<std::vector<Call>> agree(std::vector<Call> local, const Freedom& freedom,
                                    const CommunicationOptions& options) const;
  // The same for a call of this text with the tensors of each row.
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
