#include "tqcache/store/backends/redis_client.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <map>
#include <utility>

namespace tqcache::store {
namespace {

// A slot moves once, or twice if a table is old; more is two nodes that point at each other.
constexpr int kMaxRedirections = 8;

// A server makes all answers that it was asked for before it sends the first. For large ones that
// takes longer than the waits that it saves.
constexpr std::size_t kLargeBytes = 64 << 10;
constexpr std::size_t kLargeAnswersAhead = 2;

std::optional<Redirection> redirection(const redisReply& reply, const RedisAddress& asked) {
  const auto refused = refusal(reply);
  return refused ? parse_redirection(*refused, asked) : std::nullopt;
}

}  // namespace

struct RedisClient::Pending {
  std::size_t command = 0;
  RedisAddress node;
  bool asking = false;  // sent on by ASK
  int n_redirections = 0;
};

struct RedisClient::Run {
  std::span<const RedisCommand> commands;
  std::size_t ahead = 0;  // at this moment
  std::size_t most = 0;
  const AnswerSink& sink;
  std::vector<RedisReply> answers;  // that came before others' turn
  std::size_t n_told = 0;

  std::vector<Pending> unanswered() const;
  Result<void> take(std::size_t command, RedisReply answer);
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

Result<void> RedisClient::run(std::span<const RedisCommand> commands, Ahead ahead,
                              const AnswerSink& sink) {
  Run run{commands, ahead.first, ahead.most, sink, std::vector<RedisReply>(commands.size()), 0};
  return twice([&] { return try_run(run); });
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

std::vector<RedisClient::Pending> RedisClient::Run::unanswered() const {
  std::vector<Pending> all;
  for (std::size_t i = n_told; i < commands.size(); ++i) {
    if (!answers[i]) all.push_back({i, {}, false, 0});
  }
  return all;
}

Result<void> RedisClient::Run::take(std::size_t command, RedisReply answer) {
  const bool is_large = answer->type == REDIS_REPLY_STRING && answer->len > kLargeBytes;
  ahead = std::min(most, is_large ? kLargeAnswersAhead : 2 * ahead);
  answers[command] = std::move(answer);
  while (n_told < answers.size() && answers[n_told]) {
    const std::size_t i = n_told++;
    TQC_TRY(sink(i, std::move(answers[i])));
  }
  return {};
}

Result<void> RedisClient::try_run(Run& run) {
  std::vector<Pending> pending = run.unanswered();
  while (!pending.empty()) {
    TQC_TRY_ASSIGN(pending, exchange(run, std::move(pending)));
  }
  return {};
}

// Gives what is still to be asked. After a redirection nothing more is sent, and every answer is
// read before it is followed.
Result<std::vector<RedisClient::Pending>> RedisClient::exchange(Run& run,
                                                                std::vector<Pending> pending) {
  std::vector<std::pair<Redirection, Pending>> redirected;
  std::size_t n_sent = 0;
  std::size_t n_read = 0;
  for (; n_read < pending.size(); ++n_read) {
    if (redirected.empty() && n_sent - n_read <= run.ahead / 2) {
      const std::size_t end = std::min(pending.size(), n_read + run.ahead);
      TQC_TRY(send(run, std::span(pending).subspan(n_sent, end - n_sent)));
      n_sent = end;
    }
    if (n_read == n_sent) break;
    const Pending& one = pending[n_read];
    TQC_TRY_ASSIGN(RedisReply reply, read(one));
    if (const auto to = redirection(*reply, one.node)) {
      redirected.emplace_back(*to, one);
    } else {
      TQC_TRY(run.take(one.command, std::move(reply)));
    }
  }
  std::vector<Pending> rest;
  for (auto& [to, one] : redirected) {
    TQC_TRY(follow(to, one));
    rest.push_back(one);
  }
  rest.insert(rest.end(), pending.begin() + static_cast<std::ptrdiff_t>(n_read), pending.end());
  return rest;
}

Result<void> RedisClient::send(const Run& run, std::span<Pending> pending) {
  std::map<RedisConnection*, RedisAddress> used;
  for (Pending& one : pending) {
    const RedisCommand& command = run.commands[one.command];
    if (one.n_redirections == 0) one.node = slots_.node(slot_of(command.key), *seed_);
    TQC_TRY_ASSIGN(RedisConnection* const to, connection(one.node));
    const std::string_view asking[] = {"ASKING"};
    if (one.asking) to->append(asking);
    to->append(command.words);
    used.emplace(to, one.node);
  }
  for (const auto& [to, node] : used) {
    if (auto sent = to->send(); !sent) return in_context(to_string(node), sent.error());
  }
  return {};
}

Result<RedisReply> RedisClient::read(const Pending& one) {
  RedisConnection& from = connections_.at(one.node);
  if (one.asking) {
    if (auto asked = from.read(); !asked) return in_context(to_string(one.node), asked.error());
  }
  Result<RedisReply> reply = from.read();
  if (!reply) return in_context(to_string(one.node), reply.error());
  return reply;
}

Result<void> RedisClient::follow(const Redirection& to, Pending& pending) {
  if (++pending.n_redirections > kMaxRedirections) {
    return Error{ErrorCode::kBusy, "its nodes send a command from one to the other"};
  }
  const bool is_news = slots_.node(to.slot, pending.node) != to.address;
  if (!to.once && is_news) {
    TQC_TRY(learn_slots(pending.node));
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
  to->append(words);
  if (auto sent = to->send(); !sent) return in_context(to_string(node), sent.error());
  Result<RedisReply> reply = to->read();
  if (!reply) return in_context(to_string(node), reply.error());
  return reply;
}

}  // namespace tqcache::store
