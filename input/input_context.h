// SPDX-License-Identifier: Apache-2.0
//
// InputContext: tells a function which of several input pipelines to make, and for how many
// replicas.
//
//   [](const InputContext& context) -> StatusOr<input::Dataset> {
//     TESSERA_ASSIGN_OR_RETURN(const int64_t batch, context.get_per_replica_batch_size(128));
//     return images.shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch);
//   }
//
// TF: tf.distribute.InputContext, hence the namespace. Strategies and parameter servers both pass
// one to functions that make data sets.
#ifndef TESSERA_INPUT_INPUT_CONTEXT_H_
#define TESSERA_INPUT_INPUT_CONTEXT_H_

#include <cstdint>

#include "base/public.h"
#include "base/status.h"

namespace TESSERA_PUBLIC tessera {
namespace distribute {

struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;  // from 0
  int num_replicas_in_sync = 1;

  // The part of a global batch that each replica gets. InvalidArgument for a batch smaller than 1,
  // and for a batch that the replicas do not divide.
  StatusOr<int64_t> get_per_replica_batch_size(int64_t global_batch_size) const;
};

}  // namespace distribute
}  // namespace tessera

#endif  // TESSERA_INPUT_INPUT_CONTEXT_H_
