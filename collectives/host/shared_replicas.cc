// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/shared_replicas.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tessera::host {

Status SharedReplicas::lend(const HostGroup& group, Run& run) {
  const absl::Span<const int> replicas = run.collective().replicas();
  if (replicas[0] != run.member()) return absl::OkStatus();
  std::vector<int> holders;
  for (const int member : replicas.subspan(1)) {
    holders.push_back(group.members()[member].client_id);
  }
  StatusOr<ReplicaLoans::Replica> replica =
      group.resources().loans().lend(run.arguments().out_buffer->size_bytes(), std::move(holders));
  if (!replica.ok()) return run.labelled(replica.status());
  run.arguments().out = replica->contents;
  replica_ = *std::move(replica);
  return absl::OkStatus();
}

void SharedReplicas::hold(const HostGroup& group, const Run& run, std::byte* contents) {
  const absl::Span<const int> replicas = run.collective().replicas();
  const auto place = std::find(replicas.begin(), replicas.end(), run.member()) - replicas.begin();
  if (place == 0) return;
  replica_ = ReplicaLoans::hold(contents, run.arguments().out_buffer->size_bytes(),
                                static_cast<int>(place) - 1,
                                group.resources().link().memory().keeper(contents));
}

void SharedReplicas::adopt(Run& run) {
  run.arguments().out_buffer->share_memory(replica_->contents, std::move(replica_->owner));
}

}  // namespace tessera::host
