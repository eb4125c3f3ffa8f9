// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/preemption.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

// The descriptors that the handler writes to. A handler has no other way to find its objects.
constexpr int kMostEvents = 64;
std::array<std::atomic<int>, kMostEvents> events;  // the descriptor plus 1; 0: none
std::mutex handler_mutex;                          // guards num_events, handled_signal, before
int num_events = 0;
int handled_signal = 0;
struct sigaction before;

void on_signal(int signal) {
  const int error = errno;
  for (const std::atomic<int>& event : events) {
    const int fd = event.load() - 1;
    const uint64_t one = 1;
    if (fd >= 0 && write(fd, &one, sizeof(one)) < 0) continue;  // a full counter is readable too
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN &&
      (before.sa_flags & SA_SIGINFO) == 0) {
    before.sa_handler(signal);
  }
  errno = error;
}

Status add_event(int fd, int signal) {
  std::lock_guard<std::mutex> lock(handler_mutex);
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
  if (num_events++ > 0) return absl::OkStatus();
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  handled_signal = signal;
  if (sigaction(signal, &action, &before) == 0) return absl::OkStatus();
  free->store(0);
  --num_events;
  return absl::InvalidArgumentError(absl::StrCat("signal ", signal, " cannot be handled"));
}

void remove_event(int fd) {
  std::lock_guard<std::mutex> lock(handler_mutex);
  const auto known = std::find_if(events.begin(), events.end(), [&](const std::atomic<int>& event) {
    return event.load() == fd + 1;
  });
  if (known == events.end()) return;
  known->store(0);
  if (--num_events == 0) sigaction(handled_signal, &before, nullptr);
}

}  // namespace

StatusOr<std::unique_ptr<Preemption>> Preemption::start(const Client& client, int run, int signal) {
  std::unique_ptr<Preemption> self(new Preemption(client, run));
  self->event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (!self->event_.is_open()) return no_resource("cannot make an event for a signal");
  TESSERA_ASSIGN_OR_RETURN(
      self->listener_,
      start_thread("the preemption of a Checkpointer", [raw = self.get()] { raw->await_news(); }));
  TESSERA_ASSIGN_OR_RETURN(
      self->sender_,
      start_thread("the signals of a Checkpointer", [raw = self.get()] { raw->send_signals(); }));
  TESSERA_RETURN_IF_ERROR(add_event(self->event_.get(), signal));
  return self;
}

Preemption::~Preemption() {
  using tessera::internal::post;
  remove_event(event_.get());
  ends_.store(true);
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof(one)) < 0 && sender_.joinable()) sender_.detach();
  // Whichever comes first counts: the listener of a signal, or these.
  post(client_, news_of(client_.client_id()), 0, kEnd).IgnoreError();
  post(client_, steps_of(client_.client_id()), 0, kEnd).IgnoreError();
  if (client_.client_id() == 0) post(client_, limits(), 0, kEnd).IgnoreError();
  if (sender_.joinable()) sender_.join();
  if (listener_.joinable()) listener_.join();
}

std::string Preemption::news_of(int client) const {
  return absl::StrCat("preemption ", run_, " news ", client);
}
std::string Preemption::steps_of(int client) const {
  return absl::StrCat("preemption ", run_, " step ", client);
}
std::string Preemption::limits() const { return absl::StrCat("preemption ", run_, " limit"); }

void Preemption::send_signals() {
  uint64_t count = 0;
  while (read(event_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
  }
  for (int other = 0; other < client_.num_clients() && !ends_.load(); ++other) {
    tessera::internal::post(client_, news_of(other), 0, kSignal).IgnoreError();
  }
}

void Preemption::await_news() {
  // Any client may send it; this one is the sender that must not be lost.
  const StatusOr<std::string> news = tessera::internal::await_post(
      client_, news_of(client_.client_id()), 0, client_.client_id(), absl::InfiniteDuration());
  if (!news.ok() || *news != kSignal) return;
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
  using tessera::internal::await_post;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  tessera::internal::post(client_, steps_of(client_.client_id()), 0,
                          absl::StrCat(last_step_.load()))
      .IgnoreError();
  if (client_.client_id() == 0) {
    int64_t limit = std::numeric_limits<int64_t>::min();
    for (int other = 0; other < client_.num_clients(); ++other) {
      const StatusOr<std::string> text =
          await_post(client_, steps_of(other), 0, other, absl::InfiniteDuration());
      int64_t step = 0;
      if (text.ok() && absl::SimpleAtoi(*text, &step)) limit = std::max(limit, step);
    }
    tessera::internal::post(client_, limits(), 0, absl::StrCat(limit)).IgnoreError();
  }
  const StatusOr<std::string> text = await_post(client_, limits(), 0, 0, absl::InfiniteDuration());
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
