// SPDX-License-Identifier: Apache-2.0
//
// restore() and restore_into() of checkpoint.h.
//
//   round 1   do all clients ask for the same?       client 0 sends the Source
//   local     plan, read, compare checksums
//   round 2   has every client read its parts?       tensors are given out, or one error
//
// Where a file is missing in round 2, client 0 reads the manifest again: the checkpoint may have
// been overwritten. It sends the new Source, and all read again, once.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/exception_status.h"
#include "base/reduce_op.h"
#include "base/text.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/box_reader.h"
#include "checkpoint/box_reads.h"
#include "checkpoint/call_agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/source.h"
#include "dtensor/client_messages.h"
#include "dtensor/relayout.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint {
namespace {

using internal::BlockReader;
using internal::BoxReader;
using internal::CallText;
using internal::PieceIndex;
using internal::Rounds;
using internal::Source;

// Results of round 2.
constexpr absl::string_view kDone = "done";
constexpr absl::string_view kAgain = "again ";
// The value of a client that misses a file.
constexpr absl::string_view kMissing = "missing ";

// Whether the device at `position` reads its box: a new partial tensor has the value in one term,
// and the identity of its reduction in the others.
bool reads_box(const Layout& layout, int64_t position) {
  if (!layout.is_partial() || layout.partial_index(position) == 0) return true;
  return *layout.partial_op() != ReduceOp::kSum && *layout.partial_op() != ReduceOp::kProd;
}

// Reads the parts of this client.
class Reading {
 public:
  Reading(const Client& client, const Source& source, const RestorePlan& plan,
          const RestoreOptions& options)
      : client_(client),
        source_(source),
        plan_(plan),
        options_(options),
        blocks_(source, options.verify),
        boxes_(source, blocks_, options.join_gap_bytes) {}

  // The tensors in the layouts in which they are read.
  StatusOr<std::vector<DTensor>> run() {
    for (const TargetRead& target : plan_.targets()) {
      indices_.emplace_back(&source_.info->tensors[target.tensor]);
    }
    for (size_t i = 0; i < indices_.size(); ++i) want(i);
    std::vector<std::optional<DTensor>> tensors(indices_.size());
    for (const size_t i : order()) {
      TESSERA_ASSIGN_OR_RETURN(tensors[i], read(i, tensors));
    }
    if (options_.verify == RestoreOptions::Verify::kAll && source_.is_checkpoint) {
      TESSERA_RETURN_IF_ERROR(verify_share());
    }
    std::vector<DTensor> result;
    for (std::optional<DTensor>& tensor : tensors) result.push_back(*std::move(tensor));
    return result;
  }

 private:
  void want(size_t i) {
    const TargetRead& target = plan_.targets()[i];
    const Shape& shape = indices_[i].tensor().shape;
    std::vector<Box> known;
    for (const Device& device : client_.local_devices()) {
      const std::optional<int64_t> position = target.read.mesh().position_of_device(device.id);
      if (!position.has_value() || !reads_box(target.read, *position)) continue;
      const Box box = target.read.box(shape, *position);
      if (std::find(known.begin(), known.end(), box) != known.end()) continue;
      boxes_.want(indices_[i], target.dtype, box);
      known.push_back(box);
    }
  }

  // About the order of the files, so that a block of many tensors is read once.
  std::vector<size_t> order() const {
    std::vector<size_t> result(indices_.size());
    std::iota(result.begin(), result.end(), size_t{0});
    const auto place = [&](size_t i) {
      const std::vector<Piece>& pieces = indices_[i].tensor().pieces;
      return pieces.empty() ? std::make_pair(int64_t{0}, int{0})
                            : std::make_pair(pieces[0].offset, pieces[0].file);
    };
    std::stable_sort(result.begin(), result.end(),
                     [&](size_t a, size_t b) { return place(a) < place(b); });
    return result;
  }

  StatusOr<DTensor> read(size_t i, absl::Span<const std::optional<DTensor>> tensors) {
    const TargetRead& target = plan_.targets()[i];
    for (size_t other = 0; other < tensors.size(); ++other) {
      if (tensors[other].has_value() && plan_.targets()[other].tensor == target.tensor &&
          plan_.targets()[other].read == target.read) {
        return *tensors[other];
      }
    }
    Status status;
    DTensor tensor = tessera::internal::from_function_raw(
        target.dtype, indices_[i].tensor().shape, target.read, [&](const Box& box, std::byte* out) {
          if (status.ok()) status = boxes_.read(indices_[i], target.dtype, box, out);
        });
    status.Update(tensor.status());
    TESSERA_RETURN_IF_ERROR(status);
    return tensor;
  }

  // Each client compares a share of the blocks of all files that are read from.
  Status verify_share() {
    std::set<int> files;
    for (const PieceIndex& index : indices_) {
      for (const Piece& piece : index.tensor().pieces) files.insert(piece.file);
    }
    int64_t number = 0;
    for (const int file : files) {
      const int64_t blocks = internal::num_blocks(source_.info->files[file].bytes);
      for (int64_t block = 0; block < blocks; ++block, ++number) {
        if (number % client_.num_clients() != client_.client_id()) continue;
        TESSERA_RETURN_IF_ERROR(blocks_.verify_block(file, block));
      }
    }
    return absl::OkStatus();
  }

  const Client& client_;
  const Source& source_;
  const RestorePlan& plan_;
  const RestoreOptions& options_;
  BlockReader blocks_;
  BoxReader boxes_;
  std::vector<PieceIndex> indices_;  // by target
};

CallText describe_call(absl::string_view call, const std::string& path,
                       absl::Span<const Target> targets, const RestoreOptions& options) {
  CallText text;
  text.call = absl::StrCat(call, " ", quoted_whole(path));
  text.lines.push_back(absl::StrCat("options verify ", static_cast<int>(options.verify), ", reads ",
                                    static_cast<int>(options.reads), ", join_gap_bytes ",
                                    options.join_gap_bytes));
  for (const Target& target : targets) {
    const StatusOr<Layout>& layout = target.layout.layout();
    text.lines.push_back(
        absl::StrCat("target ", in_quotes(target.name), " under ",
                     layout.ok() ? layout->to_string_with_mesh() : std::string("an error")));
  }
  return text;
}

Status check_targets(const Client& client, absl::Span<const Target> targets) {
  for (const Target& target : targets) {
    const StatusOr<Layout>& layout = target.layout.layout();
    if (!layout.ok()) {
      return with_context(layout.status(), absl::StrCat("target ", in_quotes(target.name)));
    }
    TESSERA_RETURN_IF_ERROR(tessera::internal::check_mesh_of(
        client, layout->mesh(), absl::StrCat("target ", in_quotes(target.name))));
  }
  return absl::OkStatus();
}

// Client 0 judges the values of round 2.
Rounds::Value judge(const Client& client, const std::string& path, const Source& source,
                    bool may_repeat, absl::Span<const Rounds::Value> values) {
  std::vector<Rounds::Value> judged;
  bool is_missing = false;
  for (const Rounds::Value& value : values) {
    absl::string_view text = value.ok() ? absl::string_view(*value) : "";
    if (absl::ConsumePrefix(&text, kMissing)) {
      is_missing = true;
      judged.emplace_back(absl::DataLossError(text));
    } else {
      judged.push_back(value);
    }
  }
  if (is_missing && may_repeat && source.is_checkpoint) {
    const StatusOr<Source> now = internal::open_source(path);
    if (absl::IsNotFound(now.status())) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint ", quoted_whole(path), " was removed while it was read"));
    }
    if (now.ok() && now->info->save_id != source.info->save_id) {
      return absl::StrCat(kAgain, internal::encode_source(*now));
    }
  }
  TESSERA_RETURN_IF_ERROR(tessera::internal::first_error(client, judged));
  return std::string(kDone);
}

// `check`: further conditions, which depend on `more` alone: arguments that all clients compare.
StatusOr<std::vector<DTensor>> restore_checked(
    const Client& client, absl::string_view call, const std::string& path,
    absl::Span<const Target> targets, const RestoreOptions& options,
    absl::Span<const std::string> more, absl::FunctionRef<Status(const RestorePlan&)> check) {
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, call));
  Rounds& rounds = tessera::internal::rounds_of(client);
  CallText text = describe_call(call, path, targets, options);
  text.lines.insert(text.lines.end(), more.begin(), more.end());
  TESSERA_ASSIGN_OR_RETURN(
      std::string encoded,
      internal::agree_on_call(
          client, rounds, text, check_targets(client, targets), [&]() -> Rounds::Value {
            TESSERA_ASSIGN_OR_RETURN(const Source source, internal::open_source(path));
            return internal::encode_source(source);
          }));
  for (const bool may_repeat : {true, false}) {
    TESSERA_ASSIGN_OR_RETURN(const Source source, internal::decode_source(encoded));
    TESSERA_ASSIGN_OR_RETURN(const RestorePlan plan,
                             plan_restore(source.info, targets, options, client.topology()));
    TESSERA_RETURN_IF_ERROR(check(plan));
    // An exception is an error of all clients, which wait for the next round.
    StatusOr<std::vector<DTensor>> tensors = call_guarded<StatusOr<std::vector<DTensor>>>(
        [&] { return Reading(client, source, plan, options).run(); });
    Rounds::Value mine = std::string();
    if (internal::is_missing_file(tensors.status())) {
      mine = absl::StrCat(kMissing, tensors.status().message());
    } else if (!tensors.ok()) {
      mine = tensors.status();
    }
    TESSERA_ASSIGN_OR_RETURN(
        encoded,
        rounds.agree_all(client, text.call, mine, [&](absl::Span<const Rounds::Value> values) {
          return judge(client, path, source, may_repeat, values);
        }));
    if (encoded != kDone) {
      encoded.erase(0, kAgain.size());
      continue;
    }
    for (size_t i = 0; i < tensors->size(); ++i) {
      const TargetRead& target = plan.targets()[i];
      if (target.read == target.target) continue;
      (*tensors)[i] = relayout(std::move((*tensors)[i]), target.target);
    }
    return tensors;
  }
  return absl::InternalError("a restore ended without a verdict; this is a bug of Tessera");
}

}  // namespace

StatusOr<std::vector<DTensor>> restore(const Client& client, absl::string_view path,
                                       absl::Span<const Target> targets,
                                       const RestoreOptions& options) {
  return restore_checked(client, "restore", std::string(path), targets, options, {},
                         [](const RestorePlan&) { return absl::OkStatus(); });
}

Status restore_into(const Client& client, absl::string_view path, absl::Span<Variable> variables,
                    const RestoreOptions& options) {
  std::vector<Target> targets;
  std::vector<std::string> texts;
  for (const Variable& variable : variables) {
    targets.push_back({variable.name(), variable.layout()});
    texts.push_back(absl::StrCat("variable ", in_quotes(variable.name()), " is ",
                                 dtype_name(variable.dtype()), " ",
                                 shape_to_string(variable.shape())));
  }
  const auto check = [&](const RestorePlan& plan) -> Status {
    for (size_t i = 0; i < variables.size(); ++i) {
      const TargetRead& target = plan.targets()[i];
      const Shape& saved = plan.info().tensors[target.tensor].shape;
      const Variable& variable = variables[i];
      if (saved == variable.shape() && target.dtype == variable.dtype()) continue;
      return absl::InvalidArgumentError(absl::StrCat(texts[i], ", and the saved tensor is ",
                                                     dtype_name(target.dtype), " ",
                                                     shape_to_string(saved)));
    }
    return absl::OkStatus();
  };
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<DTensor> tensors,
      restore_checked(client, "restore_into", std::string(path), targets, options, texts, check));
  for (size_t i = 0; i < variables.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(variables[i].assign(tensors[i]));
  }
  return absl::OkStatus();
}

}  // namespace tessera::checkpoint
