// SPDX-License-Identifier: Apache-2.0
//
// Files of other tools, which are read and written by shards (files/array_files.h), and shards for
// other libraries (files/dlpack.h).
#ifndef TESSERA_TESSERA_FILES_H_
#define TESSERA_TESSERA_FILES_H_

#include "files/array_files.h"
#include "files/dlpack.h"
#include "tessera/core.h"

#endif  // TESSERA_TESSERA_FILES_H_
