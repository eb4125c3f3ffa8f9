// SPDX-License-Identifier: Apache-2.0
//
// Agreement: a round in which the clients of a mesh tell each other a few numbers, or an error.
//
//   client 0   exchange({1, 4})        ->  {1, 4} {1, 4} on both
//   client 1   exchange({1, 4})
//
//   client 0   exchange({1, 4})        ->  the error, on both
//   client 1   exchange(an error)
//
// Collective over the clients: they make the same calls in the same order, by the thread that makes
// their other collective calls.
//
// - A round is one relayout of some tens of bytes between one device of each client.
// - It takes its place in the order of these devices, so it waits for their earlier operations.
// - No client waits longer than for any other collective, and none waits for a lost client.
#ifndef TESSERA_INPUT_AGREEMENT_H_
#define TESSERA_INPUT_AGREEMENT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "dtensor/client.h"
#include "layout/layout.h"
#include "mesh/mesh.h"

namespace tessera::input::internal {

class Agreement {
 public:
  // Between the clients that own devices of a live mesh, of which this client must own some.
  static StatusOr<Agreement> create(const Client& client, const Mesh& mesh, int64_t num_columns);

  // Ascending. The rows of a round are in this order.
  const std::vector<int>& clients() const { return clients_; }

  using Row = std::vector<int64_t>;
  // Returns the rows of all clients. If clients pass errors, all clients get the same error, the
  // error of one client. Requires a row of num_columns.
  StatusOr<std::vector<Row>> exchange(const StatusOr<Row>& row) const;

 private:
  Agreement(Layout own, Layout all, std::vector<int> clients, int64_t num_columns)
      : own_(std::move(own)),
        all_(std::move(all)),
        clients_(std::move(clients)),
        num_columns_(num_columns) {}

  Layout own_;  // a row on each client
  Layout all_;  // all rows on each
  std::vector<int> clients_;
  int64_t num_columns_;
};

}  // namespace tessera::input::internal

#endif  // TESSERA_INPUT_AGREEMENT_H_
