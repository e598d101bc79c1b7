#pragma once
// base/pool.h: a pool of expensive objects that calls borrow one at a time and return.
//
// A job creates as many as it has threads. The last one returned is borrowed first, because its
// memory is most likely still in the CPU cache.
//
// Threads: any number may borrow at once.

#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tqcache {

template <class T, class Delete = std::default_delete<T>>
class Pool {
 public:
  using Owner = std::unique_ptr<T, Delete>;

  // A borrowed object, returned to the pool at the end of the scope.
  class Lease {
   public:
    Lease(Pool& pool, Owner thing) : pool_(&pool), thing_(std::move(thing)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (thing_) pool_->give_back(std::move(thing_));
    }
    T* get() const { return thing_.get(); }
    T& operator*() const { return *thing_; }
    T* operator->() const { return thing_.get(); }

   private:
    Pool* pool_;
    Owner thing_;
  };

  // An object from the pool, or the Owner that make() returns.
  // Requires: the pool outlives the lease.
  template <class Make>
  Lease borrow(Make make) {
    if (Owner waiting = take()) return {*this, std::move(waiting)};
    return {*this, make()};
  }

 private:
  Owner take() {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return nullptr;
    Owner thing = std::move(waiting_.back());
    waiting_.pop_back();
    return thing;
  }
  void give_back(Owner thing) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      waiting_.push_back(std::move(thing));
    } catch (const std::bad_alloc&) {
      // If there is no memory for the list, the object is not kept: `thing` destroys it here.
    }
  }

  std::mutex mutex_;
  std::vector<Owner> waiting_;
};

}  // namespace tqcache
