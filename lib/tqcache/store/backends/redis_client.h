#pragma once
// store/backends/redis_client.h: a client for a Redis server or a Redis Cluster.
//
// A cluster has 16384 slots. A key's slot is the CRC-16 (polynomial 0x1021, from 0) of the key, or
// of the text between its first '{' and the next '}' if that is not empty.
//
// Only for the sources of store. Source: Redis Cluster specification, "Key distribution model".

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/store/backends/redis_connection.h"

namespace tqcache::store {

inline constexpr std::uint16_t kClusterSlots = 16384;

std::uint16_t slot_of(std::string_view key);

// "MOVED 3999 127.0.0.1:6381" or "ASK 3999 127.0.0.1:6381".
struct Redirection {
  bool once = false;  // ASK: for this command alone
  std::uint16_t slot = 0;
  RedisAddress address;
};

// nullopt for every other refusal. `asked` is the node that answered, because it omits its own
// host.
std::optional<Redirection> parse_redirection(std::string_view refusal, const RedisAddress& asked);

class SlotTable {
 public:
  // The node of a slot, or `otherwise` if unknown.
  const RedisAddress& node(std::uint16_t slot, const RedisAddress& otherwise) const;
  // All nodes of the table.
  std::vector<RedisAddress> nodes() const;

  void set(std::uint16_t slot, const RedisAddress& address);
  // Stores the answer to CLUSTER SLOTS. Errors: kCorrupt; the table is then unchanged.
  Result<void> set_all(const redisReply& slots, const RedisAddress& asked);
  void clear() { nodes_.clear(); }

 private:
  std::map<std::uint16_t, RedisAddress> nodes_;
};

// --- commands to a Redis server, or to the nodes of a Redis Cluster that hold their keys

struct RedisCommand {
  std::vector<std::string_view> words;
  std::string_view key;  // which selects the node
};

// The number of commands in flight: at first, and at most while answers are small.
struct Ahead {
  std::size_t first = 1;
  std::size_t most = 1;
};

// Receives the answer to command i. Its error ends the run.
using AnswerSink = std::function<Result<void>(std::size_t i, RedisReply answer)>;

// One connection per node. Starts with one node, the seed; after the first MOVED the seed is asked
// for all slots. The password goes only to the seed and to the nodes of its cluster map.
//
// Errors:  those of RedisConnection, with the node's address; kBusy if nodes redirect the same
//          command too often. Refusals other than redirections are answers.
// Threads: one at a time.
class RedisClient {
 public:
  // Connects on first use. Both arguments must outlive it.
  RedisClient(const RedisAddress& seed, const RedisSettings& settings)
      : seed_(&seed), settings_(&settings) {}

  // Passes answers to `sink` in the order of the commands, as they arrive. If a connection breaks,
  // commands without an answer are repeated once.
  Result<void> run(std::span<const RedisCommand> commands, Ahead ahead, const AnswerSink& sink);
  // One command to one node.
  // `max_elements`: as RedisConnection::read().
  Result<RedisReply> run_at(const RedisAddress& node, std::vector<std::string_view> words,
                            std::size_t max_elements);
  // The masters of the cluster, or the one server.
  Result<std::vector<RedisAddress>> nodes();

 private:
  struct Pending;
  struct Run;
  template <class Attempt>
  auto twice(Attempt attempt) -> decltype(attempt());
  Result<void> try_run(Run& run);
  Result<std::vector<Pending>> exchange(Run& run, std::vector<Pending> pending);
  Result<void> send(const Run& run, std::span<Pending> pending);
  Result<RedisReply> read(const Pending& one);
  Result<void> follow(const Redirection& to, Pending& pending);
  Result<void> learn_slots();
  bool may_log_in(const RedisAddress& node) const;
  Result<RedisConnection*> connection(const RedisAddress& node);
  Result<RedisReply> ask(const RedisAddress& node, std::span<const std::string_view> words,
                         std::size_t max_elements);
  bool forget_broken();
  std::string place(const RedisAddress& node) const;

  const RedisAddress* seed_;
  const RedisSettings* settings_;
  std::map<RedisAddress, RedisConnection> connections_;
  SlotTable slots_;
  std::set<RedisAddress> named_;  // by the cluster map of the seed
  bool lost_node_ = false;        // a node of the table cannot be reached
};

}  // namespace tqcache::store
