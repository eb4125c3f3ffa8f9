// SPDX-License-Identifier: Apache-2.0
//
// How numbers are written in messages.
#ifndef TESSERA_BASE_FORMAT_H_
#define TESSERA_BASE_FORMAT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera {

// "31 s", "1.5 s", "500 ms", "2.5 min". An infinite duration is "infinite", a duration that is not
// positive "0 ms".
std::string format_duration(absl::Duration duration);

// The state at the end of a wait of at most `limit`, for messages: "1 of 2 clients arrived in 2 s".
// Where the limit is not positive: "the timeout is 0 or had already passed: 1 of 2 clients
// arrived".
std::string not_in_time(absl::string_view what, absl::Duration limit,
                        absl::string_view preposition = "in");

// "0 s", "12.3 us", "5.41 ms", "2 s": a predicted time, of which three digits are known at most.
std::string format_prediction(absl::Duration time);

// "0 B", "512 B", "1.5 KiB", "64 MiB".
std::string format_bytes(int64_t num_bytes);

}  // namespace tessera

#endif  // TESSERA_BASE_FORMAT_H_
