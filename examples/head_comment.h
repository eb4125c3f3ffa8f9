// SPDX-License-Identifier: Apache-2.0
//
// For tests of folders of examples: the first comment of a program has the command that runs it,
// and the lines that it prints.
//
//   // All-reduce: every member gets the sum.
//   //
//   //   bazel run //examples/groups:all_reduce
//   //
//   // Output, in any order of the lines:
//   //   client 0: 6 60
//   //   client 1: 6 60
#ifndef TESSERA_EXAMPLES_HEAD_COMMENT_H_
#define TESSERA_EXAMPLES_HEAD_COMMENT_H_

#include <string>
#include <vector>

namespace tessera {
namespace examples {

// The sources of programs in a folder of the runfiles, sorted.
std::vector<std::string> programs_in(const std::string& folder);

// Runs the program of this source by its command, and compares its output with its comment, as
// failures of GoogleTest. Lines are compared in any order, because clients print in any order. A
// line of the comment that ends with "..." stands for a line that begins with the text before it.
void expect_output_of_comment(const std::string& source);

}  // namespace examples
}  // namespace tessera

#endif  // TESSERA_EXAMPLES_HEAD_COMMENT_H_
