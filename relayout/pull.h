// SPDX-License-Identifier: Apache-2.0
//
// Pull: one copy that a device makes in a step of a relayout.
#ifndef TESSERA_RELAYOUT_PULL_H_
#define TESSERA_RELAYOUT_PULL_H_

#include "base/public.h"
#include "base/shape.h"

namespace TESSERA_PUBLIC tessera {

// One copy of a move: `box` out of the buffer of `source_device`, which holds `source_box`. The
// source may be the device itself. Boxes are in global indices and not empty.
struct Pull {
  int source_device;
  Box source_box;
  Box box;

  friend bool operator==(const Pull& a, const Pull& b) {
    return a.source_device == b.source_device && a.source_box == b.source_box && a.box == b.box;
  }
};

}  // namespace tessera

#endif  // TESSERA_RELAYOUT_PULL_H_
