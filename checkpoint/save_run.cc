// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save_run.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/exception_status.h"
#include "base/format.h"
#include "base/text.h"
#include "checkpoint/call_agreement.h"
#include "checkpoint/data_writer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/saver_mark.h"
#include "checkpoint/source.h"
#include "dtensor/client_messages.h"
#include "files/new_file.h"
#include "job/environment/file_descriptor.h"

namespace tessera::checkpoint::internal {
namespace {

using files::bytes_of;
using files::NewFile;

constexpr absl::Duration kReportInterval = absl::Milliseconds(200);
constexpr absl::Duration kLongestSleep = absl::Milliseconds(50);
// Each attempt fails only if another process removes leftovers in the same moment.
constexpr int kMostMarks = 10;

// The result of round 3 where the manifest has appeared and an error came after that.
constexpr absl::string_view kAppeared = "appeared: ";

bool exists(const std::string& path) {
  struct stat found = {};
  return lstat(path.c_str(), &found) == 0;
}

// The checksums of a client's files: for each its device, the number of blocks, and the checksums.
std::string encode_checksums(const std::map<int, std::vector<uint64_t>>& checksums) {
  std::string text;
  const auto add = [&](uint64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const auto& [device, blocks] : checksums) {
    add(static_cast<uint64_t>(device));
    add(blocks.size());
    for (const uint64_t block : blocks) add(block);
  }
  return text;
}

void decode_checksums(absl::string_view text, std::map<int, std::vector<uint64_t>>& checksums) {
  if (text.empty()) return;  // memcpy takes no null pointer
  std::vector<uint64_t> values(text.size() / sizeof(uint64_t));
  std::memcpy(values.data(), text.data(), values.size() * sizeof(uint64_t));
  for (size_t i = 0; i + 1 < values.size();) {
    const int device = static_cast<int>(values[i]);
    const size_t count = std::min<size_t>(values[i + 1], values.size() - i - 2);
    checksums[device].assign(values.begin() + i + 2, values.begin() + i + 2 + count);
    i += 2 + count;
  }
}

CallText describe(const SaveRequest& request) {
  CallText text;
  text.call = absl::StrCat("save ", quoted_whole(request.path));
  const SaveOptions& options = request.options;
  text.lines.push_back(absl::StrCat(
      "step ", options.step, ", overwrite ", options.overwrite ? "on" : "off", ", sync ",
      options.sync ? "on" : "off", ", min_split_bytes ", options.min_split_bytes));
  for (const auto& [key, value] : options.metadata) {
    text.lines.push_back(absl::StrCat("metadata ", quoted_whole(key), " = ", quoted_whole(value)));
  }
  for (const SavedTensor& tensor : request.tensors) {
    text.lines.push_back(absl::StrCat("tensor ", in_quotes(tensor.name), " ",
                                      dtype_name(tensor.dtype), " ", shape_to_string(tensor.shape),
                                      " under ", tensor.layout.to_string_with_mesh()));
  }
  return text;
}

class SaveRun {
 public:
  SaveRun(const SaveRequest& request, uint32_t number, Rounds& rounds,
          const std::atomic<bool>& stopping)
      : request_(request),
        client_(request.client),
        number_(number),
        rounds_(rounds),
        stopping_(stopping),
        text_(describe(request)) {}

  Status run() {
    Status status = run_phases();
    if (!status.ok() && !has_appeared_) clean_up();
    if (is_first()) {
      if (status.ok()) remove_old_files();
      if (!save_id_.empty()) remove_mark(request_.path, save_id_);
      if (status.ok() && request_.when_complete != nullptr) request_.when_complete();
    }
    return status;
  }

 private:
  struct OwnFile {
    DeviceFile plan;
    std::optional<NewFile> file;  // nothing after the rename
    std::string path;
  };

  bool is_first() const { return client_.client_id() == 0; }

  Status run_phases() {
    TESSERA_ASSIGN_OR_RETURN(save_id_, agree_on_call(client_, rounds_, text_, request_.refused,
                                                     [&] { return begin(); }));
    // An exception is an error of all clients, which wait for the next round.
    const Status created = call_guarded<Status>([&] { return create_files(); });
    TESSERA_RETURN_IF_ERROR(rounds_.agree_ok(client_, text_.call, created));
    const Status written = call_guarded<Status>([&] { return write_files(); });
    const Rounds::Value mine =
        written.ok() ? Rounds::Value(encode_checksums(checksums_)) : Rounds::Value(written);
    const Rounds::Value result =
        rounds_.agree(client_, text_.call, mine,
                      [&](absl::Span<const std::string> values) { return complete(values); });
    if (!result.ok()) {
      // Without a verdict of client 0 the manifest may exist.
      if (!is_first()) has_appeared_ = written.ok() && rounds_.is_broken();
      return result.status();
    }
    has_appeared_ = true;
    absl::string_view error = *result;
    return absl::ConsumePrefix(&error, kAppeared) ? absl::DataLossError(error) : absl::OkStatus();
  }

  // Client 0, in round 1: what stands against the save, then its folder and its id.
  Rounds::Value begin() {
    // NOTIDY(wall-clock): the manifest says when the save was made.
    began_ = absl::FromChrono(std::chrono::system_clock::now());
    if (!request_.options.overwrite && exists(join_path(request_.path, kManifestName))) {
      return absl::AlreadyExistsError(
          absl::StrCat("checkpoint ", quoted_whole(request_.path),
                       " exists; save to another path, or set overwrite"));
    }
    if (request_.options.overwrite) find_old_files();
    save_id_ = new_save_id();
    for (int i = 0; i < kMostMarks; ++i) {
      TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> made, files::make_folders(request_.path));
      made_folders_.insert(made_folders_.end(), made.begin(), made.end());
      StatusOr<FileDescriptor> mark = write_mark(request_.path, save_id_);
      if (absl::IsNotFound(mark.status()) && i + 1 < kMostMarks) continue;
      TESSERA_ASSIGN_OR_RETURN(mark_, std::move(mark));
      break;
    }
    return save_id_;
  }

  // A damaged manifest names no files; the next Checkpointer finds them. A manifest that others
  // have made may name files that are not of a save, which stay.
  void find_old_files() {
    const StatusOr<Source> old = open_source(request_.path);
    if (!old.ok() || !old->is_checkpoint) return;
    for (const FileInfo& file : old->info->files) {
      if (save_id_of(file.name).has_value()) old_files_.insert(file.name);
    }
  }

  Status create_files() {
    for (const Device& device : client_.local_devices()) {
      TESSERA_ASSIGN_OR_RETURN(
          DeviceFile plan,
          plan_file(request_.tensors, device.id, request_.options.min_split_bytes, save_id_));
      if (plan.parts.empty()) continue;
      const std::string path = join_path(request_.path, plan.name);
      TESSERA_ASSIGN_OR_RETURN(
          NewFile file, NewFile::create(path, absl::StrCat(path, kPartialSuffix), plan.bytes));
      total_bytes_ += plan.bytes;
      own_.push_back({std::move(plan), std::move(file), path});
    }
    return absl::OkStatus();
  }

  Status write_files() {
    started_ = last_report_ = steady_now();
    for (OwnFile& own : own_) {
      TESSERA_RETURN_IF_ERROR(write_file(own));
    }
    if (request_.options.sync && !own_.empty()) {
      TESSERA_RETURN_IF_ERROR(files::sync_folder(request_.path));
    }
    return client_.num_clients() == 1 ? absl::OkStatus() : report(kWritten);
  }

  Status write_file(OwnFile& own) {
    DataWriter writer(*own.file, [this](int64_t bytes) { return after_chunk(bytes); });
    TESSERA_RETURN_IF_ERROR(writer.append(bytes_of(own.plan.header)));
    for (const FilePart& part : own.plan.parts) {
      const SavedTensor& tensor = request_.tensors[part.tensor];
      const StatusOr<ShardBytes> shard =
          request_.held[part.tensor].shard_of(client_, own.plan.device);
      if (!shard.ok()) {
        return with_context(shard.status(), absl::StrCat("tensor ", in_quotes(tensor.name)));
      }
      TESSERA_RETURN_IF_ERROR(
          writer.append_box(shard->data, shard->box, part.box, dtype_size(tensor.dtype)));
    }
    TESSERA_ASSIGN_OR_RETURN(checksums_[own.plan.device], writer.finish());
    if (request_.options.sync) TESSERA_RETURN_IF_ERROR(own.file->sync());
    TESSERA_RETURN_IF_ERROR(own.file->commit(NewFile::Replace::kNo));
    own.file.reset();
    return absl::OkStatus();
  }

  // Reports progress, keeps to the limit of the rate, and looks for reasons to stop.
  Status after_chunk(int64_t bytes) {
    const int64_t written = request_.state->bytes_written += bytes;
    absl::Time until = absl::InfinitePast();
    if (const int64_t rate = request_.options.max_bytes_per_second; rate > 0) {
      until = started_ + absl::Seconds(static_cast<double>(written) / static_cast<double>(rate));
    }
    while (true) {
      if (client_.num_clients() > 1 && steady_now() - last_report_ >= kReportInterval) {
        const auto tenth = static_cast<uint32_t>(10 * written / std::max<int64_t>(total_bytes_, 1));
        TESSERA_RETURN_IF_ERROR(report(std::min(tenth, kWritten - 1)));
      }
      if (stopping_.load()) {
        return absl::CancelledError("the client shut down before the save was complete");
      }
      TESSERA_RETURN_IF_ERROR(tessera::internal::first_loss(client_));
      const absl::Duration left = until - steady_now();
      if (left <= absl::ZeroDuration()) return absl::OkStatus();
      // sleep: keeps to the rate that the program has asked for.
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(std::min(left, kLongestSleep)));
    }
  }

  Status report(uint32_t k) {
    if (last_reported_.has_value() && k <= *last_reported_) return absl::OkStatus();
    last_report_ = steady_now();
    last_reported_ = k;
    return tessera::internal::post(client_, progress_series(client_.client_id()),
                                   number_ * kReportsOfSave + k,
                                   absl::StrCat(format_bytes(request_.state->bytes_written), " of ",
                                                format_bytes(total_bytes_)));
  }

  // Client 0, in round 3.
  Rounds::Value complete(absl::Span<const std::string> values) {
    std::map<int, std::vector<uint64_t>> checksums;
    for (const std::string& value : values) decode_checksums(value, checksums);
    Info info;
    info.save_id = save_id_;
    info.step = request_.options.step;
    info.time = began_;
    info.num_clients = client_.num_clients();
    info.metadata = request_.options.metadata;
    TESSERA_RETURN_IF_ERROR(add_files(request_.tensors, static_cast<int>(client_.devices().size()),
                                      request_.options.min_split_bytes, checksums, info));
    TESSERA_RETURN_IF_ERROR(write_manifest(format_manifest(info)));
    has_appeared_ = true;
    if (!request_.options.sync) return std::string();
    const Status synced = sync_folders();
    if (synced.ok()) return std::string();
    old_files_.clear();  // after a power cut the old manifest may be there
    return absl::StrCat(kAppeared, synced.message());
  }

  Status write_manifest(const std::string& text) {
    TESSERA_RETURN_IF_ERROR(check_manifest_size(static_cast<int64_t>(text.size())));
    TESSERA_ASSIGN_OR_RETURN(
        NewFile file, NewFile::create(join_path(request_.path, kManifestName),
                                      join_path(request_.path, partial_manifest_name(save_id_)),
                                      static_cast<int64_t>(text.size())));
    TESSERA_RETURN_IF_ERROR(file.write(0, bytes_of(text)));
    if (request_.options.sync) {
      TESSERA_RETURN_IF_ERROR(file.sync());
      // The names of the data files, before that of the manifest.
      TESSERA_RETURN_IF_ERROR(files::sync_folder(request_.path));
    }
    return file.commit(request_.options.overwrite ? NewFile::Replace::kYes : NewFile::Replace::kNo);
  }

  Status sync_folders() {
    TESSERA_RETURN_IF_ERROR(files::sync_folder(request_.path));
    for (const std::string& made : made_folders_) {
      TESSERA_RETURN_IF_ERROR(files::sync_folder(files::folder_of(made)));
    }
    if (!made_folders_.empty()) return absl::OkStatus();
    // Another save may have made the folder, and ended before it synced it.
    const Status parent = files::sync_folder(files::folder_of(request_.path));
    return absl::IsPermissionDenied(parent) ? absl::OkStatus() : parent;
  }

  // Files of a checkpoint that this one has replaced.
  void remove_old_files() {
    for (const std::string& name : old_files_) unlink(join_path(request_.path, name).c_str());
  }

  // After an error that all clients have, or after a loss.
  void clean_up() {
    for (const OwnFile& own : own_) {
      if (!own.file.has_value()) unlink(own.path.c_str());
    }
    own_.clear();
    // Folders can be removed when all files are.
    rounds_.agree_ok(client_, text_.call, absl::OkStatus()).IgnoreError();
    if (!is_first()) return;
    if (!save_id_.empty()) remove_mark(request_.path, save_id_);
    for (auto made = made_folders_.rbegin(); made != made_folders_.rend(); ++made) {
      if (rmdir(made->c_str()) != 0) return;
    }
  }

  const SaveRequest& request_;
  const Client& client_;
  const uint32_t number_;
  Rounds& rounds_;
  const std::atomic<bool>& stopping_;
  const CallText text_;

  std::string save_id_;
  std::vector<OwnFile> own_;
  int64_t total_bytes_ = 0;
  std::map<int, std::vector<uint64_t>> checksums_;  // of own files, by device
  absl::Time started_, last_report_;
  std::optional<uint32_t> last_reported_;
  bool has_appeared_ = false;  // the manifest is there, or may be

  // Used by client 0 alone.
  absl::Time began_;
  FileDescriptor mark_;
  std::vector<std::string> made_folders_;
  std::set<std::string> old_files_;
};

}  // namespace

Status run_save(const SaveRequest& request, uint32_t number, Rounds& rounds,
                const std::atomic<bool>& stopping) {
  return SaveRun(request, number, rounds, stopping).run();
}

}  // namespace tessera::checkpoint::internal
