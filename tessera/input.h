// SPDX-License-Identifier: Apache-2.0
//
// Data sets, in the namespace tessera::input: their elements (input/dataset.h), what they are read
// from (input/source.h), the part of one client (input/input_context.h), where an iterator is
// (input/iterator_state.h), batches as tensors (input/loader.h), and how far they are read
// (input/progress.h).
#ifndef TESSERA_TESSERA_INPUT_H_
#define TESSERA_TESSERA_INPUT_H_

#include "input/dataset.h"
#include "input/input_context.h"
#include "input/iterator_state.h"
#include "input/loader.h"
#include "input/progress.h"
#include "input/source.h"
#include "tessera/core.h"

#endif  // TESSERA_TESSERA_INPUT_H_
