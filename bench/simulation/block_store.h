#pragma once
// bench/simulation/block_store.h: a store of prompts as keys and sizes, without the bytes.
//
// What was not used for longest goes first, and of what was used at the same moment the deepest: so
// a block is never evicted before one that stands behind it, and what is left of a prompt is always
// a prefix. What is kept never goes.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

namespace tqcache::simulation {

using Key = std::uint64_t;

// Of a prompt's chain, the first block first, the state behind it last.
struct Link {
  Key key = 0;
  std::uint64_t bytes = 0;
  std::int64_t blobs = 1;  // in which it is stored
  bool is_state = false;
  bool kept = false;  // if it is new
};

struct StoreTotals {
  std::uint64_t bytes_in = 0, bytes_evicted = 0, bytes_refused = 0;
};

struct Added {
  std::uint64_t bytes = 0;
  std::int64_t blobs = 0;
};

class BlockStore {
 public:
  static constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();
  static constexpr int kMaxStates = 16;  // behind one block, as in store/keys.h

  explicit BlockStore(std::uint64_t capacity) : capacity_(capacity) {}

  bool has(Key key) const { return where_.contains(key); }
  // The first of the chain's links that it does not have.
  std::size_t leading(std::span<const Link> chain) const;

  // Stores what is missing and counts all as used now; then evicts until it fits. Returns what
  // was new. Nothing that could not be stored beside what is kept is stored, nor what is behind it.
  Added use(std::span<const Link> chain);

  std::uint64_t bytes() const { return bytes_; }
  std::size_t size() const { return where_.size(); }
  const StoreTotals& totals() const { return totals_; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Node {
    Link link;
    std::uint32_t parent = kNone;
    std::uint32_t newer = kNone, older = kNone;
    int states = 0;  // behind it
  };

  std::uint32_t find_or_add(const Link& link, std::uint32_t parent, Added& added);
  bool fits(const Link& link, std::uint32_t parent) const;
  std::uint32_t add(const Link& link, std::uint32_t parent);
  void take_out(std::uint32_t at);
  void put_first(std::uint32_t at);
  void evict_last();

  std::uint64_t capacity_;
  std::uint64_t bytes_ = 0, kept_bytes_ = 0;
  StoreTotals totals_;
  std::unordered_map<Key, std::uint32_t> where_;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> free_, path_;
  std::uint32_t newest_ = kNone, oldest_ = kNone;
};

}  // namespace tqcache::simulation
