// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/arguments.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text.h"

namespace tessera::ckpt_tool {
namespace {

constexpr size_t kManyPaths = 1 << 20;

struct CommandRule {
  const char* name;
  Command command;
  size_t min_paths, max_paths;
  const char* paths;               // for messages
  std::vector<std::string> flags;  // beside --json
};

const std::vector<CommandRule>& command_rules() {
  static const auto* const rules = new std::vector<CommandRule>{
      {"list", Command::kList, 1, 1, "one path, ROOT", {}},
      {"show", Command::kShow, 1, 1, "one path", {"--tensor", "--pieces"}},
      {"verify", Command::kVerify, 1, kManyPaths, "one path or more", {"--threads"}},
      {"convert",
       Command::kConvert,
       2,
       2,
       "two paths, FROM and TO",
       {"--to", "--max-file-bytes", "--tensor"}},
      {"clean", Command::kClean, 1, 1, "one path, ROOT", {"--yes"}},
  };
  return *rules;
}

struct FormatName {
  const char* name;
  Format format;
};
constexpr FormatName kFormats[] = {
    {"tessera", Format::kTessera}, {"safetensors", Format::kSafetensors}, {"npy", Format::kNpy}};

bool takes_value(absl::string_view flag) {
  return flag == "--tensor" || flag == "--threads" || flag == "--to" || flag == "--max-file-bytes";
}

StatusOr<const CommandRule*> find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandRule& rule : command_rules()) {
    if (name == rule.name) return &rule;
    names.push_back(rule.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("command ", in_quotes(name), " is none of ",
                                                 quoted_list(names), did_you_mean(name, names)));
}

// A whole number of at least `least`.
StatusOr<int64_t> read_number(const std::string& flag, const std::string& text, int64_t least,
                              int64_t most) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= least && number <= most) return number;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": ", in_quotes(text), " should be a whole number between ", least, " and ", most));
}

StatusOr<Format> read_format(const std::string& text) {
  std::vector<std::string> names;
  for (const FormatName& format : kFormats) {
    if (text == format.name) return format.format;
    names.push_back(format.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("--to: format ", in_quotes(text), " is none of ",
                                                 quoted_list(names), did_you_mean(text, names)));
}

Status set_flag(const std::string& flag, const std::string& value, Arguments* arguments) {
  if (flag == "--json") arguments->json = true;
  if (flag == "--yes") arguments->yes = true;
  if (flag == "--pieces") arguments->pieces = true;
  if (flag == "--tensor") arguments->tensor = value;
  if (flag == "--to") {
    TESSERA_ASSIGN_OR_RETURN(arguments->to, read_format(value));
  }
  if (flag == "--threads") {
    TESSERA_ASSIGN_OR_RETURN(const int64_t threads, read_number(flag, value, 0, 1024));
    arguments->threads = static_cast<int>(threads);
  }
  if (flag == "--max-file-bytes") {
    TESSERA_ASSIGN_OR_RETURN(arguments->max_file_bytes, read_number(flag, value, 1, INT64_MAX));
  }
  return absl::OkStatus();
}

// The format that the end of a path stands for.
Format format_of(absl::string_view path) {
  if (absl::EndsWith(path, ".safetensors")) return Format::kSafetensors;
  return absl::EndsWith(path, ".npy") ? Format::kNpy : Format::kTessera;
}

struct Flag {
  std::string name, value;
};

// Flags apart from the other texts.
struct SplitTexts {
  std::vector<std::string> others;
  std::vector<Flag> flags;
};

StatusOr<SplitTexts> split_texts(absl::Span<const std::string> texts) {
  SplitTexts split;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& text = texts[i];
    if (text == "--") {
      split.others.insert(split.others.end(), texts.begin() + i + 1, texts.end());
      break;
    }
    if (text.size() < 2 || text[0] != '-') {
      split.others.push_back(text);
      continue;
    }
    const size_t equals = text.find('=');
    Flag flag = {text.substr(0, equals),
                 equals == std::string::npos ? "" : text.substr(equals + 1)};
    if (takes_value(flag.name) && equals == std::string::npos) {
      if (i + 1 == texts.size()) {
        return absl::InvalidArgumentError(absl::StrCat(flag.name, " needs a value"));
      }
      flag.value = texts[++i];
    } else if (!takes_value(flag.name) && equals != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(flag.name, " takes no value"));
    }
    split.flags.push_back(std::move(flag));
  }
  return split;
}

}  // namespace

StatusOr<Arguments> parse_arguments(absl::Span<const std::string> texts) {
  TESSERA_ASSIGN_OR_RETURN(SplitTexts split, split_texts(texts));
  Arguments arguments;
  for (const Flag& flag : split.flags) {
    if (flag.name == "--version") arguments.command = Command::kVersion;
    if (flag.name == "--version" || flag.name == "--help" || flag.name == "-h") return arguments;
  }
  if (split.others.empty()) {
    return absl::InvalidArgumentError("a command is missing; --help lists them");
  }
  TESSERA_ASSIGN_OR_RETURN(const CommandRule* const rule, find_command(split.others.front()));
  arguments.command = rule->command;
  arguments.paths.assign(std::next(split.others.begin()), split.others.end());
  const auto is_empty = [](const std::string& path) { return path.empty(); };
  if (std::any_of(arguments.paths.begin(), arguments.paths.end(), is_empty)) {
    return absl::InvalidArgumentError("a path is empty");
  }
  if (arguments.paths.size() < rule->min_paths || arguments.paths.size() > rule->max_paths) {
    return absl::InvalidArgumentError(absl::StrCat(rule->name, " takes ", rule->paths, ", not ",
                                                   arguments.paths.size(),
                                                   "; --help has its form"));
  }
  if (rule->command == Command::kConvert) arguments.to = format_of(arguments.paths[1]);
  std::vector<std::string> allowed = rule->flags;
  allowed.push_back("--json");
  for (const Flag& flag : split.flags) {
    if (std::find(allowed.begin(), allowed.end(), flag.name) == allowed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          rule->name, " has no flag ", in_quotes(flag.name), did_you_mean(flag.name, allowed)));
    }
    TESSERA_RETURN_IF_ERROR(set_flag(flag.name, flag.value, &arguments));
  }
  if (arguments.max_file_bytes > 0 && arguments.to == Format::kNpy) {
    return absl::InvalidArgumentError(
        "--max-file-bytes is given with --to npy, which has a file for each tensor; leave it out");
  }
  return arguments;
}

std::string usage_text() {
  return "tessera_ckpt looks into checkpoints and files of tensors, without a job.\n"
         "\n"
         "  tessera_ckpt list ROOT\n"
         "      The checkpoints under a folder, by step.\n"
         "  tessera_ckpt show PATH [--tensor NAME] [--pieces]\n"
         "      The tensors, and with --pieces where they are in the files.\n"
         "  tessera_ckpt verify PATH... [--threads N]\n"
         "      Reads every byte and compares the checksums.\n"
         "  tessera_ckpt convert FROM TO [--to tessera|safetensors|npy] [--max-file-bytes N]\n"
         "                       [--tensor PATTERN]\n"
         "      Writes whole tensors, with --tensor those whose name matches: * stands for any\n"
         "      characters, ? for one. Without --to, the end of TO says which format.\n"
         "  tessera_ckpt clean ROOT [--yes]\n"
         "      Removes what savers that no longer run have left. Asks first.\n"
         "\n"
         "PATH and FROM: a checkpoint, a .safetensors file, a folder of them, or a .npy file.\n"
         "--json, with every command: the output is one JSON value.\n"
         "Exit code: 0 good, 1 damaged or refused, 2 another command line.\n";
}

}  // namespace tessera::ckpt_tool
