// SPDX-License-Identifier: Apache-2.0
//
// CpuStream: order, errors, and that enqueue returns before the work is done.
#include "device/cpu/cpu_stream.h"

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "device/completion.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"
#include "tests/support/matchers.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Optional;
using testing::StatusIs;
using ::testing::StrEq;

class CpuStreamTest : public ::testing::Test {
 private:
  testing::TestDeadline deadline_{absl::Seconds(30), "cpu_stream_test"};
};

class Recorder : public StreamObserver {
 public:
  void task_started(absl::string_view label) override { events.push_back(std::string(label)); }
  void task_finished() override { events.push_back("done"); }
  std::vector<std::string> events;
};

std::unique_ptr<CpuStream> new_stream(StreamObserver* observer = nullptr) {
  return CpuStream::create("a test", observer).value();
}

// Fills the queue as long as it can be held up, begun anywhere in its ring, longer and shorter than
// the ring.
TEST_F(CpuStreamTest, TasksRunInTheirOrder) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::vector<int> order;  // written by the worker alone, read after sync
  int num_tasks = 0;
  const auto enqueue = [&](int count) {
    for (const int end = num_tasks + count; num_tasks < end; ++num_tasks) {
      stream->enqueue(absl::StrCat("task ", num_tasks), [&order, i = num_tasks]() -> Status {
        order.push_back(i);
        return absl::OkStatus();
      });
    }
  };
  for (const int queued : {40, 1000, 63, 64, 65, 1, 300}) {
    std::promise<void> may_run;
    stream->enqueue("holds up", [may = may_run.get_future()]() -> Status {
      may.wait();
      return absl::OkStatus();
    });
    enqueue(queued);
    may_run.set_value();
    ASSERT_THAT(stream->sync(), IsOk());
    ASSERT_EQ(order.size(), static_cast<size_t>(num_tasks));
  }
  for (int i = 0; i < num_tasks; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(CpuStreamTest, EnqueueReturnsBeforeTheTaskEnds) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::promise<void> may_end;
  bool ended = false;
  stream->enqueue("slow", [&, future = may_end.get_future()]() -> Status {
    future.wait();
    ended = true;
    return absl::OkStatus();
  });
  // If enqueue() waited for the task, this line would not be reached.
  may_end.set_value();
  EXPECT_THAT(stream->sync(), IsOk());
  EXPECT_TRUE(ended);
}

TEST_F(CpuStreamTest, SyncReturnsTheFirstErrorOnce) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  int num_run = 0;
  for (const char* message : {"", "first", "second", ""}) {
    stream->enqueue("task", [&num_run, message]() -> Status {
      ++num_run;
      return *message == '\0' ? absl::OkStatus() : absl::InternalError(message);
    });
  }
  EXPECT_THAT(stream->sync(), StatusIs(absl::StatusCode::kInternal, "first"));
  EXPECT_EQ(num_run, 4);
  EXPECT_THAT(stream->sync(), IsOk());
  stream->enqueue("task", [] { return absl::AbortedError("third"); });
  EXPECT_THAT(stream->sync(), StatusIs(absl::StatusCode::kAborted, "third"));
}

TEST_F(CpuStreamTest, SyncWithNothingQueuedReturnsAtOnce) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  EXPECT_THAT(stream->sync(), IsOk());
}

TEST_F(CpuStreamTest, WhatATaskHoldsIsReleasedBeforeItCountsAsDone) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  stream->enqueue("task", [held = std::move(held)] { return absl::OkStatus(); });
  EXPECT_THAT(stream->sync(), IsOk());
  EXPECT_TRUE(watch.expired());
}

TEST_F(CpuStreamTest, TheObserverHearsOfEveryTaskInPairs) {
  Recorder recorder;
  {
    const std::unique_ptr<CpuStream> stream = new_stream(&recorder);
    stream->enqueue("a", [] { return absl::OkStatus(); });
    stream->enqueue("b", [] { return absl::InternalError("no matter"); });
  }
  EXPECT_THAT(recorder.events, ElementsAre("a", "done", "b", "done"));
}

TEST_F(CpuStreamTest, TheDestructorRunsWhatIsQueued) {
  int num_run = 0;
  {
    const std::unique_ptr<CpuStream> stream = new_stream();
    for (int i = 0; i < 100; ++i) {
      stream->enqueue("task", [&num_run]() -> Status {
        ++num_run;
        return absl::OkStatus();
      });
    }
  }
  EXPECT_EQ(num_run, 100);
}

TEST_F(CpuStreamTest, AfterStopTasksRunOnTheCallersThread) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  stream->stop();
  std::thread::id ran_on;
  stream->enqueue("task", [&ran_on]() -> Status {
    ran_on = std::this_thread::get_id();
    return absl::OkStatus();
  });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_THAT(stream->sync(), IsOk());
}

// A number assigned as a task is placed is the number under which it runs.
TEST_F(CpuStreamTest, TasksRunInTheOrderInWhichTheyArePlaced) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  int num_placed = 0;
  std::vector<int> ran;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto number = std::make_shared<int>(-1);
        stream->enqueue(
            "task",
            [&ran, number]() -> Status {
              ran.push_back(*number);
              return absl::OkStatus();
            },
            nullptr, Stream::Wake::kNow, [&] { *number = num_placed++; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(stream->sync(), IsOk());
  std::vector<int> ascending(800);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(ran, ascending);
  stream->stop();
  bool is_placed = false;
  stream->enqueue(
      "after the end",
      [&is_placed]() -> Status {
        return is_placed ? absl::OkStatus() : absl::InternalError("too early");
      },
      nullptr, Stream::Wake::kNow, [&] { is_placed = true; });
  EXPECT_THAT(stream->sync(), IsOk());
}

TEST_F(CpuStreamTest, TheCallerRunsATaskWhoseTurnHasCome) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  const int key = 0;
  std::thread::id ran_on;
  const auto task = [&ran_on]() -> Status {
    ran_on = std::this_thread::get_id();
    return absl::AbortedError("kept");
  };
  stream->enqueue("task", task, &key, Stream::Wake::kByCaller);
  EXPECT_TRUE(stream->run_here(&key));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_FALSE(stream->run_here(&key));  // it has gone
  EXPECT_THAT(stream->sync(), StatusIs(absl::StatusCode::kAborted, "kept"));
}

// task_here() returns the label to a task and to its callbacks, on the worker and on a caller's
// thread. It returns nothing for other streams and on other threads.
TEST_F(CpuStreamTest, AThreadIsToldWhichTaskItRuns) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  const std::unique_ptr<CpuStream> other = new_stream();
  EXPECT_EQ(stream->task_here(), std::nullopt);
  struct Seen {
    std::optional<std::string> running;
    std::optional<std::string> ending;
    bool other = true;
  };
  const auto note = [](const CpuStream& of, std::optional<std::string>& seen) {
    if (const auto label = of.task_here()) seen = std::string(*label);
  };
  const auto task = [&](Seen& seen) {
    // Goes with the task: the last reference to something may be there.
    std::shared_ptr<void> held(nullptr, [&](void*) { note(*stream, seen.ending); });
    return [&, held = std::move(held)]() -> Status {
      note(*stream, seen.running);
      seen.other = other->task_here().has_value();
      return absl::OkStatus();
    };
  };
  Seen on_worker;
  stream->enqueue("local_map", task(on_worker));
  EXPECT_THAT(stream->sync(), IsOk());
  Seen on_caller;
  const int key = 0;
  stream->enqueue("barrier", task(on_caller), &key, Stream::Wake::kByCaller);
  ASSERT_TRUE(stream->run_here(&key));
  EXPECT_THAT(on_worker.running, Optional(StrEq("local_map")));
  EXPECT_THAT(on_worker.ending, Optional(StrEq("local_map")));
  EXPECT_FALSE(on_worker.other);
  EXPECT_THAT(on_caller.running, Optional(StrEq("barrier")));
  EXPECT_THAT(on_caller.ending, Optional(StrEq("barrier")));
  EXPECT_FALSE(on_caller.other);
  EXPECT_EQ(stream->task_here(), std::nullopt);

  std::promise<void> begun;
  std::promise<void> may_end;
  stream->enqueue("slow", [&, future = may_end.get_future()]() -> Status {
    begun.set_value();
    future.wait();
    return absl::OkStatus();
  });
  begun.get_future().wait();
  EXPECT_EQ(stream->task_here(), std::nullopt);  // another thread runs it
  may_end.set_value();
  EXPECT_THAT(stream->sync(), IsOk());
}

TEST_F(CpuStreamTest, StoppingEndsByItsDeadline) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::promise<void> may_end;
  std::atomic<bool> ended{false};
  stream->enqueue("slow", [&, future = may_end.get_future()]() -> Status {
    future.wait();
    ended = true;
    return absl::OkStatus();
  });
  EXPECT_THAT(stream->stop_by(steady_now() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(ended);  // nothing ends it before may_end is set
  // A task after the end runs on the caller's thread, which does not wait for the worker.
  bool ran = false;
  stream->enqueue("late", [&ran]() -> Status {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_TRUE(ran);
  may_end.set_value();
  EXPECT_THAT(stream->stop_by(absl::InfiniteFuture()), IsOk());
  EXPECT_TRUE(ended);
  EXPECT_THAT(stream->stop_by(absl::InfinitePast()), IsOk());
}

TEST_F(CpuStreamTest, AStreamDoesNotWaitForItsEndInItsOwnTask) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  const auto stops = [&stream] { return stream->stop_by(absl::InfiniteFuture()); };
  stream->enqueue("first", stops);
  EXPECT_THAT(stream->sync(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("first")));
  EXPECT_THAT(stream->stop_by(absl::InfiniteFuture()), IsOk());

  const std::unique_ptr<CpuStream> by_caller = new_stream();
  const int key = 0;
  by_caller->enqueue(
      "second", [&] { return by_caller->stop_by(absl::InfiniteFuture()); }, &key,
      Stream::Wake::kByCaller);
  by_caller->run_here(&key);
  EXPECT_THAT(by_caller->sync(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("second")));
}

TEST_F(CpuStreamTest, SeveralThreadsMayStopAStream) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { EXPECT_THAT(stream->stop_by(absl::InfiniteFuture()), IsOk()); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CpuStreamTest, TheCallerRunsNothingBeforeItsTurn) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::promise<void> may_end;
  std::vector<int> order;  // written by the worker alone, read after sync
  stream->enqueue("slow", [&, future = may_end.get_future()]() -> Status {
    future.wait();
    order.push_back(1);
    return absl::OkStatus();
  });
  const int key = 0;
  stream->enqueue(
      "next",
      [&]() -> Status {
        order.push_back(2);
        return absl::OkStatus();
      },
      &key, Stream::Wake::kByCaller);
  EXPECT_FALSE(stream->run_here(&key));
  may_end.set_value();
  EXPECT_THAT(stream->sync(), IsOk());
  EXPECT_THAT(order, ElementsAre(1, 2));
}

// The worker is not woken for a task that a caller is expected to run: it finds the task by
// polling.
TEST_F(CpuStreamTest, ATaskThatTheCallerLeavesIsRun) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  const int key = 0;
  const auto task = [] { return absl::OkStatus(); };
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) {
      stream->enqueue("waited for", task, &key, Stream::Wake::kNow);
      stream->run_here(&key);
    }
    std::promise<void> ran;
    const auto left = [&ran]() -> Status {
      ran.set_value();
      return absl::OkStatus();
    };
    stream->enqueue("left", left, &key, Stream::Wake::kNow);
    ran.get_future().wait();
  }
}

// Tasks are enqueued while the caller runs one: no other call wakes the worker for them.
TEST_F(CpuStreamTest, WhatComesMeanwhileIsNotForgotten) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  for (int round = 0; round < 1000; ++round) {
    const int key = 0;
    std::promise<void> later_ran;
    stream->enqueue(
        "first",
        [&]() -> Status {
          stream->enqueue("later", [&]() -> Status {
            later_ran.set_value();
            return absl::OkStatus();
          });
          return absl::OkStatus();
        },
        &key, Stream::Wake::kByCaller);
    stream->run_here(&key);  // unless the worker is not done with the round before
    later_ran.get_future().wait();
  }
}

TEST_F(CpuStreamTest, ATakenStreamRunsNothingUntilItIsReleased) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::vector<int> order;  // without a lock: the stream is the taker's, then the worker's
  for (int round = 0; round < 100; ++round) {
    order.clear();
    ASSERT_TRUE(stream->try_take());
    EXPECT_FALSE(stream->try_take());
    stream->enqueue("next", [&]() -> Status {
      order.push_back(2);
      return absl::OkStatus();
    });
    order.push_back(1);
    stream->release();
    EXPECT_THAT(stream->sync(), IsOk());
    EXPECT_THAT(order, ElementsAre(1, 2));
  }
}

TEST_F(CpuStreamTest, ABusyOrStoppedStreamCannotBeTaken) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::promise<void> may_end;
  stream->enqueue("slow", [future = may_end.get_future().share()]() -> Status {
    future.wait();
    return absl::OkStatus();
  });
  EXPECT_FALSE(stream->try_take());
  may_end.set_value();
  EXPECT_THAT(stream->sync(), IsOk());
  EXPECT_TRUE(stream->try_take());
  stream->release();
  stream->stop();
  EXPECT_FALSE(stream->try_take());
}

TEST_F(CpuStreamTest, TasksOfSeveralThreadsKeepTheOrderOfEach) {
  const std::unique_ptr<CpuStream> stream = new_stream();
  std::vector<int> seen[4];
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        stream->enqueue("task", [&seen, t, i]() -> Status {
          seen[t].push_back(i);
          return absl::OkStatus();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(stream->sync(), IsOk());
  for (const std::vector<int>& own : seen) {
    ASSERT_EQ(own.size(), 200u);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(own[i], i);
  }
}

// Callers run their tasks, leave them, queue up behind others and take the stream, all at once: the
// counters, which nothing else guards, are the stream's.
TEST_F(CpuStreamTest, CallersAndTheWorkerShareTheFront) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 2000;
  const std::unique_ptr<CpuStream> stream = new_stream();
  int64_t num_placed = 0;
  int64_t num_run = 0;
  int64_t num_taken = 0;
  bool in_order = true;
  std::vector<std::thread> threads;
  std::atomic<int64_t> num_takes{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const auto number = std::make_shared<int64_t>(-1);
        const auto task = [&, number]() -> Status {
          in_order &= *number == num_run++;
          return absl::OkStatus();
        };
        stream->enqueue("task", task, number.get(), Stream::Wake::kNow,
                        [&] { *number = num_placed++; });
        // Streaks of a few, so that the worker is not expected, and then is again.
        if ((i / 8 + t) % 3 != 0) stream->run_here(number.get());
        if (i % 16 == t && stream->try_take()) {
          ++num_taken;
          ++num_takes;
          stream->release();
        }
        if (i % 100 == t) {
          EXPECT_THAT(stream->sync(), IsOk());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(stream->sync(), IsOk());
  EXPECT_TRUE(in_order);
  EXPECT_EQ(num_placed, kThreads * kRounds);
  EXPECT_EQ(num_run, kThreads * kRounds);
  EXPECT_EQ(num_taken, num_takes);
}

// An operation that is an object of its own, as a group has them: the stream's reference goes
// when it has run.
class Operation final : public Stream::Runnable {
 public:
  struct Counts {
    int64_t num_placed = 0;  // the stream's to guard until it is stopped
    int64_t num_run = 0;
    std::atomic<bool> in_order{true};
    std::atomic<bool> is_stopped{false};
    std::atomic<int64_t> num_done{0};
    std::atomic<int64_t> num_alive{0};
  };
  explicit Operation(Counts& counts) : counts_(counts) { ++counts_.num_alive; }
  ~Operation() { --counts_.num_alive; }

  void placed() override { number_ = counts_.num_placed++; }
  Status run() override {
    const std::shared_ptr<Operation> keep = std::move(of_task);
    if (!counts_.is_stopped && number_ != counts_.num_run++) counts_.in_order = false;
    ++counts_.num_done;
    done.set(absl::OkStatus());
    return absl::OkStatus();
  }

  std::shared_ptr<Operation> of_task;
  Completion done;

 private:
  Counts& counts_;
  int64_t number_ = -1;
};

// Several threads start operations of both forms, wake the worker for them or not, run them, leave
// them and wait for them, take the stream and wait for all of it.
void use_stream(CpuStream& stream, Operation::Counts& counts, int num_rounds, uint32_t seed,
                bool syncs) {
  std::minstd_rand random(seed);
  std::vector<std::shared_ptr<Operation>> left;
  for (int i = 0; i < num_rounds; ++i) {
    auto op = std::make_shared<Operation>(counts);
    op->of_task = op;
    const bool runs_here = random() % 4 != 0 || i / 32 % 2 == 0;
    const auto wake = runs_here && random() % 2 == 0 ? Stream::Wake::kByCaller : Stream::Wake::kNow;
    if (random() % 4 != 0) {
      stream.enqueue(*op, op.get(), wake);
    } else {
      stream.enqueue(
          random() % 2 == 0 ? "labelled" : "", [op = op.get()] { return op->run(); }, op.get(),
          wake, [op = op.get()] { op->placed(); });
    }
    if (runs_here) stream.run_here(op.get());
    if (random() % 2 == 0) {
      op->done.wait().IgnoreError();
    } else if (random() % 2 == 0) {
      left.push_back(std::move(op));
    }
    if (random() % 8 == 0 && stream.try_take()) stream.release();
    if (syncs && random() % 32 == 0) stream.sync().IgnoreError();
  }
  for (const auto& op : left) op->done.wait().IgnoreError();
}

TEST_F(CpuStreamTest, NoOperationIsForgotten) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 1000;
  for (uint32_t round = 0; round < 10; ++round) {
    Operation::Counts counts;
    const std::unique_ptr<CpuStream> stream = new_stream();
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        use_stream(*stream, counts, kRounds, 1 + t + kThreads * round, /*syncs=*/t == 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(stream->sync(), IsOk());
    EXPECT_TRUE(counts.in_order);
    EXPECT_EQ(counts.num_done, kThreads * kRounds);
    EXPECT_EQ(counts.num_alive, 0);
  }
}

// The stream is stopped while they do: what comes later runs on the thread that brings it.
TEST_F(CpuStreamTest, NoOperationIsForgottenWhenTheStreamIsStopped) {
  constexpr int kThreads = 3;
  constexpr int kRounds = 40;
  for (uint32_t round = 0; round < 300; ++round) {
    Operation::Counts counts;
    const std::unique_ptr<CpuStream> stream = new_stream();
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back(
          [&, t] { use_stream(*stream, counts, kRounds, 1 + t + kThreads * round, t == 0); });
    }
    for (uint32_t i = 0; i < round; ++i) std::this_thread::yield();
    counts.is_stopped = true;
    stream->stop();
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(stream->sync(), IsOk());
    EXPECT_EQ(counts.num_done, kThreads * kRounds);
    EXPECT_EQ(counts.num_alive, 0);
  }
}

}  // namespace
}  // namespace tessera
