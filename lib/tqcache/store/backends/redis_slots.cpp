#include "tqcache/store/backends/redis_slots.h"

#include <hiredis/hiredis.h>

#include <charconv>
#include <set>

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
  return reply.type == REDIS_REPLY_INTEGER && reply.integer >= 0 && reply.integer < kSlots;
}

// [HOST, PORT, ...]; a node that does not know its own host leaves it empty.
std::optional<RedisAddress> parse_node(const redisReply& node, const RedisAddress& asked) {
  if (!is_array(node, 2)) return std::nullopt;
  const redisReply& host = *node.element[0];
  const redisReply& port = *node.element[1];
  if (port.type != REDIS_REPLY_INTEGER || port.integer < 1 || port.integer > 65535)
    return std::nullopt;
  RedisAddress address{asked.host, static_cast<std::uint16_t>(port.integer)};
  if (host.type == REDIS_REPLY_STRING && host.len > 0) address.host.assign(host.str, host.len);
  return address;
}

}  // namespace

std::uint16_t slot_of(std::string_view key) {
  const std::size_t open = key.find('{');
  const std::size_t close = open == key.npos ? key.npos : key.find('}', open + 1);
  if (close != key.npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  return crc16(key) % kSlots;
}

std::optional<Redirection> parse_redirection(std::string_view text, const RedisAddress& asked) {
  Redirection to;
  to.once = text.starts_with("ASK ");
  if (!to.once && !text.starts_with("MOVED ")) return std::nullopt;
  text.remove_prefix(text.find(' ') + 1);
  const std::size_t space = text.find(' ');
  const std::size_t colon = text.rfind(':');
  if (space == text.npos || colon == text.npos || colon < space) return std::nullopt;
  const auto slot = whole_number<std::uint16_t>(text.substr(0, space), kSlots - 1);
  const auto port = whole_number<std::uint16_t>(text.substr(colon + 1), 65535);
  if (!slot || !port || *port == 0) return std::nullopt;
  const std::string_view host = text.substr(space + 1, colon - space - 1);
  to.slot = *slot;
  to.address = {host.empty() ? asked.host : std::string(host), *port};
  return to;
}

// A range stands under its first slot and lasts to the next range.
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
  if (next < kSlots && !nodes_.empty()) {
    nodes_.emplace(static_cast<std::uint16_t>(next), node(slot, address));
  }
  nodes_.insert_or_assign(slot, address);
}

Result<void> SlotTable::set_all(const redisReply& slots, const RedisAddress& asked) {
  if (!is_array(slots, 0) || slots.elements > kSlots) return bad_slots();
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

}  // namespace tqcache::store
