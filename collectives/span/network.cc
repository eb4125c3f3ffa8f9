// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/network.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/stable_hash.h"
#include "collectives/host/doing.h"
#include "collectives/host/member_texts.h"
#include "collectives/span/letter_body.h"

namespace tessera::span {
namespace {

using shm::GroupMember;

// The name in letters that belong to no group.
constexpr uint64_t kOfNoGroup = 0;

// How long a letter may take that has been sent.
constexpr absl::Duration kVerdictLimit = absl::Seconds(1);

// An operation of a group of one host: no other client has to know its name.
RunId id_of(const host::OperationWait& wait) {
  const std::vector<uint64_t> place = {static_cast<uint64_t>(wait.group.id().leader_client),
                                       wait.group.id().offset, wait.group.id().generation};
  return {stable_hash(absl::MakeConstSpan(place)), wait.seq};
}

transport::Tag first_tag(uint64_t word, const Coordinator& job) {
  const std::vector<uint64_t> place = {job.members()[job.client_id()].incarnation};
  return stable_hash(absl::MakeConstSpan(place), /*seed=*/word);
}

}  // namespace

Network::Network(std::unique_ptr<transport::Engine> own_engine, Coordinator& job,
                 shm::HostLink* link, absl::Duration heartbeat_interval, uint64_t word)
    : engine(std::move(own_engine)),
      letters(*engine, word),
      coordinator(job),
      link_(link),
      listens_(link != nullptr),
      next_tag_(first_tag(word, job)),
      reach_(heartbeat_interval),
      long_waits_(job, *this),
      links_(*engine, *this) {
  for (const MemberInfo& member : coordinator.members()) {
    for (int ordinal = 0; ordinal < member.num_local_devices; ++ordinal) {
      devices_.push_back({static_cast<int>(devices_.size()), member.client_id, ordinal});
    }
  }
  letters.set_early_listener([this](int client, const Letter& letter) {
    if (letter.kind != Letter::Kind::kEntries) return;
    letters.send(client, {.kind = Letter::Kind::kNotYet,
                          .seq = letter.seq,
                          .group = letter.group,
                          .from = letter.to,
                          .to = letter.from,
                          .body = {}});
  });
  letters.set_reader(kOfNoGroup, [this](const Letter& letter) { read(letter); });
  if (listens_) link_->set_long_wait_listener([this] { note_long_wait(); });
}

Network::~Network() { stop(); }

void Network::stop() {
  if (std::exchange(listens_, false)) link_->set_long_wait_listener(nullptr);
  links_.begin_stop();
  engine->stop();
  links_.stop();
  long_waits_.stop();
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
  for (const int client : asked) send(client, Letter::Kind::kPing);
  if (silent.empty()) return absl::OkStatus();
  std::vector<MemberInfo> members;
  for (const int client : silent) members.push_back(coordinator.members()[client]);
  return describe_unreachable(coordinator.members()[coordinator.client_id()], members,
                              reach_.limit());
}

void Network::send(int client, Letter::Kind kind, uint32_t seq, int device,
                   std::vector<std::byte> body) {
  letters.send(client, {.kind = kind,
                        .seq = seq,
                        .group = kOfNoGroup,
                        .from = coordinator.client_id(),
                        .to = device,
                        .body = std::move(body)});
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

Status Network::describe_circle(absl::Span<const DeviceWait> circle) const {
  std::vector<host::ConflictingWait> waits;
  for (const DeviceWait& wait : circle) {
    const GroupMember* const device = find_device(wait.device);
    if (device == nullptr) continue;
    const MemberInfo& member = coordinator.members()[device->client_id];
    waits.push_back({wait.device, member.to_string(), wait.label, {}});
    for (const GroupMember& other : devices_in(wait.group)) {
      waits.back().group.push_back(other.device_id);
    }
  }
  return host::describe_conflict(std::move(waits));
}

std::vector<GroupMember> Network::devices_in(absl::Span<const IdRanges::Range> list) const {
  std::vector<GroupMember> devices;
  for (const auto& [begin, end] : list) {
    const int last = std::min(end, static_cast<int>(devices_.size()));
    for (int id = std::max(begin, 0); id < last; ++id) devices.push_back(devices_[id]);
  }
  return devices;
}

const GroupMember* Network::find_device(int device) const {
  const bool is_known = device >= 0 && device < static_cast<int>(devices_.size());
  return is_known ? &devices_[device] : nullptr;
}

std::vector<LocalWait> Network::waits() {
  std::vector<LocalWait> waits;
  for (const GroupMember& device : devices_) {
    if (!is_own(device)) continue;
    if (std::optional<LocalWait> wait = wait_of(device)) waits.push_back(*std::move(wait));
  }
  return waits;
}

std::optional<LocalWait> Network::wait_of(const GroupMember& device) {
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    for (const auto& [_, group] : groups_) {
      if (std::optional<LocalWait> wait = group->wait_of(device.device_id)) return wait;
    }
  }
  if (link_ == nullptr) return std::nullopt;
  const std::optional<host::OperationWait> found = host::wait_of(*link_, device);
  if (!found.has_value()) return std::nullopt;
  {
    // A device that is arriving in a run of several hosts waits in no other run: it soon says so
    // itself.
    std::lock_guard<std::mutex> lock(groups_mutex_);
    for (const auto& [_, group] : groups_) {
      if (group->has_part(found->group)) return std::nullopt;
    }
  }
  std::vector<int> ids;
  for (const GroupMember& member : found->group.members()) ids.push_back(member.device_id);
  LocalWait wait = {.wait = {.device = device.device_id,
                             .run = id_of(*found),
                             .spans_hosts = false,
                             .name_hash = found->name_hash,
                             .label = found->label,
                             .group = IdRanges::list_of(ids),
                             .missing = IdRanges::of(found->missing())},
                    .since = found->since};
  if (wait.wait.missing.empty()) return std::nullopt;
  return wait;
}

bool Network::confirms(const std::vector<DeviceWait>& pairs) {
  // A client that knows of a loss skips calls that cannot succeed any more, while another client
  // still waits in one of them. The loss ends that wait, and is no mistake of the clients.
  for (const DeviceWait& wait : pairs) {
    for (const GroupMember& member : devices_in(wait.group)) {
      if (is_lost(member.client_id)) return false;
    }
  }
  const auto run_of = [this](int id) -> std::optional<RunId> {
    const GroupMember* const device = find_device(id);
    const std::optional<LocalWait> now = device == nullptr ? std::nullopt : wait_of(*device);
    if (!now.has_value()) return std::nullopt;
    return now->wait.run;
  };
  const auto has_arrived = [this](int id, const RunId& run) {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    const auto group = groups_.find(run.group);
    return group != groups_.end() && group->second->has_arrived(id, run.seq);
  };
  return tessera::confirms(pairs, run_of, has_arrived);
}

void Network::await_verdict(const DeviceWait& ended) {
  const GroupMember* const device = find_device(ended.device);
  const bool is_near =
      link_ == nullptr || device == nullptr || link_->members().is_on_host(device->client_id);
  // On this host the record of the run says so. From another one letters come in the order in which
  // they were sent: the answer after the verdict.
  if (!is_near) ask_doing({ended.device}, kVerdictLimit);
}

void Network::end(const DeviceWait& wait, const std::vector<DeviceWait>& named, bool is_held,
                  std::function<void()> next) {
  const Status error = describe_circle(named);
  bool is_of_span = false;
  {
    std::lock_guard<std::mutex> lock(groups_mutex_);
    const auto group = groups_.find(wait.run.group);
    is_of_span = group != groups_.end();
    if (is_of_span) group->second->end(wait, error, is_held, next);
  }
  const GroupMember* const device = find_device(wait.device);
  if (!is_of_span && link_ != nullptr && device != nullptr) {
    const std::optional<host::OperationWait> now = host::wait_of(*link_, *device);
    if (now.has_value() && id_of(*now) == wait.run) now->end(error);
  }
  if (next != nullptr) next();
}

void Network::release(const DeviceWait& wait) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  const auto group = groups_.find(wait.run.group);
  if (group != groups_.end()) group->second->release(wait);
}

bool Network::is_lost(int client) {
  return link_ != nullptr && !link_->liveness().client_status(client).ok();
}

void Network::connection_broke(int client, uint64_t number) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) group->connection_broke(client, number);
}

void Network::connection_is_up(int client) {
  note_contact(client);
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) group->connection_is_up(client);
}

void Network::read(const Letter& letter) {
  if (letter.from < 0 || letter.from >= coordinator.num_clients()) return;
  note_contact(letter.from);
  if (letter.kind == Letter::Kind::kPing) send(letter.from, Letter::Kind::kPong);
  if (letter.kind == Letter::Kind::kDoing) answer_doing(letter);
  if (letter.kind == Letter::Kind::kDoes) note_doing(letter);
}

std::optional<GroupWait> Network::awaited(const host::OperationWait& wait) {
  std::lock_guard<std::mutex> lock(groups_mutex_);
  for (const auto& [_, group] : groups_) {
    if (group->has_part(wait.group)) return group->awaited_in(wait.seq);
  }
  return std::nullopt;
}

std::map<int, std::string> Network::ask_doing(absl::Span<const int> devices, absl::Duration limit) {
  uint32_t question;
  {
    std::lock_guard<std::mutex> lock(doing_mutex_);
    question = ++last_question_;
    doing_[question];
  }
  size_t num_asked = 0;
  for (const int id : devices) {
    const GroupMember* const device = find_device(id);
    if (device == nullptr) continue;
    ++num_asked;
    send(device->client_id, Letter::Kind::kDoing, question, id);
  }
  std::unique_lock<std::mutex> lock(doing_mutex_);
  answered_.wait_until(lock, to_chrono_steady(steady_now() + limit),
                       [&] { return doing_[question].size() == num_asked; });
  return std::move(doing_.extract(question).mapped());
}

void Network::answer_doing(const Letter& question) {
  const GroupMember* const device = find_device(question.to);
  if (link_ == nullptr || device == nullptr || !is_own(*device)) return;
  std::vector<std::byte> answer;
  append_text(host::describe_doing(*link_, *device), answer);
  send(question.from, Letter::Kind::kDoes, question.seq, question.to, std::move(answer));
}

void Network::note_doing(const Letter& answer) {
  std::lock_guard<std::mutex> lock(doing_mutex_);
  const auto question = doing_.find(answer.seq);
  if (question == doing_.end()) return;
  question->second[answer.to] = text_of(answer.body);
  answered_.notify_all();
}

}  // namespace tessera::span
