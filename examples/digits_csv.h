// SPDX-License-Identifier: Apache-2.0
//
// digits.csv in memory: 8 x 8 images of handwritten digits, and the digits they show.
//
//   0,0,5,13,9,1,0,0,...,10,0,0,0,0     64 pixels, row by row, 0 (white) to 16 (black); the digit
//
// Every message about a malformed file starts with its name, the line and the column (both from
// 1), so that an editor can jump there.
#ifndef TESSERA_EXAMPLES_DIGITS_CSV_H_
#define TESSERA_EXAMPLES_DIGITS_CSV_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tessera/tessera.h"

namespace tessera::examples {

inline constexpr int64_t kNumPixels = 64;
inline constexpr int64_t kNumDigits = 10;
inline constexpr int kMaxPixel = 16;

// Invariant: pixels.size() == kNumPixels * labels.size(), and every value is in its range.
struct Digits {
  std::vector<uint8_t> pixels;  // one image after another
  std::vector<uint8_t> labels;

  int64_t num_images() const { return static_cast<int64_t>(labels.size()); }
};

// Parses the text of a file; `name` is its name in errors. InvalidArgument for a line that is not
// 65 whole numbers in range, and for a text without lines.
StatusOr<Digits> parse_digits(absl::string_view text, absl::string_view name);

// Reads and parses a file. Fails like read_data() (data_file.h) and parse_digits().
StatusOr<Digits> read_digits(const std::string& path);

}  // namespace tessera::examples

#endif  // TESSERA_EXAMPLES_DIGITS_CSV_H_
