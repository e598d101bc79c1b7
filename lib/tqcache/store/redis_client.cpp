#include "tqcache/store/redis_client.h"

#include <hiredis/hiredis.h>

#include <set>
#include <utility>

namespace tqcache::store {
namespace {

// A slot moves once, or twice if a table is old; more is two nodes that point at each other.
constexpr int kMaxRounds = 8;

}  // namespace

struct RedisClient::Pending {
  std::size_t command = 0;
  RedisAddress node;
  bool asking = false;  // sent on by ASK
};

// After an error the answers of every connection are out of step, so that none is kept. What was
// learnt of the cluster goes, too: a node that is gone may have been replaced.
template <class Attempt>
auto RedisClient::twice(Attempt attempt) -> decltype(attempt()) {
  auto result = attempt();
  if (result) return result;
  if (!forget_broken()) return result;
  auto again = attempt();
  if (!again) forget_broken();
  return again;
}

bool RedisClient::forget_broken() {
  bool broken = std::exchange(lost_node_, false);
  for (const auto& [node, connection] : connections_) broken = broken || connection.is_broken();
  connections_.clear();
  slots_.clear();
  return broken;
}

Result<std::vector<RedisReply>> RedisClient::run(std::span<const RedisCommand> commands) {
  return twice([&] { return try_run(commands); });
}

Result<RedisReply> RedisClient::run_at(const RedisAddress& node,
                                       std::vector<std::string_view> words) {
  return twice([&] { return ask(node, words); });
}

Result<std::vector<RedisAddress>> RedisClient::nodes() {
  return twice([&]() -> Result<std::vector<RedisAddress>> {
    const std::string_view words[] = {"CLUSTER", "SLOTS"};
    TQC_TRY_ASSIGN(const RedisReply reply, ask(*seed_, words));
    if (const auto refused = refusal(*reply)) {
      // A server that is no cluster, or does not let us know.
      if (refused->starts_with("ERR") || refused->starts_with("NOPERM")) return std::vector{*seed_};
      return in_context(to_string(*seed_), refusal_error(*refused));
    }
    TQC_TRY(slots_.set_all(*reply, *seed_));
    return slots_.nodes();
  });
}

Result<RedisClient::Answers> RedisClient::try_run(std::span<const RedisCommand> commands) {
  Answers answers(commands.size());
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < commands.size(); ++i) {
    pending.push_back({i, slots_.node(slot_of(commands[i].key), *seed_), false});
  }
  for (int round = 0; round < kMaxRounds; ++round) {
    TQC_TRY(send_all(commands, pending));
    TQC_TRY_ASSIGN(pending, read_all(pending, answers));
    if (pending.empty()) return answers;
  }
  return Error{ErrorCode::kBusy, "its nodes send a command from one to the other"};
}

Result<void> RedisClient::send_all(std::span<const RedisCommand> commands,
                                   std::vector<Pending>& pending) {
  std::set<RedisConnection*> used;
  for (const Pending& one : pending) {
    TQC_TRY_ASSIGN(RedisConnection* const to, connection(one.node));
    const std::string_view asking[] = {"ASKING"};
    if (one.asking) TQC_TRY(to->append(asking));
    TQC_TRY(to->append(commands[one.command].words));
    used.insert(to);
  }
  for (RedisConnection* const to : used) {
    if (auto sent = to->send(); !sent) return sent;
  }
  return {};
}

// Gives what has to be asked elsewhere. Every answer is read before any is followed.
Result<std::vector<RedisClient::Pending>> RedisClient::read_all(std::span<const Pending> pending,
                                                                Answers& answers) {
  std::vector<std::pair<Redirection, Pending>> redirected;
  for (const Pending& one : pending) {
    RedisConnection& from = connections_.at(one.node);
    if (one.asking) {
      if (auto read = from.read(); !read) return in_context(to_string(one.node), read.error());
    }
    Result<RedisReply> reply = from.read();
    if (!reply) return in_context(to_string(one.node), reply.error());
    const auto refused = refusal(**reply);
    const auto to = refused ? parse_redirection(*refused, one.node) : std::nullopt;
    if (to) redirected.emplace_back(*to, one);
    answers[one.command] = std::move(reply).value();
  }
  std::vector<Pending> again;
  for (auto& [to, one] : redirected) {
    TQC_TRY(follow(to, one.node, one));
    again.push_back(one);
  }
  return again;
}

Result<void> RedisClient::follow(const Redirection& to, const RedisAddress& asked,
                                 Pending& pending) {
  const bool is_news = slots_.node(to.slot, asked) != to.address;
  if (!to.once && is_news) {
    TQC_TRY(learn_slots(asked));
    slots_.set(to.slot, to.address);
  }
  pending.node = to.address;
  pending.asking = to.once;
  return {};
}

// Without it, the first use of every slot would be sent on.
Result<void> RedisClient::learn_slots(const RedisAddress& asked) {
  const std::string_view words[] = {"CLUSTER", "SLOTS"};
  TQC_TRY_ASSIGN(const RedisReply reply, ask(asked, words));
  if (refusal(*reply)) return {};  // may be forbidden; redirections teach one slot at a time
  return slots_.set_all(*reply, asked);
}

Result<RedisConnection*> RedisClient::connection(const RedisAddress& node) {
  auto found = connections_.find(node);
  if (found == connections_.end()) {
    Result<RedisConnection> opened = RedisConnection::open(node, *settings_);
    // What was learnt of the cluster is old, then: the node that it began with may know better.
    lost_node_ = !opened && node != *seed_;
    if (!opened) return in_context(to_string(node), std::move(opened).error());
    found = connections_.emplace(node, std::move(opened).value()).first;
  }
  return &found->second;
}

Result<RedisReply> RedisClient::ask(const RedisAddress& node,
                                    std::span<const std::string_view> words) {
  TQC_TRY_ASSIGN(RedisConnection* const to, connection(node));
  TQC_TRY(to->append(words));
  if (auto sent = to->send(); !sent) return in_context(to_string(node), sent.error());
  Result<RedisReply> reply = to->read();
  if (!reply) return in_context(to_string(node), reply.error());
  return reply;
}

}  // namespace tqcache::store
