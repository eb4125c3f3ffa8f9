// SPDX-License-Identifier: Apache-2.0
#include "tools/ckpt_tool/commands.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/format.h"
#include "base/shape.h"
#include "base/status.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/info.h"
#include "checkpoint/leftovers.h"
#include "checkpoint/names.h"
#include "job/environment/build.h"
#include "tools/ckpt_tool/arguments.h"
#include "tools/ckpt_tool/convert.h"
#include "tools/ckpt_tool/output.h"

namespace tessera::ckpt_tool {
namespace {

using checkpoint::Entry;
using checkpoint::FileInfo;
using checkpoint::Info;
using checkpoint::Piece;
using checkpoint::TensorInfo;
using checkpoint::internal::Leftover;

std::string time_text(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d%ET%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string json_number(int64_t number) { return absl::StrCat(number); }

std::string json_error(const Status& status) {
  return json_object({{"code", json_text(absl::StatusCodeToString(status.code()))},
                      {"message", json_text(status.message())}});
}

std::string json_metadata(const Info& info) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [key, value] : info.metadata) members.emplace_back(key, json_text(value));
  return json_object(members);
}

int64_t tensor_bytes(const Info& info) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : info.tensors) bytes += tensor.bytes();
  return bytes;
}

int64_t file_bytes(const Info& info) {
  int64_t bytes = 0;
  for (const FileInfo& file : info.files) bytes += file.bytes;
  return bytes;
}

// Bytes of a piece.
int64_t piece_bytes(const TensorInfo& tensor, const Piece& piece) {
  return piece.box.num_elements() * checkpoint::internal::dtype_bits(tensor.dtype).value_or(0) / 8;
}

// "3 tensors, 1.5 GiB, in 4 files".
std::string summary(const Info& info) {
  return absl::StrCat(counted(static_cast<int64_t>(info.tensors.size()), "tensor"), ", ",
                      format_bytes(tensor_bytes(info)), ", in ",
                      counted(static_cast<int64_t>(info.files.size()), "file"));
}

// The size of a file; 0 where there is none.
int64_t bytes_at(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0 ? found.st_size : 0;
}

// A question whose answer is yes or no; no where there is no answer.
bool ask(const std::string& question, std::istream& input, std::ostream& errors) {
  errors << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(input, answer);
  absl::AsciiStrToLower(&answer);
  absl::StripAsciiWhitespace(&answer);
  return answer == "y" || answer == "yes";
}

class Commands {
 public:
  Commands(const Arguments& arguments, std::istream& input, std::ostream& output,
           std::ostream& errors)
      : arguments_(arguments), input_(input), output_(output), errors_(errors) {}

  int run() {
    const Status status = run_command();
    if (!status.ok()) {
      report(status);
      if (arguments_.json) output_ << json_object({{"error", json_error(status)}}) << "\n";
    }
    output_.flush();
    if (!output_.good()) report(absl::ResourceExhaustedError("the output cannot be written"));
    return exit_code_;
  }

 private:
  Status run_command() {
    switch (arguments_.command) {
      case Command::kHelp:
        output_ << usage_text();
        return absl::OkStatus();
      case Command::kVersion:
        output_ << version_text("tessera_ckpt");
        return absl::OkStatus();
      case Command::kList:
        return list();
      case Command::kShow:
        return show();
      case Command::kVerify:
        verify();
        return absl::OkStatus();
      case Command::kConvert:
        return convert();
      case Command::kClean:
        return clean();
    }
    return absl::InternalError("unknown command");
  }

  // The first path.
  const std::string& path() const { return arguments_.paths.front(); }

  // An error: a line for the user, and the exit code.
  void report(const Status& status) {
    errors_ << "tessera_ckpt: " << std::string(status.message()) << "\n";
    exit_code_ = kDamagedExitCode;
  }

  Status list() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Entry> entries, checkpoint::list(path()));
    std::vector<std::vector<std::string>> rows = {
        {"step", "time", "tensors", "bytes", "state", "path"}};
    std::vector<std::string> objects;
    for (const Entry& entry : entries) {
      // A checkpoint that was removed or damaged since the list was made is shown as it is now.
      const StatusOr<Info> info =
          entry.status.ok() ? checkpoint::read_info(entry.path) : StatusOr<Info>(entry.status);
      const std::string state = info.ok()                                   ? "complete"
                                : absl::IsFailedPrecondition(info.status()) ? "incomplete"
                                                                            : "damaged";
      std::vector<std::pair<std::string, std::string>> object = {{"path", json_text(entry.path)},
                                                                 {"step", json_number(entry.step)},
                                                                 {"state", json_text(state)}};
      if (info.ok()) {
        object.emplace_back("time", json_text(time_text(info->time)));
        object.emplace_back("tensors", json_number(static_cast<int64_t>(info->tensors.size())));
        object.emplace_back("bytes", json_number(tensor_bytes(*info)));
        rows.push_back({absl::StrCat(entry.step), time_text(info->time),
                        absl::StrCat(info->tensors.size()), format_bytes(tensor_bytes(*info)),
                        state, entry.path});
      } else {
        object.emplace_back("error", json_error(info.status()));
        rows.push_back({absl::StrCat(entry.step), "-", "-", "-", state, entry.path});
        if (state == "damaged") report(info.status());
      }
      objects.push_back(json_object(object));
    }
    if (arguments_.json) {
      output_ << json_object({{"root", json_text(path())}, {"checkpoints", json_array(objects)}})
              << "\n";
    } else if (entries.empty()) {
      output_ << "no checkpoints\n";
    } else {
      constexpr Align kColumns[] = {Align::kRight, Align::kLeft, Align::kRight,
                                    Align::kRight, Align::kLeft, Align::kLeft};
      output_ << table(rows, kColumns);
    }
    return absl::OkStatus();
  }

  Status show() {
    TESSERA_ASSIGN_OR_RETURN(Info info, checkpoint::read_info(path()));
    const std::string all = summary(info);
    if (arguments_.tensor.has_value()) {
      TESSERA_RETURN_IF_ERROR(keep_tensor(*arguments_.tensor, &info.tensors));
    }
    if (arguments_.json) {
      show_json(info);
      return absl::OkStatus();
    }
    output_ << info.path << ": " << all << " (" << format_bytes(file_bytes(info)) << ")\n";
    if (!info.save_id.empty()) {
      output_ << "step " << info.step << ", saved " << time_text(info.time) << " by "
              << counted(info.num_clients, "client") << ", save id " << info.save_id << "\n";
    }
    for (const auto& [key, value] : info.metadata) {
      output_ << "metadata " << tessera::in_quotes(key) << " = " << tessera::in_quotes(value)
              << "\n";
    }
    if (info.tensors.empty()) return absl::OkStatus();
    std::vector<std::vector<std::string>> rows = {
        {"tensor", "dtype", "shape", "bytes", "pieces", "layout"}};
    for (const TensorInfo& tensor : info.tensors) {
      rows.push_back({tessera::in_quotes(tensor.name), tensor.dtype, shape_to_string(tensor.shape),
                      format_bytes(tensor.bytes()), absl::StrCat(tensor.pieces.size()),
                      tensor.layout.empty() ? "-" : tensor.layout});
    }
    constexpr Align kColumns[] = {Align::kLeft,  Align::kLeft,  Align::kLeft,
                                  Align::kRight, Align::kRight, Align::kLeft};
    output_ << "\n" << table(rows, kColumns);
    if (arguments_.pieces) show_pieces(info);
    return absl::OkStatus();
  }

  static Status keep_tensor(const std::string& name, std::vector<TensorInfo>* tensors) {
    std::vector<std::string> names;
    for (TensorInfo& tensor : *tensors) {
      if (tensor.name == name) {
        const TensorInfo found = std::move(tensor);
        tensors->assign(1, found);
        return absl::OkStatus();
      }
      names.push_back(tensor.name);
    }
    return absl::NotFoundError(absl::StrCat("tensor ", tessera::in_quotes(name),
                                            " is not one of the ", names.size(), " tensors",
                                            did_you_mean(name, names)));
  }

  void show_pieces(const Info& info) {
    std::vector<std::vector<std::string>> rows = {{"tensor", "box", "file", "byte", "bytes"}};
    for (const TensorInfo& tensor : info.tensors) {
      for (const Piece& piece : tensor.pieces) {
        rows.push_back({tessera::in_quotes(tensor.name), piece.box.to_string(),
                        info.files[static_cast<size_t>(piece.file)].name,
                        absl::StrCat(piece.offset), absl::StrCat(piece_bytes(tensor, piece))});
      }
    }
    constexpr Align kColumns[] = {Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight,
                                  Align::kRight};
    output_ << "\n" << table(rows, kColumns);
  }

  void show_json(const Info& info) {
    std::vector<std::string> files;
    for (const FileInfo& file : info.files) {
      files.push_back(
          json_object({{"name", json_text(file.name)}, {"bytes", json_number(file.bytes)}}));
    }
    std::vector<std::pair<std::string, std::string>> object = {{"path", json_text(info.path)}};
    if (!info.save_id.empty()) {
      object.emplace_back("save_id", json_text(info.save_id));
      object.emplace_back("step", json_number(info.step));
      object.emplace_back("time", json_text(time_text(info.time)));
      object.emplace_back("clients", json_number(info.num_clients));
    }
    object.emplace_back("metadata", json_metadata(info));
    object.emplace_back("files", json_array(files));
    std::vector<std::string> tensors;
    for (const TensorInfo& tensor : info.tensors) tensors.push_back(json_tensor(info, tensor));
    object.emplace_back("tensors", json_array(tensors));
    output_ << json_object(object) << "\n";
  }

  std::string json_tensor(const Info& info, const TensorInfo& tensor) const {
    std::vector<std::pair<std::string, std::string>> object = {
        {"name", json_text(tensor.name)},
        {"dtype", json_text(tensor.dtype)},
        {"shape", json_array(tensor.shape)},
        {"bytes", json_number(tensor.bytes())},
        {"layout", json_text(tensor.layout)},
        {"num_pieces", json_number(static_cast<int64_t>(tensor.pieces.size()))}};
    if (arguments_.pieces) {
      std::vector<std::string> pieces;
      for (const Piece& piece : tensor.pieces) {
        pieces.push_back(
            json_object({{"file", json_text(info.files[static_cast<size_t>(piece.file)].name)},
                         {"offset", json_number(piece.offset)},
                         {"bytes", json_number(piece_bytes(tensor, piece))},
                         {"box_offsets", json_array(piece.box.offsets)},
                         {"box_sizes", json_array(piece.box.sizes)}}));
      }
      object.emplace_back("pieces", json_array(pieces));
    }
    return json_object(object);
  }

  void verify() {
    std::vector<std::string> objects;
    for (const std::string& each : arguments_.paths) {
      Status status = checkpoint::verify(each, arguments_.threads);
      const StatusOr<Info> info = checkpoint::read_info(each);
      status.Update(info.status());
      std::vector<std::pair<std::string, std::string>> object = {
          {"path", json_text(each)}, {"good", status.ok() ? "true" : "false"}};
      if (status.ok()) {
        const bool has_checksums = !info->save_id.empty();
        object.emplace_back("checksums", has_checksums ? "true" : "false");
        object.emplace_back("bytes", json_number(file_bytes(*info)));
        if (!arguments_.json) {
          output_ << each << ": good: " << summary(*info) << "; "
                  << (has_checksums ? "each byte was compared with the checksums"
                                    : "it has no checksums, the headers were checked")
                  << "\n";
        }
      } else {
        object.emplace_back("error", json_error(status));
        report(status);
      }
      objects.push_back(json_object(object));
    }
    if (arguments_.json) output_ << json_object({{"verified", json_array(objects)}}) << "\n";
  }

  Status convert() {
    ConvertOptions options;
    options.to = arguments_.to;
    options.max_file_bytes = arguments_.max_file_bytes;
    options.tensor = arguments_.tensor;
    TESSERA_ASSIGN_OR_RETURN(const Converted converted,
                             ckpt_tool::convert(path(), arguments_.paths[1], options));
    if (!arguments_.json) {
      output_ << arguments_.paths[1] << ": " << counted(converted.num_tensors, "tensor") << ", "
              << format_bytes(converted.tensor_bytes) << ", in "
              << counted(static_cast<int64_t>(converted.files.size()), "file") << "\n";
      return absl::OkStatus();
    }
    std::vector<std::string> files;
    for (const std::string& file : converted.files) files.push_back(json_text(file));
    output_ << json_object({{"from", json_text(path())},
                            {"to", json_text(arguments_.paths[1])},
                            {"tensors", json_number(converted.num_tensors)},
                            {"bytes", json_number(converted.tensor_bytes)},
                            {"files", json_array(files)}})
            << "\n";
    return absl::OkStatus();
  }

  Status clean() {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Leftover> found,
                             checkpoint::internal::find_leftovers(path()));
    int64_t bytes = 0;
    std::vector<std::string> removed;
    for (const Leftover& leftover : found) {
      for (const std::string& name : leftover.names) {
        removed.push_back(checkpoint::internal::join_path(leftover.folder, name));
        bytes += bytes_at(removed.back());
      }
      if (leftover.is_whole_folder) removed.push_back(leftover.folder);
    }
    if (!found.empty() && !arguments_.yes) {
      for (const std::string& each : removed) errors_ << each << "\n";
      const std::string question = absl::StrCat("Remove these, ", format_bytes(bytes), "?");
      if (!ask(question, input_, errors_)) {
        return absl::CancelledError("nothing was removed; the answer was not y");
      }
    }
    for (const Leftover& leftover : found) {
      TESSERA_RETURN_IF_ERROR(checkpoint::internal::remove_leftover(leftover));
    }
    if (!arguments_.json) {
      for (const std::string& each : removed) output_ << "removed " << each << "\n";
      if (removed.empty()) output_ << "nothing to remove\n";
      return absl::OkStatus();
    }
    std::vector<std::string> texts;
    for (const std::string& each : removed) texts.push_back(json_text(each));
    output_ << json_object({{"root", json_text(path())},
                            {"removed", json_array(texts)},
                            {"bytes", json_number(bytes)}})
            << "\n";
    return absl::OkStatus();
  }

  const Arguments& arguments_;
  std::istream& input_;
  std::ostream& output_;
  std::ostream& errors_;
  int exit_code_ = kGoodExitCode;
};

}  // namespace

int run_ckpt(absl::Span<const std::string> texts, std::istream& input, std::ostream& output,
             std::ostream& errors) {
  const StatusOr<Arguments> arguments = parse_arguments(texts);
  if (!arguments.ok()) {
    errors << "tessera_ckpt: " << std::string(arguments.status().message()) << "\n";
    return kUsageExitCode;
  }
  return Commands(*arguments, input, output, errors).run();
}

}  // namespace tessera::ckpt_tool
