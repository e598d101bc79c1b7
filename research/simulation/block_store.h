#pragma once
// research/simulation/block_store.h: a prompt store of keys and sizes without the bytes.
//
// The least recently used block is evicted first; of equally old blocks, the deepest one. So no
// block is evicted before the blocks that follow it, and the remaining blocks of a prompt always
// form a prefix. Kept blocks are never evicted.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

namespace tqcache::simulation {

using Key = std::uint64_t;

// One link of a prompt's chain: the first block comes first, the snapshot at the end last.
struct Link {
  Key key = 0;
  std::uint64_t bytes = 0;
  std::int64_t blobs = 1;  // number of blobs that store it
  bool is_state = false;
  bool kept = false;  // used only if the link is new
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
  static constexpr int kMaxStates = 16;  // after one block, as in store/keys.h

  explicit BlockStore(std::uint64_t capacity) : capacity_(capacity) {}

  bool has(Key key) const { return where_.contains(key); }
  // Index of the first missing link of the chain.
  std::size_t leading(std::span<const Link> chain) const;

  // Stores missing links and marks all as used now; then evicts until everything fits. Returns the
  // new links. A link that does not fit beside the kept ones is not stored, nor are its successors.
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
    int states = 0;  // after this block
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
