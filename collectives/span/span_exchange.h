// SPDX-License-Identifier: Apache-2.0
//
// SpanExchange: the requests of a member of a group over several hosts to members on other hosts in
// one step of a run, and its answers to their requests (wants.h).
//
//   ask(step)            receives for each want, and a letter to each member with some of them
//   serve(step, asked)   for each letter of another member: sends the boxes it requests
//
// Tensors cross the network in blocks. The class uses an engine and letters, and knows nothing of
// how members wait: the caller counts each transfer that begins, and passes the callback for its
// end.
//
// Used by one thread. The memory of a step must stay until its transfers have ended.
#ifndef TESSERA_COLLECTIVES_SPAN_SPAN_EXCHANGE_H_
#define TESSERA_COLLECTIVES_SPAN_SPAN_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "base/status.h"
#include "collectives/collective.h"
#include "collectives/move.h"
#include "collectives/span/boards.h"
#include "collectives/span/letters.h"
#include "collectives/span/transfers.h"
#include "collectives/span/wants.h"
#include "shm/group_table.h"
#include "transport/engine.h"

namespace tessera::span {

class SpanExchange {
 public:
  // One of the two steps, from the view of one member.
  struct Step {
    bool of_sums = false;
    absl::Span<const Want> wants = {};
    absl::Span<std::byte* const> fetched = {};          // destination of the box of each want
    const std::byte* held = nullptr;                    // memory that the member serves from
    const std::vector<MemberMemory>* summed = nullptr;  // terms of served sums
    std::optional<int> num_askers = {};                 // nothing: all members elsewhere ask
  };
  // The objects that it uses, all of which must outlive it.
  struct Parts {
    transport::Engine& engine;
    Letters& letters;
    uint64_t group;  // the name of letters
    absl::Span<const shm::GroupMember> members;
    const Places& places;
    absl::FunctionRef<transport::Tag()> take_tag;
    // Notes the begin of a transfer; returns the callback for its end.
    absl::FunctionRef<transport::Engine::Done(Transfers::Kind kind, int client)> begin;
    // Memory of the run for a box.
    absl::FunctionRef<StatusOr<std::byte*>(const Box& box)> stage;
  };

  // `keeper`: keeps the memory of the run.
  SpanExchange(const Parts& parts, const Collective& collective, uint32_t seq, int64_t in_count,
               transport::Engine::Keeper keeper)
      : parts_(parts),
        collective_(collective),
        seq_(seq),
        in_count_(in_count),
        keeper_(std::move(keeper)) {}

  void ask(const Step& step) const;
  // Internal for a request of a box that the member does not hold.
  Status serve(const Step& step, const Board::Asked& asked) const;

 private:
  // Sends a box of rank 1, added block by block.
  Status serve_sum(const std::vector<MemberMemory>& members, int client,
                   const Request::Part& part) const;
  void send_block(int client, transport::Tag tag, absl::Span<const std::byte> block) const;

  const Parts parts_;
  const Collective& collective_;
  const uint32_t seq_;
  const int64_t in_count_;  // elements that the member holds
  const transport::Engine::Keeper keeper_;
};

}  // namespace tessera::span

#endif  // TESSERA_COLLECTIVES_SPAN_SPAN_EXCHANGE_H_
