// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/collective_runs.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/wait_reports.h"
#include "collectives/host/conflicts.h"
#include "collectives/host/rendezvous_texts.h"
#include "collectives/host/verdicts.h"
#include "device/cpu/kernels.h"

namespace tessera::host {
namespace {

// Whether inputs are exchanged in the entries of the shared record.
bool is_inlined(const Collective& collective) {
  // Every member reads all inputs. With more members than this, reading one chunk of each is less.
  constexpr int kMostMembers = 64;
  if (collective.place().num_members > kMostMembers || !collective.replicas().empty()) return false;
  const std::optional<int64_t> elements = collective.most_elements();
  return elements.has_value() && *elements <= kInlineBytes / dtype_size(collective.dtype());
}

}  // namespace

CollectiveRun::CollectiveRun(CollectiveRuns& runs, int member, Collective::Ptr collective,
                             Arguments&& run_arguments)
    : JointRun(runs.meetings(), member, std::move(collective), std::move(run_arguments),
               Clock::kTick),
      runs_(runs) {
  op.signature.inlined = is_inlined(this->collective()) && !is_on_device();
}

void CollectiveRun::placed() { runs_.number(*this); }

Status CollectiveRun::run() { return end_task(runs_.execute(*this)); }

Status CollectiveRun::take_output() {
  return has_replicas() ? replicas.lend(runs_, *this) : Run::take_output();
}

Status CollectiveRun::give_up(shm::DeviceActivity::Kind device, absl::Time called,
                              absl::Time deadline) {
  return runs_.give_up(*this, CollectiveRuns::Was::kQueued, device, called, deadline);
}

void CollectiveRun::end_late(shm::DeviceActivity::Kind device, absl::Time called,
                             absl::Time deadline) {
  // The running thread sees the verdict, or all had arrived and it goes on.
  runs_.give_up(*this, CollectiveRuns::Was::kStarted, device, called, deadline).IgnoreError();
  fail_on_devices(deadline - called, ", though all members had arrived");
}

CollectiveRuns::CollectiveRuns(HostResources& resources, std::vector<shm::GroupMember> members,
                               Rendezvous rendezvous, std::unique_ptr<DeviceMover> device_mover)
    : HostGroup(resources, std::move(members), std::move(device_mover)),
      meetings_(*this, std::move(rendezvous)) {}

Work CollectiveRuns::start(Collective::Ptr collective, Arguments arguments) {
  if (collective->kind() == OpKind::kSendRecv) {
    return start_message(std::move(collective), std::move(arguments));
  }
  const int member = collective->place().position;
  const Caller caller(*this, member);
  if (const Status status = check_start(caller, *collective, arguments); !status.ok()) {
    return failed(arguments, status);
  }
  if (lent_.may_have_any()) reap_lent();
  meetings_.reap_quarantine();
  auto run =
      std::make_shared<CollectiveRun>(*this, member, std::move(collective), std::move(arguments));
  return Run::enqueue(std::move(run));
}

void CollectiveRuns::number(CollectiveRun& run) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  uint32_t& next_seq = meetings_.next_seq(run.member());
  const uint32_t seq = next_seq;
  rendezvous.records().fetch_lines(seq, run.member());
  run.op.seq = seq;
  next_seq = seq_after(seq);
  const Rendezvous::Place place = rendezvous.align(seq, run.op.signature);
  if (place.seq == seq) return;
  rendezvous.pass_over(seq, place.seq);
  // A member that is left behind must not give its bytes to a different call of the others: this
  // call fails as given up, and the member continues with the next one. A barrier has no bytes.
  const bool is_told = place.is_left_behind && run.collective().kind() != OpKind::kBarrier;
  if (!is_told) run.op.seq = place.seq;
  next_seq = is_told ? place.seq : seq_after(place.seq);
}

Status CollectiveRuns::execute(CollectiveRun& run) {
  Status status;
  run.start_clock();
  // Before the run begins, so that a waiter may give it up while others keep the record.
  // join() returns the error.
  run.reserve(run.op).IgnoreError();
  if (run.run_stage().begin()) {
    // Without a device publish_waiting() follows soon enough.
    if (device_mover() != nullptr) run.publish_running();
    status = run.op.signature.inlined ? meet_inlined(run) : meet_and_move(run);
    run.finish(status);
  } else {
    status = run.completion().wait();
    const absl::Time deadline = steady_now() + resources().collective_timeout();
    run.fail(run.describe(run.called().exactly(), deadline), VerdictKind::kTimedOut, status)
        .IgnoreError();
  }
  if (!status.ok()) run.acknowledge();
  retire(run);
  return status;
}

// The states that one member's run passes:
//
//   meet            all members arrive with equal signatures
//   move            this member moves its part of the bytes, directly between the members' memory
//   finish          counts its part as done
//   wait_finished   all parts are done: outputs are complete, and inputs are not read any more.
//                   Skipped where the others may read the input later (may_lend())
Status CollectiveRuns::meet_and_move(CollectiveRun& run) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  Rendezvous::Op& op = run.op;
  bool found_mismatch = false;
  Status own_error;  // of this member alone: it ends the operation in order all the same
  Status status = run.join();
  if (status.ok()) status = run.meet();
  if (status.ok()) status = move(run, found_mismatch, own_error);
  const bool lends = status.ok() && may_lend(run);
  using Then = Rendezvous::Then;
  if (status.ok()) status = rendezvous.finish(op.seq, 1, lends ? Then::kLeave : Then::kWait, &op);
  run.lends = status.ok() && lends;
  // The other members run in this process and write this memory: the run cannot be abandoned.
  if (!spans_clients()) op.deadline = absl::InfiniteFuture();
  if (status.ok() && !lends) status = rendezvous.wait_finished(op, meetings_.give_up_from());
  if (!status.ok()) {
    run.abandon(status, found_mismatch);
    return status;
  }
  own_error.Update(run.leave_device());
  TESSERA_RETURN_IF_ERROR(own_error);
  if (run.has_replicas()) run.replicas.adopt(run);
  if (const std::byte* out = run.copy(&JointRun::Copies::out)) {
    std::memcpy(run.arguments().out, out, out_bytes(run.collective()));
  }
  return absl::OkStatus();
}

// Moves the member's part. An error that all members detect before any moves a byte is settled as
// the mismatch of all; an error of this member's part alone is its `own_error`.
Status CollectiveRuns::move(CollectiveRun& run, bool& found_mismatch, Status& own_error) {
  const StatusOr<JointRun::Memories> memory = run.memory();
  if (!memory.ok()) return run.settle_running(VerdictKind::kError, memory.status());
  shm::step();  // a member may be held up before it moves any bytes
  const Status moved = run.move(run.op.seq, *memory);
  if (moved.ok()) {
    // Not after a mismatch: a lender that detected it first has released the block.
    if (run.has_replicas()) run.replicas.hold(*this, run, (*memory)[run.member()].out);
    return absl::OkStatus();
  }
  found_mismatch = run.collective().needs_peer_counts() || run.has_replicas();
  if (found_mismatch) return run.settle_running(VerdictKind::kMismatch, moved);
  own_error = moved;
  return absl::OkStatus();
}

Status CollectiveRuns::meet_inlined(CollectiveRun& run) {
  TESSERA_RETURN_IF_ERROR(run.join());
  TESSERA_RETURN_IF_ERROR(run.meet());
  const BoxReduction* const reduction = run.collective().reduction();
  const bool is_flat = reduction != nullptr && reduction->sources.size() == 0;
  if (!is_flat) return run.move(run.op.seq, run.inlined_memory());
  if (run.arguments().out != nullptr) reduce_inlined(run, *reduction);
  return absl::OkStatus();
}

// A result that the root or all members get is computed by each of these alone, and not in chunks.
void CollectiveRuns::reduce_inlined(const CollectiveRun& run, const BoxReduction& reduction) {
  using Target = BoxReduction::Target;
  const Collective& collective = run.collective();
  if (reduction.target == Target::kRoot && run.member() != collective.root()) return;
  const Box& box = reduction.target == Target::kOwn ? reduction.box : reduction.held;
  const int64_t offset = box.offsets[0] - reduction.held.offsets[0];
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (int m = 0; m < size(); ++m) {
    terms.push_back(meetings_.rendezvous().records().entry(run.op.seq, m).inlined +
                    offset * dtype_size(collective.dtype()));
  }
  cpu::reduce(collective.dtype(), collective.op(), terms,
              absl::MakeConstSpan(&run.arguments().out, 1), box.sizes[0]);
}

Status CollectiveRuns::give_up(CollectiveRun& run, Was was, shm::DeviceActivity::Kind device,
                               absl::Time called, absl::Time deadline) {
  Rendezvous& rendezvous = meetings_.rendezvous();
  const Rendezvous::Op late = run.describe(called, deadline);
  // Whether runs before this one keep the member's device from it.
  const bool is_behind = was == Was::kQueued && seq_after(meetings_.done(late.member)) != late.seq;
  // A loss, not the deadline, ends it then, and no device is to blame.
  const Status interruption = run.interruption();
  if (!interruption.ok()) {
    if (!rendezvous.records().all_have_passed_before(late.seq)) return interruption;
    const Status verdict = rendezvous.settle(late.seq, VerdictKind::kError,
                                             meetings_.give_up_from(), interruption, &late);
    return verdict.ok() ? interruption : verdict;
  }
  if (!is_behind && rendezvous.records().is_next(late.seq)) {
    return rendezvous.settle_timed_out(late, meetings_.give_up_from());
  }
  if (!is_behind) return describe_behind(rendezvous.records(), late);
  const Status error = absl::DeadlineExceededError(absl::StrCat(
      run.label(), ": ", not_in_time("not done", deadline - called), "; ", holdup_of(run, device)));
  // A verdict before the run's turn, so that all members that give it up get one text. Where a
  // member has fallen behind it would take the operation for the one to join: execute() settles
  // this one in its turn.
  if (!rendezvous.records().all_have_passed_before(late.seq)) return error;
  const Status verdict =
      rendezvous.settle(late.seq, VerdictKind::kTimedOut, Rendezvous::From::kOpen, error, &late);
  return verdict.ok() ? error : verdict;
}

std::string CollectiveRuns::holdup_of(const CollectiveRun& run,
                                      shm::DeviceActivity::Kind device) const {
  std::string text = describe_holdup(run.member(), device);
  if (device == shm::DeviceActivity::kNothing || device == shm::DeviceActivity::kFinished)
    return text;
  const std::string wait = describe_wait(meetings_.rendezvous().records(), run.member());
  if (!wait.empty()) absl::StrAppend(&text, ": ", wait);
  return text;
}

void CollectiveRuns::retire(CollectiveRun& run) {
  meetings_.rendezvous().records().leave(run.op.seq, run.member());
  // Pairs with fail_pending().
  meetings_.set_done(run.member(), run.op.seq);
  if (!run.lends || !others_read_input(run)) return;
  // The result is its tensor's alone.
  run.arguments().out_buffer = nullptr;
  lent_.lend(std::static_pointer_cast<CollectiveRun>(run.executor_ref()), run.op.seq);
}

bool CollectiveRuns::others_read_input(const CollectiveRun& run) const {
  return run.collective().in_count().value_or(0) > 0 &&
         run.collective().access().do_peers_read_input;
}

bool CollectiveRuns::may_lend(const CollectiveRun& run) const {
  if (run.collective().access().ends_together || run.is_on_device()) return false;
  if (!others_read_input(run)) return true;
  const std::shared_ptr<const Buffer>& input = run.arguments().in_buffer;
  return input != nullptr && input.use_count() > 1;
}

// Invariant 6 of op_record.h: the operation is finished or failed where this is true.
bool CollectiveRuns::end_reading(const CollectiveRun& run, const Status& reason) {
  if (meetings_.rendezvous().records().is_finished(run.op.seq)) return true;
  // Members of one process that have arrived finish their part, whatever is lost.
  if (reason.ok() || !spans_clients()) return false;
  // A reader that has not counted itself out yet gets this verdict, even if it has read all.
  settle_at_once(meetings_.rendezvous().records(), run.op.seq, Rendezvous::From::kRunning,
                 run.labelled(reason));
  return true;
}

uint32_t CollectiveRuns::reap_lent() {
  const Status lost = lost_member();
  return lent_.reap([&](const CollectiveRun& run) { return end_reading(run, lost); });
}

void CollectiveRuns::reap() {
  const Caller caller(*this, 0);
  if (caller.is_too_late()) return;
  reap_lent();
  meetings_.reap_quarantine();
}

void CollectiveRuns::wait_until_read(absl::Time deadline) {
  const Caller caller(*this, 0);
  if (caller.is_too_late()) return;
  meetings_.reap_quarantine();
  const absl::Time since = steady_now();
  uint32_t reported = 0;
  std::optional<ReportedWait> report;
  while (true) {
    const uint32_t oldest = reap_lent();
    if (lent_.num_lent() == 0 || is_closing() || steady_now() >= deadline) return;
    // 0: another thread looks at them just now.
    if (oldest == 0) {
      sched_yield();
      continue;
    }
    const absl::Time until = std::min(deadline, steady_now() + Meetings::kLossCheckInterval);
    if (meetings_.rendezvous().wait_left(oldest, until) || oldest == reported) continue;
    reported = oldest;
    report.emplace(resources().wait_reports(), "sync_devices", describe_readers(oldest), since);
  }
}

std::function<WaitReports::Missing()> CollectiveRuns::describe_readers(uint32_t seq) {
  std::set<int> clients;
  for (int m = 0; m < size(); ++m) {
    if (!meetings_.rendezvous().records().has_left(seq, m))
      clients.insert(all_members()[m].client_id);
  }
  return [describe = resources().describe_client(), clients] {
    WaitReports::Missing missing;
    for (const int client : clients) {
      const WaitReports::Missing reader = describe(client);
      absl::StrAppend(&missing.text, missing.text.empty() ? "its tensors are still read by " : "; ",
                      reader.text);
      missing.clients.push_back(client);
    }
    return missing;
  };
}

void CollectiveRuns::forget() {
  lent_.clear([this](const CollectiveRun& run) { return end_reading(run, too_late()); });
  meetings_.close();
}

}  // namespace tessera::host
