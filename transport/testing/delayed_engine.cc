// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/delayed_engine.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/thread.h"

namespace tessera::transport {
namespace {

class DelayedEngine final : public Engine {
 public:
  DelayedEngine(std::unique_ptr<Engine> engine, uint32_t seed)
      : engine_(std::move(engine)), random_(seed) {}
  ~DelayedEngine() override { stop(); }

  Status start() {
    TESSERA_ASSIGN_OR_RETURN(thread_, start_thread("the delays of a test", [this] { run(); }));
    return absl::OkStatus();
  }

  Status connect(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect(clients, deadline);
  }
  Status connect_all(absl::Span<const int> clients, absl::Time deadline) override {
    return engine_->connect_all(clients, deadline);
  }
  void send(int client, Tag tag, absl::Span<const std::byte> bytes, Keeper keeper,
            Done done) override {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::Time& last = last_[{client, tag}];
    last = std::max(last, steady_now() + delay());
    late_.emplace(last, Late{client, tag, bytes, std::move(keeper), std::move(done)});
    changed_.notify_one();
    if (is_stopping_) send_all();
  }
  void receive(int client, Tag tag, absl::Span<std::byte> bytes, Keeper keeper,
               Done done) override {
    engine_->receive(client, tag, bytes, std::move(keeper), std::move(done));
  }
  void cut(int client, const Status& reason) override {
    std::lock_guard<std::mutex> lock(mutex_);
    send_all();
    engine_->cut(client, reason);
  }
  void wait(Wait& wait, absl::Duration limit) override { engine_->wait(wait, limit); }
  void wake(Wait& wait) override { engine_->wake(wait); }
  void set_lost_listener(LostListener listener) override {
    engine_->set_lost_listener(std::move(listener));
  }
  void stop() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_stopping_ = true;
      send_all();
      changed_.notify_one();
    }
    engine_->stop();
    std::lock_guard<std::mutex> lock(joining_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Late {
    int client;
    Tag tag;
    absl::Span<const std::byte> bytes;
    Keeper keeper;
    Done done;
  };

  // Requires mutex_.
  absl::Duration delay() {
    const uint32_t kind = random_() % 100;
    if (kind < 60) return absl::ZeroDuration();
    const int64_t most_us = kind < 95 ? 2000 : 20000;
    return absl::Microseconds(static_cast<int64_t>(random_() % most_us));
  }
  // Requires mutex_, so that the order of a tag is kept.
  void send_until(absl::Time now) {
    while (!late_.empty() && late_.begin()->first <= now) {
      Late late = std::move(late_.extract(late_.begin()).mapped());
      engine_->send(late.client, late.tag, late.bytes, std::move(late.keeper),
                    std::move(late.done));
    }
  }
  void send_all() { send_until(absl::InfiniteFuture()); }
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_stopping_) {
      send_until(steady_now());
      if (late_.empty()) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, absl::ToChronoNanoseconds(late_.begin()->first - steady_now()));
      }
    }
  }

  const std::unique_ptr<Engine> engine_;
  std::mutex joining_;
  Thread thread_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::mt19937 random_;
  bool is_stopping_ = false;
  std::map<std::pair<int, Tag>, absl::Time> last_;  // by client and tag
  std::multimap<absl::Time, Late> late_;
};

}  // namespace

StatusOr<std::unique_ptr<Engine>> make_delayed(std::unique_ptr<Engine> engine, uint32_t seed) {
  auto delayed = std::make_unique<DelayedEngine>(std::move(engine), seed);
  TESSERA_RETURN_IF_ERROR(delayed->start());
  return std::unique_ptr<Engine>(std::move(delayed));
}

}  // namespace tessera::transport
