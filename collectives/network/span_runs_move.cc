// SPDX-License-Identifier: Apache-2.0
//
// What a member of a group that spans hosts moves: what it asks of others and serves to them, and
// what the CPU copies and adds.
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

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/move.h"
#include "collectives/network/nested_sums.h"
#include "collectives/network/span_runs.h"
#include "device/cpu/kernels.h"

namespace tessera::network {
namespace {

using host::Rendezvous;

// Tensors cross the network in blocks of this size.
constexpr int64_t kBlockBytes = 256 << 10;

// Where the terms of these members begin in `box`, of rank 1.
std::vector<const std::byte*> terms_of(const Collective& collective,
                                       absl::Span<const MemberMemory> members,
                                       const std::vector<int>& which, const Box& box) {
  std::vector<const std::byte*> terms;
  for (const int m : which) {
    const int64_t first = box.offsets[0] - collective.reduction()->held_by(m).offsets[0];
    terms.push_back(members[m].in + first * dtype_size(collective.dtype()));
  }
  return terms;
}

// Calls `body` with the offset and size of each block.
void for_each_block(int64_t num_bytes, absl::FunctionRef<void(int64_t, int64_t)> body) {
  for (int64_t first = 0; first < num_bytes; first += kBlockBytes) {
    body(first, std::min(kBlockBytes, num_bytes - first));
  }
}

}  // namespace

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
    if (own_error.ok()) reduce_inlined(run, members);
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
  if (own_error.ok() && !box.is_empty() && !outs.empty()) add(collective, members, fetched, outs);
  if (!has_second_step(collective)) return absl::OkStatus();
  return fetch_sums(run, members, outs.empty() ? nullptr : outs[0]);
}

void SpanRuns::add(const Collective& collective, const Members& members,
                   absl::Span<std::byte* const> fetched, absl::Span<std::byte* const> outs) {
  const BoxReduction& reduction = *collective.reduction();
  const Box& box = reduction.box;
  size_t next = 0;
  if (!collective.adds_by_host()) {
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    for (int m = 0; m < num_members(); ++m) {
      if (places_.is_here(m)) {
        terms.push_back({members[m].in, reduction.held_by(m)});
      } else {
        terms.push_back({fetched[next++], box});
      }
    }
    return reduce_terms(collective, terms, outs);
  }
  TermsByHost terms;
  for (int h = 0; h < static_cast<int>(places_.by_host().size()); ++h) {
    if (h == places_.here()) {
      terms.push_back(terms_of(collective, members, places_.by_host()[h], box));
    } else {
      terms.push_back({fetched[next++]});
    }
  }
  add_nested(collective.dtype(), collective.op(), terms, outs, box.sizes[0],
             cpu::choose_stores(collective.bytes_written(), cpu::last_level_cache_bytes()));
}

// Each member that gets the sum adds all of it by itself.
void SpanRuns::reduce_inlined(const SpanRun& run, const Members& members) {
  using Target = BoxReduction::Target;
  const Collective& collective = run.collective();
  const BoxReduction& reduction = *collective.reduction();
  std::byte* const out = members[run.position()].out;
  const bool gets_none = reduction.target == Target::kRoot && run.position() != collective.root();
  if (out == nullptr || gets_none) return;
  // A kOwn target adds its own part, any other target the whole.
  const bool gets_part = reduction.target == Target::kOwn;
  const Box& box = gets_part ? reduction.box : reduction.held;
  if (box.is_empty()) return;
  std::byte* to = out;
  if (gets_part && box.sizes.size() == 1) {
    to += (box.offsets[0] - collective.out_box().offsets[0]) * dtype_size(collective.dtype());
  }
  if (collective.adds_by_host()) {
    TermsByHost terms;
    for (const std::vector<int>& host : places_.by_host()) {
      terms.push_back(terms_of(collective, members, host, box));
    }
    return add_nested(collective.dtype(), collective.op(), terms, {&to, 1}, box.sizes[0],
                      cpu::Stores::kCached);
  }
  if (gets_part) {
    absl::InlinedVector<cpu::ConstBoxView, kInlineMembers> terms;
    for (int m = 0; m < num_members(); ++m) terms.push_back({members[m].in, reduction.held_by(m)});
    return reduce_terms(collective, terms, {&to, 1});
  }
  absl::InlinedVector<const std::byte*, kInlineMembers> terms;
  for (const MemberMemory& member : members) terms.push_back(member.in);
  cpu::reduce(collective.dtype(), collective.op(), terms, {&to, 1}, box.sizes[0]);
}

Status SpanRuns::fetch_sums(SpanRun& run, const Members& members, const std::byte* own_sum) {
  const Collective& collective = run.collective();
  const int64_t element_bytes = dtype_size(collective.dtype());
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

Status SpanRuns::exchange(SpanRun& run, const Step& step) {
  ask(run, step);
  int num_left = step.num_askers.value_or(num_members() - size());
  while (true) {
    const auto requests = [&](Board& board) -> std::deque<Asked>& {
      return board.requests[step.of_sums ? 1 : 0][run.position()];
    };
    TESSERA_RETURN_IF_ERROR(wait(run, [&](Board& board) {
      const bool is_over = num_left == 0 && run.num_under_way == 0 && !run.has_failed_transfers;
      return !requests(board).empty() || is_over;
    }));
    std::deque<Asked> asked;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      asked.swap(requests(boards_.at(run.op.seq)));
    }
    if (asked.empty()) return absl::OkStatus();
    for (const Asked& one : asked) {
      if (const Status status = serve(run, step, one); !status.ok()) {
        return fail(run, run.labelled(status));
      }
      --num_left;
    }
  }
}

Engine::Done SpanRuns::end_of(Transfer transfer, SpanRun& run, int client) {
  return [self = std::static_pointer_cast<SpanRun>(run.executor_ref()), this, transfer,
          client](const Status& status) {
    // A letter has been sent when it is in a buffer here.
    if (status.ok() && transfer != Transfer::kLetter) network_->note_contact(client);
    std::lock_guard<std::mutex> lock(mutex_);
    --self->num_under_way;
    if (transfer == Transfer::kReceive && --self->awaited[client] == 0) {
      self->awaited.erase(client);
    }
    self->has_failed_transfers |= !status.ok();
    // FailedPrecondition: the connection is being made again.
    const bool is_broken = absl::IsUnavailable(status) || absl::IsFailedPrecondition(status);
    if (!is_broken) self->transfer_error.Update(status);
    wake_waiters();
  };
}

void SpanRuns::ask(SpanRun& run, const Step& step) {
  const int64_t element_bytes = dtype_size(run.collective().dtype());
  std::map<int, Request> requests;
  if (!step.num_askers.has_value()) {
    for (int m = 0; m < num_members(); ++m) {
      if (!places_.is_here(m)) requests[m];
    }
  }
  for (size_t i = 0; i < step.wants.size(); ++i) {
    const Want& want = step.wants[i];
    const Tag tag = network_->take_tag();
    requests[want.server].parts.push_back({want.box, want.held, tag});
    const int client = all_members()[want.server].client_id;
    for_each_block(want.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        ++run.num_under_way;
        ++run.awaited[client];
      }
      network_->engine->receive(client, tag, {step.fetched[i] + first, static_cast<size_t>(size)},
                                run.executor_ref(), end_of(Transfer::kReceive, run, client));
    });
  }
  for (auto& [server, request] : requests) {
    request.of_sums = step.of_sums;
    network_->letters.send(all_members()[server].client_id, {.kind = Letter::Kind::kRequest,
                                                             .seq = run.op.seq,
                                                             .group = name_,
                                                             .from = run.position(),
                                                             .to = server,
                                                             .body = encode(request)});
  }
}

Status SpanRuns::serve(SpanRun& run, const Step& step, const Asked& asked) {
  const int64_t element_bytes = dtype_size(run.collective().dtype());
  const int client = all_members()[asked.from].client_id;
  for (const Request::Part& part : asked.request.parts) {
    const bool fits = contains(part.held, part.box) &&
                      (step.of_sums || part.held.num_elements() == run.in_count());
    if (!fits) return absl::InternalError("a request for what the member does not hold");
    if (step.summed != nullptr) {
      TESSERA_RETURN_IF_ERROR(serve_sum(run, *step.summed, client, part));
      continue;
    }
    const std::byte* from = step.held;
    if (const std::optional<int64_t> first = contiguous_offset(part.held, part.box);
        first.has_value()) {
      from += *first * element_bytes;
    } else {
      TESSERA_ASSIGN_OR_RETURN(std::byte* const packed, stage(run, part.box));
      cpu::copy_box(part.box, {step.held, part.held}, {packed, part.box}, element_bytes);
      from = packed;
    }
    for_each_block(part.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      send_block(run, client, part.tag, {from + first, static_cast<size_t>(size)});
    });
  }
  return absl::OkStatus();
}

// The engine sends a block while the next one is added.
Status SpanRuns::serve_sum(SpanRun& run, const Members& members, int client,
                           const Request::Part& part) {
  const Collective& collective = run.collective();
  const int64_t element_bytes = dtype_size(collective.dtype());
  const std::vector<const std::byte*> terms =
      terms_of(collective, members, places_.by_host()[places_.here()], part.box);
  std::byte* sum = nullptr;
  if (terms.size() > 1) {
    TESSERA_ASSIGN_OR_RETURN(sum, stage(run, part.box));
  }
  for_each_block(part.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
    const std::byte* block = terms[0] + first;
    if (sum != nullptr) {
      absl::InlinedVector<const std::byte*, kInlineMembers> parts;
      for (const std::byte* term : terms) parts.push_back(term + first);
      std::byte* const to = sum + first;
      cpu::reduce(collective.dtype(), collective.op(), parts, {&to, 1}, size / element_bytes);
      block = to;
    }
    send_block(run, client, part.tag, {block, static_cast<size_t>(size)});
  });
  return absl::OkStatus();
}

void SpanRuns::send_block(SpanRun& run, int client, Tag tag, absl::Span<const std::byte> block) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++run.num_under_way;
  }
  network_->engine->send(client, tag, block, run.executor_ref(),
                         end_of(Transfer::kSend, run, client));
}

StatusOr<std::byte*> SpanRuns::stage(SpanRun& run, const Box& box) {
  const int64_t bytes = box.num_elements() * dtype_size(run.collective().dtype());
  StatusOr<ArenaPool::Block> block = resources().pool().allocate(bytes);
  if (!block.ok()) return fail(run, run.labelled(block.status()));
  run.staged.push_back(*std::move(block));
  return run.staged.back().data();
}

}  // namespace tessera::network
