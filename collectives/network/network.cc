// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/network.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/stable_hash.h"
#include "collectives/host/doing.h"
#include "collectives/host/member_texts.h"
#include "collectives/network/letter_body.h"
#include "job/environment/host.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::Rendezvous;

// The name that letters have which are of no group.
constexpr uint64_t kOfNoGroup = 0;

// An operation of a group of one host: no other client has to know its name.
RunId id_of(const Rendezvous::Wait& wait) {
  const std::vector<uint64_t> place = {static_cast<uint64_t>(wait.group->leader_client()),
                                       wait.group->block_offset(), wait.group->generation()};
  return {stable_hash(absl::MakeConstSpan(place)), wait.seq};
}

Tag first_tag(uint64_t word, const Coordinator& job) {
  const std::vector<uint64_t> place = {job.members()[job.client_id()].incarnation};
  return stable_hash(absl::MakeConstSpan(place), /*seed=*/word);
}

}  // namespace

Network::Network(std::unique_ptr<Engine> own_engine, Coordinator& job, host::HostLink* link,
                 absl::Duration heartbeat_interval, uint64_t word)
    : engine(std::move(own_engine)),
      letters(*engine, word),
      coordinator(job),
      link_(link),
      circles_(*this),
      next_tag_(first_tag(word, job)),
      reach_(heartbeat_interval),
      links_(*engine, *this) {
  for (const MemberInfo& member : coordinator.members()) {
    for (int ordinal = 0; ordinal < member.num_local_devices; ++ordinal) {
      devices_.push_back({static_cast<int>(devices_.size()), member.client_id, ordinal});
    }
  }
  letters.set_reader(kOfNoGroup, [this](const Letter& letter) { read(letter); });
}

Network::~Network() { stop(); }

void Network::stop() {
  links_.begin_stop();
  ends_.begin_stop();
  engine->stop();
  links_.stop();
  ends_.stop();
}

void Network::note_contact(int client) {
  std::lock_guard<std::mutex> lock(mutex_);
  reach_.note_contact(client, steady_now());
}

Status Network::find_unreachable(absl::Span<const int> clients) {
  std::vector<int> asked;
  std::vector<int> silent;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asked = reach_.to_ask(clients, steady_now());
    silent = reach_.silent(clients);
  }
  for (const int client : asked) send_to_client(client, Letter::Kind::kPing);
  if (silent.empty()) return absl::OkStatus();
  std::vector<MemberInfo> members;
  for (const int client : silent) members.push_back(coordinator.members()[client]);
  return describe_unreachable(coordinator.members()[coordinator.client_id()], members,
                              reach_.limit());
}

void Network::send_to_client(int client, Letter::Kind kind) {
  letters.send(client, {.kind = kind,
                        .seq = 0,
                        .group = kOfNoGroup,
                        .from = coordinator.client_id(),
                        .to = 0,
                        .body = {}});
}

void Network::add_group(uint64_t name, WaitingGroup& group) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  groups_[name] = &group;
}

void Network::remove_group(uint64_t name, const WaitingGroup& group) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto it = groups_.find(name);
  // A newer group of the same name may have replaced it.
  if (it != groups_.end() && it->second == &group) groups_.erase(it);
}

Status Network::describe_circle(absl::Span<const CircleHop> circle) const {
  std::vector<host::ConflictingWait> waits;
  for (const CircleHop& hop : circle) {
    const GroupMember* const device = find_device(hop.device);
    if (device == nullptr) continue;
    const MemberInfo& member = coordinator.members()[device->client_id];
    waits.push_back({hop.device, member.to_string(), hop.label, hop.group});
  }
  return host::describe_conflict(std::move(waits));
}

const GroupMember* Network::find_device(int device) const {
  const bool is_known = device >= 0 && device < static_cast<int>(devices_.size());
  return is_known ? &devices_[device] : nullptr;
}

std::optional<CircleWait> Network::wait_of(int device) {
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    for (const auto& [_, group] : groups_) {
      if (std::optional<CircleWait> wait = group->wait_of(device)) return wait;
    }
  }
  const GroupMember* const member = find_device(device);
  if (link_ == nullptr || member == nullptr) return std::nullopt;
  const std::optional<Rendezvous::Wait> found = Rendezvous::wait_of(*link_, *member);
  if (!found.has_value()) return std::nullopt;
  {
    // A device that is arriving in a run of several hosts waits in no other run: it soon says so
    // itself.
    std::lock_guard<std::mutex> lock(groups_mutex_);
    for (const auto& [_, group] : groups_) {
      if (group->has_part(*found->group)) return std::nullopt;
    }
  }
  CircleWait wait = {.hop = {.device = device,
                             .run = id_of(*found),
                             .name_hash = found->name_hash,
                             .label = found->label,
                             .group = {}},
                     .spans_hosts = false,
                     .missing = found->missing()};
  for (const GroupMember& other : found->group->members())
    wait.hop.group.push_back(other.device_id);
  if (wait.missing.empty()) return std::nullopt;
  return wait;
}

bool Network::has_arrived(int device, const RunId& run) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto group = groups_.find(run.group);
  return group != groups_.end() && group->second->has_arrived(device, run.seq);
}

void Network::end(const CircleHop& hop, const std::vector<CircleHop>& circle, bool is_held,
                  std::function<void()> next) {
  const Status error = describe_circle(circle);
  bool is_of_span = false;
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    const auto group = groups_.find(hop.run.group);
    is_of_span = group != groups_.end();
    if (is_of_span) group->second->end(hop, error, is_held, next);
  }
  const GroupMember* const device = find_device(hop.device);
  if (!is_of_span && link_ != nullptr && device != nullptr) {
    std::optional<Rendezvous::Wait> wait = Rendezvous::wait_of(*link_, *device);
    if (wait.has_value() && id_of(*wait) == hop.run) {
      // Needs the lock of a table of groups, which a client that is stopped may have. Where no
      // thread can be started the next search finds the circle again.
      ends_
          .post([wait = *std::move(wait), error, next = std::move(next)] {
            wait.end(error);
            if (next != nullptr) next();
          })
          .IgnoreError();
      return;
    }
  }
  if (next != nullptr) next();
}

void Network::release(const CircleHop& hop) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto group = groups_.find(hop.run.group);
  if (group != groups_.end()) group->second->release(hop);
}

bool Network::is_lost(int client) { return link_ != nullptr && !link_->client_status(client).ok(); }

void Network::connection_broke(int client) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) group->connection_broke(client);
}

void Network::connection_is_up(int client) {
  note_contact(client);
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) group->connection_is_up(client);
}

void Network::send(int device, const CircleLetter& letter) {
  const GroupMember* const to = find_device(device);
  if (to == nullptr) return;
  if (to->client_id == coordinator.client_id()) return circles_.read(device, letter);
  forward(to->client_id, {.kind = Letter::Kind::kCircle,
                          .seq = 0,
                          .group = kOfNoGroup,
                          .from = 0,
                          .to = device,
                          .body = encode(letter)});
}

bool Network::has_lost(absl::Span<const int> devices) const {
  return link_ != nullptr && std::any_of(devices.begin(), devices.end(), [this](int id) {
           const GroupMember* const device = find_device(id);
           return device != nullptr && !link_->client_status(device->client_id).ok();
         });
}

void Network::forward(int client, const Letter& letter) {
  const MemberInfo& own = coordinator.members()[coordinator.client_id()];
  if (!are_on_one_host(own, coordinator.members()[client])) return letters.send(client, letter);
  for (const MemberInfo& relay : coordinator.members()) {
    if (are_on_one_host(own, relay)) continue;
    if (link_ != nullptr && !link_->client_status(relay.client_id).ok()) continue;
    return letters.send(relay.client_id, letter);
  }
}

void Network::read(const Letter& letter) {
  if (letter.kind == Letter::Kind::kCircle) return read_circle(letter);
  if (letter.from < 0 || letter.from >= coordinator.num_clients()) return;
  note_contact(letter.from);
  if (letter.kind == Letter::Kind::kPing) send_to_client(letter.from, Letter::Kind::kPong);
  if (letter.kind == Letter::Kind::kDoing) answer_doing(letter);
  if (letter.kind == Letter::Kind::kDoes) note_doing(letter);
}

std::optional<GroupWait> Network::awaited(const Rendezvous::Wait& wait) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) {
    if (group->has_part(*wait.group)) return group->awaited_in(wait.seq);
  }
  return std::nullopt;
}

std::map<int, std::string> Network::ask_doing(absl::Span<const int> devices, absl::Duration limit) {
  uint32_t question;
  {
    std::lock_guard<std::mutex> lock(doing_mutex_);
    question = ++question_;
    doing_.clear();
  }
  size_t num_asked = 0;
  for (const int id : devices) {
    const GroupMember* const device = find_device(id);
    if (device == nullptr) continue;
    ++num_asked;
    letters.send(device->client_id, {.kind = Letter::Kind::kDoing,
                                     .seq = question,
                                     .group = kOfNoGroup,
                                     .from = coordinator.client_id(),
                                     .to = id,
                                     .body = {}});
  }
  std::unique_lock<std::mutex> lock(doing_mutex_);
  answered_.wait_until(lock, to_chrono_steady(steady_now() + limit),
                       [&] { return doing_.size() == num_asked; });
  return doing_;
}

void Network::answer_doing(const Letter& question) {
  const GroupMember* const device = find_device(question.to);
  const bool is_own = device != nullptr && device->client_id == coordinator.client_id();
  if (link_ == nullptr || !is_own) return;
  Letter answer = {.kind = Letter::Kind::kDoes,
                   .seq = question.seq,
                   .group = kOfNoGroup,
                   .from = coordinator.client_id(),
                   .to = question.to,
                   .body = {}};
  append_text(host::describe_doing(*link_, *device), answer.body);
  letters.send(question.from, answer);
}

void Network::note_doing(const Letter& answer) {
  std::lock_guard<std::mutex> lock(doing_mutex_);
  if (answer.seq != question_) return;
  doing_[answer.to] = text_of(answer.body);
  answered_.notify_all();
}

void Network::read_circle(const Letter& letter) {
  const GroupMember* const to = find_device(letter.to);
  if (to == nullptr) return;
  if (to->client_id != coordinator.client_id()) return forward(to->client_id, letter);
  std::optional<CircleLetter> circle = decode_circle(letter.body);
  if (!circle.has_value()) return;
  // A client that knows of a loss passes over what it cannot do any more, while another one still
  // waits there: the loss ends that wait, and is no mistake of theirs.
  for (const CircleHop& hop : circle->hops) {
    if (circle->round != CircleLetter::Round::kEnd && has_lost(hop.group)) return;
  }
  circles_.read(letter.to, *std::move(circle));
}

}  // namespace tessera::network
