// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/preemption.h"

#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/system_call.h"
#include "dtensor/client_messages.h"

namespace tessera::checkpoint::internal {
namespace {

constexpr absl::string_view kSignal = "signal";
constexpr absl::string_view kEnd = "end";

// Messages: of client 0 to each client, the last step of each client, and that of all.
std::string news_of(int client) { return absl::StrCat("news ", client); }
std::string steps_of(int client) { return absl::StrCat("step ", client); }
constexpr char kLimit[] = "limit";
// A series lasts as long as the job, so that runs share this many sets of series. A set keeps the
// messages of its last 64 runs.
constexpr uint32_t kNumSets = 4;
// How often a thread that waits looks whether its object has ended, and whether the message is
// forgotten; it is told of the end, unless that message is.
constexpr absl::Duration kSlice = absl::Seconds(10);

// The descriptors that the handler writes to. A handler has no other way to find its objects.
constexpr int kMostEvents = 64;
std::array<std::atomic<int>, kMostEvents> events;  // the descriptor plus 1; 0: none
std::atomic<int> num_writing{0};                   // handlers that may write to one of them
std::atomic<pid_t> owner{0};                       // the process whose descriptors these are
std::mutex handler_mutex;                          // guards num_events, handled_signal, before
int num_events = 0;
int handled_signal = 0;
struct sigaction before;

void on_signal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (owner.load() == getpid()) {
    num_writing.fetch_add(1);
    for (const std::atomic<int>& event : events) {
      const int fd = event.load() - 1;
      const uint64_t one = 1;
      if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) continue;  // a full counter is readable too
    }
    num_writing.fetch_sub(1);
  } else if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL) {
    // A child of fork(), which shares the descriptors: it ends, as without a Checkpointer. The
    // signal is delivered again when this handler returns.
    sigaction(signal, &before, nullptr);
    raise(signal);
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  errno = error;
}

bool is_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

// Makes on_signal() the handler, and keeps the previous handler in `before`.
Status handle(int signal) {
  struct sigaction now = {};
  if (sigaction(signal, nullptr, &now) == 0) {
    // A forked child has the handler already.
    if (is_handler(now)) return absl::OkStatus();
    before = now;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    if (sigaction(signal, &action, nullptr) == 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("signal ", signal, " cannot be handled"));
}

Status add_event(int fd, int signal) {
  std::lock_guard<std::mutex> lock(handler_mutex);
  if (owner.load() != getpid()) {
    // The descriptors are those of the process that has forked this one.
    for (std::atomic<int>& event : events) event.store(0);
    num_events = 0;
    owner.store(getpid());
  }
  if (num_events > 0 && handled_signal != signal) {
    return absl::InvalidArgumentError(
        absl::StrCat("signal ", signal,
                     " is to be handled, and another Checkpointer of this "
                     "process handles signal ",
                     handled_signal, "; use one signal"));
  }
  const auto free = std::find_if(events.begin(), events.end(),
                                 [](const std::atomic<int>& event) { return event.load() == 0; });
  if (free == events.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this process has ", kMostEvents, " Checkpointers; destroy some"));
  }
  free->store(fd + 1);
  handled_signal = signal;
  if (num_events++ > 0) return absl::OkStatus();
  const Status handled = handle(signal);
  if (handled.ok()) return handled;
  free->store(0);
  --num_events;
  return handled;
}

// After it no handler writes to the descriptor, which can be closed.
void remove_event(int fd) {
  std::lock_guard<std::mutex> lock(handler_mutex);
  const auto known = std::find_if(events.begin(), events.end(), [&](const std::atomic<int>& event) {
    return event.load() == fd + 1;
  });
  if (known == events.end()) return;
  known->store(0);
  while (num_writing.load() > 0) sched_yield();
  if (--num_events > 0) return;
  // A handler that the program has set since stays.
  struct sigaction now = {};
  if (sigaction(handled_signal, nullptr, &now) == 0 && is_handler(now)) {
    sigaction(handled_signal, &before, nullptr);
  }
}

}  // namespace

StatusOr<std::unique_ptr<Preemption>> Preemption::start(const Client& client, int run, int signal) {
  std::unique_ptr<Preemption> self(new Preemption(client, run));
  self->event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (!self->event_.is_open()) return no_resource("cannot make an event for a signal");
  TESSERA_ASSIGN_OR_RETURN(
      self->listener_,
      start_thread("the preemption of a Checkpointer", [raw = self.get()] { raw->await_news(); }));
  TESSERA_ASSIGN_OR_RETURN(self->sender_, start_thread("the signals of a Checkpointer",
                                                       [raw = self.get()] { raw->send_signal(); }));
  TESSERA_RETURN_IF_ERROR(add_event(self->event_.get(), signal));
  return self;
}

Preemption::~Preemption() {
  remove_event(event_.get());
  ends_.store(true);
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof(one)) < 0 && sender_.joinable()) sender_.detach();
  // Whichever comes first counts: the listener of a signal, or these.
  tell(news_of(client_.client_id()), kEnd).IgnoreError();
  tell(steps_of(client_.client_id()), kEnd).IgnoreError();
  if (client_.client_id() == 0) tell(kLimit, kEnd).IgnoreError();
  if (sender_.joinable()) sender_.join();
  if (listener_.joinable()) listener_.join();
}

std::string Preemption::series_of(absl::string_view message) const {
  return absl::StrCat("preemption ", run_ % kNumSets, " ", message);
}

Status Preemption::tell(absl::string_view message, absl::string_view text) const {
  return tessera::internal::post(client_, series_of(message), run_ / kNumSets, text);
}

StatusOr<std::string> Preemption::hear(absl::string_view message, int sender) const {
  while (true) {
    StatusOr<std::string> text =
        tessera::internal::await_post(client_, series_of(message), run_ / kNumSets, sender, kSlice);
    if (!absl::IsDeadlineExceeded(text.status()) || ends_.load()) return text;
  }
}

void Preemption::send_signal() {
  uint64_t count = 0;
  while (read(event_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
  if (!ends_.load()) tell(news_of(0), kSignal).IgnoreError();
}

void Preemption::await_news() {
  // Any client may send it to client 0; this one is the sender that must not be lost.
  const int self = client_.client_id();
  const StatusOr<std::string> news = hear(news_of(self), self);
  if (!news.ok() || *news != kSignal) return;
  for (int other = 1; self == 0 && other < client_.num_clients(); ++other) {
    tell(news_of(other), kSignal).IgnoreError();
  }
  is_asked_.store(true);
  const int64_t limit = find_limit();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    limit_ = limit;
    is_known_ = true;
  }
  known_.notify_all();
}

// Without an answer of client 0 there is no limit: another call tells the program of the loss.
int64_t Preemption::find_limit() {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  tell(steps_of(client_.client_id()), absl::StrCat(last_step_.load())).IgnoreError();
  if (client_.client_id() == 0) {
    int64_t limit = std::numeric_limits<int64_t>::min();
    for (int other = 0; other < client_.num_clients(); ++other) {
      const StatusOr<std::string> text = hear(steps_of(other), other);
      int64_t step = 0;
      if (text.ok() && absl::SimpleAtoi(*text, &step)) limit = std::max(limit, step);
    }
    tell(kLimit, absl::StrCat(limit)).IgnoreError();
  }
  const StatusOr<std::string> text = hear(kLimit, 0);
  int64_t limit = 0;
  return text.ok() && absl::SimpleAtoi(*text, &limit) ? limit : kNone;
}

bool Preemption::is_reached(int64_t step) {
  // In this order: the listener reads them in the other one.
  last_step_.store(step);
  if (!is_asked_.load()) return false;
  std::unique_lock<std::mutex> lock(mutex_);
  known_.wait(lock, [this] { return is_known_; });
  return step > limit_;
}

}  // namespace tessera::checkpoint::internal
