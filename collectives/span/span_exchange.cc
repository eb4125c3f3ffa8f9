// SPDX-License-Identifier: Apache-2.0
#include "collectives/span/span_exchange.h"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/dtype.h"
#include "collectives/span/span_sums.h"
#include "device/cpu/kernels.h"

namespace tessera::span {
namespace {

// Tensors cross the network in blocks of this size.
constexpr int64_t kBlockBytes = 256 << 10;

// Calls `body` with the offset and size of each block.
void for_each_block(int64_t num_bytes, absl::FunctionRef<void(int64_t, int64_t)> body) {
  for (int64_t first = 0; first < num_bytes; first += kBlockBytes) {
    body(first, std::min(kBlockBytes, num_bytes - first));
  }
}

}  // namespace

void SpanExchange::ask(const Step& step) const {
  const int64_t element_bytes = dtype_size(collective_.dtype());
  std::map<int, Request> requests;
  if (!step.num_askers.has_value()) {
    for (int m = 0; m < parts_.places.num_members(); ++m) {
      if (!parts_.places.is_here(m)) requests[m];
    }
  }
  for (size_t i = 0; i < step.wants.size(); ++i) {
    const Want& want = step.wants[i];
    const transport::Tag tag = parts_.take_tag();
    requests[want.server].parts.push_back({want.box, want.held, tag});
    const int client = parts_.members[want.server].client_id;
    for_each_block(want.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      parts_.engine.receive(client, tag, {step.fetched[i] + first, static_cast<size_t>(size)},
                            keeper_, parts_.begin(Transfers::kReceive, client));
    });
  }
  for (auto& [server, request] : requests) {
    request.of_sums = step.of_sums;
    parts_.letters.send(parts_.members[server].client_id, {.kind = Letter::Kind::kRequest,
                                                           .seq = seq_,
                                                           .group = parts_.group,
                                                           .from = collective_.place().position,
                                                           .to = server,
                                                           .body = encode(request)});
  }
}

Status SpanExchange::serve(const Step& step, const Board::Asked& asked) const {
  const int64_t element_bytes = dtype_size(collective_.dtype());
  const int client = parts_.members[asked.from].client_id;
  for (const Request::Part& part : asked.request.parts) {
    const bool fits =
        contains(part.held, part.box) && (step.of_sums || part.held.num_elements() == in_count_);
    if (!fits) return absl::InternalError("a request for what the member does not hold");
    if (step.summed != nullptr) {
      TESSERA_RETURN_IF_ERROR(serve_sum(*step.summed, client, part));
      continue;
    }
    const std::byte* from = step.held;
    if (const std::optional<int64_t> first = contiguous_offset(part.held, part.box);
        first.has_value()) {
      from += *first * element_bytes;
    } else {
      TESSERA_ASSIGN_OR_RETURN(std::byte* const packed, parts_.stage(part.box));
      cpu::copy_box(part.box, {step.held, part.held}, {packed, part.box}, element_bytes);
      from = packed;
    }
    for_each_block(part.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
      send_block(client, part.tag, {from + first, static_cast<size_t>(size)});
    });
  }
  return absl::OkStatus();
}

// The engine sends a block while the next one is added.
Status SpanExchange::serve_sum(const std::vector<MemberMemory>& members, int client,
                               const Request::Part& part) const {
  const int64_t element_bytes = dtype_size(collective_.dtype());
  const std::vector<const std::byte*> terms =
      terms_of(collective_, members, parts_.places.by_host()[parts_.places.here()], part.box);
  std::byte* sum = nullptr;
  if (terms.size() > 1) {
    TESSERA_ASSIGN_OR_RETURN(sum, parts_.stage(part.box));
  }
  for_each_block(part.box.num_elements() * element_bytes, [&](int64_t first, int64_t size) {
    const std::byte* block = terms[0] + first;
    if (sum != nullptr) {
      absl::InlinedVector<const std::byte*, kInlineMembers> parts;
      for (const std::byte* term : terms) parts.push_back(term + first);
      std::byte* const to = sum + first;
      cpu::reduce(collective_.dtype(), collective_.op(), parts, {&to, 1}, size / element_bytes);
      block = to;
    }
    send_block(client, part.tag, {block, static_cast<size_t>(size)});
  });
  return absl::OkStatus();
}

void SpanExchange::send_block(int client, transport::Tag tag,
                              absl::Span<const std::byte> block) const {
  parts_.engine.send(client, tag, block, keeper_, parts_.begin(Transfers::kSend, client));
}

}  // namespace tessera::span
