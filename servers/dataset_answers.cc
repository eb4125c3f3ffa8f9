// SPDX-License-Identifier: Apache-2.0
#include "servers/dataset_answers.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "servers/outcome.h"
#include "servers/wire.h"

namespace tessera::distribute::internal {
namespace {

std::string text_of(const DatasetAnswers::Spec& spec) {
  return absl::StrJoin(spec, ", ", [](std::string* out, const input::TensorSpec& tensor) {
    absl::StrAppend(out, tensor.to_string());
  });
}

}  // namespace

void DatasetAnswers::add(const std::string& worker, const grpc::Status& status,
                         const rpc::MakeDatasetResponse& response) {
  const Status outcome = status_of(response.outcome());
  StatusOr<Spec> spec = spec_of(response.spec());
  if (!outcome.ok()) {
    spec = with_context(outcome, worker);
  } else if (!spec.ok()) {
    spec =
        absl::InternalError(absl::StrCat(worker, ": ", spec.status().message(), "; ", kSameBuild));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  // A call fails with its connection: the worker is lost, or the next heartbeats will find the
  // loss.
  if (status.ok() && !response.was_given_up()) answers_.emplace(worker, std::move(spec));
  --num_left_;
  changed_.notify_all();
}

StatusOr<std::optional<DatasetAnswers::Spec>> DatasetAnswers::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return num_left_ == 0; });
  std::optional<Spec> merged;
  std::string first;  // the worker with the first spec that is not empty
  for (const auto& [worker, spec] : answers_) {
    TESSERA_RETURN_IF_ERROR(spec);
    const Spec before = merged.value_or(Spec());
    merged = merge_specs(before, *spec);
    if (!merged.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data set ", in_quotes(dataset_), " has batches of ", text_of(before),
                       " on ", first, ", and of ", text_of(*spec), " on ", worker,
                       "; make elements of the same dtypes and ranks on all"));
    }
    if (first.empty() && !spec->empty()) first = worker;
  }
  return merged;
}

std::optional<DatasetAnswers::Spec> merge_specs(const DatasetAnswers::Spec& a,
                                                const DatasetAnswers::Spec& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  if (a.size() != b.size()) return std::nullopt;
  DatasetAnswers::Spec merged = a;
  for (size_t k = 0; k < a.size(); ++k) {
    if (a[k].dtype != b[k].dtype || a[k].shape.size() != b[k].shape.size()) return std::nullopt;
    for (size_t dim = 0; dim < a[k].shape.size(); ++dim) {
      if (a[k].shape[dim] != b[k].shape[dim]) merged[k].shape[dim] = -1;
    }
  }
  return merged;
}

}  // namespace tessera::distribute::internal
