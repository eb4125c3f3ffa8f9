// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_move.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/host/meetings.h"
#include "collectives/span/boards.h"
#include "collectives/span/span_sums.h"
#include "collectives/span/wants.h"
#include "device/cpu/kernels.h"

namespace tessera::span {

bool divides(const Collective& collective, const SpanState& state) {
  return !state.is_for_messages && !is_inlined(collective) && is_divided(collective, state.places);
}

Status SpanMove::run() {
  TESSERA_RETURN_IF_ERROR(find_members());
  TESSERA_RETURN_IF_ERROR(run_.is_moved_by_device()                  ? move_on_device()
                          : run_.collective().reduction() != nullptr ? reduce()
                                                                     : pull());
  // The sender's part is over when the receiver has said so.
  return span_.is_for_messages ? exchange({.of_sums = true}) : absl::OkStatus();
}

Status SpanMove::find_members() {
  const StatusOr<SpanWait::Memories> here = run_.memory();
  if (!here.ok()) return run_.fail(here.status());
  members_.resize(span_.num_members());
  std::lock_guard<std::mutex> lock(span_.mutex);
  const Board& board = span_.boards.at(run_.op.seq);
  for (int m = 0; m < span_.num_members(); ++m) {
    MemberMemory& member = members_[m];
    if (span_.places.is_here(m)) {
      const int index = span_.places.local_index(m);
      member = (*here)[index];
      // A member may write its result in place while others still read its input.
      if (run_.is_inlined())
        member.in = span_.rendezvous().records().entry(run_.op.seq, index).inlined;
    } else {
      const Board::Entry& entry = board.entries.at(m);
      member.in_count = entry.in_count;
      member.counts = entry.counts.data();
      (run_.is_on_device() ? member.board : member.in) = entry.inlined.data();
    }
  }
  return absl::OkStatus();
}

Status SpanMove::move_on_device() {
  const Status moved = run_.move(run_.op.seq, members_);
  // Wrong counts are found by all; other errors are this member's alone, or NCCL's, which tells.
  if (!moved.ok() && run_.collective().needs_peer_counts()) return run_.settle_here(moved);
  own_error_ = moved;
  return absl::OkStatus();
}

Status SpanMove::pull() {
  const Collective& collective = run_.collective();
  const int64_t element_bytes = dtype_size(collective.dtype());
  std::vector<BoxPull> made;
  absl::Span<const BoxPull> pulls;
  if (const auto checked = checked_pulls(collective, members_, made); checked.ok()) {
    pulls = *checked;
  } else if (collective.needs_peer_counts()) {
    return run_.settle_here(run_.labelled(checked.status()));
  } else {
    own_error_ = run_.labelled(checked.status());
  }
  if (run_.is_inlined()) {
    if (own_error_.ok()) copy_pulls(collective, pulls, members_);
    return absl::OkStatus();
  }
  const std::vector<Want> wants = wants_of_inputs(collective, pulls, span_.places);
  std::vector<BoxPull> copies;
  for (const BoxPull& pull : pulls) {
    if (span_.places.is_here(pull.source)) copies.push_back(pull);
  }
  // A box that is one run of a tensor's memory is received there. The memory of a caller is the
  // caller's again after a failure, when a block may still arrive.
  const bool may_write = !run_.is_on_device() && (run_.arguments().out_buffer != nullptr ||
                                                  run_.copy(&SpanWait::Copies::out) != nullptr);
  std::byte* const out = members_[run_.position()].out;
  std::vector<std::byte*> fetched;
  const std::byte* const own_input = members_[run_.position()].in;
  for (const Want& want : wants) {
    const std::optional<int64_t> first = contiguous_offset(collective.out_box(), want.box);
    if (may_write && first.has_value()) {
      fetched.push_back(out + *first * element_bytes);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), run_.stage(want.box));
    copies.push_back({static_cast<int>(members_.size()), want.box, want.box});
    members_.push_back({.in = fetched.back()});
  }
  TESSERA_RETURN_IF_ERROR(exchange({.wants = wants, .fetched = fetched, .held = own_input}));
  if (run_.is_on_device()) {
    // A message: its receiver has it in memory of the host.
    if (run_.position() == 0) return absl::OkStatus();
    if (!fetched.empty()) members_[0].in = fetched[0];
    const Status moved = run_.move(run_.op.seq, members_);
    return moved.ok() ? moved : run_.fail(moved);
  }
  if (!own_error_.ok()) return absl::OkStatus();
  copy_pulls(collective, copies, members_);
  if (!divides(collective, span_)) return absl::OkStatus();
  const int64_t out_first = collective.out_box().offsets[0];
  for (size_t i = 0; i < wants.size(); ++i) {
    const int64_t bytes = wants[i].box.num_elements() * element_bytes;
    for (const int m : span_.places.by_host()[span_.places.here()]) {
      if (m == run_.position()) continue;
      cpu::copy_bytes(members_[m].out + (wants[i].box.offsets[0] - out_first) * element_bytes,
                      fetched[i], bytes);
    }
  }
  return absl::OkStatus();
}

Status SpanMove::reduce() {
  using Target = BoxReduction::Target;
  const Collective& collective = run_.collective();
  const BoxReduction& reduction = *collective.reduction();
  own_error_ = run_.labelled(check_terms(collective, members_));
  if (run_.is_inlined()) {
    if (own_error_.ok()) add_inlined_terms(collective, span_.places, members_);
    return absl::OkStatus();
  }
  // In a reduction by host every member has found the same error.
  if (!own_error_.ok() && adds_by_host(collective)) {
    return run_.wait([&](Board&) { return run_.news().transfers.are_done(); });
  }
  std::vector<Want> wants;
  if (own_error_.ok()) wants = wants_of_inputs(collective, {}, span_.places);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), run_.stage(want.box));
  }
  TESSERA_RETURN_IF_ERROR(exchange({.wants = wants,
                                    .fetched = fetched,
                                    .held = members_[run_.position()].in,
                                    .summed = adds_by_host(collective) ? &members_ : nullptr,
                                    .num_askers = num_askers_of_inputs(collective, span_.places)}));
  const Box& box = reduction.box;
  const bool is_flat = box.sizes.size() == 1;
  const int64_t offset =
      is_flat ? (box.offsets[0] - collective.out_box().offsets[0]) * dtype_size(collective.dtype())
              : 0;
  std::vector<std::byte*> outs;
  if (reduction.target == Target::kAll) {
    for (int m = 0; m < span_.num_members(); ++m) {
      if (span_.places.is_here(m)) outs.push_back(members_[m].out + offset);
    }
  } else if (reduction.target == Target::kRoot && !span_.places.is_here(collective.root())) {
    TESSERA_ASSIGN_OR_RETURN(outs.emplace_back(), run_.stage(box));
  } else {
    const int target = reduction.target == Target::kRoot ? collective.root() : run_.position();
    // A barrier may have no output.
    if (members_[target].out != nullptr) outs.push_back(members_[target].out + offset);
  }
  if (own_error_.ok() && !box.is_empty() && !outs.empty()) {
    add_terms(collective, span_.places, members_, fetched, outs);
  }
  if (!has_second_step(collective)) return absl::OkStatus();
  return fetch_sums(outs.empty() ? nullptr : outs[0]);
}

Status SpanMove::fetch_sums(const std::byte* own_sum) {
  const Collective& collective = run_.collective();
  const std::vector<Want> wants = wants_of_sums(collective, span_.places);
  std::vector<std::byte*> fetched;
  for (const Want& want : wants) {
    TESSERA_ASSIGN_OR_RETURN(fetched.emplace_back(), run_.stage(want.box));
  }
  TESSERA_RETURN_IF_ERROR(exchange({.of_sums = true,
                                    .wants = wants,
                                    .fetched = fetched,
                                    .held = own_sum,
                                    .num_askers = num_askers_of_sums(collective, span_.places)}));
  copy_sums(collective, span_.places, members_, wants, fetched);
  return absl::OkStatus();
}

Status SpanMove::exchange(const SpanExchange::Step& step) {
  const auto take_tag = [this] { return span_.network->take_tag(); };
  const auto begin = [&](Transfers::Kind kind, int client) {
    return run_.begin_transfer(kind, client);
  };
  const auto stage_box = [&](const Box& box) { return run_.stage(box); };
  const SpanExchange exchange({.engine = *span_.network->engine,
                               .letters = span_.network->letters,
                               .group = span_.name,
                               .members = span_.group.all_members(),
                               .places = span_.places,
                               .take_tag = take_tag,
                               .begin = begin,
                               .stage = stage_box},
                              run_.collective(), run_.op.seq,
                              run_.collective().in_count().value_or(0), run_.executor_ref());
  exchange.ask(step);
  int num_left = step.num_askers.value_or(span_.num_members() - span_.group.size());
  while (true) {
    const auto requests = [&](Board& board) -> std::deque<Board::Asked>& {
      return board.requests[step.of_sums ? 1 : 0][run_.position()];
    };
    TESSERA_RETURN_IF_ERROR(run_.wait([&](Board& board) {
      const bool is_over = num_left == 0 && run_.news().transfers.are_done();
      return !requests(board).empty() || is_over;
    }));
    std::deque<Board::Asked> asked;
    {
      std::lock_guard<std::mutex> lock(span_.mutex);
      asked.swap(requests(span_.boards.at(run_.op.seq)));
    }
    if (asked.empty()) return absl::OkStatus();
    for (const Board::Asked& one : asked) {
      if (const Status status = exchange.serve(step, one); !status.ok()) {
        return run_.fail(run_.labelled(status));
      }
      --num_left;
    }
  }
}

}  // namespace tessera::span
