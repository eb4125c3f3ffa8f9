// SPDX-License-Identifier: Apache-2.0
//
// read_info(), list(), latest() and verify() of checkpoint.h.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/text.h"
#include "base/thread.h"
#include "checkpoint/block_reader.h"
#include "checkpoint/call_agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/source.h"
#include "dtensor/client_messages.h"
#include "dtensor/rounds.h"

namespace tessera::checkpoint {
namespace {

using internal::Source;

constexpr int kMostThreads = 8;

// Calls read(source) with the source at `path`. Where it misses a file because the checkpoint was
// overwritten meanwhile, calls it again with the new one.
Status with_source(const std::string& path, absl::FunctionRef<Status(const Source&)> read) {
  std::string save_id;
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const Source source, internal::open_source(path));
    const Status status = read(source);
    if (!internal::is_missing_file(status) || source.info->save_id == save_id) return status;
    save_id = source.info->save_id;
  }
}

Status open_files(const Source& source) {
  for (size_t file = 0; file < source.info->files.size(); ++file) {
    TESSERA_RETURN_IF_ERROR(internal::open_file(source, static_cast<int>(file)).status());
  }
  return absl::OkStatus();
}

bool is_folder(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// The entry of a folder; nothing where a checkpoint was never begun in it.
std::optional<Entry> entry_of(const std::string& root, const std::string& name) {
  Entry entry;
  entry.path = internal::join_path(root, name);
  const std::optional<int64_t> step = internal::step_of(name);
  entry.step = step.value_or(0);
  const StatusOr<std::vector<std::string>> names = internal::names_in(entry.path);
  if (!names.ok()) {
    entry.status = names.status();
    return step.has_value() ? std::optional<Entry>(std::move(entry)) : std::nullopt;
  }
  const bool has_manifest =
      std::find(names->begin(), names->end(), internal::kManifestName) != names->end();
  if (has_manifest) {
    const StatusOr<Info> info = read_info(entry.path);
    if (info.ok()) entry.step = info->step;
    entry.status = info.status();
    return entry;
  }
  if (!internal::is_begun(*names) && !step.has_value()) return std::nullopt;
  entry.status = absl::FailedPreconditionError(
      absl::StrCat("checkpoint ", quoted_whole(entry.path), " has no manifest.json yet"));
  return entry;
}

// Compares the blocks of a source with several threads. The first error in the order of the files
// is the result.
class Verification {
 public:
  explicit Verification(const Source& source) : source_(source) {
    for (size_t file = 0; file < source.info->files.size(); ++file) {
      const auto blocks = static_cast<int64_t>(source.info->files[file].block_checksums.size());
      for (int64_t block = 0; block < blocks; ++block) {
        blocks_.emplace_back(static_cast<int>(file), block);
      }
    }
  }

  Status run(int num_threads) {
    most_open_files_ = std::max<size_t>(1, internal::BlockReader::kMostOpenFiles / num_threads);
    std::vector<Thread> threads;
    while (static_cast<int>(threads.size()) + 1 < num_threads) {
      StatusOr<Thread> thread = start_thread("a thread of verify", [this] { work(); });
      if (!thread.ok()) break;
      threads.push_back(*std::move(thread));
    }
    work();
    for (Thread& thread : threads) thread.join();
    return status_;
  }

 private:
  void work() {
    internal::BlockReader reader(source_, RestoreOptions::Verify::kAll, most_open_files_);
    while (true) {
      const size_t i = next_.fetch_add(1);
      if (i >= blocks_.size() || i > first_wrong_.load()) return;
      const Status status = reader.verify_block(blocks_[i].first, blocks_[i].second);
      if (status.ok()) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      if (i > first_wrong_.load()) continue;
      first_wrong_.store(i);
      status_ = status;
    }
  }

  const Source& source_;
  std::vector<std::pair<int, int64_t>> blocks_;
  size_t most_open_files_ = 1;  // of a thread
  std::atomic<size_t> next_{0};
  std::atomic<size_t> first_wrong_{SIZE_MAX};
  std::mutex mutex_;  // guards status_, and writes of first_wrong_
  Status status_;
};

}  // namespace

StatusOr<Info> read_info(absl::string_view path) {
  std::shared_ptr<const Info> info;
  TESSERA_RETURN_IF_ERROR(with_source(std::string(path), [&](const Source& source) {
    info = source.info;
    return open_files(source);
  }));
  return *info;
}

StatusOr<std::vector<Entry>> list(absl::string_view root) {
  const std::string folder(root);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names, internal::names_in(folder));
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    if (!is_folder(internal::join_path(folder, name))) continue;
    std::optional<Entry> entry = entry_of(folder, name);
    if (entry.has_value()) entries.push_back(*std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

StatusOr<std::string> latest(const Client& client, absl::string_view root) {
  TESSERA_RETURN_IF_ERROR(tessera::internal::check_open(client, "latest"));
  const internal::CallText text = {absl::StrCat("latest ", quoted_whole(root)), {}};
  return internal::agree_on_call(
      client, tessera::internal::rounds_of(client), text, absl::OkStatus(),
      [&]() -> internal::Rounds::Value {
        TESSERA_ASSIGN_OR_RETURN(const std::vector<Entry> entries, list(root));
        const auto found = std::find_if(entries.rbegin(), entries.rend(),
                                        [](const Entry& entry) { return entry.status.ok(); });
        if (found != entries.rend()) return found->path;
        return absl::NotFoundError(
            absl::StrCat("root ", quoted_whole(root), " has no complete checkpoint"));
      });
}

Status verify(absl::string_view path, int num_threads) {
  if (num_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("verify with ", num_threads, " threads; give 0 or more"));
  }
  if (num_threads == 0) num_threads = std::min(usable_cores(), kMostThreads);
  return with_source(std::string(path), [&](const Source& source) -> Status {
    TESSERA_RETURN_IF_ERROR(open_files(source));
    if (!source.is_checkpoint) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(Verification(source).run(num_threads));
    internal::BlockReader reader(source, RestoreOptions::Verify::kAll);
    for (size_t file = 0; file < source.info->files.size(); ++file) {
      TESSERA_RETURN_IF_ERROR(reader.verify_header(static_cast<int>(file)));
    }
    return absl::OkStatus();
  });
}

}  // namespace tessera::checkpoint
