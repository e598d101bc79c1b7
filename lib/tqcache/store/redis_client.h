#pragma once
// store/redis_client.h: commands to a Redis server, or to whichever nodes of a Redis Cluster hold
// their keys.
//
// Only for the sources of store.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/redis_connection.h"
#include "tqcache/store/redis_slots.h"

namespace tqcache::store {

struct RedisCommand {
  std::vector<std::string_view> words;
  std::string_view key;  // which decides about the node
};

// One connection a node. It begins with one node; the first that says MOVED is asked for all slots.
//
// Errors: those of RedisConnection, told with the node's address; kBusy when nodes send the
//         same command on and on. Refusals other than redirections are answers.
// Threads: one at a time.
class RedisClient {
 public:
  // Connects when it is first asked. Both must outlive it.
  RedisClient(const RedisAddress& seed, const RedisSettings& settings)
      : seed_(&seed), settings_(&settings) {}

  // All at once to each node, so one wait for all; answers in the order of the commands. If a
  // connection breaks, all are sent once more.
  Result<std::vector<RedisReply>> run(std::span<const RedisCommand> commands);
  // One command to one node.
  Result<RedisReply> run_at(const RedisAddress& node, std::vector<std::string_view> words);
  // The masters of the cluster, or the one server.
  Result<std::vector<RedisAddress>> nodes();

 private:
  struct Pending;
  using Answers = std::vector<RedisReply>;
  template <class Attempt>
  auto twice(Attempt attempt) -> decltype(attempt());
  Result<Answers> try_run(std::span<const RedisCommand> commands);
  Result<void> send_all(std::span<const RedisCommand> commands, std::vector<Pending>& pending);
  Result<std::vector<Pending>> read_all(std::span<const Pending> pending, Answers& answers);
  Result<void> follow(const Redirection& to, const RedisAddress& asked, Pending& pending);
  Result<void> learn_slots(const RedisAddress& asked);
  Result<RedisConnection*> connection(const RedisAddress& node);
  Result<RedisReply> ask(const RedisAddress& node, std::span<const std::string_view> words);
  bool forget_broken();

  const RedisAddress* seed_;
  const RedisSettings* settings_;
  std::map<RedisAddress, RedisConnection> connections_;
  SlotTable slots_;
  bool lost_node_ = false;  // one that the table named cannot be reached
};

}  // namespace tqcache::store
