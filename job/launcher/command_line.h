// SPDX-License-Identifier: Apache-2.0
//
// Command lines of the programs of job/: flags as users write them, with dashes, before whatever
// follows them. The flags themselves are Abseil's (ABSL_FLAG), with underscores.
#ifndef TESSERA_JOB_LAUNCHER_COMMAND_LINE_H_
#define TESSERA_JOB_LAUNCHER_COMMAND_LINE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace tessera {

// A flag as the help shows it.
struct FlagRow {
  const char* name;   // "max-restarts"
  const char* value;  // "R"
};

// The lines of help of the flags: name, value, default, text.
std::string flags_help(absl::Span<const FlagRow> rows);

// Where the other arguments begin, or that help or the version was asked for.
struct ParsedFlags {
  bool wants_help = false;
  bool wants_version = false;
  int program_index = 0;
};

// Sets the flags that come first on the command line. A flag of type bool may be without a value.
// absl::ParseCommandLine() also takes flags that follow another argument, and those may belong to a
// program. InvalidArgument names the flag, its value and the permitted values; `hint` says what to
// do about a flag that does not exist.
StatusOr<ParsedFlags> parse_flags(int argc, char** argv, absl::string_view hint);

}  // namespace tessera

#endif  // TESSERA_JOB_LAUNCHER_COMMAND_LINE_H_
