// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "job/coordinator/id_ranges.h"
#include "shm/host_link.h"

namespace tessera::span {
namespace {

using shm::GroupMember;

// How long after the deadline of a run, which has already waited for answers, to wait for the
// coordinator to say which verdict was first; and how long from the question, at least and at most.
constexpr absl::Duration kDecisionLimit = absl::Milliseconds(750);
constexpr absl::Duration kLeastDecisionTime = absl::Milliseconds(200);
constexpr absl::Duration kMostDecisionTime = absl::Seconds(10);

Places places_of(const shm::HostLink& link, const std::vector<GroupMember>& members) {
  std::map<std::string, int> numbers;  // by host_id
  const auto number_of = [&](int client) {
    return numbers.emplace(link.members()[client].host_id, static_cast<int>(numbers.size()))
        .first->second;
  };
  std::vector<int> hosts;
  for (const GroupMember& member : members) hosts.push_back(number_of(member.client_id));
  return Places(hosts, number_of(link.members().client_id()));
}

std::vector<int> clients_elsewhere(const shm::HostLink& link,
                                   const std::vector<GroupMember>& members) {
  std::set<int> clients;
  for (const GroupMember& member : members) {
    if (!link.members().is_on_host(member.client_id)) clients.insert(member.client_id);
  }
  return {clients.begin(), clients.end()};
}

int count_own(const shm::HostLink& link, const std::vector<GroupMember>& members) {
  return static_cast<int>(
      std::count_if(members.begin(), members.end(), [&link](const GroupMember& member) {
        return member.client_id == link.members().client_id();
      }));
}

}  // namespace

bool is_inlined(const Collective& collective) {
  const std::optional<int64_t> elements = collective.most_elements();
  if (collective.kind() == OpKind::kSendRecv || !elements.has_value()) return false;
  if (!collective.replicas().empty()) return false;
  // Every member gets all inputs. Else each asks each other one for its part: many more letters.
  const int64_t num_bytes = *elements * dtype_size(collective.dtype());
  return *elements <= host::kInlineBytes / dtype_size(collective.dtype()) &&
         num_bytes * collective.place().num_members <= kMostInlinedBytes;
}

SpanState::SpanState(host::HostGroup& host_group, std::shared_ptr<Network> of_client,
                     bool for_messages, host::Rendezvous rendezvous)
    : group(host_group),
      network(std::move(of_client)),
      is_for_messages(for_messages),
      name(name_of_group(group.all_members(), letters_of(for_messages))),
      verdicts(network->coordinator, absl::StrCat("verdict of ", absl::Hex(name))),
      places(places_of(group.resources().link(), group.all_members())),
      others(clients_elsewhere(group.resources().link(), group.all_members())),
      meetings(group, std::move(rendezvous)),
      postings(meetings.rendezvous(), places, group.all_members(),
               group.resources().link().members().client_id()),
      boards(count_own(group.resources().link(), group.all_members())),
      running(group.size()) {}

std::string SpanState::name_of(int member) const {
  const GroupMember& device = group.all_members()[member];
  return absl::StrCat(group.resources().link().members()[device.client_id].to_string(), " device ",
                      device.device_id);
}

void SpanState::send_to_others(const Letter& letter) const {
  for (const int client : others) network->letters.send(client, letter);
}

bool SpanState::differ_here(uint32_t seq, const Signature& call) {
  // A settled run has its error already.
  if (!rendezvous().records().all_arrived(seq)) return false;
  for (int index = 0; index < group.size(); ++index) {
    if (rendezvous().records().entry(seq, index).signature != call) return true;
  }
  return false;
}

bool SpanState::all_came(uint32_t seq) {
  std::lock_guard<std::mutex> lock(mutex);
  return have_all_come(boards.at(seq)) && rendezvous().records().all_arrived(seq);
}

SpanState::Verdict SpanState::decide(uint32_t seq, const Signature& call, const Status& error,
                                     absl::Time deadline) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const Boards::Failed* const known = boards.find_failure(seq)) {
      return {known->verdict, /*is_new=*/false};
    }
  }
  const absl::Time now = steady_now();
  const absl::Time limit =
      std::clamp(deadline + kDecisionLimit, now + kLeastDecisionTime, now + kMostDecisionTime);
  const Status verdict = verdicts.decide(seq, error, limit);
  std::lock_guard<std::mutex> lock(mutex);
  keep_failure(seq, call, verdict);
  wake_waiters();
  return {verdict, /*is_new=*/true};
}

Letter SpanState::letter_of(uint32_t seq, const Signature& call, const Status& verdict) const {
  int own = 0;
  while (group.all_members()[own].client_id != group.resources().link().members().client_id())
    ++own;
  return {.kind = Letter::Kind::kVerdict,
          .seq = seq,
          .group = name,
          .from = own,
          .to = 0,
          .body = encode_verdict({call, verdict})};
}

std::optional<LocalWait> SpanState::wait_of(int device) {
  std::lock_guard<std::mutex> lock(mutex);
  const RunNews* const run = shown_by(device);
  if (run == nullptr) return std::nullopt;
  const Board& board = boards.at(run->seq);
  if (board.verdict.has_value()) return std::nullopt;
  const std::vector<bool> here = rendezvous().records().arrivals(run->seq);
  std::vector<int> missing;
  for (int m = 0; m < num_members(); ++m) {
    if (!has_come(m, here, board)) missing.push_back(group.all_members()[m].device_id);
  }
  if (missing.empty()) return std::nullopt;
  return LocalWait{.wait = {.device = device,
                            .run = {name, run->seq},
                            .spans_hosts = true,
                            .name_hash = run->shown->name_hash,
                            .label = run->shown->label,
                            .group = IdRanges::list_of(group.device_ids()),
                            .missing = IdRanges::of(missing)},
                   .since = run->shown->since};
}

bool SpanState::has_arrived(int device, uint32_t seq) {
  const std::vector<GroupMember>& members = group.all_members();
  const auto member = std::find_if(members.begin(), members.end(),
                                   [&](const GroupMember& m) { return m.device_id == device; });
  if (member == members.end()) return false;
  std::lock_guard<std::mutex> lock(mutex);
  const Board* const board = boards.find(seq);
  const int position = static_cast<int>(member - members.begin());
  return boards.is_over(seq) || (board != nullptr && board->arrived.count(position) > 0);
}

void SpanState::end(const DeviceWait& wait, const Status& error, bool is_held,
                    std::function<void()>& next) {
  std::lock_guard<std::mutex> lock(mutex);
  RunNews* const run = shown_by(wait.device, wait.run.seq);
  // Where a run is in two circles, the first one ends it.
  if (run == nullptr || run->ending.has_value()) return;
  run->ending = RunNews::Ending{error, is_held, std::exchange(next, nullptr)};
  nudge(*run);
  wake_waiters();
}

void SpanState::release(const DeviceWait& wait) {
  std::lock_guard<std::mutex> lock(mutex);
  RunNews* const run = shown_by(wait.device, wait.run.seq);
  if (run == nullptr) return;
  run->is_released = true;
  wake_waiters();
}

// A connection broke: its entries of a run that no member of this client has begun are void. The
// run fails, because these entries will not arrive again.
void SpanState::connection_broke(int client, uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  boards.for_each([&](Board& board) {
    if (!board.arrived.empty() || !board.drop_entries_of(client)) return;
    board.breaks_before = std::min(board.breaks_before, number - 1);
  });
}

void SpanState::connection_is_up(int client) {
  if (std::find(others.begin(), others.end(), client) == others.end()) return;
  std::lock_guard<std::mutex> lock(mutex);
  for (const Boards::Failed& failed : boards.failures()) {
    network->letters.send(client, letter_of(failed.seq, failed.call, failed.verdict));
  }
  wake_all();
}

GroupWait SpanState::awaited_in(uint32_t seq) {
  GroupWait wait = {group.all_members(), std::vector<bool>(num_members()), false};
  const std::vector<bool> here = rendezvous().records().arrivals(seq);
  std::lock_guard<std::mutex> lock(mutex);
  const Board* const board = boards.find(seq);
  if (board == nullptr || board->verdict.has_value()) return wait;
  for (int m = 0; m < num_members(); ++m) wait.awaited[m] = !has_come(m, here, *board);
  wait.all_arrived =
      std::find(wait.awaited.begin(), wait.awaited.end(), true) == wait.awaited.end();
  if (!wait.all_arrived) return wait;
  for (const RunNews* const run : running) {
    if (run == nullptr || run->seq != seq || !run->shown.has_value()) continue;
    const std::map<int, int>& senders = run->transfers.awaited();
    for (int m = 0; m < num_members(); ++m) {
      if (senders.count(group.all_members()[m].client_id) > 0) wait.awaited[m] = true;
    }
  }
  return wait;
}

bool SpanState::has_come(int member, const std::vector<bool>& here, const Board& board) const {
  return places.is_here(member) ? here[places.local_index(member)]
                                : board.entries.count(member) > 0;
}

void SpanState::read_posted(uint32_t seq) {
  if (postings.read(seq, boards.at(seq))) wake_waiters();
}

void SpanState::keep_failure(uint32_t seq, const Signature& call, const Status& verdict) {
  boards.keep_failure(seq, call, verdict);
  nudge_runs(seq);
}

RunNews* SpanState::shown_by(int device, std::optional<uint32_t> seq) const {
  for (int m = 0; m < group.size(); ++m) {
    if (group.members()[m].device_id != device) continue;
    RunNews* const run = running[m];
    const bool is_shown = run != nullptr && run->shown.has_value();
    return is_shown && run->seq == seq.value_or(run->seq) ? run : nullptr;
  }
  return nullptr;
}

bool SpanState::wait_for(std::unique_lock<std::mutex>& lock, absl::Duration limit,
                         absl::FunctionRef<bool()> is_ready) {
  if (is_ready()) return true;
  Waiter waiter{.is_ready = is_ready};
  waiters_.push_back(&waiter);
  lock.unlock();
  network->engine->wait(waiter.wait, limit);
  lock.lock();
  std::erase(waiters_, &waiter);
  return is_ready();
}

void SpanState::wake_waiters() {
  for (Waiter* const waiter : waiters_) {
    if (waiter->is_ready()) network->engine->wake(waiter->wait);
  }
}

void SpanState::wake_all() {
  for (Waiter* const waiter : waiters_) network->engine->wake(waiter->wait);
  for (RunNews* const run : running) {
    if (run != nullptr) nudge(*run);
  }
}

void SpanState::nudge(RunNews& run) {
  run.has_news.store(true, std::memory_order_seq_cst);
  rendezvous().records().record(run.seq).wake();
}

void SpanState::nudge_runs(uint32_t seq) {
  for (RunNews* const run : running) {
    if (run != nullptr && run->seq == seq) nudge(*run);
  }
}

}  // namespace tessera::span
