// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of Tessera, and the bare disk, as contestants of `tools/bench checkpoint`.
//
//   checkpoint_worker PREFIX            one client; the environment names the job
//
//   save bytes= sync=0|1                checkpoint::save of f32 matrices of at most 16 MiB, split
//                                       by rows over all devices
//   save_async bytes=                   until save_async() returns
//   restore bytes= to=rows|columns cold=0|1
//   write bytes= sync=0|1               each client writes its part of as many bytes to a new file
//   read bytes= cold=0|1                each client reads a file with as many bytes as its part
//   train bytes= steps= mode=alone|save|write      steps of AdamW, where value and state have so
//                                                  many bytes: alone; beside saves without a pause,
//                                                  or beside a thread that writes as many bytes
//                                                  without a pause. Only in a job of one client
//
// Every command has folder=, where the files are. With cold=1 the files are not in the page cache.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "benchmarks/peers/worker.h"
#include "tessera/tessera.h"

namespace tessera::bench {
namespace {

constexpr int64_t kTensorBytes = int64_t{16} << 20;
constexpr int64_t kColumns = 1024;
constexpr int64_t kIoBytes = int64_t{1} << 20;
constexpr int64_t kBatch = 64;

std::string text_of(const Status& status) {
  return status.ok() ? "" : std::string(status.ToString());
}

Status error_of(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

void remove(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Calls io(offset, bytes) for pieces of a file.
template <class Io>
Status in_pieces(const std::string& path, int64_t size, const Io& io) {
  for (int64_t at = 0; at < size;) {
    const ssize_t count = io(at, std::min(kIoBytes, size - at));
    if (count <= 0) return error_of(path);
    at += count;
  }
  return absl::OkStatus();
}

Status write_file(const std::string& path, absl::Span<const std::byte> bytes, bool sync) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return error_of(path);
  Status status = in_pieces(path, static_cast<int64_t>(bytes.size()), [&](int64_t at, int64_t n) {
    return pwrite(file, bytes.data() + at, n, at);
  });
  if (status.ok() && sync && fsync(file) != 0) status = error_of(path);
  close(file);
  return status;
}

Status read_file(const std::string& path, absl::Span<std::byte> bytes) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return error_of(path);
  const Status status =
      in_pieces(path, static_cast<int64_t>(bytes.size()),
                [&](int64_t at, int64_t n) { return pread(file, bytes.data() + at, n, at); });
  close(file);
  return status;
}

// Drops the files of a folder from the page cache.
Status evict(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return error_of(path);
    const bool is_out = fdatasync(file) == 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
    close(file);
    if (!is_out) return error_of(path);
  }
  return absl::OkStatus();
}

// Writes a file again and again until it is destroyed.
class Writing {
 public:
  Writing(std::string path, absl::Span<const std::byte> bytes)
      : thread_([this, path = std::move(path), bytes] {
          while (!is_over_) write_file(path, bytes, true).IgnoreError();
        }) {}
  ~Writing() {
    is_over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// Matrices on the devices of the job.
struct Tensors {
  Shape shape;
  std::vector<NamedTensor> values;

  static Tensors make(const Mesh& mesh, int64_t bytes, absl::string_view layout) {
    const int64_t count = std::max<int64_t>(1, bytes / kTensorBytes);
    Tensors made = {{bytes / count / kColumns / 4, kColumns}, {}};
    const random::Key key = random::Key::from_seed(1);
    for (int64_t i = 0; i < count; ++i) {
      made.values.push_back(
          {absl::StrCat("w", i),
           random::uniform<float>(key.fold_in(i), made.shape, Layout::parse(mesh, layout))});
    }
    return made;
  }
};

// A layer for each matrix, with the parts of the state that AdamW keeps.
class Training {
 public:
  Training(const Mesh& mesh, int64_t bytes) {
    const Tensors tensors = Tensors::make(mesh, bytes / 3, "[x, -]");
    for (const NamedTensor& each : tensors.values) {
      weights_.add(each.name, each.tensor - 0.5);
    }
    x_ = random::normal<float>(random::Key::from_seed(2), {kBatch, tensors.shape[0]},
                               Layout::parse(mesh, "[-, x]"));
  }

  Status step() {
    Tape tape;
    const std::vector<DTensor> w = weights_.watch(tape);
    DTensor loss = zeros<float>({}, Layout::replicated(x_->layout().mesh(), 0));
    for (const DTensor& each : w) loss = loss + ops::mean(ops::square(ops::matmul(*x_, each)));
    TESSERA_RETURN_IF_ERROR(optimizer_.apply(weights_.variables(), tape.gradient(loss, w)));
    return loss.await();
  }

  std::vector<NamedTensor> values() {
    std::vector<NamedTensor> values;
    for (const auto& variables : {weights_.variables(), optimizer_.state().variables()}) {
      for (const Variable& each : variables) values.push_back({each.name(), each.value()});
    }
    return values;
  }

 private:
  nn::Parameters weights_;
  AdamW optimizer_;
  std::optional<DTensor> x_;
};

class CheckpointWorker : public Contestant {
 public:
  static StatusOr<std::unique_ptr<CheckpointWorker>> create() {
    TESSERA_ASSIGN_OR_RETURN(Client client, Client::connect({}));
    const auto num_devices = static_cast<int64_t>(client.devices().size());
    TESSERA_ASSIGN_OR_RETURN(Mesh mesh, create_mesh(client, {{"x", num_devices}}));
    return std::unique_ptr<CheckpointWorker>(
        new CheckpointWorker(std::move(client), std::move(mesh)));
  }

  int rank() const override { return client_.client_id(); }
  int size() const override { return client_.num_clients(); }
  std::string barrier() override { return text_of(mesh_.barrier()); }
  void release() override {
    tensors_.reset();
    bytes_ = {};
  }

  std::string prepare(const Command& command, Operation* operation) override {
    operation->poison = [](int, bool) {};
    operation->check = [](int, bool) { return std::string(); };
    return text_of(prepare_any(command, operation));
  }

  Status shutdown() { return client_.shutdown(); }

 private:
  CheckpointWorker(Client client, Mesh mesh) : client_(std::move(client)), mesh_(std::move(mesh)) {}

  Status prepare_any(const Command& command, Operation* operation) {
    const std::string& kind = command.operation;
    const int64_t bytes = command.number("bytes", 0);
    const std::string folder = command.text("folder");
    if (kind == "save") return prepare_save(bytes, folder, command.number("sync", 1), operation);
    if (kind == "save_async") return prepare_save_async(bytes, folder, operation);
    if (kind == "restore") return prepare_restore(command, bytes, folder, operation);
    if (kind == "train") return prepare_train(command, bytes, folder, operation);
    const std::string path = absl::StrCat(folder, "/", kind, "/", bytes);
    const absl::Span<std::byte> part = part_of(bytes);
    std::error_code ignored;
    std::filesystem::create_directories(path, ignored);
    const std::string file = absl::StrCat(path, "/", rank());
    if (kind == "write") {
      const bool sync = command.number("sync", 1);
      operation->call = [=](int) { return text_of(write_file(file, part, sync)); };
      operation->reset = [=] {
        remove(file);
        return std::string();
      };
      return absl::OkStatus();
    }
    if (kind != "read") {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint_worker cannot ", kind));
    }
    if (!std::filesystem::exists(file)) TESSERA_RETURN_IF_ERROR(write_file(file, part, false));
    operation->call = [=](int) { return text_of(read_file(file, part)); };
    if (command.number("cold", 0)) operation->reset = [=] { return text_of(evict(path)); };
    return absl::OkStatus();
  }

  Status prepare_save(int64_t bytes, const std::string& folder, bool sync, Operation* operation) {
    TESSERA_RETURN_IF_ERROR(make_tensors(bytes));
    const std::string path = folder + "/saved";
    operation->call = [=, this](int) {
      return text_of(checkpoint::save(client_, path, tensors_->values, {.sync = sync}));
    };
    operation->reset = [=, this] { return without(path); };
    return absl::OkStatus();
  }

  Status prepare_save_async(int64_t bytes, const std::string& folder, Operation* operation) {
    TESSERA_RETURN_IF_ERROR(make_tensors(bytes));
    const std::string path = folder + "/saved";
    const auto pending = std::make_shared<std::optional<checkpoint::Pending>>();
    operation->call = [=, this](int) {
      const StatusOr<checkpoint::Pending> started =
          checkpoint::save_async(client_, path, tensors_->values);
      if (started.ok()) *pending = *started;
      return text_of(started.status());
    };
    operation->reset = [=, this] {
      if (pending->has_value()) {
        if (const Status status = (*pending)->await(); !status.ok()) return text_of(status);
        pending->reset();
      }
      return without(path);
    };
    return absl::OkStatus();
  }

  // The value is bytes read / bytes needed, where no more is read than these and joined gaps.
  Status prepare_restore(const Command& command, int64_t bytes, const std::string& folder,
                         Operation* operation) {
    TESSERA_RETURN_IF_ERROR(make_tensors(bytes));
    const std::string path = absl::StrCat(folder, "/checkpoint/", bytes);
    if (!std::filesystem::exists(path)) {
      // No client saves before all have seen that there is nothing.
      TESSERA_RETURN_IF_ERROR(mesh_.barrier());
      TESSERA_RETURN_IF_ERROR(checkpoint::save(client_, path, tensors_->values));
    }
    const std::string to = command.text("to") == "columns" ? "[-, x]" : "[x, -]";
    std::vector<checkpoint::Target> targets;
    for (const NamedTensor& each : tensors_->values) {
      targets.push_back({each.name, Layout::parse(mesh_, to)});
    }
    const auto results = std::make_shared<std::vector<DTensor>>();
    operation->call = [=, this](int) {
      StatusOr<std::vector<DTensor>> restored = checkpoint::restore(client_, path, targets);
      if (restored.ok()) *results = *std::move(restored);
      return text_of(restored.status());
    };
    operation->poison = [=](int, bool) { results->clear(); };
    operation->check = [=, this](int, bool full) { return full ? compare(*results, to) : ""; };
    operation->value = [=, this]() -> double {
      const StatusOr<int64_t> needed = bytes_read(path, targets, {.join_gap_bytes = 0});
      const StatusOr<int64_t> read = bytes_read(path, targets, {});
      if (!needed.ok() || *needed != bytes || !read.ok()) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      return static_cast<double>(*read) / static_cast<double>(bytes);
    };
    operation->reset = [=, cold = command.number("cold", 0) != 0] {
      results->clear();
      return cold ? text_of(evict(path)) : "";
    };
    return absl::OkStatus();
  }

  // The bytes that all devices together read.
  StatusOr<int64_t> bytes_read(const std::string& path,
                               const std::vector<checkpoint::Target>& targets,
                               const checkpoint::RestoreOptions& options) const {
    TESSERA_ASSIGN_OR_RETURN(const checkpoint::Info info, checkpoint::read_info(path));
    TESSERA_ASSIGN_OR_RETURN(const checkpoint::RestorePlan plan,
                             checkpoint::plan_restore(info, targets, options));
    int64_t bytes = 0;
    for (int64_t i = 0; i < mesh_.size(); ++i) bytes += plan.bytes(i);
    return bytes;
  }

  Status prepare_train(const Command& command, int64_t bytes, const std::string& folder,
                       Operation* operation) {
    if (size() > 1) return absl::InvalidArgumentError("train is for a job of one client");
    const auto training = std::make_shared<Training>(mesh_, bytes);
    const auto pending = std::make_shared<std::optional<checkpoint::Pending>>();
    const auto writing = std::make_shared<std::unique_ptr<Writing>>();
    const std::string mode = command.text("mode");
    const int64_t steps = command.number("steps", 1);
    const std::string path = folder + "/train";
    const auto step = [=, this]() -> Status {
      TESSERA_RETURN_IF_ERROR(training->step());
      if (mode != "save" || (pending->has_value() && !(*pending)->done())) return absl::OkStatus();
      if (pending->has_value()) TESSERA_RETURN_IF_ERROR((*pending)->await());
      TESSERA_ASSIGN_OR_RETURN(
          *pending, checkpoint::save_async(client_, path, training->values(), {.overwrite = true}));
      return absl::OkStatus();
    };
    operation->call = [=, this](int) {
      if (mode == "write") *writing = std::make_unique<Writing>(path, part_of(bytes));
      Status status;
      for (int64_t i = 0; i < steps && status.ok(); ++i) status = step();
      return text_of(status);
    };
    operation->reset = [=] {
      writing->reset();
      if (pending->has_value()) {
        if (const Status status = (*pending)->await(); !status.ok()) return text_of(status);
        pending->reset();
      }
      remove(path);
      return std::string();
    };
    return absl::OkStatus();
  }

  Status make_tensors(int64_t bytes) {
    if (tensors_.has_value() && tensors_bytes_ == bytes) return absl::OkStatus();
    tensors_ = Tensors::make(mesh_, bytes, "[x, -]");
    tensors_bytes_ = bytes;
    return client_.sync_devices();
  }

  // Memory of the process with this client's part of as many bytes; its pages exist.
  absl::Span<std::byte> part_of(int64_t bytes) {
    const auto size = static_cast<size_t>(bytes / client_.num_clients());
    for (size_t i = bytes_.size(); i < size; ++i) {
      bytes_.push_back(static_cast<std::byte>(i * 2654435761u >> 13));
    }
    return absl::MakeSpan(bytes_).first(size);
  }

  // Removes a checkpoint, by one client after all have left it.
  std::string without(const std::string& path) {
    if (std::string error = barrier(); !error.empty()) return error;
    if (rank() == 0) remove(path);
    return "";
  }

  std::string compare(const std::vector<DTensor>& results, const std::string& layout) {
    const Tensors expected = Tensors::make(mesh_, tensors_bytes_, layout);
    for (size_t i = 0; i < results.size(); ++i) {
      const StatusOr<HostTensor<bool>> same =
          ops::all(ops::equal(results[i], expected.values[i].tensor)).to_host<bool>();
      if (!same.ok()) return text_of(same.status());
      if (!same->data[0]) return absl::StrCat("wrong values of ", expected.values[i].name);
    }
    return "";
  }

  Client client_;
  const Mesh mesh_;
  std::optional<Tensors> tensors_;
  int64_t tensors_bytes_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using tessera::bench::CheckpointWorker;
  if (argc != 2) {
    std::fprintf(stderr, "usage: checkpoint_worker PREFIX; tools/bench checkpoint starts it\n");
    return 2;
  }
  return tessera::bench::serve_and_shutdown("checkpoint_worker", CheckpointWorker::create(),
                                            argv[1]);
}
