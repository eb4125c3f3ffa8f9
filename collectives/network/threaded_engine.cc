// SPDX-License-Identifier: Apache-2.0
#include "collectives/network/threaded_engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/fork_guard.h"
#include "base/thread.h"
#include "job/file_descriptor.h"

namespace tessera::network {
namespace {

// Of an offer: what follows its first word.
std::string place_of(const std::string& offer) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(offer, absl::MaxSplits(' ', 1));
  return parts.second;
}

class ThreadedEngine : public Engine {
 public:
  ThreadedEngine(Coordinator& coordinator, EngineSettings settings,
                 const MakeConnections& make_connections)
      : coordinator_(coordinator),
        settings_(std::move(settings)),
        connections_(make_connections(
            coordinator, [this](int client, const Status& reason) { tell_lost(client, reason); })) {
  }
  ~ThreadedEngine() override;

  Status start();

  Status connect(absl::Span<const int> clients, absl::Time deadline) override;
  void send(int client, Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override;
  void receive(int client, Tag tag, absl::Span<std::byte> bytes, Keeper keeper, Done done) override;
  void cut(int client, const Status& reason) override;
  void set_lost_listener(LostListener listener) override;
  void stop() override;

 private:
  using Task = absl::AnyInvocable<void()>;
  // A task, or the operation of a list of one.
  using Submission = std::variant<Task, Operation::List>;
  struct Attempt;  // connect() of one client

  void submit(Direction direction, int client, Tag tag, std::byte* bytes, size_t num_bytes,
              Keeper keeper, Done done);
  // Queues for the engine's thread; false after stop().
  bool enqueue(Submission& submission);
  // Runs `task` on the engine's thread and waits for it; false after stop().
  bool run_on_thread(absl::AnyInvocable<void()> task);
  Status stopped() const;
  Status check_clients(absl::Span<const int> clients) const;
  Status exchange(std::vector<Attempt>& attempts, absl::Time deadline);

  // Of the engine's thread.
  void run();
  bool take_submissions();
  void wait_for_work();
  void end();
  void tell_lost(int client, const Status& reason);

  Coordinator& coordinator_;
  const EngineSettings settings_;
  const ForkGuard fork_guard_;
  FileDescriptor wake_event_;

  std::atomic<bool> should_stop_{false};  // stop() was called; set under mutex_

  std::mutex mutex_;  // guards what follows
  std::list<Submission> queue_;
  bool is_asleep_ = false;    // or about to be: it needs wake_event_
  bool has_stopped_ = false;  // nothing is taken from the queue any more

  std::mutex listener_mutex_;  // held while the listener runs
  LostListener listener_;

  std::mutex stop_mutex_;                           // guards the join
  const std::unique_ptr<Connections> connections_;  // of the thread
  std::vector<pollfd> descriptors_;
  Thread thread_;
};

Status ThreadedEngine::start() {
  wake_event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_event_.is_open()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make an event for an engine: ", std::strerror(errno)));
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
    connections_->abandon();
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
  bool wakes = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (has_stopped_) {
      submission = std::move(node.front());
      return false;
    }
    queue_.splice(queue_.end(), node);
    wakes = std::exchange(is_asleep_, false);
  }
  if (wakes) eventfd_write(wake_event_.get(), 1);
  return true;
}

void ThreadedEngine::cut(int client, const Status& reason) {
  TESSERA_CHECK(client >= 0 && client < coordinator_.num_clients(), "a client of the job");
  TESSERA_CHECK(!reason.ok(), "the reason of a cut is an error");
  const Status unavailable =
      absl::IsUnavailable(reason) ? reason : absl::UnavailableError(reason.message());
  Submission submission =
      Task([this, client, unavailable] { connections_->cut(client, unavailable); });
  enqueue(submission);
}

void ThreadedEngine::set_lost_listener(LostListener listener) {
  std::unique_lock<std::mutex> lock(listener_mutex_, std::defer_lock);
  // The listener itself runs under the mutex.
  if (!thread_.is_current()) lock.lock();
  listener_ = std::move(listener);
}

// --- Connecting.

struct ThreadedEngine::Attempt {
  int client;
  StatusOr<Connections::Offer> offer = absl::UnknownError("no offer yet");
  std::string peer_text;
};

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

// Fills in what the peers offer. Returns the first error; attempts behind it may have no text.
Status ThreadedEngine::exchange(std::vector<Attempt>& attempts, absl::Time deadline) {
  const auto key_of = [](int from, int to, uint64_t number) {
    return absl::StrCat("tessera/engine/", from, "/", to, "/", number);
  };
  const int own = coordinator_.client_id();
  for (const Attempt& attempt : attempts) {
    TESSERA_RETURN_IF_ERROR(
        coordinator_.put(key_of(own, attempt.client, attempt.offer->number),
                         absl::StrCat(settings_.name, " ", attempt.offer->text)));
  }
  Status first;
  for (Attempt& attempt : attempts) {
    const std::string peer = coordinator_.members()[attempt.client].to_string();
    const StatusOr<std::string> text = coordinator_.get(
        key_of(attempt.client, own, attempt.offer->number), attempt.client, deadline);
    if (!text.ok()) {
      first.Update(with_context(text.status(), absl::StrCat("connecting to ", peer, " from ",
                                                            place_of(attempt.offer->text))));
      continue;
    }
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(*text, absl::MaxSplits(' ', 1));
    if (parts.first == settings_.name) {
      attempt.peer_text = parts.second;
    } else {
      first.Update(absl::InvalidArgumentError(
          absl::StrCat("client ", own, " has \"", settings_.name, "\" between hosts, ", peer,
                       " has \"", parts.first, "\"; give all clients of a job one backend")));
    }
  }
  return first;
}

Status ThreadedEngine::connect(absl::Span<const int> clients, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(check_clients(clients));
  std::vector<Attempt> attempts;
  Status error;
  const bool is_running = run_on_thread([&] {
    for (const int client : clients) {
      Attempt attempt{.client = client, .offer = connections_->offer(client), .peer_text = ""};
      if (!attempt.offer.ok()) {
        error = attempt.offer.status();
        return;
      }
      if (!attempt.offer->is_connected) attempts.push_back(std::move(attempt));
    }
  });
  if (!is_running) return stopped();
  TESSERA_RETURN_IF_ERROR(error);
  error = exchange(attempts, deadline);
  std::erase_if(attempts, [](const Attempt& attempt) { return attempt.peer_text.empty(); });

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
      connections_->meet(attempts[i].client, *attempts[i].offer, attempts[i].peer_text,
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
    error = meetings->results[i].value_or(absl::DeadlineExceededError(
        absl::StrCat(coordinator_.members()[attempts[i].client].to_string(), " at ",
                     place_of(attempts[i].peer_text), " does not answer on the connection from ",
                     place_of(attempts[i].offer->text))));
  }
  return error;
}

// --- The engine's thread.

void ThreadedEngine::run() {
  while (!should_stop_) {
    bool any = take_submissions();
    any = connections_->progress() || any;
    if (!any) wait_for_work();
  }
  end();
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
      connections_->start(std::get<Operation::List>(taken.front()));
    }
  }
  return any;
}

void ThreadedEngine::wait_for_work() {
  const auto has_work = [this] {
    if (connections_->progress()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    return !queue_.empty() || should_stop_;
  };
  if (settings_.wait_policy.spins + settings_.wait_policy.yields > 0 &&
      wait_briefly(settings_.wait_policy, has_work))
    return;
  if (!connections_->arm()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!queue_.empty() || should_stop_) return;
    is_asleep_ = true;
  }
  descriptors_.assign(1, {.fd = wake_event_.get(), .events = POLLIN, .revents = 0});
  connections_->append_descriptors(descriptors_);
  const absl::Duration longest = connections_->longest_sleep();
  const timespec limit = absl::ToTimespec(longest);
  ppoll(descriptors_.data(), descriptors_.size(),
        longest == absl::InfiniteDuration() ? nullptr : &limit, nullptr);
  eventfd_t count;
  eventfd_read(wake_event_.get(), &count);
  std::lock_guard<std::mutex> lock(mutex_);
  is_asleep_ = false;
}

void ThreadedEngine::end() {
  connections_->end(stopped());
  // What callbacks of that have submitted ends too; tasks find no connection.
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
    if (std::exchange(is_asleep_, false)) eventfd_write(wake_event_.get(), 1);
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

}  // namespace tessera::network
