// SPDX-License-Identifier: Apache-2.0
#include "job/launcher/command_line.h"

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/text.h"

namespace tessera {
namespace {

const char* expected_value(const absl::CommandLineFlag& flag) {
  if (flag.IsOfType<absl::Duration>()) return "a time such as 90s, 10m or 1h30m";
  if (flag.IsOfType<std::string>()) return "a text";
  if (flag.IsOfType<bool>()) return "true or false";
  return "a whole number up to 2147483647";
}

}  // namespace

std::string flags_help(absl::Span<const FlagRow> rows) {
  std::string text;
  for (const FlagRow& row : rows) {
    const absl::CommandLineFlag* flag =
        absl::FindCommandLineFlag(absl::StrReplaceAll(row.name, {{"-", "_"}}));
    const std::string fallback = flag->DefaultValue();
    const bool is_telling = !fallback.empty() && fallback != "0" && fallback != "inf";
    absl::StrAppendFormat(&text, "  --%s %s%s\n      %s\n", row.name, row.value,
                          is_telling ? absl::StrCat("  (", fallback, ")") : "",
                          absl::StrReplaceAll(flag->Help(), {{"\n", "\n      "}}));
  }
  return text;
}

StatusOr<ParsedFlags> parse_flags(int argc, char** argv, absl::string_view hint) {
  int i = 1;
  for (; i < argc && absl::StartsWith(argv[i], "-"); ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") return ParsedFlags{.wants_help = true};
    if (argument == "--version") return ParsedFlags{.wants_version = true};
    if (argument == "--") {
      ++i;
      break;
    }
    const absl::string_view text = argument.substr(absl::StartsWith(argument, "--") ? 2 : 1);
    const absl::string_view name = text.substr(0, text.find('='));
    absl::CommandLineFlag* flag =
        absl::FindCommandLineFlag(absl::StrReplaceAll(name, {{"-", "_"}}));
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no flag ", in_quotes(argument), "; ", hint));
    }
    absl::string_view value;
    if (name.size() < text.size()) {
      value = text.substr(name.size() + 1);
    } else if (flag->IsOfType<bool>()) {
      value = "true";
    } else if (++i < argc) {
      value = argv[i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " has no value; it should be ", expected_value(*flag)));
    }
    std::string ignored;
    if (!flag->ParseFrom(value, &ignored)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is ", in_quotes(value),
                                                     "; it should be ", expected_value(*flag)));
    }
  }
  return ParsedFlags{.program_index = i};
}

}  // namespace tessera
