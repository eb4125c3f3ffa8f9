// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/span_runs.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

#include "absl/container/inlined_vector.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/stable_hash.h"
#include "collectives/move.h"
#include "device/cpu/kernels.h"

namespace tessera::network {
namespace {

using host::GroupMember;
using host::MemberEntry;
using host::Rendezvous;
using host::VerdictKind;

// How often a wait looks at what no letter tells of.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(5);
// Runs of a group may follow each other this closely.
constexpr uint32_t kRecords = 8;
// Tensors cross the network in blocks of this size.
constexpr int64_t kBlockBytes = 256 << 10;
// How long the coordinator has to say which client is lost, after a connection broke.
constexpr absl::Duration kLossLimit = absl::Seconds(2);
// How long a client has to say what it is doing.
constexpr absl::Duration kAnswerLimit = absl::Milliseconds(250);
// Verdicts that are kept for members that come late.
constexpr size_t kMostFailed = 64;
// The error that a member brings has to fit its entry.
constexpr size_t kMostErrorBytes = host::kInlineBytes - 2 * sizeof(int32_t);

// The start of a letter with an entry; the text of the error, the counts and the input follow.
struct EntryHead {
  Signature signature;
  int64_t in_count;
  int64_t part_count;
  int64_t num_counts;
  int32_t code;
  uint32_t error_bytes;
  int64_t inlined_bytes;
  char detail[host::kDetailBytes];
  char label[host::kLabelBytes];
};

// Of a letter with a verdict; its text follows.
struct VerdictHead {
  Signature signature;
  int32_t code;
};

template <class Head>
void append_head(const Head& head, std::vector<std::byte>& body) {
  static_assert(std::is_trivially_copyable_v<Head>);
  const auto* bytes = reinterpret_cast<const std::byte*>(&head);
  body.insert(body.end(), bytes, bytes + sizeof(head));
}

void append_text(absl::string_view text, std::vector<std::byte>& body) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  body.insert(body.end(), bytes, bytes + text.size());
}

std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// An error in the place of the input: an entry that has one has no input.
constexpr int64_t kHasError = -1;  // MemberEntry::in_count
void write_error(const Status& error, host::MemberEntry& entry) {
  if (error.ok()) return;
  entry.in_count = kHasError;
  std::byte* const to = entry.inlined;
  const int32_t code = static_cast<int32_t>(error.code());
  const absl::string_view text = error.message().substr(0, kMostErrorBytes);
  const auto size = static_cast<uint32_t>(text.size());
  std::memcpy(to, &code, sizeof(code));
  std::memcpy(to + sizeof(code), &size, sizeof(size));
  if (size > 0) std::memcpy(to + sizeof(code) + sizeof(size), text.data(), size);
}

Status read_error(const host::MemberEntry& entry) {
  if (entry.in_count != kHasError) return absl::OkStatus();
  const std::byte* const from = entry.inlined;
  int32_t code = 0;
  uint32_t size = 0;
  std::memcpy(&code, from, sizeof(code));
  std::memcpy(&size, from + sizeof(code), sizeof(size));
  return Status(
      static_cast<absl::StatusCode>(code),
      text_of({from + sizeof(code) + sizeof(size), std::min<size_t>(size, kMostErrorBytes)}));
}

// As the coordinator keeps it: "4:text".
std::string encode_verdict(const Status& verdict) {
  return absl::StrCat(static_cast<int>(verdict.code()), ":", verdict.message());
}

Status decode_verdict(absl::string_view text) {
  const size_t colon = text.find(':');
  int code = 0;
  if (colon == text.npos || !absl::SimpleAtoi(text.substr(0, colon), &code)) {
    return absl::InternalError(absl::StrCat("a malformed verdict: ", text));
  }
  return Status(static_cast<absl::StatusCode>(code), text.substr(colon + 1));
}

// Where the elements of `box` begin in a dense buffer of `held`, if they are one run there: dims
// inside the first that is cut are whole, and those outside of it have one index.
std::optional<int64_t> only_run(const Box& box, const Box& held) {
  int64_t first = 0;
  int64_t stride = 1;
  bool is_whole = true;
  for (size_t d = box.sizes.size(); d-- > 0;) {
    if (!is_whole && box.sizes[d] != 1) return std::nullopt;
    is_whole &= box.sizes[d] == held.sizes[d];
    first += (box.offsets[d] - held.offsets[d]) * stride;
    stride *= held.sizes[d];
  }
  return first;
}

// Calls `body` with the offset and size of each block.
void for_each_block(int64_t num_bytes, absl::FunctionRef<void(int64_t, int64_t)> body) {
  for (int64_t first = 0; first < num_bytes; first += kBlockBytes) {
    body(first, std::min(kBlockBytes, num_bytes - first));
  }
}

std::vector<bool> are_here(const host::HostLink& link, const std::vector<GroupMember>& members) {
  std::vector<bool> here;
  for (const GroupMember& member : members) here.push_back(link.is_on_host(member.client_id));
  return here;
}

std::vector<GroupMember> on_this_host(const host::HostLink& link,
                                      const std::vector<GroupMember>& members) {
  std::vector<GroupMember> here;
  for (const GroupMember& member : members) {
    if (link.is_on_host(member.client_id)) here.push_back(member);
  }
  return here;
}

// Whether inputs are in the letters. The same on all members.
bool is_inlined(const Collective& collective) {
  // Every member gets all inputs.
  constexpr int kMostMembers = 64;
  if (collective.place().num_members > kMostMembers || !collective.replicas().empty()) return false;
  const std::optional<int64_t> elements = collective.most_elements();
  return collective.kind() != OpKind::kSendRecv && elements.has_value() &&
         *elements <= host::kInlineBytes / dtype_size(collective.dtype());
}

uint64_t name_of_group(const std::vector<GroupMember>& members, bool is_for_messages) {
  std::vector<int32_t> ids;
  for (const GroupMember& member : members) ids.push_back(member.device_id);
  return stable_hash(absl::MakeConstSpan(ids), /*seed=*/is_for_messages ? 2 : 1);
}

}  // namespace

Network::Network(std::unique_ptr<Engine> own_engine, Coordinator& job)
    : engine(std::move(own_engine)), letters(*engine), coordinator(job) {
  engine->set_lost_listener([this](int client, const Status& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_.emplace(client, Broken{steady_now(), reason});
  });
}

Status Network::find_broken(absl::Span<const int> clients) const {
  const absl::Time now = steady_now();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const int client : clients) {
    const auto it = broken_.find(client);
    if (it != broken_.end() && now - it->second.since > kLossLimit) return it->second.reason;
  }
  return absl::OkStatus();
}

SpanRun::SpanRun(SpanRuns& runs, int member, Collective::Ptr collective, Arguments&& arguments)
    : JointRun(runs.shared_from_this(), member, std::move(collective), std::move(arguments),
               Clock::kTick),
      runs_(runs) {
  op.holds_device = !runs.is_for_messages();
  // The members here know nothing of those elsewhere: what they show of the run needs its label.
  this->arguments().label = label();
}

// A waiter has no part in the order of messages.
void SpanRun::run_here(absl::Time deadline) {
  if (!runs_.is_for_messages()) try_run_here(deadline);
}

bool SpanRun::is_inlined() const { return network::is_inlined(collective()); }

void SpanRun::placed() { runs_.number(*this); }

Status SpanRun::run() {
  Status status = runs_.execute(*this);
  const std::shared_ptr<Run> keep = std::move(executor_ref());
  // A barrier reports to its caller alone; other errors also wait for sync_devices().
  return collective().kind() == OpKind::kBarrier ? absl::OkStatus() : status;
}

Status SpanRun::give_up(host::DeviceActivity::Kind device, absl::Time called, absl::Time deadline) {
  return runs_.give_up(*this, device, called, deadline);
}

void SpanRun::end_late(host::DeviceActivity::Kind, absl::Time called, absl::Time deadline) {
  runs_.end_late(*this, {called, deadline});
}

SpanRuns::SpanRuns(host::HostResources& resources, std::shared_ptr<Network> network,
                   std::vector<GroupMember> members, bool is_for_messages, Rendezvous rendezvous)
    : HostGroup(resources, {rendezvous.members().begin(), rendezvous.members().end()}, nullptr,
                std::move(members)),
      network_(std::move(network)),
      is_for_messages_(is_for_messages),
      name_(name_of_group(all_members(), is_for_messages)),
      places_(are_here(resources.link(), all_members())),
      meetings_(*this, std::move(rendezvous)) {
  std::set<int> others;
  for (const GroupMember& member : all_members()) {
    if (!resources.link().is_on_host(member.client_id)) others.insert(member.client_id);
    num_own_ += member.client_id == resources.link().client_id();
  }
  others_.assign(others.begin(), others.end());
  network_->letters.set_reader(name_, [this](Letter letter) { read(std::move(letter)); });
}

SpanRuns::~SpanRuns() { network_->letters.set_reader(name_, nullptr); }

StatusOr<std::shared_ptr<host::HostGroup>> SpanRuns::create(host::HostResources& resources,
                                                            std::shared_ptr<Network> network,
                                                            std::vector<GroupMember> members,
                                                            bool is_for_messages) {
  host::HostLink& link = resources.link();
  // Of the group of the members here: another one of theirs has another salt.
  const uint64_t salt = name_of_group(members, is_for_messages) | uint64_t{1} << 63;
  TESSERA_ASSIGN_OR_RETURN(Rendezvous rendezvous,
                           Rendezvous::open(link, on_this_host(link, members), kRecords, salt));
  return std::make_shared<SpanRuns>(resources, std::move(network), std::move(members),
                                    is_for_messages, std::move(rendezvous));
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
  const auto start = [run, queue = *queue] {
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

// A member that left out a call which the others have given up does not take the next one for it.
void SpanRuns::number(SpanRun& run) {
  if (run.op.seq != 0) return;  // a message that was sent, which is placed twice
  uint32_t& next_seq = meetings_.next_seq(run.member());
  const uint32_t first = next_seq;
  uint32_t seq = first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = failed_.find(seq);
         it != failed_.end() && it->second.signature != run.op.signature; it = failed_.find(seq)) {
      boards_[seq].num_retired += 1;
      if (boards_[seq].num_retired == num_own_) boards_.erase(seq);
      seq = host::seq_after(seq);
    }
  }
  if (seq != first) meetings_.rendezvous().pass_over(first, seq);
  run.op.seq = seq;
  next_seq = host::seq_after(seq);
}

Status SpanRuns::execute(SpanRun& run) {
  Status status;
  meetings_.start_clock(run);
  if (run.begin()) {
    status = meet_and_move(run);
    run.finish(status);
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
  if (status.ok()) status = compare_entries(run);
  if (status.ok()) status = move(run, own_error);
  if (status.ok() && is_for_messages_) status = exchange(run, /*of_sums=*/true, {}, {}, nullptr);
  if (status.ok()) status = rendezvous.finish(seq, 1, Rendezvous::Then::kWait, &run.op);
  if (status.ok()) {
    status = wait_here(run, [&](absl::Time until) { return rendezvous.wait_left(seq, until); });
  }
  if (status.ok()) status = rendezvous.wait_finished(run.op, meetings_.give_up_from());
  if (!status.ok()) {
    meetings_.abandon(run, status, /*found_mismatch=*/true);
    return status;
  }
  TESSERA_RETURN_IF_ERROR(own_error);
  if (const std::byte* out = run.copy(&SpanRun::Copies::out)) {
    std::memcpy(run.arguments().out, out, run.out_bytes());
  }
  return absl::OkStatus();
}

Status SpanRuns::meet(SpanRun& run, Status own) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  const Rendezvous::Op& op = run.op;
  if (own.ok() && !run.collective().replicas().empty()) {
    own = run.labelled(absl::UnimplementedError(
        "replicas that share memory, of a tensor on several hosts; use Replicas::kOwn"));
  }
  if (const Status reserved = meetings_.reserve(run, op); !reserved.ok()) {
    return settle_here(run, propose(run, reserved));
  }
  const Status filled = meetings_.entries().fill(run);
  if (own.ok()) own = filled;
  MemberEntry& entry = rendezvous.entry(op.seq, op.member);
  if (own.ok() && run.is_inlined() && run.in_bytes() > 0) {
    std::memcpy(entry.inlined, run.arguments().in, run.in_bytes());
  }
  write_error(own, entry);
  meetings_.entries().publish_waiting(run);
  TESSERA_RETURN_IF_ERROR(rendezvous.arrive(op));
  send_entry(run, own);
  const size_t num_far = num_members() - size();
  // Also for its own letters: a client that has its result may exit.
  TESSERA_RETURN_IF_ERROR(wait(run, [&](Board& board) {
    return board.entries.size() == num_far && run.num_under_way == 0 && !run.has_failed_transfers;
  }));
  TESSERA_RETURN_IF_ERROR(
      wait_here(run, [&](absl::Time until) { return rendezvous.wait_all_arrived(op.seq, until); }));
  return rendezvous.all_arrived(op.seq) ? absl::OkStatus() : check(run);
}

void SpanRuns::send_entry(SpanRun& run, const Status& own) {
  const MemberEntry& entry = meetings_.rendezvous().entry(run.op.seq, run.member());
  const host::Statement statement = meetings_.rendezvous().statement_of(run.member(), entry);
  const absl::string_view text = own.message().substr(0, kMostErrorBytes);
  EntryHead head = {entry.signature,
                    entry.in_count,
                    entry.part_count,
                    static_cast<int64_t>(run.peer_counts.size()),
                    static_cast<int32_t>(own.code()),
                    static_cast<uint32_t>(text.size()),
                    own.ok() && run.is_inlined() ? run.in_bytes() : 0,
                    {},
                    {}};
  std::memcpy(head.detail, statement.detail.data(),
              std::min(statement.detail.size(), sizeof(head.detail)));
  // Of a run without a label of its own each member makes the default one.
  if (entry.label_size != 0) std::memcpy(head.label, entry.label, sizeof(head.label));
  Letter letter = {.kind = Letter::Kind::kEntry,
                   .seq = run.op.seq,
                   .group = name_,
                   .from = run.position(),
                   .to = 0,
                   .body = {}};
  append_head(head, letter.body);
  append_text(text, letter.body);
  append_text({reinterpret_cast<const char*>(run.peer_counts.data()),
               run.peer_counts.size() * sizeof(int64_t)},
              letter.body);
  append_text(
      {reinterpret_cast<const char*>(run.arguments().in), static_cast<size_t>(head.inlined_bytes)},
      letter.body);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run.num_under_way += static_cast<int>(others_.size());
  }
  for (const int client : others_) network_->letters.send(client, letter, end_of_transfer(run));
}

Status SpanRuns::compare_entries(const SpanRun& run) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  std::vector<host::Statement> statements;
  Status error;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_[run.op.seq];
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) {
        const int index = places_.local_index(m);
        const MemberEntry& entry = rendezvous.entry(run.op.seq, index);
        statements.push_back(rendezvous.statement_of(index, entry));
        if (entry.label_size == 0) statements.back().label.clear();
        error.Update(read_error(entry));
      } else {
        const Entry& entry = board.entries.at(m);
        statements.push_back(entry.statement);
        error.Update(entry.error);
      }
    }
  }
  if (!error.ok()) return settle_here(run, error);
  for (host::Statement& statement : statements) {
    if (!statement.label.empty()) continue;
    const Signature& agreed = statement.signature;
    statement.label =
        default_label(agreed.kind, agreed.dtype, agreed.reduction, agreed.count, device_ids());
  }
  for (int m = 1; m < num_members(); ++m) {
    const Status difference = host::describe_difference(
        statements[0], statements[m], run.op.detail_field, num_members(), run.op.seq);
    if (!difference.ok()) return settle_here(run, difference);
  }
  return absl::OkStatus();
}

Status SpanRuns::move(SpanRun& run, Status& own_error) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const StatusOr<host::Entries::Memories> here = meetings_.entries().memory(run);
  if (!here.ok()) return settle_here(run, propose(run, here.status()));
  Members members(num_members());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_[run.op.seq];
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) {
        const int index = places_.local_index(m);
        members[m] = (*here)[index];
        // A member may write its result in place while others still read its input.
        if (run.is_inlined()) members[m].in = rendezvous.entry(run.op.seq, index).inlined;
      } else {
        const Entry& entry = board.entries.at(m);
        members[m].in_count = entry.in_count;
        members[m].counts = entry.counts.data();
        members[m].in = entry.inlined.data();
      }
    }
  }
  return run.collective().reduction() != nullptr ? reduce(run, members, own_error)
                                                 : pull(run, std::move(members), own_error);
}

Status SpanRuns::pull(SpanRun& run, Members members, Status& own_error) {
  const Collective& collective = run.collective();
  const int64_t element_bytes = dtype_size(collective.dtype());
  std::vector<BoxPull> made;
  absl::Span<const BoxPull> pulls;
  if (const auto checked = checked_pulls(collective, members, made); checked.ok()) {
    pulls = *checked;
  } else if (collective.needs_peer_counts()) {
    return settle_here(run, run.labelled(checked.status()));
  } else {
    own_error = run.labelled(checked.status());
  }
  if (run.is_inlined()) {
    if (own_error.ok()) copy_pulls(collective, pulls, members);
    return absl::OkStatus();
  }
  const std::vector<Want> wants = wants_of_inputs(collective, pulls, places_);
  std::vector<BoxPull> copies;
  for (const BoxPull& pull : pulls) {
    if (places_.is_here(pull.source)) copies.push_back(pull);
  }
  // A box that is one run of a tensor's memory is received there. The memory of a caller is the
  // caller's again after a failure, when a block may still arrive.
  const bool may_write = run.arguments().out_buffer != nullptr;
  std::byte* const out = members[run.position()].out;
  std::vector<std::byte*> fetched;
  const std::byte* const own_input = members[run.position()].in;
  for (const Want& want : wants) {
    const std::optional<int64_t> first = only_run(want.box, collective.out_box());
    if (may_write && first.has_value()) {
      fetched.push_back(out + *first * element_bytes);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
    copies.push_back({static_cast<int>(members.size()), want.box, want.box});
    members.push_back({.in = fetched.back()});
  }
  TESSERA_RETURN_IF_ERROR(exchange(run, /*of_sums=*/false, wants, fetched, own_input));
  if (own_error.ok()) copy_pulls(collective, copies, members);
  return absl::OkStatus();
}

Status SpanRuns::reduce(SpanRun& run, const Members& members, Status& own_error) {
  using Target = BoxReduction::Target;
  const Collective& collective = run.collective();
  const BoxReduction& reduction = *collective.reduction();
  own_error = run.labelled(check_terms(collective, members));
  if (run.is_inlined()) {
    if (own_error.ok()) reduce_inlined(run, members);
    return absl::OkStatus();
  }
  std::vector<Want> wants;
  if (own_error.ok()) wants = wants_of_inputs(collective, {}, places_);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
  }
  TESSERA_RETURN_IF_ERROR(
      exchange(run, /*of_sums=*/false, wants, fetched, members[run.position()].in));
  const Box& box = reduction.box;
  const bool is_flat = box.sizes.size() == 1;
  const int64_t offset =
      is_flat ? (box.offsets[0] - collective.out_box().offsets[0]) * dtype_size(collective.dtype())
              : 0;
  std::vector<std::byte*> outs;
  if (reduction.target == Target::kAll) {
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) outs.push_back(members[m].out + offset);
    }
  } else if (reduction.target == Target::kRoot && !places_.is_here(collective.root())) {
    TESSERA_ASSIGN_OR_RETURN(outs.emplace_back(), stage(run, box));
  } else {
    const int target = reduction.target == Target::kRoot ? collective.root() : run.position();
    // A barrier may have no output.
    if (members[target].out != nullptr) outs.push_back(members[target].out + offset);
  }
  if (own_error.ok() && !box.is_empty() && !outs.empty()) {
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    size_t next = 0;
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) {
        terms.push_back({members[m].in, reduction.held_by(m)});
      } else {
        terms.push_back({fetched[next++], box});
      }
    }
    reduce_terms(collective, terms, outs);
  }
  if (!has_second_step(collective)) return absl::OkStatus();
  return fetch_sums(run, members, outs.empty() ? nullptr : outs[0]);
}

// Each member that gets the sum adds all of it by itself.
void SpanRuns::reduce_inlined(const SpanRun& run, const Members& members) {
  using Target = BoxReduction::Target;
  const Collective& collective = run.collective();
  const BoxReduction& reduction = *collective.reduction();
  std::byte* const out = members[run.position()].out;
  const bool gets_none = reduction.target == Target::kRoot && run.position() != collective.root();
  if (out == nullptr || gets_none) return;
  if (reduction.target == Target::kOwn) {
    if (reduction.box.is_empty()) return;
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    for (int m = 0; m < num_members(); ++m) terms.push_back({members[m].in, reduction.held_by(m)});
    // Of rank 1 it begins with the box.
    const int64_t first = reduction.box.sizes.size() == 1
                              ? reduction.box.offsets[0] - collective.out_box().offsets[0]
                              : 0;
    return reduce_terms(collective, terms, {out + first * dtype_size(collective.dtype())});
  }
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (const MemberMemory& member : members) terms.push_back(member.in);
  cpu::reduce(collective.dtype(), collective.op(), terms, absl::MakeConstSpan(&out, 1),
              reduction.held.sizes[0]);
}

Status SpanRuns::fetch_sums(SpanRun& run, const Members& members, const std::byte* own_sum) {
  const Collective& collective = run.collective();
  const int64_t element_bytes = dtype_size(collective.dtype());
  const std::vector<Want> wants = wants_of_sums(collective, places_);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
  }
  TESSERA_RETURN_IF_ERROR(exchange(run, /*of_sums=*/true, wants, fetched, own_sum));
  const bool is_for_all = collective.reduction()->target == BoxReduction::Target::kAll;
  for (size_t i = 0; i < wants.size(); ++i) {
    const int64_t first = wants[i].box.offsets[0] - collective.out_box().offsets[0];
    for (int m = 0; m < num_members(); ++m) {
      if (!places_.is_here(m) || (!is_for_all && m != collective.root())) continue;
      cpu::copy_bytes(members[m].out + first * element_bytes, fetched[i],
                      wants[i].box.num_elements() * element_bytes);
    }
  }
  return absl::OkStatus();
}

Status SpanRuns::exchange(SpanRun& run, bool of_sums, absl::Span<const Want> wants,
                          absl::Span<std::byte* const> fetched, const std::byte* served) {
  ask(run, of_sums, wants, fetched);
  int num_left = num_members() - size();
  while (true) {
    std::deque<Asked> asked;
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board& board) {
      asked.swap(board.requests[of_sums ? 1 : 0][run.position()]);
      const bool is_over = num_left == 0 && run.num_under_way == 0 && !run.has_failed_transfers;
      return !asked.empty() || is_over;
    }));
    if (asked.empty()) return absl::OkStatus();
    for (const Asked& one : asked) {
      if (const Status status = serve(run, one, served); !status.ok()) {
        return settle_here(run, propose(run, run.labelled(status)));
      }
      --num_left;
    }
  }
}

Engine::Done SpanRuns::end_of_transfer(SpanRun& run) {
  return
      [self = std::static_pointer_cast<SpanRun>(run.executor_ref()), this](const Status& status) {
        std::lock_guard<std::mutex> lock(mutex_);
        --self->num_under_way;
        self->has_failed_transfers |= !status.ok();
        if (!absl::IsUnavailable(status)) self->transfer_error.Update(status);
        changed_.notify_all();
      };
}

void SpanRuns::ask(SpanRun& run, bool of_sums, absl::Span<const Want> wants,
                   absl::Span<std::byte* const> fetched) {
  const int64_t element_bytes = dtype_size(run.collective().dtype());
  std::map<int, Request> requests;
  for (int m = 0; m < num_members(); ++m) {
    if (!places_.is_here(m)) requests[m].of_sums = of_sums;
  }
  for (size_t i = 0; i < wants.size(); ++i) {
    const Want& want = wants[i];
    const Tag tag = network_->take_tag();
    requests[want.server].parts.push_back({want.box, want.held, tag});
    const int client = all_members()[want.server].client_id;
    for_each_block(want.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        ++run.num_under_way;
      }
      network_->engine->receive(client, tag, {fetched[i] + first, static_cast<size_t>(size)},
                                run.executor_ref(), end_of_transfer(run));
    });
  }
  for (const auto& [server, request] : requests) {
    network_->letters.send(all_members()[server].client_id, {.kind = Letter::Kind::kRequest,
                                                             .seq = run.op.seq,
                                                             .group = name_,
                                                             .from = run.position(),
                                                             .to = server,
                                                             .body = encode(request)});
  }
}

Status SpanRuns::serve(SpanRun& run, const Asked& asked, const std::byte* memory) {
  const int64_t element_bytes = dtype_size(run.collective().dtype());
  const int client = all_members()[asked.from].client_id;
  for (const Request::Part& part : asked.request.parts) {
    const bool fits = contains(part.held, part.box) &&
                      (asked.request.of_sums || part.held.num_elements() == run.in_count());
    if (!fits) return absl::InternalError("a request for what the member does not hold");
    const std::byte* from = memory;
    if (const std::optional<int64_t> first = only_run(part.box, part.held); first.has_value()) {
      from = memory + *first * element_bytes;
    } else {
      TESSERA_ASSIGN_OR_RETURN(std::byte* const packed, stage(run, part.box));
      cpu::copy_box(part.box, {memory, part.held}, {packed, part.box}, element_bytes);
      from = packed;
    }
    for_each_block(part.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        ++run.num_under_way;
      }
      network_->engine->send(client, part.tag, {from + first, static_cast<size_t>(size)},
                             run.executor_ref(), end_of_transfer(run));
    });
  }
  return absl::OkStatus();
}

StatusOr<std::byte*> SpanRuns::stage(SpanRun& run, const Box& box) {
  const int64_t bytes = box.num_elements() * dtype_size(run.collective().dtype());
  StatusOr<ArenaPool::Block> block = resources().pool().allocate(bytes);
  if (!block.ok()) return settle_here(run, propose(run, run.labelled(block.status())));
  run.staged.push_back(*std::move(block));
  return run.staged.back().data();
}

Status SpanRuns::wait(SpanRun& run, absl::FunctionRef<bool(Board&)> is_ready) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      Board& board = boards_[run.op.seq];
      const auto has_changed = [&] {
        return board.verdict.has_value() || !run.transfer_error.ok() || is_ready(board);
      };
      const bool is_over =
          changed_.wait_for(lock, absl::ToChronoMilliseconds(kCheckInterval), has_changed);
      if (is_over && !board.verdict.has_value() && run.transfer_error.ok()) return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(check(run));
  }
}

Status SpanRuns::wait_here(SpanRun& run, absl::FunctionRef<bool(absl::Time)> wait_until) {
  while (!wait_until(steady_now() + kCheckInterval)) TESSERA_RETURN_IF_ERROR(check(run));
  return absl::OkStatus();
}

Status SpanRuns::check(SpanRun& run) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  std::optional<Status> verdict;
  Status transfer_error;
  std::optional<SpanRun::Waited> waited;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waited = run.waited;
    verdict = boards_[run.op.seq].verdict;
    transfer_error = run.transfer_error;
  }
  if (verdict.has_value()) return settle_here(run, *verdict);
  // A member on this host has failed, or was found to wait in a circle.
  if (rendezvous.has_result(run.op.seq)) {
    const Status settled = meetings_.settle_running(run, VerdictKind::kError, Status());
    return settled.ok() ? settled : propose(run, settled);
  }
  if (may_be_interrupted()) {
    const Status why = meetings_.interruption(run);
    if (!why.ok()) return settle_here(run, propose(run, why));
  }
  if (transfer_error.ok()) transfer_error = network_->find_broken(others_);
  if (!transfer_error.ok()) return settle_here(run, propose(run, run.labelled(transfer_error)));
  if (waited.has_value()) {
    return settle_here(run, propose(run, missing(run, waited->called, waited->deadline)));
  }
  if (steady_now() < run.op.deadline) return absl::OkStatus();
  return settle_here(run, propose(run, missing(run, run.op.start, run.op.deadline)));
}

Status SpanRuns::missing(const SpanRun& run, absl::Time start, absl::Time deadline) {
  const host::HostLink& link = resources().link();
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const std::vector<bool> here = rendezvous.arrivals(run.op.seq);
  std::vector<bool> arrived(num_members());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_[run.op.seq];
    for (int m = 0; m < num_members(); ++m) {
      arrived[m] = places_.is_here(m) ? here[places_.local_index(m)] : board.entries.count(m) > 0;
    }
  }
  const std::map<int, std::string> doing = ask_missing(run, arrived);
  const bool is_open = std::find(arrived.begin(), arrived.end(), false) != arrived.end();
  return host::describe_missing(
      {run.label(), all_members(), arrived, is_open, format_duration(deadline - start)},
      [&](int client) { return link.member(client).to_string(); },
      [&](const GroupMember& member) {
        if (link.is_on_host(member.client_id)) {
          return rendezvous.last_seen(member.client_id, member.ordinal).to_string();
        }
        const auto known = doing.find(member.device_id);
        return known == doing.end() ? std::string() : known->second;
      });
}

std::map<int, std::string> SpanRuns::ask_missing(const SpanRun& run,
                                                 const std::vector<bool>& arrived) {
  size_t num_asked = 0;
  for (int m = 0; m < num_members(); ++m) {
    if (arrived[m] || places_.is_here(m)) continue;
    ++num_asked;
    network_->letters.send(all_members()[m].client_id, {.kind = Letter::Kind::kAsk,
                                                        .seq = run.op.seq,
                                                        .group = name_,
                                                        .from = run.position(),
                                                        .to = m,
                                                        .body = {}});
  }
  std::unique_lock<std::mutex> lock(mutex_);
  Board& board = boards_[run.op.seq];
  changed_.wait_for(lock, absl::ToChronoMilliseconds(kAnswerLimit),
                    [&] { return board.doing.size() >= num_asked; });
  std::map<int, std::string> doing;
  for (const auto& [member, text] : board.doing) doing[all_members()[member].device_id] = text;
  return doing;
}

Status SpanRuns::give_up(SpanRun& run, host::DeviceActivity::Kind device, absl::Time called,
                         absl::Time deadline) {
  return propose(run, absl::DeadlineExceededError(absl::StrCat(
                          run.label(), ": not done in ", format_duration(deadline - called), "; ",
                          describe_holdup(run.member(), device))));
}

void SpanRuns::end_late(SpanRun& run, const SpanRun::Waited& waited) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!run.waited.has_value()) run.waited = waited;
  changed_.notify_all();
}

Status SpanRuns::propose(const SpanRun& run, const Status& error) {
  const uint32_t seq = run.op.seq;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = failed_.find(seq); known != failed_.end()) {
      return known->second.verdict;
    }
  }
  Coordinator& coordinator = network_->coordinator;
  const std::string key = absl::StrCat("verdict of ", absl::Hex(name_), " ", seq);
  Status verdict = error;
  if (absl::IsAlreadyExists(coordinator.put(key, encode_verdict(error)))) {
    constexpr absl::Duration kLimit = absl::Seconds(10);
    const StatusOr<std::string> first =
        coordinator.get(key, coordinator.client_id(), steady_now() + kLimit);
    if (first.ok()) verdict = decode_verdict(*first);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_.emplace(seq, Failed{run.op.signature, verdict}).second &&
        failed_.size() > kMostFailed) {
      failed_.erase(failed_.begin());
    }
    boards_[seq].verdict = verdict;
  }
  changed_.notify_all();
  Letter letter = {.kind = Letter::Kind::kVerdict,
                   .seq = seq,
                   .group = name_,
                   .from = run.position(),
                   .to = 0,
                   .body = {}};
  append_head(VerdictHead{run.op.signature, static_cast<int32_t>(verdict.code())}, letter.body);
  append_text(verdict.message(), letter.body);
  send_to_others(letter);
  return verdict;
}

Status SpanRuns::settle_here(const SpanRun& run, const Status& verdict) {
  const Status settled = meetings_.settle_running(run, VerdictKind::kError, verdict);
  return settled.ok() ? verdict : settled;
}

void SpanRuns::retire(SpanRun& run) {
  meetings_.rendezvous().leave(run.op.seq, run.member());
  meetings_.set_done(run.member(), run.op.seq);
  std::lock_guard<std::mutex> lock(mutex_);
  if (++boards_[run.op.seq].num_retired < num_own_) return;
  boards_.erase(run.op.seq);
  if (last_retired_ == 0 || host::is_later(run.op.seq, last_retired_)) last_retired_ = run.op.seq;
}

void SpanRuns::send_to_others(const Letter& letter) {
  for (const int client : others_) network_->letters.send(client, letter);
}

void SpanRuns::read(Letter letter) {
  const bool is_known =
      letter.from >= 0 && letter.from < num_members() && !places_.is_here(letter.from);
  if (!is_known) return;
  if (letter.kind == Letter::Kind::kAsk) return answer(letter);
  const absl::Span<const std::byte> body = letter.body;
  std::lock_guard<std::mutex> lock(mutex_);
  // Of a run that is over here.
  if (last_retired_ != 0 && !host::is_later(letter.seq, last_retired_)) return;
  Board& board = boards_[letter.seq];
  if (letter.kind == Letter::Kind::kEntry && body.size() >= sizeof(EntryHead)) {
    EntryHead head;
    std::memcpy(&head, body.data(), sizeof(head));
    const absl::Span<const std::byte> rest = body.subspan(sizeof(head));
    const size_t count_bytes = static_cast<size_t>(head.num_counts) * sizeof(int64_t);
    const auto inlined_bytes = static_cast<size_t>(head.inlined_bytes);
    if (rest.size() != head.error_bytes + count_bytes + inlined_bytes) return;
    Entry entry;
    entry.statement = {name_of(letter.from),
                       head.signature,
                       head.part_count,
                       {head.detail, strnlen(head.detail, sizeof(head.detail))},
                       {head.label, strnlen(head.label, sizeof(head.label))}};
    entry.in_count = head.in_count;
    entry.counts.resize(head.num_counts);
    if (count_bytes > 0) {
      std::memcpy(entry.counts.data(), rest.data() + head.error_bytes, count_bytes);
    }
    const absl::Span<const std::byte> input = rest.subspan(head.error_bytes + count_bytes);
    entry.inlined.assign(input.begin(), input.end());
    if (head.code != 0) {
      entry.error = Status(static_cast<absl::StatusCode>(head.code),
                           text_of(rest.subspan(0, head.error_bytes)));
    }
    board.entries.insert_or_assign(letter.from, std::move(entry));
  } else if (letter.kind == Letter::Kind::kRequest) {
    StatusOr<Request> request = decode_request(body);
    const bool is_ours = letter.to >= 0 && letter.to < num_members() && places_.is_here(letter.to);
    if (!request.ok() || !is_ours) return;
    const int step = request->of_sums ? 1 : 0;
    board.requests[step][letter.to].push_back({letter.from, *std::move(request)});
  } else if (letter.kind == Letter::Kind::kAnswer) {
    board.doing[letter.from] = text_of(body);
  } else if (letter.kind == Letter::Kind::kVerdict && body.size() >= sizeof(VerdictHead)) {
    VerdictHead head;
    std::memcpy(&head, body.data(), sizeof(head));
    const Status verdict(static_cast<absl::StatusCode>(head.code),
                         text_of(body.subspan(sizeof(head))));
    board.verdict = verdict;
    failed_.emplace(letter.seq, Failed{head.signature, verdict});
    if (failed_.size() > kMostFailed) failed_.erase(failed_.begin());
  }
  changed_.notify_all();
}

void SpanRuns::answer(const Letter& ask) {
  if (ask.to < 0 || ask.to >= num_members() || !places_.is_here(ask.to)) return;
  const GroupMember& member = all_members()[ask.to];
  Letter letter = {.kind = Letter::Kind::kAnswer,
                   .seq = ask.seq,
                   .group = name_,
                   .from = ask.to,
                   .to = ask.from,
                   .body = {}};
  append_text(meetings_.rendezvous().last_seen(member.client_id, member.ordinal).to_string(),
              letter.body);
  network_->letters.send(all_members()[ask.from].client_id, letter);
}

// The waits look at the reason themselves, and propose it.
void SpanRuns::fail_pending(const Status&) {
  for (const int client : others_) {
    const Status lost = resources().link().client_status(client);
    if (!lost.ok()) network_->engine->cut(client, lost);
  }
  std::lock_guard<std::mutex> lock(mutex_);
  changed_.notify_all();
}

void SpanRuns::forget() {
  network_->letters.set_reader(name_, nullptr);
  meetings_.clear_quarantine();
  meetings_.close();
}

}  // namespace tessera::network
