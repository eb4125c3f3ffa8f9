// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "collectives/counts.h"

namespace tessera::nccl {
namespace {

using Members = absl::Span<const MemberMemory>;

void append_box(const Box& box, std::vector<int64_t>* words) {
  words->insert(words->end(), box.offsets.begin(), box.offsets.end());
  words->insert(words->end(), box.sizes.begin(), box.sizes.end());
}

// number of pulls | of each: source | rank | source's box | box
std::vector<BoxPull> decode_request(const int64_t* words) {
  std::vector<BoxPull> pulls(static_cast<size_t>(*words++));
  for (BoxPull& pull : pulls) {
    pull.source = static_cast<int>(*words++);
    const int64_t rank = *words++;
    for (Box* box : {&pull.source_box, &pull.box}) {
      box->offsets.assign(words, words + rank);
      box->sizes.assign(words + rank, words + 2 * rank);
      words += 2 * rank;
    }
  }
  return pulls;
}

// Whether the member's assumptions about its sources are true. Computed for every member by every
// member, with equal results.
bool fits(absl::Span<const BoxPull> pulls, Members members) {
  return std::all_of(pulls.begin(), pulls.end(), [&](const BoxPull& pull) {
    return pull.source_box.num_elements() == members[pull.source].in_count;
  });
}

// Where boxes 0 to num_boxes - 1, each of `count` elements, begin in a dense buffer of `held`, if
// they are there one after another, each of them as one run.
template <class BoxOf>
std::optional<int64_t> consecutive_runs(int num_boxes, int64_t count, const Box& held,
                                        BoxOf box_of) {
  const std::optional<int64_t> first = contiguous_offset(held, box_of(0));
  if (!first.has_value()) return std::nullopt;
  for (int k = 1; k < num_boxes; ++k) {
    if (contiguous_offset(held, box_of(k)) != *first + k * count) return std::nullopt;
  }
  return first;
}

// The boxes that each member wants, not empty and by source, as all members see them; nothing for a
// member whose request does not fit.
using Requests = std::vector<std::optional<std::vector<BoxPull>>>;
Requests read_requests(Members members) {
  Requests requests;
  for (const MemberMemory& member : members) {
    std::vector<BoxPull> pulls = decode_request(member.counts);
    const bool fit = fits(pulls, members);
    std::erase_if(pulls, [](const BoxPull& pull) { return pull.box.is_empty(); });
    // Several of one source stay in their order, in which they are sent and received.
    std::stable_sort(pulls.begin(), pulls.end(),
                     [](const BoxPull& a, const BoxPull& b) { return a.source < b.source; });
    requests.push_back(fit ? std::make_optional(std::move(pulls)) : std::nullopt);
  }
  return requests;
}

// Whether all members want the same boxes with equal numbers of elements, one from each member.
bool wants_all_gather(const Requests& requests) {
  const auto is_one_of_each = [&](const std::optional<std::vector<BoxPull>>& request) {
    if (!request.has_value() || request->size() != requests.size()) return false;
    for (size_t k = 0; k < request->size(); ++k) {
      const BoxPull& pull = (*request)[k];
      if (pull.source != static_cast<int>(k) || pull.box != (*requests[0])[k].box ||
          pull.box.num_elements() != (*request)[0].box.num_elements()) {
        return false;
      }
    }
    return true;
  };
  return std::all_of(requests.begin(), requests.end(), is_one_of_each);
}

// Whether all members want one box, the same, of the same member, which may do without.
bool wants_broadcast(const Requests& requests) {
  const BoxPull* first = nullptr;
  for (const auto& request : requests) {
    if (!request.has_value() || request->size() > 1) return false;
    if (first == nullptr && !request->empty()) first = &(*request)[0];
  }
  if (first == nullptr) return false;
  for (size_t k = 0; k < requests.size(); ++k) {
    const std::vector<BoxPull>& request = *requests[k];
    const bool is_source = static_cast<int>(k) == first->source;
    if (request.empty() ? !is_source
                        : request[0].source != first->source || request[0].box != first->box) {
      return false;
    }
  }
  return true;
}

// Whether all members of a reduction of boxes want equally many elements.
bool wants_reduce_scatter(const Requests& requests) {
  return std::all_of(requests.begin(), requests.end(), [&](const auto& request) {
    return request.has_value() && !request->empty() &&
           (*request)[0].box.num_elements() == (*requests[0])[0].box.num_elements();
  });
}

// For all_reduce, reduce and reduce_scatter.
bool has_nccl_reduction(const Collective& c) {
  return c.kind() != OpKind::kReduceScatter || c.counts().are_equal();
}

int64_t block_bytes(int64_t size_bytes) {
  return (size_bytes + kPackingAlignment - 1) / kPackingAlignment * kPackingAlignment;
}

class Planner {
 public:
  Planner(const Collective& collective, Members members, Sums sums, const PackingPools& pools)
      : collective_(collective),
        member_(collective.place().position),
        members_(members),
        sums_(sums),
        pools_(pools),
        size_(dtype_size(collective.dtype())),
        num_members_(static_cast<int>(members.size())),
        in_(members[member_].in),
        out_(members[member_].out) {}

  StatusOr<Schedule> plan() {
    schedule_.rounds.emplace_back();
    TESSERA_RETURN_IF_ERROR(plan_rounds());
    return std::move(schedule_);
  }

 private:
  Round& round() { return schedule_.rounds.back(); }
  Round& next_round() { return schedule_.rounds.emplace_back(); }

  void send(int peer, const std::byte* from, int64_t count) {
    if (count > 0 && peer != member_) round().sends.push_back({peer, from, count * size_});
  }
  void receive(int peer, std::byte* to, int64_t count) {
    if (count > 0 && peer != member_) round().receives.push_back({peer, to, count * size_});
  }
  void copy_own(const std::byte* from, std::byte* to, int64_t count) {
    if (count == 0 || from == to) return;
    round().before.dense.push_back({from, to, static_cast<uint64_t>(count * size_)});
  }
  StatusOr<std::byte*> memory(int64_t count) { return memory(count, pools_.own); }
  StatusOr<std::byte*> memory(int64_t count, const std::shared_ptr<MemoryPool>& pool) {
    if (count == 0) return nullptr;
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::allocate(pool, count * size_));
    schedule_.packed.push_back(std::move(buffer));
    return schedule_.packed.back()->mutable_data();
  }

  Status plan_rounds() {
    switch (collective_.kind()) {
      case OpKind::kAllGather:
        gather_all(in_, collective_.counts());
        return absl::OkStatus();
      case OpKind::kBroadcast:
        return broadcast();
      case OpKind::kGather:
        gather();
        return absl::OkStatus();
      case OpKind::kScatter:
        scatter();
        return absl::OkStatus();
      case OpKind::kAllToAll:
        all_to_all();
        return absl::OkStatus();
      case OpKind::kExchange:
        return exchange();
      case OpKind::kAllReduce:
      case OpKind::kReduce:
      case OpKind::kReduceScatter:
        return reduce();
      case OpKind::kReduceBoxes:
        return reduce_boxes();
      default:
        return absl::InternalError("an operation that moves no bytes between GPUs");
    }
  }

  // Chunks of these counts, the member's own at `own`, to their places in every out.
  void gather_all(const std::byte* own, const Counts& counts) {
    if (counts.are_equal()) {
      if (counts[0] == 0) return;
      round().kind = Round::Kind::kAllGather;
      round().from = own;
      round().to = out_;
      round().num_bytes = counts[0] * size_;
      return;
    }
    copy_own(own, out_ + counts.sum_before(member_) * size_, counts[member_]);
    for (int peer = 0; peer < num_members_; ++peer) {
      send(peer, own, counts[member_]);
      receive(peer, out_ + counts.sum_before(peer) * size_, counts[peer]);
    }
  }

  Status broadcast() {
    if (collective_.count() == 0) return absl::OkStatus();
    round().kind = Round::Kind::kBroadcast;
    // NCCL does not read it beside the root.
    round().from = member_ == collective_.root() ? in_ : out_;
    round().to = out_;
    round().num_bytes = collective_.count() * size_;
    round().root = collective_.root();
    return absl::OkStatus();
  }

  void gather() {
    if (member_ != collective_.root())
      return send(collective_.root(), in_, collective_.counts()[member_]);
    for (int peer = 0; peer < num_members_; ++peer) {
      receive(peer, out_ + collective_.counts().sum_before(peer) * size_,
              collective_.counts()[peer]);
    }
    copy_own(in_, out_ + collective_.counts().sum_before(member_) * size_,
             collective_.counts()[member_]);
  }

  void scatter() {
    if (member_ != collective_.root())
      return receive(collective_.root(), out_, collective_.counts()[member_]);
    for (int peer = 0; peer < num_members_; ++peer) {
      send(peer, in_ + collective_.counts().sum_before(peer) * size_, collective_.counts()[peer]);
    }
    copy_own(in_ + collective_.counts().sum_before(member_) * size_, out_,
             collective_.counts()[member_]);
  }

  void all_to_all() {
    for (int peer = 0; peer < num_members_; ++peer) {
      const std::byte* from = in_ + collective_.counts().sum_before(peer) * size_;
      std::byte* to = out_ + collective_.received_counts().sum_before(peer) * size_;
      if (peer == member_) copy_own(from, to, collective_.counts()[peer]);
      send(peer, from, collective_.counts()[peer]);
      receive(peer, to, collective_.received_counts()[peer]);
    }
  }

  // The elements of `box` of a buffer of `held`, as one run: where they are, if they are that, else
  // packed before the round.
  StatusOr<const std::byte*> packed(const Box& box, const std::byte* from, const Box& held,
                                    const std::shared_ptr<MemoryPool>& pool) {
    if (const auto first = contiguous_offset(held, box)) return from + *first * size_;
    TESSERA_ASSIGN_OR_RETURN(std::byte * to, memory(box.num_elements(), pool));
    cuda::add_copy(box, from, held, to, box, size_, &round().before);
    return to;
  }
  // Where such a run is received, to be unpacked after the round unless it is received in place.
  StatusOr<std::byte*> unpacked(const Box& box, std::byte* to, const Box& held) {
    if (const auto first = contiguous_offset(held, box)) return to + *first * size_;
    TESSERA_ASSIGN_OR_RETURN(std::byte * from, memory(box.num_elements()));
    cuda::add_copy(box, from, box, to, held, size_, &round().after);
    return from;
  }

  // Sends the boxes that others want of this member, one message per box, in the order of these
  // members.
  Status send_boxes(const Requests& requests) {
    for (int peer = 0; peer < num_members_; ++peer) {
      if (peer == member_ || !requests[peer].has_value()) continue;
      for (const BoxPull& pull : *requests[peer]) {
        if (pull.source != member_) continue;
        TESSERA_ASSIGN_OR_RETURN(const std::byte* from,
                                 packed(pull.box, in_, pull.source_box, pools_.sent));
        send(peer, from, pull.box.num_elements());
      }
    }
    return absl::OkStatus();
  }

  Status exchange() {
    const Requests requests = read_requests(members_);
    if (wants_all_gather(requests)) return gather_boxes(*requests[member_]);
    if (wants_broadcast(requests)) return broadcast_box(requests);
    TESSERA_RETURN_IF_ERROR(send_boxes(requests));
    if (!requests[member_].has_value()) return absl::OkStatus();
    for (const BoxPull& pull : *requests[member_]) {
      if (pull.source == member_) {
        cuda::add_copy(pull.box, in_, pull.source_box, out_, collective_.out_box(), size_,
                       &round().before);
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(std::byte * to, unpacked(pull.box, out_, collective_.out_box()));
      receive(pull.source, to, pull.box.num_elements());
    }
    return absl::OkStatus();
  }

  // Box s of every request comes from member s.
  Status gather_boxes(const std::vector<BoxPull>& pulls) {
    const int64_t count = pulls[0].box.num_elements();
    const BoxPull& own = pulls[member_];
    TESSERA_ASSIGN_OR_RETURN(const std::byte* from,
                             packed(own.box, in_, own.source_box, pools_.sent));
    const std::optional<int64_t> first =
        consecutive_runs(num_members_, count, collective_.out_box(),
                         [&](int k) -> const Box& { return pulls[k].box; });
    std::byte* to = first.has_value() ? out_ + *first * size_ : nullptr;
    if (!first.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(to, memory(count * num_members_));
      for (const BoxPull& pull : pulls) {
        cuda::add_copy(pull.box, to + pull.source * count * size_, pull.box, out_,
                       collective_.out_box(), size_, &round().after);
      }
    }
    round().kind = Round::Kind::kAllGather;
    round().from = from;
    round().to = to;
    round().num_bytes = count * size_;
    return absl::OkStatus();
  }

  Status broadcast_box(const Requests& requests) {
    // The source itself may want nothing.
    const BoxPull& pull = requests[0]->empty() ? (*requests[1])[0] : (*requests[0])[0];
    round().kind = Round::Kind::kBroadcast;
    round().num_bytes = pull.box.num_elements() * size_;
    round().root = pull.source;
    if (pull.source != member_) {
      TESSERA_ASSIGN_OR_RETURN(round().to, unpacked(pull.box, out_, collective_.out_box()));
      round().from = round().to;  // as in broadcast()
      return absl::OkStatus();
    }
    if (!requests[member_]->empty()) {
      cuda::add_copy(pull.box, in_, pull.source_box, out_, collective_.out_box(), size_,
                     &round().before);
    }
    TESSERA_ASSIGN_OR_RETURN(round().from, packed(pull.box, in_, pull.source_box, pools_.sent));
    round().to = const_cast<std::byte*>(round().from);  // in place, where nothing is written
    return absl::OkStatus();
  }

  // Every member's box of equally many elements, packed one after another unless they already are.
  Status scatter_sums(const Requests& requests) {
    const Box& held = collective_.reduction()->held_by(member_);
    const int64_t count = collective_.out_box().num_elements();
    const std::optional<int64_t> first = consecutive_runs(
        num_members_, count, held, [&](int k) -> const Box& { return (*requests[k])[0].box; });
    const std::byte* from = first.has_value() ? in_ + *first * size_ : nullptr;
    if (!first.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(std::byte * packed, memory(count * num_members_));
      for (int peer = 0; peer < num_members_; ++peer) {
        const Box& box = (*requests[peer])[0].box;
        cuda::add_copy(box, in_, held, packed + peer * count * size_, box, size_, &round().before);
      }
      from = packed;
    }
    reduce_by_nccl(Round::Kind::kReduceScatter, from, out_, count);
    return absl::OkStatus();
  }

  Status reduce_boxes() {
    const Requests requests = read_requests(members_);
    if (sums_ == Sums::kNccl && wants_reduce_scatter(requests)) return scatter_sums(requests);
    TESSERA_RETURN_IF_ERROR(send_boxes(requests));
    const Box& box = collective_.out_box();
    if (box.is_empty() || !requests[member_].has_value()) return absl::OkStatus();
    std::vector<const std::byte*> terms;
    for (int peer = 0; peer < num_members_; ++peer) {
      if (peer == member_) {
        TESSERA_ASSIGN_OR_RETURN(
            const std::byte* own,
            packed(box, in_, collective_.reduction()->held_by(peer), pools_.own));
        terms.push_back(own);
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(std::byte * term, memory(box.num_elements()));
      receive(peer, term, box.num_elements());
      terms.push_back(term);
    }
    add(terms, out_, box.num_elements());
    return absl::OkStatus();
  }

  void add(const std::vector<const std::byte*>& terms, std::byte* out, int64_t count) {
    if (count == 0 || out == nullptr) return;
    round().reduces = cuda::plan_reduce(collective_.dtype(), collective_.op(), terms,
                                        absl::MakeConstSpan(&out, 1), count);
  }

  void reduce_by_nccl() {
    if (collective_.kind() == OpKind::kAllReduce) {
      reduce_by_nccl(Round::Kind::kAllReduce, in_, out_, collective_.count());
    } else if (collective_.kind() == OpKind::kReduce) {
      std::byte* const to = member_ == collective_.root() ? out_ : nullptr;
      reduce_by_nccl(Round::Kind::kReduce, in_, to, collective_.count());
    } else {
      reduce_by_nccl(Round::Kind::kReduceScatter, in_, out_, collective_.counts()[0]);
    }
  }
  void reduce_by_nccl(Round::Kind kind, const std::byte* from, std::byte* to, int64_t count) {
    if (count == 0) return;
    round().kind = kind;
    round().from = from;
    round().to = to;
    round().count = count;
    round().root = collective_.root();
    // The minimum of bytes that are 0 or 1 is their "and".
    round().dtype = collective_.dtype() == DType::kBool ? DType::kUint8 : collective_.dtype();
    round().op = collective_.op();
  }

  // Chunks go to their owners, which add them; then to the members that want the whole.
  Status reduce() {
    if (sums_ == Sums::kNccl && has_nccl_reduction(collective_)) {
      reduce_by_nccl();
      return absl::OkStatus();
    }
    std::vector<int64_t> counts;
    std::vector<int64_t> firsts;
    for (int peer = 0; peer < num_members_; ++peer) {
      const ReducedChunk chunk = chunk_of(collective_, peer);
      firsts.push_back(chunk.first);
      counts.push_back(chunk.count);
    }
    const int64_t own = counts[member_];
    std::vector<const std::byte*> terms;
    for (int peer = 0; peer < num_members_; ++peer) {
      send(peer, in_ + firsts[peer] * size_, counts[peer]);
      if (peer == member_) {
        terms.push_back(in_ + firsts[member_] * size_);
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(std::byte * term, memory(own));
      receive(peer, term, own);
      terms.push_back(term);
    }
    const bool is_whole = collective_.kind() != OpKind::kReduceScatter;
    const bool has_out = collective_.kind() != OpKind::kReduce || member_ == collective_.root();
    std::byte* sum = out_;
    if (!has_out) {
      TESSERA_ASSIGN_OR_RETURN(sum, memory(own));
    } else if (is_whole && own > 0) {
      sum = out_ + firsts[member_] * size_;
    }
    add(terms, sum, own);
    if (!is_whole) return absl::OkStatus();
    next_round();
    if (collective_.kind() == OpKind::kAllReduce) {
      gather_all(sum, Counts::of(counts));
    } else if (member_ != collective_.root()) {
      send(collective_.root(), sum, own);
    } else {
      for (int peer = 0; peer < num_members_; ++peer) {
        receive(peer, out_ + firsts[peer] * size_, counts[peer]);
      }
    }
    return absl::OkStatus();
  }

  const Collective& collective_;
  const int member_;
  const Members members_;
  const Sums sums_;
  const PackingPools& pools_;
  const int64_t size_;
  const int num_members_;
  const std::byte* const in_;
  std::byte* const out_;
  Schedule schedule_;
};

}  // namespace

std::vector<int64_t> encode_request(const Collective& collective) {
  const BoxReduction* const reduction = collective.reduction();
  const bool is_reduced = collective.kind() == OpKind::kReduceBoxes;
  if (!is_reduced && collective.kind() != OpKind::kExchange) return {};
  const BoxPulls& pulls = collective.boxes();
  std::vector<int64_t> words = {static_cast<int64_t>(pulls.size())};
  for (size_t k = 0; k < pulls.size(); ++k) {
    const BoxPull& pull = pulls[k];
    const Box& box = is_reduced ? reduction->box : pull.box;
    words.push_back(is_reduced ? static_cast<int64_t>(k) : pull.source);
    words.push_back(static_cast<int64_t>(box.sizes.size()));
    append_box(pull.source_box, &words);
    append_box(box, &words);
  }
  return words;
}

int64_t packing_bytes(const Collective& collective, Sums sums) {
  const int64_t size = dtype_size(collective.dtype());
  const auto [num_members, member] = collective.place();
  switch (collective.kind()) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter: {
      if (sums == Sums::kNccl && has_nccl_reduction(collective)) return 0;
      // The others' terms, and the sum where the member gets no result.
      const int64_t own = chunk_of(collective, member).count;
      const bool has_out = collective.kind() != OpKind::kReduce || member == collective.root();
      return (num_members - (has_out ? 1 : 0)) * block_bytes(own * size);
    }
    case OpKind::kReduceBoxes: {
      // All terms; or, where NCCL adds, the boxes of all, one after another.
      const int64_t box = collective.out_box().num_elements() * size;
      return std::max(num_members * block_bytes(box), block_bytes(num_members * box));
    }
    case OpKind::kExchange: {
      int64_t received = 0;
      int64_t gathered = 0;
      for (const BoxPull& pull : collective.boxes()) {
        const int64_t bytes = pull.box.num_elements() * size;
        gathered += bytes;
        if (pull.source == member || contiguous_offset(collective.out_box(), pull.box).has_value())
          continue;
        received += block_bytes(bytes);
      }
      // As an all-gather it is received as one block.
      const bool may_be_all_gather = static_cast<int>(collective.boxes().size()) == num_members;
      return may_be_all_gather ? std::max(received, block_bytes(gathered)) : received;
    }
    default:
      return 0;
  }
}

std::vector<int64_t> sent_packing_bytes(const Collective& collective,
                                        absl::Span<const MemberMemory> members) {
  std::vector<int64_t> bytes(members.size());
  if (collective.kind() != OpKind::kExchange && collective.kind() != OpKind::kReduceBoxes) {
    return bytes;
  }
  const int64_t size = dtype_size(collective.dtype());
  const Requests requests = read_requests(members);
  for (size_t peer = 0; peer < requests.size(); ++peer) {
    if (!requests[peer].has_value()) continue;
    for (const BoxPull& pull : *requests[peer]) {
      if (pull.source == static_cast<int>(peer)) continue;
      if (contiguous_offset(pull.source_box, pull.box).has_value()) continue;
      bytes[pull.source] += block_bytes(pull.box.num_elements() * size);
    }
  }
  return bytes;
}

StatusOr<Schedule> make_schedule(const Collective& collective,
                                 absl::Span<const MemberMemory> members, Sums sums,
                                 const PackingPools& pools) {
  return Planner(collective, members, sums, pools).plan();
}

}  // namespace tessera::nccl
