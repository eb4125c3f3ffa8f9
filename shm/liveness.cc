// SPDX-License-Identifier: Apache-2.0
#include "shm/liveness.h"

#include <linux/futex.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "job/coordinator/coordinator.h"

namespace tessera::shm {

Liveness::Liveness(const HostMembers& members, std::function<void()> wake)
    : members_(members),
      wake_(std::move(wake)),
      words_(members.num_clients(), nullptr),
      clients_(members.num_clients()) {}

Status Liveness::watch(std::vector<LifeWord*> words) {
  words_ = words;
  words[members_.client_id()] = nullptr;
  TESSERA_ASSIGN_OR_RETURN(death_watch_,
                           DeathWatch::create(std::move(words), [this](int i) { hang_up(i); }));
  return absl::OkStatus();
}

void Liveness::set_lost_listener(LostListener listener) {
  std::vector<std::pair<int, Status>> lost;
  std::lock_guard<std::mutex> calls(listener_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    listener_ = listener;
    for (int i = 0; i < members_.num_clients(); ++i) {
      if (!clients_[i].status.ok()) lost.emplace_back(i, clients_[i].status);
    }
  }
  if (!listener) return;
  for (const auto& [client, status] : lost) listener(client, status);
}

void Liveness::report_lost(int client, const Status& reason) {
  LostListener listener;
  std::lock_guard<std::mutex> calls(listener_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!clients_[client].status.ok()) return;
    clients_[client].status = reason;
    listener = listener_;
    num_lost_.fetch_add(1, std::memory_order_seq_cst);
  }
  wake_();
  if (listener) listener(client, reason);
}

void Liveness::hang_up(int client) {
  bool in_order;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    in_order = clients_[client].left || leaving_;
  }
  const std::string name = members_[client].to_string();
  report_lost(client, in_order ? absl::UnavailableError(absl::StrCat(name, " has left the job"))
                               : loss_without_shutdown(name));
}

void Liveness::note_goodbye(int client) {
  std::lock_guard<std::mutex> lock(mutex_);
  clients_[client].left = true;
}

void Liveness::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  leaving_ = true;
}

Status Liveness::client_status(int client) const {
  if (client < 0 || client >= members_.num_clients()) {
    return absl::InternalError(
        absl::StrCat("client ", client, " does not exist; the job has ", members_.num_clients()));
  }
  if (!any_lost()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  return clients_[client].status;
}

bool Liveness::has_left(int client) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return clients_[client].left;
}

bool Liveness::has_died(int client) const {
  return words_[client] != nullptr && (words_[client]->load() & FUTEX_OWNER_DIED) != 0;
}

bool Liveness::is_gone(int client) const {
  if (client == members_.client_id() || words_[client] == nullptr) return false;
  const uint32_t life = words_[client]->load();
  return life == 0 || (life & FUTEX_OWNER_DIED) != 0;
}

Status Liveness::find_stopped() const {
  if (!any_lost()) return absl::OkStatus();
  for (int i = 0; i < members_.num_clients(); ++i) {
    if (i == members_.client_id() || words_[i] == nullptr || is_gone(i)) continue;
    TESSERA_RETURN_IF_ERROR(client_status(i));
  }
  return absl::OkStatus();
}

}  // namespace tessera::shm
