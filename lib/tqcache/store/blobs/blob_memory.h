#pragma once
// store/blobs/blob_memory.h: memory for many values that stay for long.
//
// Only for the sources of store.
//
// Memory that is new to a process is given to it page by page when it is first touched, and for a
// hundred megabytes in pages of 4 KiB that takes longer than reading them from a file. So large
// values stand side by side in pieces for which the system is asked to take large pages.

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "tqcache/base/bytes.h"
#include "tqcache/base/shared_bytes.h"

namespace tqcache::store {

// Threads: any number may use one at once.
class BlobMemory {
 public:
  BlobMemory() : state_(std::make_unique<State>()) {}

  // Room for a value, which begins at a multiple of 64. It stays for as long as anybody has it, and
  // with it the piece that it stands in.
  struct Room {
    std::shared_ptr<std::byte> owner;
    std::span<std::byte> bytes;
    SharedBytes shared() const { return {owner, bytes}; }
  };
  Room take(std::size_t size);

  SharedBytes copy(ByteView value);

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<std::byte> piece;
    std::size_t used = 0;
  };
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::store
