#pragma once
// store/backends/redis_slots.h: which node of a Redis Cluster has which keys.
//
// A cluster has 16384 slots. A key's slot is the CRC-16 (polynomial 0x1021, from 0) of the key, or
// of what stands between its first '{' and the next '}' if that is not empty.
//
// Only for the sources of store. Source: Redis Cluster specification, "Key distribution model".

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/backends/redis_connection.h"

namespace tqcache::store {

inline constexpr std::uint16_t kSlots = 16384;

std::uint16_t slot_of(std::string_view key);

// "MOVED 3999 127.0.0.1:6381" or "ASK 3999 127.0.0.1:6381".
struct Redirection {
  bool once = false;  // ASK: for this command alone
  std::uint16_t slot = 0;
  RedisAddress address;
};

// nullopt for every other refusal. `asked` is the node that said it: it leaves its own host out.
std::optional<Redirection> parse_redirection(std::string_view refusal, const RedisAddress& asked);

class SlotTable {
 public:
  // The node of a slot, or `otherwise` where that is not known.
  const RedisAddress& node(std::uint16_t slot, const RedisAddress& otherwise) const;
  // All nodes that it names.
  std::vector<RedisAddress> nodes() const;

  void set(std::uint16_t slot, const RedisAddress& address);
  // Takes the answer to CLUSTER SLOTS over. Errors: kCorrupt, and it is as it was.
  Result<void> set_all(const redisReply& slots, const RedisAddress& asked);
  void clear() { nodes_.clear(); }

 private:
  std::map<std::uint16_t, RedisAddress> nodes_;
};

}  // namespace tqcache::store
