// SPDX-License-Identifier: Apache-2.0
//
// The calls of a log as text. It shows the times within an operation, for consecutive operations
// that one thread submits to a stream, each with one group_start().
//
//   describe_calls()        calls and time of each function, by thread, for one operation
//   describe_steps()        the calls of the issuing thread in the usual operation, in order, with
//                           the time between them
//   describe_operations()   all calls of some operations, by time
//
// Repeated polls, consecutive calls of one function on one thread, are shown as one line. The
// issuing thread is the thread that calls group_start().
#ifndef TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_
#define TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_

#include <string>

#include "absl/types/span.h"
#include "benchmarks/gpu/call_log.h"

namespace tessera::benchmarks {

// Requires `calls` in the order of their starts, as take() returns them.
std::string describe_calls(absl::Span<const CallLog::Call> calls, const CallLog& log);
std::string describe_steps(absl::Span<const CallLog::Call> calls);
// `count` operations in the middle.
std::string describe_operations(absl::Span<const CallLog::Call> calls, const CallLog& log,
                                int count);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_
