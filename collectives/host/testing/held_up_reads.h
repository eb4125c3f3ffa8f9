// SPDX-License-Identifier: Apache-2.0
//
// HeldUpReads: delays a thread at its first read of a range of memory, by a page fault. For tests.
//
//   Gate reached, resume;
//   const HeldUpReads held_up(memory, num_bytes, reached, resume);
//   ... a thread reads: it opens `reached`, and goes on when `resume` opens
//
// One at a time in a process: the handler of the fault is the process's.
#ifndef TESSERA_COLLECTIVES_HOST_TESTING_HELD_UP_READS_H_
#define TESSERA_COLLECTIVES_HOST_TESTING_HELD_UP_READS_H_

#include <signal.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "tests/support/gate.h"

namespace tessera::host {

// Makes a range of this process unreadable. The first access makes it readable: it opens a gate,
// and continues when another gate opens.
class HeldUpReads {
 public:
  HeldUpReads(std::byte* begin, int64_t size, testing::Gate& reached, testing::Gate& resume) {
    begin_ = begin;
    size_ = size;
    reached_ = &reached;
    resume_ = &resume;
    struct sigaction action = {};
    action.sa_handler = &on_fault;
    sigaction(SIGSEGV, &action, &before_);
    mprotect(begin_, size_, PROT_NONE);
  }
  ~HeldUpReads() { sigaction(SIGSEGV, &before_, nullptr); }

 private:
  static void on_fault(int) {
    // A fault with another cause is raised again, and ends the process.
    signal(SIGSEGV, SIG_DFL);
    reached_->open();
    resume_->wait().IgnoreError();
    mprotect(begin_, size_, PROT_READ | PROT_WRITE);
  }

  static inline std::byte* begin_ = nullptr;
  static inline size_t size_ = 0;
  static inline testing::Gate* reached_ = nullptr;
  static inline testing::Gate* resume_ = nullptr;
  struct sigaction before_ = {};
};

}  // namespace tessera::host

#endif  // TESSERA_COLLECTIVES_HOST_TESTING_HELD_UP_READS_H_
