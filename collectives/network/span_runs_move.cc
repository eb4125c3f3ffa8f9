// SPDX-License-Identifier: Apache-2.0
//
// What a member of a group that spans hosts moves: by SpanExchange between hosts, and what the CPU
// copies and adds.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/move.h"
#include "collectives/network/span_exchange.h"
#include "collectives/network/span_runs.h"
#include "collectives/network/span_sums.h"
#include "device/cpu/kernels.h"

namespace tessera::network {
using host::Rendezvous;

Status SpanRuns::move(SpanRun& run, Status& own_error) {
  const Rendezvous& rendezvous = meetings_.rendezvous();
  const StatusOr<host::Entries::Memories> here = meetings_.entries().memory(run);
  if (!here.ok()) return fail(run, here.status());
  Members members(num_members());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Board& board = boards_.at(run.op.seq);
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
        if (run.is_on_device()) {
          members[m].board = entry.inlined.data();
        } else {
          members[m].in = entry.inlined.data();
        }
      }
    }
  }
  if (run.is_on_device() && !is_for_messages_) return move_on_device(run, members, own_error);
  return run.collective().reduction() != nullptr ? reduce(run, members, own_error)
                                                 : pull(run, std::move(members), own_error);
}

Status SpanRuns::move_on_device(SpanRun& run, const Members& members, Status& own_error) {
  const Status moved = run.move(run.op.seq, members);
  // Wrong counts are found by all; other errors are this member's alone, or NCCL's, which tells.
  if (!moved.ok() && run.collective().needs_peer_counts()) return settle_here(run, moved);
  own_error = moved;
  return absl::OkStatus();
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
  const bool may_write = !run.is_on_device() && (run.arguments().out_buffer != nullptr ||
                                                 run.copy(&SpanRun::Copies::out) != nullptr);
  std::byte* const out = members[run.position()].out;
  std::vector<std::byte*> fetched;
  const std::byte* const own_input = members[run.position()].in;
  for (const Want& want : wants) {
    const std::optional<int64_t> first = contiguous_offset(collective.out_box(), want.box);
    if (may_write && first.has_value()) {
      fetched.push_back(out + *first * element_bytes);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
    copies.push_back({static_cast<int>(members.size()), want.box, want.box});
    members.push_back({.in = fetched.back()});
  }
  TESSERA_RETURN_IF_ERROR(exchange(run, {.wants = wants, .fetched = fetched, .held = own_input}));
  if (run.is_on_device()) {
    // A message: its receiver has it in memory of the host.
    if (run.position() == 0) return absl::OkStatus();
    if (!fetched.empty()) members[0].in = fetched[0];
    const Status moved = run.move(run.op.seq, members);
    return moved.ok() ? moved : fail(run, moved);
  }
  if (!own_error.ok()) return absl::OkStatus();
  copy_pulls(collective, copies, members);
  if (!divides(collective)) return absl::OkStatus();
  const int64_t out_first = collective.out_box().offsets[0];
  for (size_t i = 0; i < wants.size(); ++i) {
    const int64_t bytes = wants[i].box.num_elements() * element_bytes;
    for (const int m : places_.by_host()[places_.here()]) {
      if (m == run.position()) continue;
      cpu::copy_bytes(members[m].out + (wants[i].box.offsets[0] - out_first) * element_bytes,
                      fetched[i], bytes);
    }
  }
  return absl::OkStatus();
}

Status SpanRuns::reduce(SpanRun& run, const Members& members, Status& own_error) {
  using Target = BoxReduction::Target;
  const Collective& collective = run.collective();
  const BoxReduction& reduction = *collective.reduction();
  own_error = run.labelled(check_terms(collective, members));
  if (run.is_inlined()) {
    if (own_error.ok()) add_inlined_terms(collective, places_, members);
    return absl::OkStatus();
  }
  // In a reduction by host every member has found the same error.
  if (!own_error.ok() && collective.adds_by_host()) return absl::OkStatus();
  std::vector<Want> wants;
  if (own_error.ok()) wants = wants_of_inputs(collective, {}, places_);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
  }
  TESSERA_RETURN_IF_ERROR(exchange(run, {.wants = wants,
                                         .fetched = fetched,
                                         .held = members[run.position()].in,
                                         .summed = collective.adds_by_host() ? &members : nullptr,
                                         .num_askers = num_askers_of_inputs(collective, places_)}));
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
    add_terms(collective, places_, members, fetched, outs);
  }
  if (!has_second_step(collective)) return absl::OkStatus();
  return fetch_sums(run, members, outs.empty() ? nullptr : outs[0]);
}

Status SpanRuns::fetch_sums(SpanRun& run, const Members& members, const std::byte* own_sum) {
  const Collective& collective = run.collective();
  const std::vector<Want> wants = wants_of_sums(collective, places_);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), stage(run, want.box));
  }
  TESSERA_RETURN_IF_ERROR(exchange(run, {.of_sums = true,
                                         .wants = wants,
                                         .fetched = fetched,
                                         .held = own_sum,
                                         .num_askers = num_askers_of_sums(collective, places_)}));
  copy_sums(collective, places_, members, wants, fetched);
  return absl::OkStatus();
}

Status SpanRuns::exchange(SpanRun& run, const SpanExchange::Step& step) {
  const auto take_tag = [this] { return network_->take_tag(); };
  const auto begin = [&](Transfers::Kind kind, int client) {
    return begin_transfer(kind, run, client);
  };
  const auto stage_box = [&](const Box& box) { return stage(run, box); };
  const SpanExchange exchange({.engine = *network_->engine,
                               .letters = network_->letters,
                               .group = name_,
                               .members = all_members(),
                               .places = places_,
                               .take_tag = take_tag,
                               .begin = begin,
                               .stage = stage_box},
                              run.collective(), run.op.seq, run.in_count(), run.executor_ref());
  exchange.ask(step);
  int num_left = step.num_askers.value_or(num_members() - size());
  while (true) {
    const auto requests = [&](Board& board) -> std::deque<Asked>& {
      return board.requests[step.of_sums ? 1 : 0][run.position()];
    };
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board& board) {
      const bool is_over = num_left == 0 && run.transfers.are_done();
      return !requests(board).empty() || is_over;
    }));
    std::deque<Asked> asked;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      asked.swap(requests(boards_.at(run.op.seq)));
    }
    if (asked.empty()) return absl::OkStatus();
    for (const Asked& one : asked) {
      if (const Status status = exchange.serve(step, one); !status.ok()) {
        return fail(run, run.labelled(status));
      }
      --num_left;
    }
  }
}

Engine::Done SpanRuns::begin_transfer(Transfers::Kind kind, SpanRun& run, int client) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run.transfers.begin(kind, client);
  }
  return [self = std::static_pointer_cast<SpanRun>(run.executor_ref()), this, kind,
          client](const Status& status) {
    // A letter has been sent when it is in a buffer here.
    if (status.ok() && kind != Transfers::kLetter) network_->note_contact(client);
    std::lock_guard<std::mutex> lock(mutex_);
    self->transfers.end(kind, client, status);
    wake_waiters();
    if (!status.ok() && waits_for_posted(*self)) tell(*self);
  };
}

StatusOr<std::byte*> SpanRuns::stage(SpanRun& run, const Box& box) {
  const int64_t bytes = box.num_elements() * dtype_size(run.collective().dtype());
  StatusOr<ArenaPool::Block> block = resources().pool().allocate(bytes);
  if (!block.ok()) return fail(run, run.labelled(block.status()));
  run.staged.push_back(*std::move(block));
  return run.staged.back().data();
}

}  // namespace tessera::network
