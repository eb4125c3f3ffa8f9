// SPDX-License-Identifier: Apache-2.0
//
// Random programs: what conformance.h says of RandomProgram. Values are bytes of a dtype that is
// known at run time; all members draw the same operation from its number alone.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/counts.h"
#include "collectives/testing/conformance.h"
#include "collectives/testing/conformance_values.h"
#include "collectives/testing/start_operation.h"

namespace tessera::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// ---- Values and the oracle.

Bytes random_values(DType dtype, uint64_t seed, int member, int64_t n) {
  return visit_dtype(dtype, [&]<class T>() {
    Bytes bytes(static_cast<size_t>(n) * sizeof(T));
    for (int64_t i = 0; i < n; ++i) {
      const T value = value_of<T>(seed, member, i);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
    return bytes;
  });
}

Bytes reduced(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  return visit_dtype(dtype, [&]<class T>() {
    Bytes bytes(inputs[0].size());
    std::vector<T> terms(inputs.size());
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      for (size_t k = 0; k < terms.size(); ++k) {
        T term;
        std::memcpy(&term, inputs[k].data() + at, sizeof(T));
        terms[k] = term;
      }
      const T value = reduce_scalars(op, terms);
      std::memcpy(bytes.data() + at, &value, sizeof(T));
    }
    return bytes;
  });
}

Status expect_bytes(DType dtype, const std::byte* got, const Bytes& want, absl::string_view what) {
  if (std::equal(want.begin(), want.end(), got)) return absl::OkStatus();
  return visit_dtype(dtype, [&]<class T>() -> Status {
    for (size_t at = 0; at < want.size(); at += sizeof(T)) {
      T a, b;
      std::memcpy(&a, got + at, sizeof(T));
      std::memcpy(&b, want.data() + at, sizeof(T));
      if (same(a, b)) continue;
      return absl::InternalError(absl::StrCat(what, ": element ", at / sizeof(T), " of ",
                                              want.size() / sizeof(T), " is ", show(a),
                                              ", expected ", show(b)));
    }
    return absl::OkStatus();
  });
}

// ---- Operations.

struct RandomOp {
  uint64_t seed = 0;
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp reduction = ReduceOp::kSum;
  int num_members = 1;
  int root = 0;
  int peer = 0;  // of the root, in a message
  bool in_place = false;
  bool in_arena = false;
  std::vector<int64_t> counts;  // elements by member
  Shape shape;                  // of boxes
  std::vector<Box> from, to;    // by member

  uint64_t draw(uint64_t what, uint64_t below) const { return mix(seed, what) % below; }
  int64_t element_bytes() const { return dtype_size(dtype); }
  // all_to_all: what member `from_member` sends to `to_member`.
  int64_t sent(int from_member, int to_member) const {
    return counts[(from_member * 3 + to_member * 5 + root) % num_members];
  }
};

// A size between none and `largest`: one in eight is next to none, half are small.
int64_t draw_size(uint64_t bits, int64_t largest) {
  const int64_t bounds[] = {4, 300, 300, 300, 300, largest, largest, largest};
  return static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(bounds[bits % 8]));
}

std::vector<Box> draw_split(const RandomOp& op, uint64_t what) {
  const uint64_t dim = op.draw(what, op.shape.size() + 1);
  if (dim == op.shape.size()) return std::vector<Box>(op.num_members, whole_box(op.shape));
  return cut(op.shape, static_cast<int>(dim), op.num_members);
}

RandomOp draw_op(uint64_t seed, OpKind kind, int num_members, int64_t largest) {
  RandomOp op;
  op.seed = seed;
  op.num_members = num_members;
  op.kind = kind;
  if (op.kind == OpKind::kSendRecv && num_members == 1) op.kind = OpKind::kAllReduce;
  op.dtype = static_cast<DType>(op.draw(2, kNumDTypes));
  uint64_t reduction = op.draw(3, kNumReduceOps);
  while (!validate_reduction(static_cast<ReduceOp>(reduction), op.dtype).ok()) {
    reduction = (reduction + 1) % kNumReduceOps;
  }
  op.reduction = static_cast<ReduceOp>(reduction);
  const auto members = static_cast<uint64_t>(num_members);
  op.root = static_cast<int>(op.draw(4, members));
  op.peer = (op.root + 1 + static_cast<int>(op.draw(5, 2))) % num_members;
  if (op.peer == op.root) op.peer = (op.root + 1) % num_members;
  op.in_place = op.draw(6, 2) == 0;
  op.in_arena = op.draw(7, 2) == 0;
  const int64_t size = draw_size(mix(seed, 8), largest);
  const bool even = op.draw(9, 2) == 0;
  for (int k = 0; k < num_members; ++k) {
    const auto part = static_cast<uint64_t>(size / num_members);
    const uint64_t uneven = op.draw(100 + k, 4) == 0 ? 0 : op.draw(1000 + k, 2 * part + 2);
    op.counts.push_back(static_cast<int64_t>(even ? part : uneven));
  }
  const auto rank = static_cast<int>(op.draw(10, 4));
  for (int dim = 0; dim < rank; ++dim) {
    op.shape.push_back(static_cast<int64_t>(op.draw(11 + dim, rank == 1 ? 500 : 12)));
  }
  op.from = op.kind == OpKind::kReduceBoxes ? std::vector<Box>(num_members, whole_box(op.shape))
                                            : draw_split(op, 20);
  op.to = draw_split(op, 21);
  return op;
}

// The input of the member at `position`; in an exchange and a message, by the sender's number.
Bytes input_of(const RandomOp& op, int position) {
  const auto values = [&](int64_t n) { return random_values(op.dtype, op.seed, position, n); };
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
      return values(total(op.counts));
    case OpKind::kBroadcast:
    case OpKind::kScatter:
    case OpKind::kSendRecv:
      return values(position == op.root ? total(op.counts) : 0);
    case OpKind::kAllGather:
    case OpKind::kGather:
      return values(op.counts[position]);
    case OpKind::kAllToAll: {
      int64_t n = 0;
      for (int k = 0; k < op.num_members; ++k) n += op.sent(position, k);
      return values(n);
    }
    case OpKind::kReduceBoxes:
      return values(num_elements(op.shape));
    case OpKind::kExchange:
    case OpKind::kBarrier:
      return {};
  }
  return {};
}

Bytes part_of(const RandomOp& op, const Bytes& bytes, int64_t first, int64_t count) {
  const auto begin = bytes.begin() + first * op.element_bytes();
  return Bytes(begin, begin + count * op.element_bytes());
}

// The elements of `box` out of all of `shape`.
Bytes box_of(const RandomOp& op, const Bytes& whole, const Box& box) {
  Bytes bytes;
  for_each_index(box, [&](const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (size_t dim = 0; dim < index.size(); ++dim) at = at * op.shape[dim] + index[dim];
    const auto element = whole.begin() + at * op.element_bytes();
    bytes.insert(bytes.end(), element, element + op.element_bytes());
  });
  return bytes;
}

// The values of the whole tensor of an exchange: not the members' own values.
Bytes exchanged_tensor(const RandomOp& op) {
  return random_values(op.dtype, op.seed, 0, num_elements(op.shape));
}

// The output of the member at `position` when the operation is done.
Bytes output_of(const RandomOp& op, int position) {
  const bool is_root = position == op.root;
  const auto all = [&] {
    std::vector<Bytes> inputs;
    for (int k = 0; k < op.num_members; ++k) inputs.push_back(input_of(op, k));
    return inputs;
  };
  const auto joined = [&] {
    Bytes bytes;
    for (const Bytes& input : all()) bytes.insert(bytes.end(), input.begin(), input.end());
    return bytes;
  };
  const int64_t first = before(op.counts, position);
  switch (op.kind) {
    case OpKind::kAllReduce:
      return reduced(op.dtype, op.reduction, all());
    case OpKind::kReduce:
      return is_root ? reduced(op.dtype, op.reduction, all()) : Bytes();
    case OpKind::kReduceScatter:
      return part_of(op, reduced(op.dtype, op.reduction, all()), first, op.counts[position]);
    case OpKind::kBroadcast:
      return input_of(op, op.root);
    case OpKind::kScatter:
      return part_of(op, input_of(op, op.root), first, op.counts[position]);
    case OpKind::kSendRecv:
      return position == op.peer ? input_of(op, op.root) : Bytes();
    case OpKind::kAllGather:
      return joined();
    case OpKind::kGather:
      return is_root ? joined() : Bytes();
    case OpKind::kAllToAll: {
      Bytes bytes;
      for (int k = 0; k < op.num_members; ++k) {
        int64_t skipped = 0;
        for (int j = 0; j < position; ++j) skipped += op.sent(k, j);
        const Bytes part = part_of(op, input_of(op, k), skipped, op.sent(k, position));
        bytes.insert(bytes.end(), part.begin(), part.end());
      }
      return bytes;
    }
    case OpKind::kExchange:
      return box_of(op, exchanged_tensor(op), op.to[position]);
    case OpKind::kReduceBoxes:
      return box_of(op, reduced(op.dtype, op.reduction, all()), op.to[position]);
    case OpKind::kBarrier:
      return {};
  }
  return {};
}

// Where out is in in, or in in out, for an operation in place; in elements.
int64_t shift_in_place(const RandomOp& op, int position) {
  const bool whole =
      op.kind == OpKind::kAllReduce || op.kind == OpKind::kReduce || op.kind == OpKind::kBroadcast;
  return whole ? 0 : before(op.counts, position);
}

bool can_be_in_place(const RandomOp& op, int position) {
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      return true;
    case OpKind::kReduce:
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter:
      return position == op.root;
    default:
      return false;
  }
}

// ---- Memory.

// Bytes between two margins that no operation may write.
class Memory {
 public:
  static StatusOr<Memory> create(ArenaPool* pool, size_t num_bytes) {
    Memory memory;
    memory.num_bytes_ = num_bytes;
    const size_t with_margins = num_bytes + 2 * kMargin;
    if (pool != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(memory.block_, pool->allocate(with_margins));
      memory.first_ = memory.block_.data();
    } else {
      memory.heap_ = std::make_unique<std::byte[]>(with_margins);
      memory.first_ = memory.heap_.get();
    }
    std::fill_n(memory.first_, with_margins, kMark);
    return memory;
  }
  std::byte* data() { return first_ + kMargin; }
  size_t size() const { return num_bytes_; }
  Status check_margins() const {
    const auto is_mark = [](std::byte byte) { return byte == kMark; };
    return expect(
        std::all_of(first_, first_ + kMargin, is_mark) &&
            std::all_of(first_ + kMargin + num_bytes_, first_ + 2 * kMargin + num_bytes_, is_mark),
        "memory beside the buffers is not written");
  }

 private:
  static constexpr size_t kMargin = 64;
  static constexpr std::byte kMark{0x5a};
  ArenaPool::Block block_;
  std::unique_ptr<std::byte[]> heap_;
  std::byte* first_ = nullptr;
  size_t num_bytes_ = 0;
};

// One operation of one member that was started, with its memory.
struct Started {
  int64_t number = 0;
  RandomOp op;
  int position = 0;
  Bytes input, output;
  Memory in, out;  // in place: the larger one holds both
  std::byte* in_data = nullptr;
  std::byte* out_data = nullptr;
  bool in_place = false;
  std::string group;
  std::unique_ptr<Work> work;

  Status check() const {
    TESSERA_RETURN_IF_ERROR(expect_bytes(op.dtype, out_data, output, "out"));
    if (!in_place) TESSERA_RETURN_IF_ERROR(expect_bytes(op.dtype, in_data, input, "in"));
    TESSERA_RETURN_IF_ERROR(in.check_margins());
    return out.check_margins();
  }
  std::string to_string() const {
    return absl::StrCat(op_kind_name(op.kind), " ", reduce_op_name(op.reduction), " ",
                        dtype_name(op.dtype), ", counts ", absl::StrJoin(op.counts, " "), ", root ",
                        op.root, in_place ? ", in place" : "", op.in_arena ? ", in an arena" : "",
                        ", on members ", group);
  }
};

Status make_memory(ArenaPool* pool, Started& s) {
  ArenaPool* const source = s.op.in_arena ? pool : nullptr;
  s.in_place = s.op.in_place && can_be_in_place(s.op, s.position);
  const auto shift = static_cast<size_t>(shift_in_place(s.op, s.position) * s.op.element_bytes());
  const bool in_holds_out = s.input.size() >= s.output.size();
  const bool needs_in = !s.in_place || in_holds_out;
  TESSERA_ASSIGN_OR_RETURN(s.in, Memory::create(source, needs_in ? s.input.size() : 0));
  TESSERA_ASSIGN_OR_RETURN(
      s.out, Memory::create(source, !s.in_place || !in_holds_out ? s.output.size() : 0));
  s.in_data = s.in.data();
  s.out_data = s.out.data();
  if (s.in_place && in_holds_out) s.out_data = s.in_data + shift;
  if (s.in_place && !in_holds_out) s.in_data = s.out_data + shift;
  std::copy(s.input.begin(), s.input.end(), s.in_data);
  return absl::OkStatus();
}

// The boxes that the member copies or reduces, in an operation with boxes.
BoxExchange boxes_of(const Started& s) {
  const RandomOp& op = s.op;
  BoxExchange boxes = {op.from[s.position], op.to[s.position]};
  std::vector<BoxPull> pulls;
  for (int k = 0; k < op.num_members; ++k) {
    const Box box = intersect(op.from[k], boxes.out_box);
    // One replica is enough.
    const bool replicas = op.from[0] == op.from[op.num_members - 1];
    const bool chosen = !replicas || k == (op.root + s.position) % op.num_members;
    const bool wanted = op.kind == OpKind::kReduceBoxes || (chosen && !box.is_empty());
    if (wanted) pulls.push_back({k, op.from[k], box});
  }
  boxes.pulls = std::move(pulls);
  return boxes;
}

CollectiveSpec spec_of(const Started& s) {
  const RandomOp& op = s.op;
  CollectiveSpec spec = {.kind = op.kind, .dtype = op.dtype, .op = op.reduction, .root = op.root};
  switch (op.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kBroadcast:
      spec.count = total(op.counts);
      break;
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
      spec.count = total(op.counts);
      spec.counts = Counts::of(op.counts);
      break;
    case OpKind::kGather:
    case OpKind::kScatter:
      spec.counts = Counts::of(op.counts);
      break;
    case OpKind::kAllToAll: {
      std::vector<int64_t> sent, received;
      for (int k = 0; k < op.num_members; ++k) {
        sent.push_back(op.sent(s.position, k));
        received.push_back(op.sent(k, s.position));
      }
      spec.counts = Counts::of(sent);
      spec.received_counts = Counts::of(received);
      // Members may say that parts are equal, or tell each other.
      if (Counts::of(op.counts).are_equal() && op.draw(30, 2) == 0) spec.count = total(op.counts);
      break;
    }
    case OpKind::kExchange:
    case OpKind::kReduceBoxes:
    case OpKind::kSendRecv:
    case OpKind::kBarrier:
      break;
  }
  return spec;
}

Work start_collective(const Group& group, const Started& s) {
  const bool has_boxes = s.op.kind == OpKind::kExchange || s.op.kind == OpKind::kReduceBoxes;
  const BoxExchange boxes = has_boxes ? boxes_of(s) : BoxExchange();
  CollectiveSpec spec = spec_of(s);
  spec.boxes = &boxes;
  const int64_t size = s.op.element_bytes();
  return internal::start_operation(group, spec,
                                   {s.in_data, static_cast<int64_t>(s.input.size()) / size,
                                    s.out_data, static_cast<int64_t>(s.output.size()) / size});
}

// One end of the message between two of the members that run the operation.
Work start_message(const Group& all, absl::Span<const int> members, const Started& s) {
  return visit_dtype(s.op.dtype, [&]<class T>() {
    const bool sends = s.position == s.op.root;
    auto* const data = reinterpret_cast<T*>(sends ? s.in_data : s.out_data);
    const absl::Span<T> elements(data, (sends ? s.input.size() : s.output.size()) / sizeof(T));
    return sends ? all.send<T>(elements, members[s.op.peer])
                 : all.recv<T>(elements, members[s.op.root]);
  });
}

// Starts the part of `m` in an operation of these members. Messages need only the group of all
// members: a member that could not make another group would make its peer wait.
StatusOr<std::unique_ptr<Started>> start(const Member& m, absl::Span<const int> members,
                                         const RandomOp& op) {
  auto s = std::make_unique<Started>();
  s->op = op;
  s->position =
      static_cast<int>(std::find(members.begin(), members.end(), m.position) - members.begin());
  s->group = absl::StrJoin(members, " ");
  s->input = op.kind == OpKind::kExchange ? box_of(op, exchanged_tensor(op), op.from[s->position])
                                          : input_of(op, s->position);
  s->output = output_of(op, s->position);
  if (op.kind == OpKind::kSendRecv) {
    TESSERA_RETURN_IF_ERROR(make_memory(m.pool.get(), *s));
    s->work = std::make_unique<Work>(start_message(m.group, members, *s));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const Group group, m.subgroup(members));
    TESSERA_RETURN_IF_ERROR(make_memory(m.pool.get(), *s));
    s->work = std::make_unique<Work>(start_collective(group, *s));
  }
  return s;
}

bool takes_part(const RandomOp& op, int position) {
  return op.kind != OpKind::kSendRecv || position == op.root || position == op.peer;
}

// ---- Groups.

std::vector<int> prime_factors(int n) {
  std::vector<int> factors;
  for (int factor = 2; n > 1; ++factor) {
    for (; n % factor == 0; n /= factor) factors.push_back(factor);
  }
  return factors;
}

// The members that differ from `position` only along the axes in `mask`, in a mesh of all members
// whose axes are the prime factors of their number.
std::vector<int> along_axes(int num_members, uint64_t mask, int position) {
  std::vector<int> result = {0};
  int stride = num_members;
  int axis = 0;
  for (const int size : prime_factors(num_members)) {
    stride /= size;
    std::vector<int> longer;
    for (const int begin : result) {
      const int own = position / stride % size;
      for (int c = 0; c < size; ++c) {
        if ((mask >> axis & 1) != 0 || c == own) longer.push_back(begin + c * stride);
      }
    }
    result = std::move(longer);
    ++axis;
  }
  return result;
}

// Some members in some order.
std::vector<int> some_members(int num_members, uint64_t seed) {
  std::vector<int> order(num_members);
  for (int k = 0; k < num_members; ++k) order[k] = k;
  for (int k = num_members - 1; k > 0; --k) {
    std::swap(order[k], order[mix(seed, k) % static_cast<uint64_t>(k + 1)]);
  }
  order.resize(1 + mix(seed, num_members) % static_cast<uint64_t>(num_members));
  return order;
}

// The members that run operation `number` with this one; empty where it has no part in it.
std::vector<int> draw_group(const Member& m, const RandomProgram& program, uint64_t op_seed) {
  constexpr uint64_t kLists = 16;
  const int n = m.group.size();
  if (program.on_all_members) return along_axes(n, ~uint64_t{0}, m.position);
  if (mix(op_seed, 1) % 2 == 0) return along_axes(n, mix(op_seed, 2), m.position);
  std::vector<int> list = some_members(n, mix(program.seed, mix(op_seed, 3) % kLists));
  if (std::find(list.begin(), list.end(), m.position) == list.end()) list.clear();
  return list;
}

class Run {
 public:
  Run(const Member& m, const RandomProgram& program) : m_(m), program_(program) {}

  Status run() {
    Status status;
    for (int64_t k = 0; status.ok() && k < program_.num_ops; ++k) {
      status = step(program_.first_op + k);
    }
    while (status.ok() && !under_way_.empty()) status = finish_oldest();
    // Memory may go only when the backend is through with it.
    for (const auto& s : under_way_) s->work->wait(absl::Seconds(5)).IgnoreError();
    return wrong_.ok() ? status : wrong_;
  }

 private:
  Status step(int64_t number) {
    const uint64_t op_seed = mix(mix(program_.seed), static_cast<uint64_t>(number));
    const std::vector<int> positions = draw_group(m_, program_, op_seed);
    if (positions.empty()) return absl::OkStatus();
    const int first = *std::min_element(positions.begin(), positions.end());
    const uint64_t seed = mix(op_seed, 10 + static_cast<uint64_t>(first));
    const uint64_t kind = program_.on_all_members ? static_cast<uint64_t>(number) : mix(seed, 1);
    const RandomOp op = draw_op(seed, static_cast<OpKind>(kind % kNumOpKinds),
                                static_cast<int>(positions.size()), program_.largest_size);
    const auto own = std::find(positions.begin(), positions.end(), m_.position);
    if (!takes_part(op, static_cast<int>(own - positions.begin()))) return absl::OkStatus();
    StatusOr<std::unique_ptr<Started>> s = start(m_, positions, op);
    if (!s.ok()) return failed(s.status());
    (*s)->number = number;
    under_way_.push_back(*std::move(s));
    // Each member runs ahead by as much as it likes.
    const uint64_t most = mix(op_seed, 1000 + static_cast<uint64_t>(m_.position)) %
                          static_cast<uint64_t>(program_.most_under_way);
    while (under_way_.size() > most) TESSERA_RETURN_IF_ERROR(finish_oldest());
    return absl::OkStatus();
  }

  Status finish_oldest() {
    const Started& s = *under_way_.front();
    // A thread that waits without a deadline may run the operation itself.
    Status status = s.number % 2 == 0 ? s.work->await() : s.work->wait(absl::Minutes(5));
    // With a wrong result the program goes on: the others would wait for this member, and report
    // that first.
    const bool ended = status.ok();
    status = ended ? s.check() : failed(status);
    if (!status.ok()) {
      status = with_context(status, absl::StrCat("operation ", s.number, " with seed ",
                                                 program_.seed, ", ", s.to_string()));
    }
    under_way_.pop_front();
    if (!ended) return status;
    wrong_.Update(status);
    return absl::OkStatus();
  }

  Status failed(const Status& error) const {
    return program_.on_error ? program_.on_error(error) : error;
  }

  const Member& m_;
  const RandomProgram& program_;
  std::deque<std::unique_ptr<Started>> under_way_;
  Status wrong_;  // the first result that is
};

}  // namespace

Status run_random_program(const Member& m, const RandomProgram& program) {
  return Run(m, program).run();
}

Case random_ops_case(int num_members, int num_ops, uint64_t seed) {
  return {absl::StrCat("random_ops_", num_members), num_members, [=](const Member& m) {
            RandomProgram program;
            program.seed = seed;
            program.num_ops = num_ops;
            return run_random_program(m, program);
          }};
}

}  // namespace tessera::conformance
