// SPDX-License-Identifier: Apache-2.0
//
// A forked child's knowledge of its parent's objects.
#include "base/fork_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// The exit code of the child.
template <class Fn>
int in_child(Fn fn) {
  const pid_t pid = fork();
  if (pid == 0) _exit(fn());
  int status = 0;
  waitpid(pid, &status, 0);
  return WEXITSTATUS(status);
}

TEST(ForkGuardTest, AChildOfTheMakerIsOne) {
  const ForkGuard guard;
  const ForkGuard copy = guard;
  EXPECT_FALSE(guard.in_child());
  EXPECT_EQ(in_child([&] { return guard.in_child() && copy.in_child() ? 1 : 0; }), 1);
  EXPECT_FALSE(guard.in_child());
}

TEST(ForkGuardTest, WhatAChildMakesIsItsOwn) {
  const ForkGuard guard;
  EXPECT_EQ(in_child([&] {
              const ForkGuard own;
              const int grandchild = in_child([&] { return own.in_child() && guard.in_child(); });
              return !own.in_child() && guard.in_child() && grandchild == 1 ? 1 : 0;
            }),
            1);
}

}  // namespace
}  // namespace tessera
