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
#include "collectives/network/span_runs.h"
#include "device/cpu/kernels.h"

namespace tessera::network {
namespace {

using host::Rendezvous;

// Tensors cross the network in blocks of this size.
constexpr int64_t kBlockBytes = 256 << 10;

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

}  // namespace

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

}  // namespace tessera::network
