// SPDX-License-Identifier: Apache-2.0
//
// RemoteDataset: a data set of which each worker reads its own pipeline.
//
//   functions.add_dataset("train", [](const InputContext& context) -> StatusOr<input::Dataset> {
//     ...                                                       in the program of the workers
//   });
//   StatusOr<RemoteDataset> train = coordinator.create_per_worker_dataset("train");
//   coordinator.schedule("step", {*train});                     in the program of the chief
//
// Each worker has one position in it. Only the closures of that worker that count move it.
//
// A handle: cheap to copy, immutable, safe to use from any thread. Valid only with the
// ClusterCoordinator that made it.
// TF: ClusterCoordinator.create_per_worker_dataset.
#ifndef TESSERA_SERVERS_REMOTE_DATASET_H_
#define TESSERA_SERVERS_REMOTE_DATASET_H_

#include <memory>
#include <utility>
#include <vector>

#include "base/public.h"
#include "input/source.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

namespace internal {

struct DatasetPlace;
struct RemoteDatasetAccess;

}  // namespace internal

class RemoteDataset {
 public:
  // A move copies: the moved-from handle stays valid.
  RemoteDataset(const RemoteDataset&) = default;
  RemoteDataset& operator=(const RemoteDataset&) = default;

  // The spec of a batch, merged from Dataset::element_spec() on all workers: a size in which they
  // differ is -1. Empty if no worker has an element.
  const std::vector<input::TensorSpec>& element_spec() const;

 private:
  friend struct internal::RemoteDatasetAccess;
  explicit RemoteDataset(std::shared_ptr<const internal::DatasetPlace> place)
      : place_(std::move(place)) {}

  std::shared_ptr<const internal::DatasetPlace> place_;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_SERVERS_REMOTE_DATASET_H_
