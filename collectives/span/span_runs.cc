// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/types/span.h"
#include "collectives/host/last_seen.h"
#include "collectives/pending_work.h"
#include "collectives/span/boards.h"
#include "collectives/span/letter_body.h"
#include "collectives/span/postings.h"
#include "collectives/span/verdicts.h"
#include "collectives/span/wants.h"
#include "device/stream.h"
#include "shm/control.h"
#include "shm/host_link.h"

namespace tessera::span {
namespace {

using host::Rendezvous;
using shm::GroupMember;

// Runs of a group may follow each other this closely.
constexpr uint32_t kRecords = 8;

// The start of an answer; what the device is doing follows.
constexpr std::byte kIsLate{0};
constexpr std::byte kIsComing{1};
constexpr std::byte kIsOver{2};  // here, so its entry or the verdict is on the way

}  // namespace

SpanRuns::SpanRuns(host::HostResources& resources, std::shared_ptr<Network> network,
                   std::vector<GroupMember> members, bool is_for_messages,
                   std::unique_ptr<host::DeviceMover> device_mover, Rendezvous rendezvous)
    : HostGroup(resources,
                {rendezvous.records().members().begin(), rendezvous.records().members().end()},
                std::move(device_mover), std::move(members)),
      span_(*this, std::move(network), is_for_messages, std::move(rendezvous)) {
  span_.network->letters.set_reader(span_.name, [this](Letter letter) { read(std::move(letter)); });
  span_.network->add_group(span_.name, span_);
}

SpanRuns::~SpanRuns() {
  span_.network->remove_group(span_.name, span_);
  span_.network->letters.set_reader(span_.name, nullptr);
}

StatusOr<std::shared_ptr<host::HostGroup>> SpanRuns::create(
    host::HostResources& resources, std::shared_ptr<Network> network,
    std::vector<GroupMember> members, bool is_for_messages,
    std::unique_ptr<host::DeviceMover> device_mover) {
  shm::HostLink& link = resources.link();
  // Names the group of the members here; another group of the same members has another salt.
  const uint64_t salt = name_of_group(members, letters_of(is_for_messages)) | uint64_t{1} << 63;
  std::vector<GroupMember> here;
  for (const GroupMember& member : members) {
    if (link.members().is_on_host(member.client_id)) here.push_back(member);
  }
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

Work SpanRuns::start(Collective::Ptr collective, Arguments arguments) {
  const bool is_message = collective->kind() == OpKind::kSendRecv;
  if (is_message && !span_.is_for_messages) {
    return start_message(std::move(collective), std::move(arguments));
  }
  const int member = span_.places.local_index(collective->place().position);
  const Caller caller(*this, member);
  if (const Status status = check_start(caller, *collective, arguments); !status.ok()) {
    return failed(arguments, status);
  }
  reap();
  auto run = std::make_shared<SpanRun>(span_, member, std::move(collective), std::move(arguments));
  return is_message ? start_message_run(std::move(run)) : host::Run::enqueue(std::move(run));
}

Work SpanRuns::start_message_run(std::shared_ptr<SpanRun> run) {
  const bool sends = run->position() == 0;
  const StatusOr<Stream*> queue =
      resources().message_stream(device_ids()[0], device_ids()[1], sends);
  if (!queue.ok()) return failed(run->arguments(), run->labelled(queue.status()));
  run->executor_ref() = run;
  const auto start = [this, run, sends, queue = *queue] {
    // Ordered after the work that the device has received so far; its stream does not wait for
    // that.
    if (sends && run->is_on_device()) {
      device_mover()
          ->arrive(run->collective(), run->arguments(), run->op.seq, run->member(), {})
          .IgnoreError();
    }
    queue->enqueue(*run, run->key(), Stream::Wake::kNow);
    return absl::OkStatus();
  };
  if (sends) {
    // Ordered after the work that the device has received so far.
    stream(run->member()).enqueue(run->label(), start, nullptr, Stream::Wake::kNow, [&] {
      run->placed();
    });
  } else {
    start().IgnoreError();
  }
  return internal::make_work(std::move(run));
}

bool SpanRuns::is_for_here(const Letter& letter) const {
  return letter.to >= 0 && letter.to < span_.num_members() && span_.places.is_here(letter.to);
}

void SpanRuns::read(Letter letter) {
  const bool is_known =
      letter.from >= 0 && letter.from < span_.num_members() && !span_.places.is_here(letter.from);
  if (!is_known) return;
  if (letter.kind == Letter::Kind::kAsk) return answer(letter);
  if (letter.kind == Letter::Kind::kNotYet) return send_again(letter);
  std::lock_guard<std::mutex> lock(span_.mutex);
  // Drops letters of a run that is over here.
  if (span_.boards.is_over(letter.seq)) return;
  note(letter, span_.boards.at(letter.seq));
  span_.wake_waiters();
}

void SpanRuns::note(const Letter& letter, Board& board) {
  const absl::Span<const std::byte> body = letter.body;
  if (letter.kind == Letter::Kind::kEntry || letter.kind == Letter::Kind::kEntries) {
    span_.postings.note(body, all_members()[letter.from].client_id, board);
    if (letter.kind == Letter::Kind::kEntries) span_.postings.pass_on(letter.seq, body, board);
    for (RunNews* const run : span_.running) {
      if (run != nullptr && run->seq == letter.seq && run->reads_posted) span_.nudge(*run);
    }
  } else if (letter.kind == Letter::Kind::kRequest) {
    std::optional<Request> request = decode_request(body);
    if (!request.has_value() || !is_for_here(letter)) return;
    const int step = request->of_sums ? 1 : 0;
    board.requests[step][letter.to].push_back({letter.from, *std::move(request)});
  } else if (letter.kind == Letter::Kind::kAnswer && !body.empty()) {
    board.doing[letter.from] = text_of(body.subspan(1));
    if (body[0] != kIsLate) board.coming.insert(letter.from);
    if (body[0] == kIsComing) board.have_arrived.insert(letter.from);
  } else if (letter.kind == Letter::Kind::kVerdict) {
    const std::optional<ToldVerdict> verdict = decode_verdict(body);
    if (verdict.has_value()) span_.keep_failure(letter.seq, verdict->call, verdict->status);
  }
}

void SpanRuns::answer(const Letter& ask) {
  if (!is_for_here(ask)) return;
  Signature call;
  absl::Span<const std::byte> body = ask.body;
  if (!take(body, 1, &call)) return;
  std::byte state = kIsOver;
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    if (!span_.boards.is_over(ask.seq)) {
      Board& board = span_.boards.at(ask.seq);
      state = board.arrived.count(ask.to) > 0 ? kIsComing : kIsLate;
      if (state == kIsLate) board.late.emplace(ask.to, call);
    }
  }
  const GroupMember& member = all_members()[ask.to];
  Letter letter = {.kind = Letter::Kind::kAnswer,
                   .seq = ask.seq,
                   .group = span_.name,
                   .from = ask.to,
                   .to = ask.from,
                   .body = {state}};
  append_text(host::describe_last_seen(
                  host::last_seen(resources().link(), member.client_id, member.ordinal)),
              letter.body);
  span_.network->letters.send(all_members()[ask.from].client_id, letter);
}

void SpanRuns::send_again(const Letter& not_yet) {
  if (!is_for_here(not_yet)) return;
  Letter letter = {.kind = Letter::Kind::kEntry,
                   .seq = not_yet.seq,
                   .group = span_.name,
                   .from = not_yet.to,
                   .to = 0,
                   .body = {}};
  {
    std::lock_guard<std::mutex> lock(span_.mutex);
    const RunNews* const run = span_.running[span_.places.local_index(not_yet.to)];
    if (run == nullptr || run->seq != not_yet.seq) return;
    letter.body = run->sent;
  }
  std::set<int> clients;
  for (const std::vector<int>& members : span_.places.by_host()) {
    if (std::find(members.begin(), members.end(), not_yet.from) == members.end()) continue;
    for (const int member : members) clients.insert(all_members()[member].client_id);
  }
  // The client that answered has kept the entries.
  clients.erase(all_members()[not_yet.from].client_id);
  for (const int client : clients) span_.network->letters.send(client, letter);
}

// The waits look at the reason themselves, and propose it.
void SpanRuns::fail_pending(const Status&) {
  for (const int client : span_.others) {
    const Status lost = resources().link().liveness().client_status(client);
    if (!lost.ok()) span_.network->engine->cut(client, lost);
  }
  std::lock_guard<std::mutex> lock(span_.mutex);
  span_.wake_all();
}

void SpanRuns::forget() {
  span_.network->letters.set_reader(span_.name, nullptr);
  span_.meetings.close();
}

}  // namespace tessera::span
