// SPDX-License-Identifier: Apache-2.0
//
// The calls of a log as text: where the time of an operation goes, for operations that one thread
// gives a stream in a row, each with one group_start().
//
//   describe_calls()        calls and time of each function, by thread, for one operation
//   describe_steps()        the calls of the issuing thread in the usual operation, in order, with
//                           the time between them
//   describe_operations()   all calls of some operations, by time
//
// A wait by repeated polls, calls of one function in a row on one thread, is one line. The issuing
// thread is the one that calls group_start().
#ifndef TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_
#define TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_

#include <string>

#include "absl/types/span.h"
#include "benchmarks/gpu/call_log.h"

namespace tessera::benchmarks {

// `calls` are in the order of their starts, as take() gives them.
std::string describe_calls(absl::Span<const CallLog::Call> calls, const CallLog& log);
std::string describe_steps(absl::Span<const CallLog::Call> calls);
// `count` operations in the middle.
std::string describe_operations(absl::Span<const CallLog::Call> calls, const CallLog& log,
                                int count);

}  // namespace tessera::benchmarks

#endif  // TESSERA_BENCHMARKS_GPU_CALL_REPORT_H_
