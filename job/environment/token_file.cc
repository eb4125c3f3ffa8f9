// SPDX-License-Identifier: Apache-2.0
#include "job/environment/token_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "job/environment/address.h"
#include "job/environment/file_descriptor.h"

namespace tessera {
namespace {

// How often a token is looked for with a watch on its folder, which may miss events (network file
// systems), and without one.
constexpr absl::Duration kWatchedInterval = absl::Seconds(1);
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

int port_of(const std::string& address) {
  const std::optional<Address> parsed = parse_address(address);
  return parsed.has_value() ? parsed->port : 0;
}

// Tells apart the network and process namespaces in which a port and a process id mean something.
std::string namespace_suffix() {
  std::string suffix;
  for (const char* path : {"/proc/self/ns/net", "/proc/self/ns/pid"}) {
    struct stat info = {};
    absl::StrAppend(&suffix, "-", stat(path, &info) == 0 ? info.st_ino : 0);
  }
  return suffix;
}

std::string file_name(const std::string& address) {
  return absl::StrCat("coordinator-", port_of(address), namespace_suffix());
}

// The first bytes of a file, up to 512. The errno where it cannot be read.
struct FileStart {
  std::string text = {};
  int error = 0;
};

FileStart read_start(const FileDescriptor& fd) {
  char bytes[512];
  const ssize_t size = fd.is_open() ? read(fd.get(), bytes, sizeof bytes) : -1;
  if (size < 0) return {.error = errno};
  return {.text = std::string(bytes, static_cast<size_t>(size))};
}

// When a process was started, in ticks since the boot; 0 if there is no such process. An errno
// where this process cannot look: it may be out of descriptors.
struct StartTicks {
  uint64_t value = 0;
  int error = 0;
};

StartTicks start_ticks(pid_t pid) {
  const FileDescriptor fd(open(absl::StrCat("/proc/", pid, "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  const FileStart stat = read_start(fd);
  if (stat.error == ENOENT || stat.error == ESRCH) return {};
  if (stat.error != 0) return {.error = stat.error};
  // "pid (name) state ...": a name may hold blanks and brackets. The start is field 22.
  std::istringstream fields(stat.text.substr(std::min(stat.text.rfind(')') + 1, stat.text.size())));
  std::string skipped;
  for (int i = 3; i < 22; ++i) fields >> skipped;
  StartTicks ticks;
  if (!(fields >> ticks.value)) return {.error = EIO};
  return ticks;
}

bool is_of_this_user_alone(const struct stat& info) {
  return info.st_uid == geteuid() && (info.st_mode & 077) == 0;
}

bool is_private_folder(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && is_of_this_user_alone(info);
}

// The folder, made if needed.
StatusOr<std::string> runtime_folder() {
  std::string folder = absl::StrCat("/tmp/tessera-", geteuid());
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && is_private_folder(runtime)) folder = absl::StrCat(runtime, "/tessera");
  mkdir(folder.c_str(), 0700);
  if (is_private_folder(folder)) return folder;
  return absl::FailedPreconditionError(
      absl::StrCat("the job token cannot be kept in ", folder,
                   ", which is not a folder of this user alone (mode 0700); mend that, or set "
                   "TESSERA_TOKEN to the same secret on all clients"));
}

// The publisher of a file, as the file names it.
struct Published {
  enum class State : uint8_t {
    kLive,     // a living process has published the token
    kLeft,     // the file is absent, or a process that is dead left it behind
    kUnknown,  // this process cannot tell: it may be out of descriptors
  };
  State state = State::kLeft;
  pid_t pid = 0;
  std::string token = {};
  int error = 0;  // kUnknown: an errno
};

Published read_published(const std::string& path) {
  using State = Published::State;
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.is_open()) {
    const bool is_absent = errno == ENOENT || errno == ELOOP;
    return {.state = is_absent ? State::kLeft : State::kUnknown, .error = errno};
  }
  if (fstat(fd.get(), &info) != 0) return {.state = State::kUnknown, .error = errno};
  if (!S_ISREG(info.st_mode) || !is_of_this_user_alone(info)) return {.state = State::kLeft};
  const FileStart start = read_start(fd);
  if (start.error != 0) return {.state = State::kUnknown, .error = start.error};
  std::istringstream text(start.text);
  Published published;
  uint64_t ticks = 0;
  text >> published.pid >> ticks >> published.token;
  if (published.token.empty() || ticks == 0) return {.state = State::kLeft};
  const StartTicks now = start_ticks(published.pid);
  if (now.error != 0) return {.state = State::kUnknown, .error = now.error};
  if (now.value != ticks) return {.state = State::kLeft};
  published.state = State::kLive;
  return published;
}

// The lock of the folder, held while files in it change.
FileDescriptor lock_folder(const std::string& folder) {
  FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (fd.is_open() && flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  return fd;
}

// Removes what dead processes of these namespaces have left behind. Needs the lock of the folder.
void sweep(const std::string& folder) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  const std::string suffix = namespace_suffix();
  while (const dirent* entry = readdir(entries)) {
    const std::string path = absl::StrCat(folder, "/", entry->d_name);
    if (!absl::EndsWith(entry->d_name, suffix)) continue;
    if (read_published(path).state == Published::State::kLeft) unlink(path.c_str());
  }
  closedir(entries);
}

// `what` is the verb.
Status cannot(absl::string_view what, const std::string& path, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("the job token cannot be ", what, " ", path, ": ", std::strerror(error),
                   "; mend that, or set TESSERA_TOKEN to the same secret on all clients"));
}

Status write_file(const std::string& path, const std::string& text) {
  const FileDescriptor fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.is_open() ||
      write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return cannot("written to", path, errno);
  }
  return absl::OkStatus();
}

// Whether a socket can be bound to the address, which is possible only for addresses of this host.
bool can_bind(const addrinfo& address) {
  const FileDescriptor fd(socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.is_open() && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

}  // namespace

StatusOr<TokenFile> TokenFile::publish(const std::string& address, const std::string& token) {
  TESSERA_ASSIGN_OR_RETURN(const std::string folder, runtime_folder());
  const FileDescriptor lock = lock_folder(folder);
  if (!lock.is_open()) return cannot("kept in", folder, errno);
  sweep(folder);
  const std::string path = absl::StrCat(folder, "/", file_name(address));
  const Published other = read_published(path);
  if (other.state == Published::State::kUnknown) return cannot("kept in", path, other.error);
  if (other.state == Published::State::kLive) {
    return absl::UnavailableError(absl::StrCat("the process ", other.pid,
                                               " of this user already serves at port ",
                                               port_of(address), "; use a free port of this host"));
  }
  const std::string complete = absl::StrCat(folder, "/.new-", getpid(), namespace_suffix());
  unlink(complete.c_str());  // left behind by a process that had the same id
  const StartTicks ticks = start_ticks(getpid());
  if (ticks.error != 0) return cannot("written to", path, ticks.error);
  TESSERA_RETURN_IF_ERROR(
      write_file(complete, absl::StrCat(getpid(), " ", ticks.value, " ", token, "\n")));
  if (rename(complete.c_str(), path.c_str()) != 0) return cannot("written to", path, errno);
  return TokenFile(path, getpid());
}

TokenFile::~TokenFile() {
  if (!path_.empty() && pid_ == getpid()) unlink(path_.c_str());
}

StatusOr<std::string> await_token(const std::string& address, absl::Time deadline,
                                  absl::string_view service) {
  TESSERA_ASSIGN_OR_RETURN(const std::string folder, runtime_folder());
  const std::string path = absl::StrCat(folder, "/", file_name(address));
  FileDescriptor watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  // The user's watches may be used up, or the file system may have none.
  if (inotify_add_watch(watch.get(), folder.c_str(), IN_MOVED_TO) < 0) watch.close();
  const absl::Duration longest_wait = watch.is_open() ? kWatchedInterval : kPollInterval;
  while (true) {
    // Watched first, so that a file that appears after this look wakes the wait.
    Published published = read_published(path);
    if (published.state == Published::State::kLive) return std::move(published.token);
    const absl::Duration left = deadline - steady_now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat(
          service.empty() ? absl::StrCat("the coordinator at ", address) : std::string(service),
          " has left no job token in ", folder,
          "; see whether it was started on this host and by this user, or set TESSERA_TOKEN to the "
          "same secret on all clients"));
    }
    pollfd waiting = {watch.get(), POLLIN, 0};
    poll(&waiting, watch.is_open() ? 1 : 0, poll_timeout_ms(std::min(left, longest_wait)));
    char events[4096];
    while (watch.is_open() && read(watch.get(), events, sizeof events) > 0) {
    }
  }
}

bool is_address_of_this_host(const std::string& address) {
  const std::optional<Address> parsed = parse_address(address, 0);
  if (!parsed.has_value()) return false;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(parsed->host.c_str(), nullptr, &hints, &found) != 0) return false;
  bool is_local = false;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) is_local |= can_bind(*one);
  freeaddrinfo(found);
  return is_local;
}

}  // namespace tessera
