// SPDX-License-Identifier: Apache-2.0
//
// The fault library: preloaded into a program (LD_PRELOAD), it counts the calls of the program that
// change or open files of one folder, logs them, and lets one of them fail.
//
//   TESSERA_FAULTS="folder=/tmp/run;log=/tmp/log;client=0;call=rename;path=manifest;n=1;do=EIO"
//
//   folder   calls with paths, or with descriptors of files, in this folder are counted
//   log      a line is appended for each call (below)
//   client   the client with the fault; without it counting begins with the program, not with
//            tessera_faults_begin()
//   call     the kind of call of the fault; without it all kinds
//   path     a part of the path, or of the second path of a rename; without it all paths
//   n        the fault is at the n-th of these calls, from 1
//   do       kill_before, kill_after: the process gets SIGKILL before or after the call;
//            kill_job_before, kill_job_after: its parent does too, whose children end with it;
//            pause: the program prints "paused" and the call never begins;
//            EIO, ENOSPC, EDQUOT, EACCES: the call fails and does nothing;
//            short: a write writes half of its bytes
//
// A line of the log: "CLIENT NUMBER CALL PATH OTHER FAULT", with "-" for a field without a value;
// FAULT is "error" for a call that failed by itself. Paths are relative to the folder. The line is
// written when the call has returned, or before the fault: a call that depends on another one is
// logged after it.
//
// Kinds of calls: open, create, write, fsync, fdatasync, sync_file_range, fallocate, truncate,
// rename, link, unlink, mkdir, rmdir. They are found by the symbols of glibc that Tessera and
// libstdc++ use, and by syscall(SYS_renameat2). Calls inside glibc are not seen, so fopen() and
// remove() are symbols of their own here.
//
// Thread-safe. A forked child continues with the count of its parent.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>

namespace {

enum class Action {
  kNone,
  kKillBefore,
  kKillAfter,
  kKillJobBefore,
  kKillJobAfter,
  kPause,
  kFail,
  kShort,
};

struct Plan {
  std::string folder;
  std::string log;
  int client = -1;
  std::string call;
  std::string path;
  long n = 0;
  std::string action_text = "-";
  Action action = Action::kNone;
  int error = 0;  // of kFail

  void set_action(const std::string& text) {
    action_text = text;
    if (text == "kill_before") action = Action::kKillBefore;
    if (text == "kill_after") action = Action::kKillAfter;
    if (text == "kill_job_before") action = Action::kKillJobBefore;
    if (text == "kill_job_after") action = Action::kKillJobAfter;
    if (text == "pause") action = Action::kPause;
    if (text == "short") action = Action::kShort;
    if (text == "EIO") error = EIO;
    if (text == "ENOSPC") error = ENOSPC;
    if (text == "EDQUOT") error = EDQUOT;
    if (text == "EACCES") error = EACCES;
    if (error != 0) action = Action::kFail;
  }
};

// A plan that cannot be read ends the program: a test without its fault would prove nothing.
Plan plan_of_environment() {
  Plan plan;
  const char* const text = std::getenv("TESSERA_FAULTS");
  std::istringstream fields(text == nullptr ? "" : text);
  std::string field;
  while (std::getline(fields, field, ';')) {
    const size_t equal = field.find('=');
    const std::string name = field.substr(0, equal);
    const std::string value = equal == std::string::npos ? "" : field.substr(equal + 1);
    if (name == "folder")
      plan.folder = value;
    else if (name == "log")
      plan.log = value;
    else if (name == "client")
      plan.client = std::atoi(value.c_str());
    else if (name == "call")
      plan.call = value;
    else if (name == "path")
      plan.path = value;
    else if (name == "n")
      plan.n = std::atol(value.c_str());
    else if (name == "do")
      plan.set_action(value);
    else
      plan.folder.clear();
  }
  const bool has_fault = plan.n > 0;
  if (text != nullptr && (plan.folder.empty() || has_fault != (plan.action != Action::kNone))) {
    std::fprintf(stderr, "TESSERA_FAULTS=\"%s\" is malformed\n", text);
    _exit(98);
  }
  return plan;
}

struct State {
  const Plan plan = plan_of_environment();
  std::atomic<bool> counts = plan.client < 0;
  std::atomic<int> client = -1;  // this process's own, once it is known
  std::mutex mutex;              // guards the members below
  long num_calls = 0;
  long num_matches = 0;
};

// Never destroyed: other threads may make calls while the process ends.
State& state() {
  static State* const only = new State;
  return *only;
}

// A function that the program would call without this library. It is found when the library is
// loaded, or by an earlier call. No static local holds it: other threads would wait for that by
// syscall(), which is one of these functions.
template <class Function>
class Next {
 public:
  explicit constexpr Next(const char* name) : name_(name) {}
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    return find()(arguments...);
  }
  Function* find() {
    void* found = found_.load();
    if (found == nullptr) found_.store(found = dlsym(RTLD_NEXT, name_));
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* const name_;
  std::atomic<void*> found_ = nullptr;
};

constinit Next<int(int, const char*, int, ...)> next_openat("openat");
constinit Next<FILE*(const char*, const char*)> next_fopen("fopen");
constinit Next<ssize_t(int, const void*, size_t)> next_write("write");
constinit Next<ssize_t(int, const void*, size_t, off_t)> next_pwrite("pwrite");
constinit Next<ssize_t(int, const iovec*, int)> next_writev("writev");
constinit Next<ssize_t(int, const iovec*, int, off_t)> next_pwritev("pwritev");
constinit Next<int(int)> next_fsync("fsync");
constinit Next<int(int)> next_fdatasync("fdatasync");
constinit Next<int(int, off64_t, off64_t, unsigned)> next_sync_file_range("sync_file_range");
constinit Next<int(int, int, off_t, off_t)> next_fallocate("fallocate");
constinit Next<int(int, off_t, off_t)> next_posix_fallocate("posix_fallocate");
constinit Next<int(int, off_t)> next_ftruncate("ftruncate");
constinit Next<int(const char*, off_t)> next_truncate("truncate");
constinit Next<int(int, const char*, int, const char*, unsigned)> next_renameat2("renameat2");
constinit Next<int(int, const char*, int, const char*, int)> next_linkat("linkat");
constinit Next<int(int, const char*, int)> next_unlinkat("unlinkat");
constinit Next<int(int, const char*, mode_t)> next_mkdirat("mkdirat");
constinit Next<long(long, ...)> next_syscall("syscall");

__attribute__((constructor)) void find_functions() {
  next_openat.find();
  next_fopen.find();
  next_write.find();
  next_pwrite.find();
  next_writev.find();
  next_pwritev.find();
  next_fsync.find();
  next_fdatasync.find();
  next_sync_file_range.find();
  next_fallocate.find();
  next_posix_fallocate.find();
  next_ftruncate.find();
  next_truncate.find();
  next_renameat2.find();
  next_linkat.find();
  next_unlinkat.find();
  next_mkdirat.find();
  next_syscall.find();
}

std::string path_of_descriptor(int fd) {
  char target[PATH_MAX];
  const ssize_t size =
      readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), target, sizeof target);
  return size <= 0 ? "" : std::string(target, static_cast<size_t>(size));
}

std::string absolute_path(int folder, const char* path) {
  if (path[0] == '/') return path;
  char buffer[PATH_MAX];
  const std::string base = folder != AT_FDCWD                         ? path_of_descriptor(folder)
                           : getcwd(buffer, sizeof buffer) == nullptr ? ""
                                                                      : buffer;
  return base + "/" + path;
}

// The path in the folder of the plan, "." for the folder itself; empty for other paths.
std::string path_in_folder(const std::string& path) {
  const std::string& folder = state().plan.folder;
  if (folder.empty() || path.compare(0, folder.size(), folder) != 0) return "";
  if (path.size() == folder.size()) return ".";
  return path[folder.size()] == '/' ? path.substr(folder.size() + 1) : "";
}

void write_text(int fd, const std::string& text) {
  (void)!next_write(fd, text.data(), text.size());
}

void log_call(long number, const char* call, const std::string& path, const std::string& other,
              const std::string& fault) {
  if (state().plan.log.empty()) return;
  std::ostringstream line;
  line << state().client << " " << number << " " << call << " " << path << " "
       << (other.empty() ? "-" : other) << " " << fault << "\n";
  const int fd = next_openat(AT_FDCWD, state().plan.log.c_str(),
                             O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
  write_text(fd, line.str());
  close(fd);
}

[[noreturn]] void die(bool with_job) {
  if (with_job) kill(getppid(), SIGKILL);
  kill(getpid(), SIGKILL);
  while (true) pause();
}

// Makes the call real(is_short), which is -1 on an error, or the fault that the plan has for it.
template <class Real>
auto make_call(const char* call, const std::string& whole_path, const std::string& whole_other,
               Real real) -> decltype(real(false)) {
  const int error = errno;
  State& now = state();
  const std::string path = now.counts ? path_in_folder(whole_path) : "";
  if (path.empty()) {
    errno = error;
    return real(false);
  }
  const std::string other = path_in_folder(whole_other);
  const Plan& plan = now.plan;
  Action action = Action::kNone;
  long number;
  {
    std::lock_guard<std::mutex> lock(now.mutex);
    number = ++now.num_calls;
    const bool matches = (plan.call.empty() || plan.call == call) &&
                         (path + "\n" + other).find(plan.path) != std::string::npos &&
                         (plan.client < 0 || plan.client == now.client);
    if (matches && ++now.num_matches == plan.n) action = plan.action;
  }
  if (action != Action::kNone) log_call(number, call, path, other, plan.action_text);
  if (action == Action::kKillBefore) die(false);
  if (action == Action::kKillJobBefore) die(true);
  if (action == Action::kPause) {
    write_text(STDOUT_FILENO, "paused\n");
    while (true) pause();
  }
  if (action == Action::kFail) {
    errno = plan.error;
    return -1;
  }
  errno = error;
  const auto result = real(action == Action::kShort);
  const int error_of_call = errno;
  if (action == Action::kKillAfter) die(false);
  if (action == Action::kKillJobAfter) die(true);
  if (action == Action::kNone) log_call(number, call, path, other, result == -1 ? "error" : "-");
  errno = error_of_call;
  return result;
}

template <class Real>
auto make_call_on(const char* call, int fd, Real real) -> decltype(real(false)) {
  return make_call(call, state().counts ? path_of_descriptor(fd) : "", "", real);
}

size_t half(size_t size, bool is_short) { return is_short && size > 1 ? size / 2 : size; }

// The first buffer of several, or half of an only one.
struct FewerBuffers {
  FewerBuffers(const iovec* buffers, int count, bool is_short)
      : first{buffers[0].iov_base, half(buffers[0].iov_len, is_short && count == 1)},
        used(is_short ? &first : buffers),
        count(is_short ? 1 : count) {}
  iovec first;
  const iovec* used;
  int count;
};

bool creates(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// The optional argument of open().
mode_t mode_of(int flags, va_list arguments) {
  return creates(flags) ? va_arg(arguments, mode_t) : mode_t{0};
}

int open_file(int folder, const char* path, int flags, mode_t mode) {
  return make_call(creates(flags) ? "create" : "open", absolute_path(folder, path), "",
                   [&](bool) { return next_openat(folder, path, flags, mode); });
}

int rename_file(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  return make_call("rename", absolute_path(from_folder, from), absolute_path(to_folder, to),
                   [&](bool) { return next_renameat2(from_folder, from, to_folder, to, flags); });
}

int remove_file(int folder, const char* path, int flags) {
  return make_call((flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink", absolute_path(folder, path),
                   "", [&](bool) { return next_unlinkat(folder, path, flags); });
}

FILE* open_stream(const char* path, const char* mode) {
  FILE* stream = nullptr;
  const char* const call = mode[0] == 'r' ? "open" : "create";
  make_call(call, absolute_path(AT_FDCWD, path), "", [&](bool) {
    stream = next_fopen(path, mode);
    return stream == nullptr ? -1 : 0;
  });
  return stream;
}

}  // namespace

extern "C" {

// The client in this process begins to count, as its number in the plan.
void tessera_faults_begin(int client) {
  state().client = client;
  state().counts = true;
}
// The process counts no further calls.
void tessera_faults_end() { state().counts = false; }

// The calls. Their declarations in the headers of glibc say which are noexcept.

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(folder, path, flags, mode);
}
int creat(const char* path, mode_t mode) {
  return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char* path, mode_t mode) {
  return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
FILE* fopen(const char* path, const char* mode) { return open_stream(path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_stream(path, mode); }

ssize_t write(int fd, const void* bytes, size_t size) {
  return make_call_on("write", fd,
                      [&](bool is_short) { return next_write(fd, bytes, half(size, is_short)); });
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  return make_call_on("write", fd, [&](bool is_short) {
    return next_pwrite(fd, bytes, half(size, is_short), offset);
  });
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  return pwrite(fd, bytes, size, offset);
}
ssize_t writev(int fd, const iovec* buffers, int count) {
  return make_call_on("write", fd, [&](bool is_short) {
    const FewerBuffers fewer(buffers, count, is_short);
    return next_writev(fd, fewer.used, fewer.count);
  });
}
ssize_t pwritev(int fd, const iovec* buffers, int count, off_t offset) {
  return make_call_on("write", fd, [&](bool is_short) {
    const FewerBuffers fewer(buffers, count, is_short);
    return next_pwritev(fd, fewer.used, fewer.count, offset);
  });
}
ssize_t pwritev64(int fd, const iovec* buffers, int count, off64_t offset) {
  return pwritev(fd, buffers, count, offset);
}

int fsync(int fd) {
  return make_call_on("fsync", fd, [&](bool) { return next_fsync(fd); });
}
int fdatasync(int fd) {
  return make_call_on("fdatasync", fd, [&](bool) { return next_fdatasync(fd); });
}
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
  return make_call_on("sync_file_range", fd,
                      [&](bool) { return next_sync_file_range(fd, offset, size, flags); });
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  return make_call_on("fallocate", fd,
                      [&](bool) { return next_fallocate(fd, mode, offset, size); });
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return fallocate(fd, mode, offset, size);
}
// Returns the error, and leaves errno.
int posix_fallocate(int fd, off_t offset, off_t size) {
  const int error = errno;
  const int result = make_call_on("fallocate", fd, [&](bool) {
    const int failed = next_posix_fallocate(fd, offset, size);
    if (failed == 0) return 0;
    errno = failed;
    return -1;
  });
  const int failed = result == 0 ? 0 : errno;
  errno = error;
  return failed;
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) {
  return posix_fallocate(fd, offset, size);
}
int ftruncate(int fd, off_t size) noexcept {
  return make_call_on("truncate", fd, [&](bool) { return next_ftruncate(fd, size); });
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int truncate(const char* path, off_t size) noexcept {
  return make_call("truncate", absolute_path(AT_FDCWD, path), "",
                   [&](bool) { return next_truncate(path, size); });
}
int truncate64(const char* path, off64_t size) noexcept { return truncate(path, size); }

int rename(const char* from, const char* to) noexcept {
  return rename_file(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return rename_file(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return rename_file(from_folder, from, to_folder, to, flags);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  return make_call("link", absolute_path(from_folder, from), absolute_path(to_folder, to),
                   [&](bool) { return next_linkat(from_folder, from, to_folder, to, flags); });
}
int link(const char* from, const char* to) noexcept {
  return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char* path) noexcept { return remove_file(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return remove_file(folder, path, flags);
}
int rmdir(const char* path) noexcept { return remove_file(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int result = remove_file(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? remove_file(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  return make_call("mkdir", absolute_path(folder, path), "",
                   [&](bool) { return next_mkdirat(folder, path, mode); });
}
int mkdir(const char* path, mode_t mode) noexcept { return mkdirat(AT_FDCWD, path, mode); }

// Takes six arguments of any call, as glibc does.
long syscall(long number, ...) noexcept {
  va_list arguments;
  va_start(arguments, number);
  long values[6];
  for (long& value : values) value = va_arg(arguments, long);
  va_end(arguments);
  if (number == SYS_renameat2) {
    return rename_file(static_cast<int>(values[0]), reinterpret_cast<const char*>(values[1]),
                       static_cast<int>(values[2]), reinterpret_cast<const char*>(values[3]),
                       static_cast<unsigned>(values[4]));
  }
  return next_syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

}  // extern "C"
