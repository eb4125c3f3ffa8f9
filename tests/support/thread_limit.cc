// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_limit.h"

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>

namespace {

std::atomic<int> num_left{INT_MAX};

}  // namespace

// The linker directs calls of pthread_create here (--wrap in BUILD).
extern "C" int __real_pthread_create(pthread_t* id, const pthread_attr_t* attributes,
                                     void* (*body)(void*), void* argument);
extern "C" int __wrap_pthread_create(pthread_t* id, const pthread_attr_t* attributes,
                                     void* (*body)(void*), void* argument) {
  if (num_left.fetch_sub(1) <= 0) return EAGAIN;
  return __real_pthread_create(id, attributes, body, argument);
}

namespace tessera::testing {

ThreadLimit::ThreadLimit(int num_more) { num_left.store(num_more); }

ThreadLimit::~ThreadLimit() { num_left.store(INT_MAX); }

int ThreadLimit::num_refused() const {
  const int left = num_left.load();
  return left < 0 ? -left : 0;
}

}  // namespace tessera::testing
