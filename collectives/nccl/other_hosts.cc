// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/other_hosts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text.h"
#include "job/environment/build.h"
#include "job/environment/host.h"

namespace tessera::nccl {
OtherHosts::OtherHosts(std::shared_ptr<span::Network> network,
                       const std::vector<shm::GroupMember>& members)
    : network_(std::move(network)),
      name_(span::name_of_group(members, span::LettersOf::kNccl)),
      num_members_(static_cast<int>(members.size())),
      verdicts_(network_->coordinator, series("verdict")) {
  const absl::Span<const MemberInfo> clients = network_->coordinator.members();
  const MemberInfo& self = clients[network_->coordinator.client_id()];
  const auto add = [](int client, std::vector<int>& to) {
    if (std::find(to.begin(), to.end(), client) == to.end()) to.push_back(client);
  };
  for (const shm::GroupMember& member : members) {
    const MemberInfo& client = clients[member.client_id];
    const bool is_known = std::any_of(first_clients_.begin(), first_clients_.end(), [&](int first) {
      return are_on_one_host(clients[first], client);
    });
    if (!is_known) first_clients_.push_back(member.client_id);
    if (!are_on_one_host(client, self)) add(member.client_id, far_clients_);
  }
  own_first_client_ = *std::find_if(first_clients_.begin(), first_clients_.end(), [&](int first) {
    return are_on_one_host(clients[first], self);
  });
}

OtherHosts::~OtherHosts() {
  if (reads_) network_->letters.set_reader(name_, nullptr);
}

std::string OtherHosts::series(absl::string_view what) const {
  return absl::StrCat("NCCL ", what, " of ", absl::Hex(name_));
}

StatusOr<UniqueId> OtherHosts::share_id(uint32_t generation,
                                        absl::FunctionRef<StatusOr<UniqueId>()> make,
                                        absl::Time deadline) const {
  const std::string ids = series("id");
  const int first = first_clients_[0];
  if (first == network_->coordinator.client_id()) {
    TESSERA_ASSIGN_OR_RETURN(const UniqueId id, make());
    const absl::string_view bytes(reinterpret_cast<const char*>(id.data()), id.size());
    TESSERA_RETURN_IF_ERROR(
        network_->coordinator.propose(ids, generation, absl::BytesToHexString(bytes), deadline)
            .status());
    return id;
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           network_->coordinator.get_proposal(ids, generation, first, deadline));
  const std::string bytes = bytes_of_hex(text).value_or("");
  UniqueId id;
  if (bytes.size() != id.size()) {
    return absl::InternalError(absl::StrCat("the id of a communicator of NCCL that ",
                                            network_->coordinator.members()[first].to_string(),
                                            " gave has ", bytes.size(), " bytes, not ", id.size(),
                                            "; ", kOneBuildAdvice));
  }
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

Status OtherHosts::propose(uint32_t generation, const Status& error, absl::Time limit) const {
  const Status verdict = verdicts_.decide(generation, error, limit);
  const std::string text = span::encode_status(verdict);
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  const span::Letter letter = {.kind = span::Letter::Kind::kVerdict,
                               .seq = generation,
                               .group = name_,
                               .from = 0,
                               .to = 0,
                               .body = {bytes, bytes + text.size()}};
  for (const int client : far_clients_) network_->letters.send(client, letter);
  return verdict;
}

void OtherHosts::start_reading(const Reader& reader) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(reads_, true)) return;
  }
  network_->letters.set_reader(name_, [reader](const span::Letter& letter) {
    const auto* const text = reinterpret_cast<const char*>(letter.body.data());
    reader(letter.seq, span::decode_status({text, letter.body.size()}));
  });
}

Status OtherHosts::first_error(uint32_t seq, const Status& own, absl::Time deadline) const {
  const auto answers_of = [&](int client) {
    return series(absl::StrCat("memory on the host of client ", client));
  };
  if (own_first_client_ == network_->coordinator.client_id()) {
    // Another member of this client may have been first.
    TESSERA_RETURN_IF_ERROR(
        network_->coordinator
            .propose(answers_of(own_first_client_), seq, span::encode_status(own), deadline)
            .status());
  }
  Status first;
  for (const int client : first_clients_) {
    if (client == own_first_client_) {
      first.Update(own);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(
        const std::string answer,
        network_->coordinator.get_proposal(answers_of(client), seq, client, deadline));
    first.Update(span::decode_status(answer));
  }
  return first;
}

}  // namespace tessera::nccl
