// SPDX-License-Identifier: Apache-2.0
//
// CsvOptions: how the lines of a CSV file are read.
#ifndef TESSERA_INPUT_CSV_OPTIONS_H_
#define TESSERA_INPUT_CSV_OPTIONS_H_

#include <cstdint>

#include "base/public.h"

namespace TESSERA_PUBLIC tessera {
namespace input {

struct CsvOptions {
  // Lines at the start of each file that hold no values, such as the names of the columns.
  int64_t skip_lines = 0;
};

}  // namespace input
}  // namespace tessera

#endif  // TESSERA_INPUT_CSV_OPTIONS_H_
