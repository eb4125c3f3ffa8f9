// SPDX-License-Identifier: Apache-2.0
#include "job/coordinator/loss_teller.h"

#include <utility>

namespace tessera {

Status LossTeller::start() {
  TESSERA_ASSIGN_OR_RETURN(thread_, start_thread("the losses of other clients", [this] { run(); }));
  return absl::OkStatus();
}

void LossTeller::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LossTeller::set_callback(Coordinator::LostCallback callback) {
  // Held while callbacks run, so that none runs after this returns.
  std::lock_guard<std::recursive_mutex> calls(callback_mutex_);
  callback_ = std::move(callback);
  if (!callback_) return;
  std::map<int, Status> lost;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    untold_.clear();
    lost = lost_;
  }
  for (const auto& [client, reason] : lost) callback_(client, reason);
}

void LossTeller::add(int client, const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!lost_.try_emplace(client, reason).second) return;
    untold_.push_back(client);
  }
  changed_.notify_all();
}

bool LossTeller::is_lost(int client) {
  std::lock_guard<std::mutex> lock(mutex_);
  return lost_.count(client) > 0;
}

void LossTeller::run() {
  const auto has_work = [this] { return !untold_.empty() || is_over_; };
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, has_work);
    }
    std::lock_guard<std::recursive_mutex> calls(callback_mutex_);
    int client;
    Status reason;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_over_) return;
      if (untold_.empty()) continue;  // set_callback() has told them
      client = untold_.front();
      untold_.pop_front();
      reason = lost_.at(client);
    }
    if (callback_) callback_(client, reason);
  }
}

}  // namespace tessera
