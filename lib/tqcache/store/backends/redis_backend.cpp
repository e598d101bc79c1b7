#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <set>

#include "tqcache/base/pool.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/backends/redis_client.h"
#include "tqcache/store/backends/store_url.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kKeysPerCommand = 512;
constexpr Ahead kKeysAhead{kKeysPerCommand, kKeysPerCommand};
constexpr Ahead kValuesToPut{8, 8};
constexpr Ahead kValuesToGet{4, 8};
// Of a page; COUNT is only a wish.
constexpr std::size_t kMaxScanElements = 100'000;

// One atomic step, so that a value that was put meanwhile is kept. GET would end the script at a
// key of another kind, which counts as an empty value.
constexpr std::string_view kRemoveIfSame =
    "local kind = redis.call('TYPE', KEYS[1]).ok "
    "local value = '' "
    "if kind == 'none' then return 0 end "
    "if kind == 'string' then value = redis.call('GET', KEYS[1]) end "
    "if value == ARGV[1] then return redis.call('UNLINK', KEYS[1]) end "
    "return 0";

struct RedisPlace {
  RedisAddress address;
  RedisSettings settings;
  std::string prefix;
  std::string ttl_ms;  // empty: no limit
};

std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class RedisBackend : public Backend {
 public:
  RedisBackend(std::string name, RedisPlace place, const BackendOptions& options)
      : Backend(std::move(name), options), place_(std::move(place)) {}

  bool lists_cheaply() const override { return false; }

 private:
  using Client = Pool<RedisClient>::Lease;

  Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) override {
    std::vector<std::string> names;
    for (const Blob& blob : blobs) names.push_back(place_.prefix + blob.key);
    std::vector<RedisCommand> commands;
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      RedisCommand set{{"SET", names[i], text_of(blobs[i].value), "NX"}, names[i]};
      if (!place_.ttl_ms.empty()) set.words.insert(set.words.end(), {"PX", place_.ttl_ms});
      commands.push_back(std::move(set));
    }
    std::vector<PutOutcome> outcomes;
    TQC_TRY(
        client()->run(commands, kValuesToPut, [&](std::size_t i, RedisReply reply) -> Result<void> {
          const Result<bool> stored = reply_ok(*reply);
          if (!stored) return in_context(blobs[i].key, stored.error());
          outcomes.push_back(*stored ? PutOutcome::kStored : PutOutcome::kExisted);
          return {};
        }));
    return outcomes;
  }

  Result<void> do_replace(const Blob& blob) override {
    const std::string name = place_.prefix + blob.key;
    RedisCommand set{{"SET", name, text_of(blob.value)}, name};
    if (!place_.ttl_ms.empty()) set.words.insert(set.words.end(), {"PX", place_.ttl_ms});
    return client()->run(std::span(&set, 1), Ahead{},
                         [&](std::size_t, RedisReply reply) -> Result<void> {
                           const Result<bool> stored = reply_ok(*reply);
                           return stored ? Result<void>() : in_context(blob.key, stored.error());
                         });
  }

  Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) override {
    return run_on_each({"GET"}, keys, kValuesToGet,
                       [&](std::size_t i, RedisReply reply) -> Result<void> {
                         // A hash, a list: something is stored, but no blob.
                         const auto refused = refusal(*reply);
                         if (refused && refused->starts_with("WRONGTYPE ")) {
                           return sink(i, ByteView());
                         }
                         const auto value = reply_value(*reply);
                         if (!value) return in_context(keys[i], value.error());
                         return sink(i, *value);
                       });
  }

  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    std::vector<bool> found;
    TQC_TRY(count_each("EXISTS", keys, [&](std::int64_t count) { found.push_back(count > 0); }));
    return found;
  }

  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    const std::string name = place_.prefix + key;
    RedisCommand command{{"UNLINK", name}, name};
    if (only) command.words = {"EVAL", kRemoveIfSame, "1", name, text_of(*only)};
    bool removed = false;
    TQC_TRY(client()->run(std::span(&command, 1), Ahead{},
                          [&](std::size_t, RedisReply reply) -> Result<void> {
                            const Result<std::int64_t> count = reply_number(*reply);
                            if (!count) return in_context(key, count.error());
                            removed = *count > 0;
                            return {};
                          }));
    return removed;
  }

  Result<void> do_touch(std::span<const std::string> keys) override {
    return count_each("TOUCH", keys, [](std::int64_t) {});
  }

  // Reads all keys first, because they are unsorted and may be repeated.
  Result<void> do_list(const std::string& prefix, const EntrySink& sink) override {
    std::set<std::string> found;
    Client client = this->client();
    TQC_TRY_ASSIGN(const std::vector<RedisAddress> nodes, client->nodes());
    std::uint64_t n_pages = 0;
    for (const RedisAddress& node : nodes) TQC_TRY(scan(*client, node, prefix, n_pages, found));
    const std::vector<std::string> keys(found.begin(), found.end());
    return in_batches(std::span(keys), kKeysPerCommand,
                      [&](std::size_t, auto some) { return list_some(some, sink); });
  }

  // Prefixes and keys contain no characters that are special in patterns.
  Result<void> scan(RedisClient& client, const RedisAddress& node, const std::string& prefix,
                    std::uint64_t& n_pages, std::set<std::string>& found) const {
    const std::string pattern = place_.prefix + prefix + "*";
    std::string cursor = "0";
    do {
      if (n_pages++ == options().max_list_pages || found.size() > options().max_listed_keys) {
        return too_large(
            fmt::format("SCAN does not end after {} pages and {} keys", n_pages - 1, found.size()));
      }
      TQC_TRY_ASSIGN(const RedisReply reply,
                     client.run_at(node, {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"},
                                   kMaxScanElements));
      if (const auto refused = refusal(*reply)) return refusal_error(*refused);
      TQC_TRY_ASSIGN(cursor, take_scanned(*reply, found));
    } while (cursor != "0");
    return {};
  }

  // [CURSOR, [KEY...]]. Foreign keys are skipped.
  Result<std::string> take_scanned(const redisReply& reply, std::set<std::string>& found) const {
    const Error bad{ErrorCode::kCorrupt, "SCAN: not understood"};
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2) return bad;
    TQC_TRY_ASSIGN(const auto cursor, reply_value(*reply.element[0]));
    const redisReply& keys = *reply.element[1];
    if (!cursor || cursor->empty() || cursor->size() > 20 || keys.type != REDIS_REPLY_ARRAY)
      return bad;
    for (std::size_t i = 0; i < keys.elements; ++i) {
      TQC_TRY_ASSIGN(const auto name, reply_value(*keys.element[i]));
      if (!name) return bad;
      if (!text_of(*name).starts_with(place_.prefix)) continue;
      const std::string_view key = text_of(*name).substr(place_.prefix.size());
      if (check_key(key)) found.emplace(key);
    }
    return std::string(text_of(*cursor));
  }

  // Unlike STRLEN, these two commands do not count as a use.
  Result<void> list_some(std::span<const std::string> keys, const EntrySink& sink) {
    std::vector<std::optional<std::uint64_t>> sizes;
    const auto take_size = [&](std::size_t i, RedisReply reply) -> Result<void> {
      sizes.emplace_back();  // nil: removed meanwhile
      if (reply->type == REDIS_REPLY_NIL) return {};
      const Result<std::int64_t> bytes = reply_number(*reply);
      if (!bytes) return in_context(keys[i], bytes.error());
      if (*bytes < 0) return in_context(keys[i], corrupt("a negative size"));
      sizes[i] = static_cast<std::uint64_t>(*bytes);
      return {};
    };
    TQC_TRY(run_on_each({"MEMORY", "USAGE"}, keys, kKeysAhead, take_size));
    return run_on_each({"OBJECT", "IDLETIME"}, keys, kKeysAhead,
                       [&](std::size_t i, RedisReply reply) -> Result<void> {
                         if (!sizes[i]) return {};
                         Entry entry{keys[i], *sizes[i], std::nullopt};
                         // Refused with maxmemory-policy *-lfu, which counts uses instead of times.
                         const Result<std::int64_t> idle = reply_number(*reply);
                         if (idle && *idle < 0) {
                           return in_context(keys[i], corrupt("a negative time since its use"));
                         }
                         if (idle) entry.idle = std::chrono::seconds(*idle);
                         return sink(entry);
                       });
  }

  template <class Each>
  Result<void> count_each(std::string_view verb, std::span<const std::string> keys, Each each) {
    return in_batches(keys, kKeysPerCommand, [&](std::size_t, auto some) {
      const auto take = [&](std::size_t i, RedisReply reply) -> Result<void> {
        const Result<std::int64_t> count = reply_number(*reply);
        if (!count) return in_context(some[i], count.error());
        each(*count);
        return {};
      };
      return run_on_each({verb}, some, kKeysAhead, take);
    });
  }

  // One command per key, because in a cluster keys belong to different nodes.
  Result<void> run_on_each(std::vector<std::string_view> verb, std::span<const std::string> keys,
                           Ahead ahead, const AnswerSink& sink) {
    std::vector<std::string> names;
    for (const std::string& key : keys) names.push_back(place_.prefix + key);
    std::vector<RedisCommand> commands;
    for (const std::string& name : names) {
      commands.push_back({verb, name});
      commands.back().words.push_back(name);
    }
    return client()->run(commands, ahead, sink);
  }

  Client client() {
    return clients_.borrow(
        [&] { return std::make_unique<RedisClient>(place_.address, place_.settings); });
  }

  const RedisPlace place_;
  Pool<RedisClient> clients_;
};

bool is_prefix(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/{}").find(c) != std::string_view::npos;
  };
  return text.size() <= 100 && std::ranges::all_of(text, is_plain);
}

Result<void> take_address(StoreUrl& url, RedisPlace& place, std::string& database) {
  if (url.scheme == "redis") {
    place.address = {url.host.empty() ? "127.0.0.1" : url.host,
                     url.port == 0 ? std::uint16_t{6379} : url.port};
    if (url.path.size() > 1) database = url.path.substr(1);
    return {};
  }
  if (!url.host.empty() || url.path.size() < 2) {
    return invalid("store URL: redis+unix: needs /PATH of a socket");
  }
  place.address = {url.path, 0};
  database = url.take("db", "0");
  return {};
}

Result<void> take_ttl(StoreUrl& url, RedisPlace& place) {
  const std::string ttl = url.take("ttl");
  if (ttl.empty()) return {};
  TQC_TRY_ASSIGN(const std::uint64_t seconds, parse_number("ttl", ttl, 1'000'000'000));
  if (seconds == 0) return invalid("store URL: ttl 0");
  place.ttl_ms = std::to_string(seconds * 1000);
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> open_redis_backend(StoreUrl url, const BackendOptions& options) {
  RedisPlace place;
  std::string database = "0";
  TQC_TRY(take_address(url, place, database));
  TQC_TRY_ASSIGN(const std::uint64_t number, parse_number("database", database, 65535));
  place.settings.user = url.user;
  place.settings.password =
      url.password.empty() ? options.credentials.redis_password : url.password;
  TQC_TRY(take_ttl(url, place));
  place.prefix = url.take("prefix", "tqcache:");
  TQC_TRY(check_all_taken(url));
  if (!is_prefix(place.prefix)) {
    return Error{ErrorCode::kInvalidArgument,
                 "store URL: prefix " + in_quotes(place.prefix) +
                     ": up to 100 of a-z A-Z 0-9 _ - . : / { } are allowed"};
  }
  place.settings.database = static_cast<std::uint32_t>(number);
  place.settings.connect_timeout = options.connect_timeout;
  place.settings.idle_timeout = options.idle_timeout;
  place.settings.time_limit = options.time_limit;
  place.settings.least_rate = options.least_rate;
  place.settings.interrupted = options.interrupted;
  place.settings.max_value_bytes = std::min(options.max_value_bytes, kMaxValueBytes);
  std::string name =
      url.scheme + "://" + to_string(place.address) + (number == 0 ? "" : "/" + database);
  return std::unique_ptr<Backend>(
      std::make_unique<RedisBackend>(std::move(name), std::move(place), options));
}

}  // namespace tqcache::store
