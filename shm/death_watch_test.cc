// SPDX-License-Identifier: Apache-2.0
//
// DeathWatch over real processes that are killed, leave in order, or live on.
#include "shm/death_watch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/deadline.h"

namespace tessera::shm {
namespace {

enum class Child { kLives, kLeavesInOrder };

class DeathWatchTest : public ::testing::Test {
 protected:
  DeathWatchTest() {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words_ = static_cast<LifeWord*>(memory);
  }
  ~DeathWatchTest() override {
    for (const pid_t child : children_) end(child);
    munmap(words_, kBytes);
  }

  // Returns when the child has its sign of life, or has withdrawn it.
  pid_t start(int index, Child child) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      auto sign = std::make_unique<LifeSign>(words_[index]);
      if (child == Child::kLeavesInOrder) sign.reset();
      (void)!write(ready[1], "", 1);
      while (true) pause();
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    children_.push_back(pid);
    return pid;
  }
  static void end(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }

  static constexpr size_t kBytes = 4096;
  testing::TestDeadline deadline_{absl::Seconds(30), "death_watch_test"};
  LifeWord* words_ = nullptr;
  std::vector<pid_t> children_;
};

// Records the deaths that a watch reports, and waits for them.
class Told {
 public:
  explicit Told(std::vector<LifeWord*> words)
      : watch_(DeathWatch::create(std::move(words), [this](int index) {
                 indices.push_back(index);
                 first_.set_value();
               }).value()) {}
  void wait() { first_.get_future().wait(); }
  std::vector<int> indices;  // written by the watch alone, read after wait()

 private:
  std::promise<void> first_;
  std::unique_ptr<DeathWatch> watch_;
};

TEST_F(DeathWatchTest, AllWatchersAreToldOfAKilledProcessAndOfNoOther) {
  start(0, Child::kLives);
  const pid_t victim = start(1, Child::kLives);
  const pid_t left = start(2, Child::kLeavesInOrder);
  Told watches[3] = {Told({&words_[0], &words_[1], &words_[2]}), Told({nullptr, &words_[1]}),
                     Told({&words_[1]})};
  kill(left, SIGKILL);
  kill(victim, SIGKILL);
  for (Told& told : watches) told.wait();
  EXPECT_EQ(watches[0].indices, std::vector<int>{1});
  EXPECT_EQ(watches[1].indices, std::vector<int>{1});
  EXPECT_EQ(watches[2].indices, std::vector<int>{0});
}

TEST_F(DeathWatchTest, ADeathBeforeTheWatchIsTold) {
  end(start(0, Child::kLives));
  Told told({&words_[0]});
  told.wait();
  EXPECT_EQ(told.indices, std::vector<int>{0});
}

TEST_F(DeathWatchTest, TheWatchEndsWhileAllLive) {
  start(0, Child::kLives);
  EXPECT_TRUE(DeathWatch::create({&words_[0]}, [](int) { ADD_FAILURE() << "it lives"; }).ok());
}

TEST_F(DeathWatchTest, WordsBeyondThoseOfOneThreadAreWatchedToo) {
  const pid_t victim = start(0, Child::kLives);
  constexpr int kWords = 2 * DeathWatch::kWordsPerThread + 40;
  std::vector<LifeWord*> words(kWords, &words_[0]);
  std::promise<void> all_told;
  std::atomic<int> num_told{0};
  const auto watch = DeathWatch::create(std::move(words), [&](int) {
    if (++num_told == kWords) all_told.set_value();
  });
  ASSERT_TRUE(watch.ok()) << watch.status();
  kill(victim, SIGKILL);
  all_told.get_future().wait();
}

}  // namespace
}  // namespace tessera::shm
