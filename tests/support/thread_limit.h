// SPDX-License-Identifier: Apache-2.0
//
// ThreadLimit: makes thread creation fail, for tests. Limits of the system do not bind root, and
// end gRPC as well; this limit binds the code that is linked statically into the test: `linkstatic
// = True`.
//
//   const ThreadLimit limit(2);
//   start_thread(...)             the third one is refused with EAGAIN, and all that follow
#ifndef TESSERA_TESTS_SUPPORT_THREAD_LIMIT_H_
#define TESSERA_TESTS_SUPPORT_THREAD_LIMIT_H_

namespace tessera::testing {

// One at a time.
class ThreadLimit {
 public:
  // From now on `num_more` threads can be started.
  explicit ThreadLimit(int num_more);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  // Threads that were refused since then.
  int num_refused() const;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_THREAD_LIMIT_H_
