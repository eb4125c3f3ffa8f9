// SPDX-License-Identifier: Apache-2.0
//
// Shared: a value in memory that a test shares with the clients that it forks.
//
//   Shared<std::atomic<int>> killed;   made before run_clients; zero-initialised
//   *killed = 1;                       seen by all
#ifndef TESSERA_TESTS_SUPPORT_SHARED_H_
#define TESSERA_TESTS_SUPPORT_SHARED_H_

#include <sys/mman.h>

namespace tessera::testing {

template <class T>
class Shared {
 public:
  Shared()
      : value_(static_cast<T*>(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() { return *value_; }
  T* operator->() { return value_; }

 private:
  T* const value_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_SUPPORT_SHARED_H_
