// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/generations.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/host/op_record.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/verdicts.h"

namespace tessera::nccl {
namespace {

using host::Rendezvous;

// The latest generations of a group, about which a member may still ask.
constexpr uint32_t kRecords = 4;
// Tells the generations of a group from its operations and messages.
constexpr uint64_t kSalt = 2;

}  // namespace

StatusOr<Generations> Generations::open(shm::HostLink& link, std::vector<shm::GroupMember> here,
                                        std::shared_ptr<OtherHosts> others) {
  // Groups that differ on other hosts may have the same members on this one.
  const uint64_t salt = others == nullptr ? kSalt : others->name();
  TESSERA_ASSIGN_OR_RETURN(Rendezvous rendezvous,
                           Rendezvous::open(link, std::move(here), kRecords, salt));
  return Generations(std::move(rendezvous), std::move(others));
}

Status Generations::settle(uint32_t generation, const Status& error) {
  return rendezvous_.settle(generation, host::VerdictKind::kError, Rendezvous::From::kRunning,
                            error);
}

StatusOr<UniqueId> Generations::meet(const Label& label, int member, uint32_t generation,
                                     absl::FunctionRef<StatusOr<UniqueId>()> make,
                                     absl::Time deadline) {
  const Rendezvous::Op op = {.seq = generation,
                             .member = member,
                             .label = &label,
                             .detail_field = "generation",
                             .holds_device = false,
                             .start = steady_now(),
                             .deadline = deadline};
  if (others_ != nullptr) {
    // Verdicts that letters bring are settled without this object.
    others_->start_reading(
        [records = rendezvous_.records()](uint32_t failed, const Status& verdict) {
          host::settle_at_once(records, failed, Rendezvous::From::kRunning, verdict);
        });
  }
  if (!rendezvous_.wait_free(generation, deadline))
    return host::describe_missing(rendezvous_.records(), op);
  host::MemberEntry& entry = rendezvous_.records().entry(generation, member);
  entry.signature = {};
  label.copy_to(absl::MakeSpan(entry.label));
  if (member == 0) {
    const StatusOr<UniqueId> id =
        others_ == nullptr ? make() : others_->share_id(generation, make, deadline);
    if (!id.ok()) {
      const Status verdict =
          fail(generation, id.status(), steady_now() + OtherHosts::kVerdictLimit);
      return verdict.ok() ? id.status() : verdict;
    }
    std::memcpy(entry.inlined, id->data(), id->size());
  }
  TESSERA_RETURN_IF_ERROR(rendezvous_.arrive(op));
  TESSERA_RETURN_IF_ERROR(rendezvous_.wait_arrived(op));
  UniqueId id;
  std::memcpy(id.data(), rendezvous_.records().entry(generation, 0).inlined, id.size());
  return id;
}

Status Generations::propose(uint32_t generation, const Status& error, absl::Time limit) const {
  if (others_ == nullptr || rendezvous_.records().is_finished(generation)) return error;
  return others_->propose(generation, error, limit);
}

Status Generations::fail(uint32_t generation, const Status& error, absl::Time limit) {
  return settle(generation, propose(generation, error, limit));
}

void Generations::end(uint32_t generation, const Status& error, absl::Time limit) {
  lose(generation, propose(generation, error, limit));
}

void Generations::lose(uint32_t generation, const Status& reason) {
  host::settle_at_once(rendezvous_.records(), generation, Rendezvous::From::kRunning, reason);
}

}  // namespace tessera::nccl
