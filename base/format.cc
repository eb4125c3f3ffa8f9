// SPDX-License-Identifier: Apache-2.0
#include "base/format.h"

#include "absl/strings/str_format.h"

namespace tessera {

std::string format_duration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "no limit";
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds >= 120) return absl::StrFormat("%.3g min", seconds / 60);
  // What would round to 1000 ms is a second.
  if (seconds >= 0.9995) return absl::StrFormat("%.3g s", seconds);
  return absl::StrFormat("%.3g ms", seconds * 1e3);
}

std::string format_bytes(int64_t num_bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(num_bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.4g %s", value, kUnits[unit]);
}

}  // namespace tessera
