// SPDX-License-Identifier: Apache-2.0
//
// The values of a run on disk, in the namespace tessera::checkpoint: saved and restored
// (checkpoint/checkpoint.h), saved in the background (checkpoint/pending.h), and kept by steps
// (checkpoint/checkpointer.h).
#ifndef TESSERA_TESSERA_CHECKPOINT_H_
#define TESSERA_TESSERA_CHECKPOINT_H_

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/pending.h"
#include "tessera/core.h"

#endif  // TESSERA_TESSERA_CHECKPOINT_H_
