// SPDX-License-Identifier: Apache-2.0
#include "collectives/host/host_mail.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace tessera::host {
namespace {

template <class Head>
std::byte* bytes_after(Head& head) {
  return reinterpret_cast<std::byte*>(&head + 1);
}

}  // namespace

HostMail::HostMail(const GroupRecords& group) : group_(group) {
  const RecordLayout& layout = record_layout(*group.block());
  outboxes_offset_ = layout.outboxes_offset;
  outbox_stride_ = layout.outbox_stride;
  bulletin_offset_ = layout.bulletin_offset;
  bulletin_bytes_ = layout.bulletin_bytes;
}

bool HostMail::put(uint32_t seq, int member, absl::Span<const std::byte> letter) {
  if (sizeof(Outbox) + letter.size() > outbox_stride_) return false;
  Outbox& own = outbox(seq, member);
  own.num_bytes = static_cast<uint32_t>(letter.size());
  std::memcpy(bytes_after(own), letter.data(), letter.size());
  // take() reads the number once the member has arrived; until then it may belong to an earlier
  // operation.
  own.seq.store(seq, std::memory_order_release);
  return true;
}

std::vector<std::vector<std::byte>> HostMail::take(uint32_t seq) {
  std::vector<std::vector<std::byte>> letters;
  // In an operation that has a verdict a member may find that it has arrived too late: the others
  // must not be told that it is there.
  const State state = group_.load(seq);
  if (outbox_stride_ == 0 || state.seq != seq || state.is_settled()) return letters;
  const std::vector<bool> arrived = group_.arrivals(seq, state);
  for (int m = 0; m < group_.size(); ++m) {
    if (!arrived[m]) continue;
    Outbox& its = outbox(seq, m);
    uint32_t expected = seq;
    if (!its.seq.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) continue;
    const std::byte* const bytes = bytes_after(its);
    const size_t size = std::min<size_t>(its.num_bytes, outbox_stride_ - sizeof(Outbox));
    letters.emplace_back(bytes, bytes + size);
  }
  // The record of an operation that has timed out may be reused meanwhile.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (group_.load(seq).seq != seq) letters.clear();
  return letters;
}

size_t HostMail::num_posted(uint32_t seq) const {
  if (bulletin_bytes_ == 0) return 0;
  const uint64_t word = bulletin(seq).posted.load(std::memory_order_seq_cst);
  if (word >> 32 != seq) return 0;
  return std::min<size_t>(static_cast<uint32_t>(word), bulletin_bytes_);
}

bool HostMail::post(uint32_t seq, absl::Span<const std::byte> letter) {
  const size_t first = num_posted(seq);
  if (letter.size() > bulletin_bytes_ - first) return false;
  Bulletin& board = bulletin(seq);
  // A record that has timed out may be free for one operation and still describe an earlier one.
  const auto last = static_cast<uint32_t>(board.posted.load(std::memory_order_relaxed) >> 32);
  if (last != 0 && is_later(last, seq)) return false;
  if (!letter.empty()) {
    std::memcpy(bytes_after(board) + first, letter.data(), letter.size());
  }
  board.posted.store(uint64_t{seq} << 32 | (first + letter.size()), std::memory_order_seq_cst);
  group_.record(seq).wake();
  return true;
}

absl::Span<const std::byte> HostMail::posted(uint32_t seq, size_t from) const {
  const size_t end = num_posted(seq);
  if (from >= end) return {};
  return {bytes_after(bulletin(seq)) + from, end - from};
}

}  // namespace tessera::host
