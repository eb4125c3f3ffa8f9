// SPDX-License-Identifier: Apache-2.0
//
// KeptAllocator: memory for objects that a program makes and drops again and again.
//
//   auto op = std::allocate_shared<Operation>(KeptAllocator<Operation>(), ...);
//
// Each thread keeps the memory of a few objects of a type that it has dropped for those that it
// makes next: they take nothing from the heap, no lock and no atomic operation. An object may be
// dropped by another thread than the one that has made it; its memory is that thread's then. A
// thread keeps no more than it has made: one that only drops what others make keeps nothing.
//
// With AddressSanitizer nothing is kept, so that it still finds uses of freed objects.
#ifndef TESSERA_BASE_KEPT_ALLOCATOR_H_
#define TESSERA_BASE_KEPT_ALLOCATOR_H_

#include <cstddef>
#include <memory>

namespace tessera {

template <class T>
class KeptAllocator {
 public:
  using value_type = T;

  KeptAllocator() = default;
  template <class U>
  KeptAllocator(const KeptAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count == 1 && kept_.num_made < kMostKept) ++kept_.num_made;
    if (count != 1 || kept_.count == 0) return std::allocator<T>().allocate(count);
    return kept_.memory[--kept_.count];
  }

  void deallocate(T* memory, size_t count) {
    if (count != 1 || kept_.num_made == 0 || kept_.count == kMostKept || kept_.is_over) {
      return std::allocator<T>().deallocate(memory, count);
    }
    --kept_.num_made;
    if (kept_.count == 0) free_at_end();
    kept_.memory[kept_.count++] = memory;
  }

  template <class U>
  friend bool operator==(const KeptAllocator&, const KeptAllocator<U>&) {
    return true;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kMostKept = 0;
#else
  // As many as a client usually has devices.
  static constexpr size_t kMostKept = 8;
#endif

  // Has no destructor: objects that other objects of the thread hold may be dropped after the end
  // of AtEnd.
  struct Kept {
    T* memory[kMostKept + 1];
    size_t count;
    size_t num_made;  // objects made that none was dropped for, as far as it matters
    bool is_over;     // the thread ends
  };
  struct AtEnd {
    bool is_needed = false;
    ~AtEnd() {
      kept_.is_over = true;
      while (kept_.count > 0) std::allocator<T>().deallocate(kept_.memory[--kept_.count], 1);
    }
  };
  static void free_at_end() {
    static thread_local AtEnd at_end;
    at_end.is_needed = true;
  }

  static inline thread_local Kept kept_ = {};
};

}  // namespace tessera

#endif  // TESSERA_BASE_KEPT_ALLOCATOR_H_
