// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/span_runs.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::Rendezvous;

// Runs of a group may follow each other this closely.
constexpr uint32_t kRecords = 8;

Places places_of(const host::HostLink& link, const std::vector<GroupMember>& members) {
  std::map<std::string, int> numbers;  // by host_id
  const auto number_of = [&](int client) {
    return numbers.emplace(link.member(client).host_id, static_cast<int>(numbers.size()))
        .first->second;
  };
  std::vector<int> hosts;
  for (const GroupMember& member : members) hosts.push_back(number_of(member.client_id));
  return Places(hosts, number_of(link.client_id()));
}

std::vector<GroupMember> on_this_host(const host::HostLink& link,
                                      const std::vector<GroupMember>& members) {
  std::vector<GroupMember> here;
  for (const GroupMember& member : members) {
    if (link.is_on_host(member.client_id)) here.push_back(member);
  }
  return here;
}

int count_own(const host::HostLink& link, const std::vector<GroupMember>& members) {
  return static_cast<int>(std::count_if(
      members.begin(), members.end(),
      [&link](const GroupMember& member) { return member.client_id == link.client_id(); }));
}

// The most bytes that the inputs of all members have where they are in the letters.
constexpr int64_t kMostInlinedBytes = 64 * host::kInlineBytes;

// Whether inputs are in the letters. Equal on all members.
bool is_inlined(const Collective& collective) {
  const std::optional<int64_t> elements = collective.most_elements();
  if (collective.kind() == OpKind::kSendRecv || !elements.has_value()) return false;
  if (!collective.replicas().empty()) return false;
  // Every member gets all inputs. Else each asks each other one for its part: many more letters.
  const int64_t num_bytes = *elements * dtype_size(collective.dtype());
  return *elements <= host::kInlineBytes / dtype_size(collective.dtype()) &&
         num_bytes * collective.place().num_members <= kMostInlinedBytes;
}

LettersOf letters_of(bool is_for_messages) {
  return is_for_messages ? LettersOf::kMessages : LettersOf::kCollectives;
}

}  // namespace

SpanRun::SpanRun(SpanRuns& runs, int member, Collective::Ptr collective, Arguments&& arguments)
    : JointRun(runs.shared_from_this(), member, std::move(collective), std::move(arguments),
               Clock::kTick),
      runs_(runs) {
  op.holds_device = !runs.is_for_messages();
  // The members here know nothing of those elsewhere: what they show of the run needs its label.
  this->arguments().label = label();
  do_peers_write_output |= runs.divides(this->collective());
}

// A waiter has no part in the order of messages.
void SpanRun::run_here(absl::Time deadline) {
  if (!runs_.is_for_messages()) try_run_here(deadline);
}

bool SpanRun::is_inlined() const { return network::is_inlined(collective()) && !is_on_device(); }

void SpanRun::placed() { runs_.number(*this); }

Status SpanRun::run() { return end_task(runs_.execute(*this)); }

Status SpanRun::give_up(host::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) {
  return runs_.give_up(*this, device, called, deadline);
}

void SpanRun::end_late(host::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  runs_.end_late(*this, {called, deadline});
  fail_on_devices(deadline - called, ", though all members had arrived");
}

SpanRuns::SpanRuns(host::HostResources& resources, std::shared_ptr<Network> network,
                   std::vector<GroupMember> members, bool is_for_messages,
                   std::unique_ptr<host::DeviceMover> device_mover, Rendezvous rendezvous)
    : HostGroup(resources, {rendezvous.members().begin(), rendezvous.members().end()},
                std::move(device_mover), std::move(members)),
      network_(std::move(network)),
      is_for_messages_(is_for_messages),
      name_(name_of_group(all_members(), letters_of(is_for_messages))),
      verdicts_(network_->coordinator, absl::StrCat("verdict of ", absl::Hex(name_))),
      places_(places_of(resources.link(), all_members())),
      meetings_(*this, std::move(rendezvous)),
      postings_(meetings_.rendezvous(), places_, all_members(), resources.link().client_id()),
      running_(size()),
      boards_(count_own(resources.link(), all_members())) {
  std::set<int> others;
  for (const GroupMember& member : all_members()) {
    if (!resources.link().is_on_host(member.client_id)) others.insert(member.client_id);
  }
  others_.assign(others.begin(), others.end());
  network_->letters.set_reader(name_, [this](Letter letter) { read(std::move(letter)); });
  network_->add_group(name_, *this);
}

SpanRuns::~SpanRuns() {
  network_->remove_group(name_, *this);
  network_->letters.set_reader(name_, nullptr);
}

StatusOr<std::shared_ptr<host::HostGroup>> SpanRuns::create(
    host::HostResources& resources, std::shared_ptr<Network> network,
    std::vector<GroupMember> members, bool is_for_messages,
    std::unique_ptr<host::DeviceMover> device_mover) {
  host::HostLink& link = resources.link();
  // Names the group of the members here; another group of the same members has another salt.
  const uint64_t salt = name_of_group(members, letters_of(is_for_messages)) | uint64_t{1} << 63;
  std::vector<GroupMember> here = on_this_host(link, members);
  host::Room room;
  // A message has one member on each host.
  if (!is_for_messages) {
    const size_t most_input_bytes =
        std::min<size_t>(host::kInlineBytes, kMostInlinedBytes / members.size());
    room = Postings::room_for(members.size(), here, most_input_bytes);
  }
  TESSERA_ASSIGN_OR_RETURN(Rendezvous rendezvous,
                           Rendezvous::open(link, std::move(here), kRecords, salt, room));
  return std::make_shared<SpanRuns>(resources, std::move(network), std::move(members),
                                    is_for_messages, std::move(device_mover),
                                    std::move(rendezvous));
}

std::string SpanRuns::name_of(int member) const {
  const GroupMember& device = all_members()[member];
  return absl::StrCat(resources().link().member(device.client_id).to_string(), " device ",
                      device.device_id);
}

Work SpanRuns::start(Collective::Ptr collective, Arguments arguments) {
  if (collective->kind() == OpKind::kSendRecv && !is_for_messages_) {
    return start_message(std::move(collective), std::move(arguments));
  }
  const int member = places_.local_index(collective->place().position);
  const Caller caller(*this, member);
  if (const Status status = check_start(caller, *collective, arguments); !status.ok()) {
    return failed(arguments, status);
  }
  meetings_.reap_quarantine();
  auto run = std::make_shared<SpanRun>(*this, member, std::move(collective), std::move(arguments));
  return is_for_messages_ ? start_message_run(std::move(run)) : host::Run::enqueue(std::move(run));
}

Work SpanRuns::start_message_run(std::shared_ptr<SpanRun> run) {
  const bool sends = run->position() == 0;
  const StatusOr<Stream*> queue =
      resources().message_stream(device_ids()[0], device_ids()[1], sends);
  if (!queue.ok()) return failed(run->arguments(), run->labelled(queue.status()));
  run->executor_ref() = run;
  const auto start = [this, run, sends, queue = *queue] {
    // After what the device was given so far, for which its stream does not wait.
    if (sends && run->is_on_device()) {
      mover()
          .arrive(run->collective(), run->arguments(), run->op.seq, run->member(), {})
          .IgnoreError();
    }
    queue->enqueue(*run, run->key(), Stream::Wake::kNow);
    return absl::OkStatus();
  };
  if (sends) {
    // After what the device was given so far.
    stream(run->member()).enqueue(run->label(), start, nullptr, Stream::Wake::kNow, [&] {
      number(*run);
    });
  } else {
    start().IgnoreError();
  }
  return Work(std::move(run));
}

void SpanRuns::number(SpanRun& run) {
  if (run.op.seq != 0) return;  // a message that was sent, which is placed twice
  uint32_t& next_seq = meetings_.next_seq(run.member());
  const uint32_t first = next_seq;
  uint32_t seq = first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (; is_given_up(seq, run); seq = host::seq_after(seq)) boards_.retire(seq);
  }
  if (seq != first) meetings_.rendezvous().pass_over(first, seq);
  run.op.seq = seq;
  next_seq = host::seq_after(seq);
}

bool SpanRuns::is_given_up(uint32_t seq, const SpanRun& run) const {
  const Signature& call = run.op.signature;
  if (const Boards::Failed* const failed = boards_.find_failure(seq)) return !failed->is_of(call);
  if (const Board* const board = boards_.find(seq)) {
    const auto late = board->late.find(run.position());
    if (late != board->late.end() && late->second != call) return true;
  }
  // Clients of one host send each other no verdicts.
  const Rendezvous::Place place = meetings_.rendezvous().align(seq, call);
  return !place.is_left_behind && place.seq != seq;
}

bool SpanRuns::divides(const Collective& collective) const {
  return !is_for_messages_ && !is_inlined(collective) && is_divided(collective, places_);
}

Status SpanRuns::execute(SpanRun& run) {
  Status status;
  meetings_.start_clock(run);
  if (run.begin()) {
    status = meet_and_move(run);
    // A message is at its receiver, or is its sender's again: no device is behind.
    is_for_messages_ ? run.complete(status) : run.finish(status);
  } else {
    status = run.completion().wait();
    meetings_.reserve(run, run.op).IgnoreError();
    settle_here(run, status).IgnoreError();
  }
  if (!status.ok()) meetings_.acknowledge(run);
  retire(run);
  return status;
}

Status SpanRuns::meet_and_move(SpanRun& run) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  const uint32_t seq = run.op.seq;
  Status own_error;  // of this member alone: it ends the run in order all the same
  Status status = meet(run, meetings_.local_error(run));
  if (status.ok() && !agree(run)) status = compare_entries(run);
  if (status.ok()) status = move(run, own_error);
  if (status.ok() && is_for_messages_) status = exchange(run, {.of_sums = true});
  if (status.ok()) status = rendezvous.finish(seq, 1, Rendezvous::Then::kWait, &run.op);
  if (status.ok()) {
    status = wait_here(
        run, [&](absl::Time until) { return rendezvous.wait_left(seq, until, run.has_news); });
  }
  if (status.ok()) status = rendezvous.wait_finished(run.op, meetings_.give_up_from());
  if (!status.ok()) {
    // The record of this host may have a text of its own: the verdict is that of all hosts.
    status = propose(run, status);
    meetings_.abandon(run, status, /*found_mismatch=*/true);
    return status;
  }
  own_error.Update(mover().leave(run.collective(), seq, run.member()));
  TESSERA_RETURN_IF_ERROR(own_error);
  if (const std::byte* out = run.copy(&SpanRun::Copies::out)) {
    std::memcpy(run.arguments().out, out, run.out_bytes());
  }
  return absl::OkStatus();
}

Status SpanRuns::give_up(SpanRun& run, host::DeviceActivity::Kind device, absl::Time called,
                         absl::Time deadline) {
  Status error = meetings_.interruption(run);
  error.Update(absl::DeadlineExceededError(
      absl::StrCat(run.label(), ": ", not_in_time("not done", deadline - called), "; ",
                   describe_holdup(run.member(), device))));
  return propose(run, error, deadline);
}

void SpanRuns::end_late(SpanRun& run, const SpanRun::Waited& waited) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (run.waited.has_value()) return;
  run.waited = waited;
  run.is_waited_new = true;
  tell(run);
  wake_waiters();
}

void SpanRuns::retire(SpanRun& run) {
  meetings_.rendezvous().leave(run.op.seq, run.member());
  meetings_.set_done(run.member(), run.op.seq);
  std::optional<SpanRun::Ending> ending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto waiting = waiting_.find(all_members()[run.position()].device_id);
    if (waiting != waiting_.end() && waiting->second.run == &run) waiting_.erase(waiting);
    running_[run.member()] = nullptr;
    if (checker_ == &run) checker_ = nullptr;
    ending = std::exchange(run.ending, std::nullopt);
    boards_.retire(run.op.seq);
    // The record of the next run may be free now.
    const uint32_t next = host::seq_after(run.op.seq);
    if (boards_.find(next) != nullptr) postings_.post(next, boards_.at(next));
  }
  if (ending.has_value()) ending->next();
}

void SpanRuns::send_to_others(const Letter& letter) {
  for (const int client : others_) network_->letters.send(client, letter);
}

// The waits look at the reason themselves, and propose it.
void SpanRuns::fail_pending(const Status&) {
  for (const int client : others_) {
    const Status lost = resources().link().client_status(client);
    if (!lost.ok()) network_->engine->cut(client, lost);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  wake_all();
}

void SpanRuns::forget() {
  network_->letters.set_reader(name_, nullptr);
  meetings_.clear_quarantine();
  meetings_.close();
}

}  // namespace tessera::network
