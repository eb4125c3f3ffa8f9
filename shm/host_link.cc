// SPDX-License-Identifier: Apache-2.0
#include "shm/host_link.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/machine.h"

namespace tessera::shm {

HostLink::HostLink(Coordinator& coordinator, OwnControl own_control,
                   std::shared_ptr<ArenaPool> pool)
    : coordinator_(coordinator),
      members_(coordinator),
      own_control_(std::move(own_control)),
      pool_(std::move(pool)),
      // Half a microsecond where every waiter may have a core of its own. Beside other programs it
      // may not have one: a longer spin would take the core from the member it waits for.
      wait_policy_(members_.num_devices_on_host() <= usable_cores() ? kMembersOnCores : kMembers),
      liveness_(members_, [this] { memory_.wake(); }),
      memory_(members_, liveness_, own_control_.data(), pool_,
              [this](int client, int arena) { sockets_.ask_for_arena(client, arena); }),
      sockets_({members_, own_control_, *pool_, memory_, liveness_}) {}

StatusOr<std::unique_ptr<HostLink>> HostLink::create(Coordinator& coordinator,
                                                     std::shared_ptr<ArenaPool> pool,
                                                     absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(
      OwnControl own_control,
      OwnControl::create(coordinator.members()[coordinator.client_id()].num_local_devices));
  std::unique_ptr<HostLink> link(
      new HostLink(coordinator, std::move(own_control), std::move(pool)));
  // The death of a peer ends the waits for it. The caller may set a callback of its own later,
  // which is then told all losses so far.
  coordinator.set_lost_callback([&liveness = link->liveness_](int client, const Status& reason) {
    liveness.report_lost(client, reason);
  });
  // On an error the destructor takes the callback away.
  TESSERA_RETURN_IF_ERROR(link->connect(deadline));
  return link;
}

Status HostLink::connect(absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(sockets_.open(coordinator_, deadline));
  std::vector<LifeWord*> words(members_.num_clients(), nullptr);
  for (int i = 0; i < members_.num_clients(); ++i) {
    if (members_.is_on_host(i)) {
      words[i] = &reinterpret_cast<ControlHeader*>(memory_.control(i))->life;
    }
  }
  TESSERA_RETURN_IF_ERROR(liveness_.watch(std::move(words)));
  if (members_.num_on_host() == 1) return absl::OkStatus();
  return pool_->set_arena_callback([this](int arena, int fd, uint64_t size_bytes) {
    sockets_.announce_arena(arena, fd, size_bytes);
    return absl::OkStatus();
  });
}

HostLink::~HostLink() { close(); }

void HostLink::close() {
  coordinator_.set_lost_callback(nullptr);
  {
    std::lock_guard<std::mutex> lock(openness_->mutex);
    openness_->is_open = false;
  }
  pool_->set_arena_callback(nullptr).IgnoreError();
  liveness_.stop_watching();
  sockets_.close();
}

void HostLink::leave() {
  liveness_.leave();
  sockets_.say_goodbye();
}

GroupTable HostLink::groups_led_by(int client) const {
  return GroupTable(
      memory_.control(client), client, members_.client_id(),
      [this](int other) { return liveness_.is_gone(other); },
      [this] { return liveness_.find_stopped(); });
}

void HostLink::set_long_wait_listener(std::function<void()> listener) {
  std::lock_guard<std::mutex> lock(long_wait_mutex_);
  long_wait_listener_ = std::move(listener);
}

void HostLink::note_long_wait() {
  std::lock_guard<std::mutex> lock(long_wait_mutex_);
  if (long_wait_listener_ != nullptr) long_wait_listener_();
}

}  // namespace tessera::shm
