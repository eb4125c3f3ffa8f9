// SPDX-License-Identifier: Apache-2.0
#include "base/format.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {

std::string format_duration(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "infinite";
  const double seconds = absl::ToDoubleSeconds(duration);
  // "%.3g" would write 999.9 as 1e+03.
  if (seconds >= 999.5 * 60) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds >= 120) return absl::StrFormat("%.3g min", seconds / 60);
  if (seconds >= 0.9995) return absl::StrFormat("%.3g s", seconds);
  // Negative durations, and durations below a microsecond.
  if (seconds < 1e-6) return "0 ms";
  return absl::StrFormat("%.3g ms", seconds * 1e3);
}

std::string not_in_time(absl::string_view what, absl::Duration limit,
                        absl::string_view preposition) {
  if (limit <= absl::ZeroDuration()) {
    return absl::StrCat("the timeout is 0 or had already passed: ", what);
  }
  limit = std::max(limit, absl::Microseconds(1));
  return absl::StrCat(what, " ", preposition, " ", format_duration(limit));
}

std::string format_prediction(absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g s", seconds);
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
