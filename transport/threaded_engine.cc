// SPDX-License-Identifier: Apache-2.0
#include "transport/threaded_engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/system_call.h"
#include "base/thread.h"
#include "job/environment/file_descriptor.h"
#include "transport/offers.h"

namespace tessera::transport {
namespace {

// How often the engine's thread looks whether others are in wait(). It does the work if no thread
// was in wait() since its last look. The longer the waits are, the less often it looks.
constexpr auto kFirstLook = std::chrono::milliseconds(1);
constexpr auto kLastLook = std::chrono::milliseconds(16);

class ThreadedEngine : public Engine {
 public:
  ThreadedEngine(Coordinator& coordinator, EngineSettings settings,
                 const MakeConnections& make_connections)
      : coordinator_(coordinator),
        settings_(std::move(settings)),
        states_(coordinator, make_connections,
                [this](int client, const Status& reason) { tell_lost(client, reason); }) {}
  ~ThreadedEngine() override;

  Status start();

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return connect(clients, deadline, /*is_of_all=*/false);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return connect(clients, deadline, /*is_of_all=*/true);
  }
  void send(int client, Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override;
  void receive(int client, Tag tag, absl::Span<std::byte> bytes, Keeper keeper, Done done) override;
  void cut(int client, const Status& reason) override;
  void wait(Wait& wait, absl::Duration limit) override;
  void wake(Wait& wait) override;
  void set_lost_listener(LostListener listener) override;
  void stop() override;

 private:
  using Task = absl::AnyInvocable<void()>;
  // A task, or the operation of a list of one.
  using Submission = std::variant<Task, Operation::List>;

  void submit(Direction direction, int client, Tag tag, std::byte* bytes, size_t num_bytes,
              Keeper keeper, Done done);
  // Queues for the engine's thread; false after stop().
  bool enqueue(Submission& submission);
  // Runs `task` on the engine's thread and waits for it; false after stop().
  bool run_on_thread(absl::AnyInvocable<void()> task);
  Status stopped() const;
  Status check_clients(absl::Span<const int> clients) const;
  Status connect(absl::Span<const int> clients, absl::Time deadline, bool is_of_all);

  // Called on the engine's thread.
  void run();
  bool take_work();
  void end();

  // Called by the thread that has the work.
  bool step();
  bool take_submissions();
  // Whether the thread may sleep; `descriptors` gets the descriptors to wait for, `event` among
  // them.
  bool prepare_sleep(const FileDescriptor& event, std::vector<pollfd>& descriptors);
  // Does the work until the wait is over, or the engine stops.
  void work_until(const Wait& wait, absl::Time end);
  void tell_lost(int client, const Status& reason);

  // In poll(), until there is work or so long has passed.
  static void poll_for(std::vector<pollfd>& descriptors, absl::Duration limit);
  // Wakes the threads in poll(). Requires mutex_.
  void wake_sleepers();
  // After a thread has had the work: the next waiting thread takes it. Requires mutex_.
  void hand_over();

  Coordinator& coordinator_;
  const EngineSettings settings_;
  const ForkGuard fork_guard_;
  // The events that wake thread_sleeps_ and waiter_sleeps_.
  FileDescriptor thread_event_;
  FileDescriptor waiter_event_;

  std::atomic<bool> should_stop_{false};  // stop() was called; set under mutex_

  std::mutex mutex_;  // guards the members below
  std::list<Submission> queue_;
  bool has_stopped_ = false;  // nothing is taken from the queue any more
  // At most one thread has the work. While there are waiters a waiter has it, or was woken to take
  // it.
  bool is_taken_ = false;
  std::vector<Wait*> waiters_;
  uint64_t num_helped_ = 0;  // how often a waiter has had the work
  uint64_t num_seen_ = 0;    // when the engine's thread took it
  // Asleep in poll(), or about to be: the engine's thread, without the work, and a waiter that has
  // it.
  bool thread_sleeps_ = false;
  bool waiter_sleeps_ = false;
  std::condition_variable parked_;  // the engine's thread, while waiters have the work

  std::atomic<std::thread::id> worker_{};  // the thread that has the work

  std::mutex listener_mutex_;  // held while the listener runs
  LostListener listener_;

  std::mutex stop_mutex_;    // guards the join
  ConnectionStates states_;  // of the thread that has the work
  Thread thread_;
};

Status ThreadedEngine::start() {
  for (FileDescriptor* const event : {&thread_event_, &waiter_event_}) {
    *event = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (event->is_open()) continue;
    return no_resource("an event for an engine");
  }
  TESSERA_ASSIGN_OR_RETURN(
      thread_, start_thread(absl::StrCat("the ", settings_.name, " engine"), [this] { run(); }));
  return absl::OkStatus();
}

ThreadedEngine::~ThreadedEngine() {
  if (thread_.joinable() && fork_guard_.in_child()) {
    // The thread is not in this process, so it can be neither joined nor detached: what stands for
    // it is leaked. The library's objects stay as they are: they are the parent's.
    (void)new Thread(std::move(thread_));
    states_.abandon();
    return;
  }
  stop();
}

// --- Submission.

void ThreadedEngine::send(int client, Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
                          Done done) {
  submit(Direction::kSend, client, tag, const_cast<std::byte*>(bytes.data()), bytes.size(),
         std::move(keeper), std::move(done));
}

void ThreadedEngine::receive(int client, Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
                             Done done) {
  submit(Direction::kReceive, client, tag, bytes.data(), bytes.size(), std::move(keeper),
         std::move(done));
}

void ThreadedEngine::submit(Direction direction, int client, Tag tag, std::byte* bytes,
                            size_t num_bytes, Keeper keeper, Done done) {
  TESSERA_CHECK(client >= 0 && client < coordinator_.num_clients(), "a client of the job");
  TESSERA_CHECK(tag < kNumTags, "a tag of an engine");
  Submission submission = Operation::List(1);
  Operation& operation = std::get<Operation::List>(submission).front();
  operation.direction = direction;
  operation.client = client;
  operation.tag = tag;
  operation.bytes = bytes;
  operation.num_bytes = num_bytes;
  operation.keeper = std::move(keeper);
  operation.done = std::move(done);
  if (!enqueue(submission)) operation.done(stopped());
}

bool ThreadedEngine::enqueue(Submission& submission) {
  std::list<Submission> node;
  node.push_back(std::move(submission));
  std::lock_guard<std::mutex> lock(mutex_);
  if (has_stopped_) {
    submission = std::move(node.front());
    return false;
  }
  queue_.splice(queue_.end(), node);
  wake_sleepers();
  return true;
}

// --- Waiting.

void ThreadedEngine::wait(Wait& wait, absl::Duration limit) {
  const absl::Time end = steady_now() + limit;
  std::unique_lock<std::mutex> lock(mutex_);
  waiters_.push_back(&wait);
  while (!wait.is_over && steady_now() < end) {
    if (is_taken_ || should_stop_) {
      wait.woken.wait_until(lock, to_chrono_steady(end));
      continue;
    }
    is_taken_ = true;
    ++num_helped_;
    lock.unlock();
    work_until(wait, end);
    lock.lock();
    is_taken_ = false;
  }
  std::erase(waiters_, &wait);
  hand_over();
}

void ThreadedEngine::wake(Wait& wait) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (wait.is_over.exchange(true)) return;
  wait.woken.notify_one();
  if (waiter_sleeps_) wake_sleepers();
}

void ThreadedEngine::wake_sleepers() {
  if (std::exchange(waiter_sleeps_, false)) eventfd_write(waiter_event_.get(), 1);
  if (thread_sleeps_ && !is_taken_) eventfd_write(thread_event_.get(), 1);
}

void ThreadedEngine::hand_over() {
  if (is_taken_) return;
  if (should_stop_) return parked_.notify_one();
  if (!waiters_.empty()) return waiters_.front()->woken.notify_one();
  // The thread sleeps on descriptors that it prepared before a waiter had the work.
  if (thread_sleeps_) eventfd_write(thread_event_.get(), 1);
}

void ThreadedEngine::work_until(const Wait& wait, absl::Time end) {
  worker_ = std::this_thread::get_id();
  std::vector<pollfd> descriptors;
  while (!wait.is_over && !should_stop_) {
    if (step()) continue;
    const absl::Duration left = end - steady_now();
    if (left <= absl::ZeroDuration()) break;
    if (!prepare_sleep(waiter_event_, descriptors)) continue;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!queue_.empty() || should_stop_ || wait.is_over) continue;
      waiter_sleeps_ = true;
    }
    poll_for(descriptors, std::min(left, states_.library().longest_sleep()));
    std::lock_guard<std::mutex> lock(mutex_);
    waiter_sleeps_ = false;
  }
  worker_ = std::thread::id();
}

void ThreadedEngine::cut(int client, const Status& reason) {
  TESSERA_CHECK(client >= 0 && client < coordinator_.num_clients(), "a client of the job");
  TESSERA_CHECK(!reason.ok(), "the reason of a cut is an error");
  const Status unavailable =
      absl::IsUnavailable(reason) ? reason : absl::UnavailableError(reason.message());
  Submission submission = Task([this, client, unavailable] { states_.cut(client, unavailable); });
  enqueue(submission);
}

void ThreadedEngine::set_lost_listener(LostListener listener) {
  std::unique_lock<std::mutex> lock(listener_mutex_, std::defer_lock);
  // The listener itself runs under the mutex.
  if (worker_ != std::this_thread::get_id()) lock.lock();
  listener_ = std::move(listener);
}

// --- Connecting.

bool ThreadedEngine::run_on_thread(absl::AnyInvocable<void()> task) {
  TESSERA_CHECK(!thread_.is_current(), "the thread of an engine waits for itself");
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
  };
  const auto shared = std::make_shared<Shared>();
  Submission submission = Task([&task, shared] {
    task();
    std::lock_guard<std::mutex> lock(shared->mutex);
    shared->is_done = true;
    shared->changed.notify_all();
  });
  if (!enqueue(submission)) return false;
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->changed.wait(lock, [&] { return shared->is_done; });
  return true;
}

Status ThreadedEngine::stopped() const {
  return absl::CancelledError(absl::StrCat("the ", settings_.name, " engine was stopped"));
}

Status ThreadedEngine::check_clients(absl::Span<const int> clients) const {
  for (const int client : clients) {
    if (client < 0 || client >= coordinator_.num_clients() || client == coordinator_.client_id()) {
      return absl::InvalidArgumentError(absl::StrCat("client ", coordinator_.client_id(),
                                                     " cannot connect to client ", client, " of ",
                                                     coordinator_.num_clients()));
    }
  }
  return absl::OkStatus();
}

Status ThreadedEngine::connect(absl::Span<const int> clients, absl::Time deadline, bool is_of_all) {
  TESSERA_RETURN_IF_ERROR(check_clients(clients));
  std::vector<OfferExchange> attempts;
  Status error;
  const bool is_running = run_on_thread([&] {
    for (const int client : clients) {
      StatusOr<Offer> offer = states_.offer(client);
      if (!offer.ok()) {
        error = offer.status();
        return;
      }
      if (!offer->is_connected) attempts.push_back({client, *std::move(offer), ""});
    }
  });
  if (!is_running) return stopped();
  TESSERA_RETURN_IF_ERROR(error);
  const std::string& name = settings_.name;
  if (is_of_all) error = exchange_through_client_0(coordinator_, name, attempts, deadline);
  if (error.ok()) error = exchange_offers(coordinator_, name, attempts, deadline);
  std::erase_if(attempts, [](const OfferExchange& attempt) { return attempt.peer_text.empty(); });

  // Shared with the callbacks, which may come after the deadline.
  struct Meetings {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::optional<Status>> results;
  };
  const auto meetings = std::make_shared<Meetings>();
  meetings->results.resize(attempts.size());
  const bool still_running = run_on_thread([&] {
    for (size_t i = 0; i < attempts.size(); ++i) {
      states_.meet(attempts[i].client, attempts[i].offer, attempts[i].peer_text,
                   [meetings, i](const Status& status) {
                     std::lock_guard<std::mutex> lock(meetings->mutex);
                     meetings->results[i] = status;
                     meetings->changed.notify_all();
                   });
    }
  });
  if (!still_running) return stopped();
  std::unique_lock<std::mutex> lock(meetings->mutex);
  meetings->changed.wait_until(lock, to_chrono_steady(deadline), [&] {
    return std::all_of(meetings->results.begin(), meetings->results.end(),
                       [](const auto& result) { return result.has_value(); });
  });
  for (size_t i = 0; i < attempts.size() && error.ok(); ++i) {
    error = meetings->results[i].value_or(absl::DeadlineExceededError(absl::StrCat(
        coordinator_.members()[attempts[i].client].to_string(), " at ",
        Address::parse(attempts[i].peer_text).place, " does not answer on the connection from ",
        Address::parse(attempts[i].offer.text).place)));
  }
  return error;
}

// --- The engine's thread, and the work of it.

void ThreadedEngine::run() {
  std::vector<pollfd> descriptors;
  while (take_work()) {
    worker_ = std::this_thread::get_id();
    const bool may_sleep = !step() && prepare_sleep(thread_event_, descriptors);
    const absl::Duration longest = states_.library().longest_sleep();
    worker_ = std::thread::id();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_taken_ = false;
      thread_sleeps_ = may_sleep && queue_.empty() && waiters_.empty() && !should_stop_;
      if (!thread_sleeps_) {
        hand_over();
        continue;
      }
    }
    poll_for(descriptors, longest);
    std::lock_guard<std::mutex> lock(mutex_);
    thread_sleeps_ = false;
  }
  worker_ = std::this_thread::get_id();
  end();
}

// Waits until no waiter has had the work for a while. False if the engine is to stop; the thread
// has the work in both cases.
bool ThreadedEngine::take_work() {
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t num_helped = num_seen_;
  std::chrono::milliseconds until_look = kFirstLook;
  while (is_taken_ || (!should_stop_ && (!waiters_.empty() || num_helped != num_helped_))) {
    num_helped = num_helped_;
    until_look = is_taken_ ? std::min(2 * until_look, kLastLook) : kFirstLook;
    parked_.wait_for(lock, until_look);
  }
  num_seen_ = num_helped_;
  is_taken_ = true;
  return !should_stop_;
}

bool ThreadedEngine::step() {
  const bool any = take_submissions();
  return states_.library().progress() || any;
}

bool ThreadedEngine::take_submissions() {
  std::list<Submission> taken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken.swap(queue_);
  }
  const bool any = !taken.empty();
  for (; !taken.empty(); taken.pop_front()) {
    if (auto* const task = std::get_if<Task>(&taken.front())) {
      (*task)();
    } else {
      states_.start(std::get<Operation::List>(taken.front()));
    }
  }
  return any;
}

bool ThreadedEngine::prepare_sleep(const FileDescriptor& event, std::vector<pollfd>& descriptors) {
  const auto has_work = [this] {
    if (states_.library().progress()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    return !queue_.empty() || should_stop_;
  };
  const WaitPolicy policy = settings_.wait_policy;
  if (policy.spins + policy.yields > 0 && wait_briefly(policy, has_work)) return false;
  if (!states_.library().arm()) return false;
  descriptors.assign(1, {.fd = event.get(), .events = POLLIN, .revents = 0});
  states_.library().append_descriptors(descriptors);
  return true;
}

void ThreadedEngine::poll_for(std::vector<pollfd>& descriptors, absl::Duration limit) {
  const timespec time = absl::ToTimespec(limit);
  ppoll(descriptors.data(), descriptors.size(), limit == absl::InfiniteDuration() ? nullptr : &time,
        nullptr);
  eventfd_t count;
  if (descriptors[0].revents != 0) eventfd_read(descriptors[0].fd, &count);
}

void ThreadedEngine::end() {
  states_.end(stopped());
  // Operations submitted by these callbacks end too; tasks find no connection.
  for (;;) {
    if (take_submissions()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    has_stopped_ = queue_.empty();
    if (has_stopped_) return;
  }
}

void ThreadedEngine::tell_lost(int client, const Status& reason) {
  std::lock_guard<std::mutex> lock(listener_mutex_);
  const LostListener listener = listener_;  // it may replace itself
  if (listener) listener(client, reason);
}

void ThreadedEngine::stop() {
  if (fork_guard_.in_child()) return;
  TESSERA_CHECK(!thread_.is_current(), "an engine is stopped by its own thread");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    should_stop_ = true;
    parked_.notify_one();
    eventfd_write(thread_event_.get(), 1);
    eventfd_write(waiter_event_.get(), 1);
  }
  std::lock_guard<std::mutex> lock(stop_mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace

StatusOr<std::unique_ptr<Engine>> make_threaded_engine(Coordinator& coordinator,
                                                       EngineSettings settings,
                                                       const MakeConnections& make_connections) {
  auto engine =
      std::make_unique<ThreadedEngine>(coordinator, std::move(settings), make_connections);
  TESSERA_RETURN_IF_ERROR(engine->start());
  return engine;
}

}  // namespace tessera::transport
