// SPDX-License-Identifier: Apache-2.0
//
// BoundedCache: values by key, of bounded weight. Internal to dtensor/.
//
//   BoundedCache<Shape, Program, Hash, Same> cache(100);
//   cache.insert({8, 6}, program, /*weight=*/3);
//   cache.find(shape)         null where the key is missing, or was removed
//
// Invariants:
//   1. the weights of all entries add up to the bound at most, except for a single heavier entry;
//   2. the entries found least recently are removed first;
//   3. a value lives as long as its user keeps it, in the cache or not.
//
// Thread-safe. Finding the entry that was found last takes no mutex: a program that repeats an
// operation pays one atomic operation for thread safety.
#ifndef TESSERA_DTENSOR_BOUNDED_CACHE_H_
#define TESSERA_DTENSOR_BOUNDED_CACHE_H_

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace tessera {

// `Hash` and `Same` accept a Key, and every other type that find() is called with.
template <class Key, class Value, class Hash, class Same>
class BoundedCache {
 public:
  explicit BoundedCache(int64_t most_weight) : most_weight_(most_weight) {}

  template <class K>
  std::shared_ptr<const Value> find(const K& key) {
    if (std::shared_ptr<const Value> value = find_last(key)) return value;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = index_.find(key);
    if (it == index_.end()) return nullptr;
    by_use_.splice(by_use_.begin(), by_use_, *it);
    set_last(by_use_.front());
    return by_use_.front()->value;
  }

  // Returns the value that the key now has: `value`, or an earlier one.
  std::shared_ptr<const Value> insert(Key key, std::shared_ptr<const Value> value, int64_t weight) {
    Entries gone;  // destroyed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto known = index_.find(key);
    if (known != index_.end()) return (**known)->value;
    by_use_.push_front(
        std::make_shared<const Entry>(Entry{std::move(key), std::move(value), weight}));
    index_.insert(by_use_.begin());
    weight_ += weight;
    while (weight_ > most_weight_ && by_use_.size() > 1) {
      weight_ -= by_use_.back()->weight;
      index_.erase(std::prev(by_use_.end()));
      gone.splice(gone.begin(), by_use_, std::prev(by_use_.end()));
    }
    set_last(by_use_.front());
    return by_use_.front()->value;
  }

  void clear() {
    Entries gone;
    std::lock_guard<std::mutex> lock(mutex_);
    index_.clear();
    gone.swap(by_use_);
    weight_ = 0;
    set_last(nullptr);
  }

  size_t size() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return by_use_.size();
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Value> value;
    int64_t weight;
  };
  using Entries = std::list<std::shared_ptr<const Entry>>;
  using Place = typename Entries::iterator;
  struct PlaceHash {
    using is_transparent = void;
    size_t operator()(const Place& place) const { return Hash()((*place)->key); }
    template <class K>
    size_t operator()(const K& key) const {
      return Hash()(key);
    }
  };
  struct SamePlace {
    using is_transparent = void;
    bool operator()(const Place& a, const Place& b) const { return a == b; }
    template <class K>
    bool operator()(const Place& place, const K& key) const {
      return Same()((*place)->key, key);
    }
  };

  template <class K>
  std::shared_ptr<const Value> find_last(const K& key) {
    std::shared_ptr<const Value> value;
    // Another thread uses the last entry: this one searches under the mutex instead.
    if (last_is_taken_.exchange(true, std::memory_order_acquire)) return nullptr;
    if (last_ != nullptr && Same()(last_->key, key)) value = last_->value;
    last_is_taken_.store(false, std::memory_order_release);
    return value;
  }
  void set_last(std::shared_ptr<const Entry> entry) {
    while (last_is_taken_.exchange(true, std::memory_order_acquire)) sched_yield();
    last_.swap(entry);
    last_is_taken_.store(false, std::memory_order_release);
  }

  const int64_t most_weight_;
  std::atomic<bool> last_is_taken_{false};  // guards last_
  std::shared_ptr<const Entry> last_;       // the latest that was found or added
  mutable std::mutex mutex_;                // guards the members below
  Entries by_use_;                          // the latest first
  absl::flat_hash_set<Place, PlaceHash, SamePlace> index_;
  int64_t weight_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_DTENSOR_BOUNDED_CACHE_H_
