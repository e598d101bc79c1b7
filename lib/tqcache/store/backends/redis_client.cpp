
#include "tqcache/store/backends/redis_client.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace tqcache::store {

namespace {

std::uint16_t crc16(std::string_view text) {
  std::uint32_t crc = 0;
  for (const char c : text) {
    crc ^= static_cast<std::uint32_t>(static_cast<unsigned char>(c)) << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021u : 0u);
    crc &= 0xffff;
  }
  return static_cast<std::uint16_t>(crc);
}

template <class Number>
std::optional<Number> whole_number(std::string_view text, Number limit) {
  Number number = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || stop != text.data() + text.size() || number > limit)
    return std::nullopt;
  return number;
}

Error bad_slots() { return {ErrorCode::kCorrupt, "CLUSTER SLOTS: not understood"}; }

bool is_array(const redisReply& reply, std::size_t at_least) {
  return reply.type == REDIS_REPLY_ARRAY && reply.elements >= at_least;
}

bool is_slot(const redisReply& reply) {
  return reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0 && reply.integer < kClusterSlots;
}

// Whether a host that a server names can be shown in a message: no host has spaces or controls.
bool is_host(std::string_view text) {
  constexpr std::size_t kMaxHostBytes = 255;
  return text.size() <= kMaxHostBytes &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// [HOST, PORT, ...]; the host is empty if a node does not know its own.
std::optional<RedisAddress> parse_node(const redisReply& node, const RedisAddress& asked) {
  if (!is_array(node, 2)) return std::nullopt;
  const redisReply& host = *node.element[0];
  const redisReply& port = *node.element[1];
  if (port.type != REDIS_REPLY_INTEGER || port.integer < 1 || port.integer > 65535)
    return std::nullopt;
  RedisAddress address{asked.host, static_cast<std::uint16_t>(port.integer)};
  if (host.type == REDIS_REPLY_STRING && host.len > 0) address.host.assign(host.str, host.len);
  if (!is_host(address.host)) return std::nullopt;
  return address;
}

}  // namespace

std::uint16_t slot_of(std::string_view key) {
  const std::size_t open = key.find('{');
  const std::size_t close =
      open == std::string_view::npos ? std::string_view::npos : key.find('}', open + 1);
  if (close != std::string_view::npos && close > open + 1)
    key = key.substr(open + 1, close - open - 1);
  return crc16(key) % kClusterSlots;
}

std::optional<Redirection> parse_redirection(std::string_view text, const RedisAddress& asked) {
  Redirection to;
  to.once = text.starts_with("ASK ");
  if (!to.once && !text.starts_with("MOVED ")) return std::nullopt;
  text.remove_prefix(text.find(' ') + 1);
  const std::size_t space = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (space == std::string_view::npos || colon == std::string_view::npos || colon < space)
    return std::nullopt;
  const auto slot = whole_number<std::uint16_t>(text.substr(0, space), kClusterSlots - 1);
  const auto port = whole_number<std::uint16_t>(text.substr(colon + 1), 65535);
  if (!slot || !port || *port == 0) return std::nullopt;
  const std::string_view host = text.substr(space + 1, colon - space - 1);
  if (!is_host(host)) return std::nullopt;
  to.slot = *slot;
  to.address = {host.empty() ? asked.host : std::string(host), *port};
  return to;
}

// A range is stored under its first slot and ends where the next range begins.
const RedisAddress& SlotTable::node(std::uint16_t slot, const RedisAddress& otherwise) const {
  const auto after = nodes_.upper_bound(slot);
  return after == nodes_.begin() ? otherwise : std::prev(after)->second;
}

std::vector<RedisAddress> SlotTable::nodes() const {
  std::set<RedisAddress> all;
  for (const auto& [slot, address] : nodes_) all.insert(address);
  return {all.begin(), all.end()};
}

void SlotTable::set(std::uint16_t slot, const RedisAddress& address) {
  const int next = slot + 1;
  if (next < kClusterSlots && !nodes_.empty()) {
    nodes_.emplace(static_cast<std::uint16_t>(next), node(slot, address));
  }
  nodes_.insert_or_assign(slot, address);
}

Result<void> SlotTable::set_all(const redisReply& slots, const RedisAddress& asked) {
  if (!is_array(slots, 0) || slots.elements > kClusterSlots) return bad_slots();
  std::map<std::uint16_t, RedisAddress> nodes;
  for (std::size_t i = 0; i < slots.elements; ++i) {
    const redisReply& range = *slots.element[i];
    if (!is_array(range, 3) || !is_slot(*range.element[0])) return bad_slots();
    const std::optional<RedisAddress> master = parse_node(*range.element[2], asked);
    if (!master) return bad_slots();
    nodes.insert_or_assign(static_cast<std::uint16_t>(range.element[0]->integer), *master);
  }
  nodes_ = std::move(nodes);
  return {};
}

namespace {

// A slot moves once, or twice if a table is old. More means two nodes that point at each other.
constexpr int kMaxRedirections = 8;

// A server prepares all requested answers before it sends the first one. For large answers that
// takes longer than the round trips that it saves.
constexpr std::size_t kLargeReplyBytes = 64 << 10;
constexpr std::size_t kLargeAnswersAhead = 2;

// Of CLUSTER SLOTS: up to 16384 ranges with their nodes.
constexpr std::size_t kMaxSlotElements = std::size_t{1} << 20;

std::optional<Redirection> redirection(const redisReply& reply, const RedisAddress& asked) {
  const auto refused = refusal(reply);
  return refused ? parse_redirection(*refused, asked) : std::nullopt;
}

}  // namespace

struct RedisClient::Pending {
  std::size_t command = 0;
  RedisAddress node;
  bool asking = false;  // the command was redirected by ASK
  int n_redirections = 0;
};

struct RedisClient::Run {
  std::span<const RedisCommand> commands;
  std::size_t ahead = 0;  // current number of commands in flight
  std::size_t most = 0;
  const AnswerSink& sink;
  std::vector<RedisReply> answers;  // that arrived out of order
  std::size_t n_told = 0;

  std::vector<Pending> unanswered() const;
  Result<void> take(std::size_t command, RedisReply answer);
};

// After an error the answers of all connections are out of step, so every connection is closed. The
// slots are forgotten, too: a lost node may have been replaced.
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
  named_.clear();
  return broken;
}

Result<void> RedisClient::run(std::span<const RedisCommand> commands, Ahead ahead,
                              const AnswerSink& sink) {
  Run run{commands, ahead.first, ahead.most, sink, std::vector<RedisReply>(commands.size()), 0};
  return twice([&] { return try_run(run); });
}

Result<RedisReply> RedisClient::run_at(const RedisAddress& node,
                                       std::vector<std::string_view> words,
                                       std::size_t max_elements) {
  return twice([&] { return ask(node, words, max_elements); });
}

Result<std::vector<RedisAddress>> RedisClient::nodes() {
  return twice([&]() -> Result<std::vector<RedisAddress>> {
    const std::string_view words[] = {"CLUSTER", "SLOTS"};
    TQC_TRY_ASSIGN(const RedisReply reply, ask(*seed_, words, kMaxSlotElements));
    if (const auto refused = refusal(*reply)) {
      // Not a cluster, or this user may not ask.
      if (refused->starts_with("ERR") || refused->starts_with("NOPERM")) return std::vector{*seed_};
      return in_context(place(*seed_), refusal_error(*refused));
    }
    TQC_TRY(slots_.set_all(*reply, *seed_));
    const std::vector<RedisAddress> nodes = slots_.nodes();
    named_ = {nodes.begin(), nodes.end()};
    return nodes;
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
  const bool is_large = answer->type == REDIS_REPLY_STRING && answer->len > kLargeReplyBytes;
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

// Returns the commands that remain to be sent. After a redirection no more commands are sent, and
// all answers are read before it is followed.
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
      hide_password(*reply, settings_->password);
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
    if (auto sent = to->send(); !sent) return in_context(place(node), sent.error());
  }
  return {};
}

Result<RedisReply> RedisClient::read(const Pending& one) {
  RedisConnection& from = connections_.at(one.node);
  if (one.asking) {
    if (auto asked = from.read(); !asked) return in_context(place(one.node), asked.error());
  }
  Result<RedisReply> reply = from.read();
  if (!reply) return in_context(place(one.node), reply.error());
  return reply;
}

Result<void> RedisClient::follow(const Redirection& to, Pending& pending) {
  if (++pending.n_redirections > kMaxRedirections) {
    return Error{ErrorCode::kBusy, "its nodes redirect a command in circles"};
  }
  const bool is_news = slots_.node(to.slot, pending.node) != to.address;
  const bool is_stranger = !may_log_in(to.address);
  if (is_stranger || (!to.once && is_news)) TQC_TRY(learn_slots());
  if (is_stranger && !may_log_in(to.address)) {
    return invalid("a node redirects to an address that is not in the cluster map of " +
                   to_string(*seed_) + "; the password is not sent there");
  }
  if (!to.once && is_news) slots_.set(to.slot, to.address);
  pending.node = to.address;
  pending.asking = to.once;
  return {};
}

// Without the table, the first use of every slot would be redirected.
Result<void> RedisClient::learn_slots() {
  const std::string_view words[] = {"CLUSTER", "SLOTS"};
  TQC_TRY_ASSIGN(const RedisReply reply, ask(*seed_, words, kMaxSlotElements));
  if (refusal(*reply)) return {};  // may be forbidden; redirections teach one slot at a time
  TQC_TRY(slots_.set_all(*reply, *seed_));
  const std::vector<RedisAddress> nodes = slots_.nodes();
  named_ = {nodes.begin(), nodes.end()};
  return {};
}

bool RedisClient::may_log_in(const RedisAddress& node) const {
  return settings_->password.empty() || node == *seed_ || named_.contains(node);
}

Result<RedisConnection*> RedisClient::connection(const RedisAddress& node) {
  auto found = connections_.find(node);
  if (found == connections_.end()) {
    if (!may_log_in(node)) return invalid("the password is only sent to nodes of the cluster map");
    Result<RedisConnection> opened = RedisConnection::open(node, *settings_);
    // The known slots are old: the first node may know better.
    lost_node_ = !opened && node != *seed_;
    if (!opened) {
      Error error = std::move(opened).error();
      if (node != *seed_) hide_password(error.message, settings_->password);
      return in_context(place(node), std::move(error));
    }
    found = connections_.emplace(node, std::move(opened).value()).first;
  }
  return &found->second;
}

Result<RedisReply> RedisClient::ask(const RedisAddress& node,
                                    std::span<const std::string_view> words,
                                    std::size_t max_elements) {
  TQC_TRY_ASSIGN(RedisConnection* const to, connection(node));
  to->append(words);
  if (auto sent = to->send(); !sent) return in_context(place(node), sent.error());
  Result<RedisReply> reply = to->read(max_elements);
  if (!reply) return in_context(place(node), reply.error());
  hide_password(**reply, settings_->password);
  return reply;
}

// The name of a node in messages. A server names the other nodes, and may name one after the
// password.
std::string RedisClient::place(const RedisAddress& node) const {
  std::string text = to_string(node);
  if (node != *seed_) hide_password(text, settings_->password);
  return text;
}

}  // namespace tqcache::store
