// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/shape.h"
#include "base/text.h"
#include "checkpoint/box_reads.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/read_layout.h"

namespace tessera::checkpoint {
namespace {

using internal::PieceIndex;
using internal::ReadTotals;

// The box that the device at `position` reads; nothing where it reads none.
std::optional<Box> box_read(const Layout& layout, const Shape& shape, int64_t position) {
  if (position < 0 || position >= layout.mesh().size()) return std::nullopt;
  if (layout.partial_index(position) != 0) return std::nullopt;
  Box box = layout.box(shape, position);
  if (box.is_empty()) return std::nullopt;
  return box;
}

// Numbers the clients of devices. A topology of listed devices says only whether two devices share
// a client: it is asked about the first device of each client of the host.
class Clients {
 public:
  explicit Clients(const Topology& topology) : topology_(topology) {}

  int64_t client_of(int device) {
    if (!topology_.num_devices().has_value()) return device / topology_.block_sizes().first;
    std::vector<int>& firsts = firsts_[topology_.host(device)];
    for (const int first : firsts) {
      if (topology_.link(first, device) == LinkClass::kProcess) return first;
    }
    firsts.push_back(device);
    return device;
  }

 private:
  const Topology& topology_;
  absl::flat_hash_map<int64_t, std::vector<int>> firsts_;  // By host.
};

// The reads of all clients, each of which reads a box once for all of its devices.
struct ClientTotals {
  int64_t wanted_bytes = 0;  // Without the gaps that are read as well.
  int64_t read_bytes = 0;
  bool is_shared = false;  // Whether two clients of a host read the same box.
};

ClientTotals totals_of_clients(const PieceIndex& index, DType dtype, const Layout& layout,
                               const Topology& topology, int64_t join_gap_bytes) {
  const Shape& shape = index.tensor().shape;
  ClientTotals result;
  Clients clients(topology);
  absl::flat_hash_map<Box, ReadTotals> totals;
  absl::flat_hash_set<std::pair<int64_t, Box>> of_client;
  absl::flat_hash_set<std::pair<int64_t, Box>> of_host;
  for (int64_t position = 0; position < layout.mesh().size(); ++position) {
    const std::optional<Box> box = box_read(layout, shape, position);
    if (!box.has_value()) continue;
    const int device = *layout.mesh().device_at(position);
    if (!of_client.insert({clients.client_of(device), *box}).second) continue;
    result.is_shared |= !of_host.insert({topology.host(device), *box}).second;
    const auto [found, is_new] = totals.try_emplace(*box);
    if (is_new) {
      found->second = internal::totals_of_reads(index, dtype, *box, join_gap_bytes);
    }
    result.read_bytes += found->second.bytes;
    result.wanted_bytes += num_bytes(box->sizes, dtype);
  }
  return result;
}

// The layout to read in; see plan_restore().
StatusOr<Layout> layout_to_read(const PieceIndex& index, DType dtype, const Layout& target,
                                const RestoreOptions& options, const Topology& topology) {
  if (options.reads == RestoreOptions::Reads::kDirect) return target;
  const Shape& shape = index.tensor().shape;
  StatusOr<Layout> once = internal::read_layout(target, shape, topology);
  if (options.reads == RestoreOptions::Reads::kOnce) return once;
  if (!once.ok() || equivalent(*once, target, shape)) return target;
  const auto totals_of = [&](const Layout& layout) {
    return totals_of_clients(index, dtype, layout, topology, options.join_gap_bytes);
  };
  const ClientTotals direct = totals_of(target);
  const bool is_wasteful = direct.is_shared || direct.read_bytes / 2 > direct.wanted_bytes;
  if (is_wasteful && totals_of(*once).read_bytes < direct.read_bytes) return once;
  return target;
}

}  // namespace

struct RestorePlan::Rep {
  std::shared_ptr<const Info> info;
  int64_t join_gap_bytes;
  std::vector<TargetRead> targets;
  absl::flat_hash_map<int, PieceIndex> indices;  // By tensor.

  const Shape& shape_of(const TargetRead& target) const {
    return info->tensors[target.tensor].shape;
  }

  // Calls fn for each distinct box that the device at `position` reads.
  void for_each_box(int64_t position,
                    absl::FunctionRef<void(const TargetRead&, const Box&)> fn) const {
    absl::flat_hash_set<std::pair<int, Box>> seen;
    for (const TargetRead& target : targets) {
      const std::optional<Box> box = box_read(target.read, shape_of(target), position);
      if (box.has_value() && seen.insert({target.tensor, *box}).second) fn(target, *box);
    }
  }

  ReadTotals totals_of(const TargetRead& target, const Box& box) const {
    return internal::totals_of_reads(indices.at(target.tensor), target.dtype, box, join_gap_bytes);
  }

  ReadTotals totals_at(int64_t position) const {
    ReadTotals totals;
    for_each_box(position, [&](const TargetRead& target, const Box& box) {
      const ReadTotals next = totals_of(target, box);
      totals.reads += next.reads;
      totals.bytes += next.bytes;
    });
    return totals;
  }
};

absl::Span<const TargetRead> RestorePlan::targets() const { return rep_->targets; }

const Info& RestorePlan::info() const { return *rep_->info; }

std::vector<FileRead> RestorePlan::reads(int64_t position) const {
  std::vector<FileRead> reads;
  rep_->for_each_box(position, [&](const TargetRead& target, const Box& box) {
    const auto add = [&](const internal::JoinedRead& read) {
      reads.push_back({read.file, read.offset, read.bytes});
      return absl::OkStatus();
    };
    internal::for_each_read(rep_->indices.at(target.tensor), target.dtype, box,
                            rep_->join_gap_bytes, add)
        .IgnoreError();  // add() does not fail.
  });
  return reads;
}

int64_t RestorePlan::num_reads(int64_t position) const { return rep_->totals_at(position).reads; }

int64_t RestorePlan::bytes(int64_t position) const { return rep_->totals_at(position).bytes; }

std::string RestorePlan::explain() const {
  std::string text = absl::StrCat("restore ", rep_->targets.size(), " tensors\n");
  for (const TargetRead& target : rep_->targets) {
    const TensorInfo& tensor = rep_->info->tensors[target.tensor];
    ReadTotals all;
    ReadTotals most;
    int64_t busiest = 0;
    absl::flat_hash_map<Box, ReadTotals> totals;
    for (int64_t position = 0; position < target.read.mesh().size(); ++position) {
      const std::optional<Box> box = box_read(target.read, tensor.shape, position);
      if (!box.has_value()) continue;
      const auto [found, is_new] = totals.try_emplace(*box);
      if (is_new) found->second = rep_->totals_of(target, *box);
      all.reads += found->second.reads;
      all.bytes += found->second.bytes;
      if (found->second.bytes <= most.bytes) continue;
      most = found->second;
      busiest = position;
    }
    absl::StrAppend(&text, "  ", in_quotes(tensor.name), ", ", tensor.dtype, " ",
                    shape_to_string(tensor.shape), " in ", tensor.pieces.size(), " pieces, to ",
                    target.target.to_string_with_mesh());
    if (!(target.read == target.target)) {
      absl::StrAppend(&text, ", read once per host as ", target.read.to_string());
    }
    absl::StrAppend(&text, ": ", all.reads, " reads, ", all.bytes, " bytes; most at position ",
                    busiest, ": ", most.reads, " reads, ", most.bytes, " bytes\n");
  }
  return text;
}

StatusOr<RestorePlan> plan_restore(const Info& info, absl::Span<const Target> targets,
                                   const RestoreOptions& options, const Topology& topology) {
  return plan_restore(std::make_shared<const Info>(info), targets, options, topology);
}

StatusOr<RestorePlan> plan_restore(std::shared_ptr<const Info> info,
                                   absl::Span<const Target> targets, const RestoreOptions& options,
                                   const Topology& topology) {
  if (options.join_gap_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("join_gap_bytes is ", options.join_gap_bytes, "; it must be 0 or more"));
  }
  absl::flat_hash_map<absl::string_view, int> tensors;
  for (size_t i = 0; i < info->tensors.size(); ++i) {
    tensors.emplace(info->tensors[i].name, static_cast<int>(i));
  }
  auto rep = std::make_shared<RestorePlan::Rep>();
  rep->info = info;
  rep->join_gap_bytes = options.join_gap_bytes;
  for (const Target& target : targets) {
    const auto found = tensors.find(target.name);
    if (found == tensors.end()) {
      std::vector<std::string> names;
      for (const TensorInfo& tensor : info->tensors) names.push_back(tensor.name);
      return absl::NotFoundError(
          absl::StrCat("tensor ", in_quotes(target.name), " is not among the ", names.size(),
                       " tensors that were saved", did_you_mean(target.name, names)));
    }
    const TensorInfo& tensor = info->tensors[found->second];
    TESSERA_ASSIGN_OR_RETURN(const Layout layout, target.layout.layout());
    const Status legal = layout.validate_shape(tensor.shape);
    if (!legal.ok()) return with_context(legal, absl::StrCat("tensor ", in_quotes(tensor.name)));
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, internal::dtype_of(tensor));
    const PieceIndex& index = rep->indices.try_emplace(found->second, &tensor).first->second;
    TESSERA_ASSIGN_OR_RETURN(Layout read, layout_to_read(index, dtype, layout, options, topology));
    rep->targets.push_back({found->second, dtype, layout, std::move(read)});
  }
  return RestorePlan(std::move(rep));
}

}  // namespace tessera::checkpoint
