// The C interface: stores of prompts, and checked values.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "tqcache/base/integers.h"
#include "tqcache/capi/handles.h"
#include "tqcache/quantize.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/encrypted_backend.h"

using namespace tqcache;        // NOLINT(google-build-using-namespace)
using namespace tqcache::capi;  // NOLINT(google-build-using-namespace)

struct tqcache_store {
  std::unique_ptr<store::Backend> backend;
  std::unique_ptr<store::Library> library;
  std::atomic<bool> has_checked_key = false;
};

struct tqcache_values {
  std::unique_ptr<store::Values> values;
};

namespace tqcache::capi {
namespace {

store::OnWarning to_warning(tqcache_warning warning, void* user) {
  if (warning == nullptr) return {};
  return [warning, user](const std::string& message) { warning(user, message.c_str()); };
}

Result<std::span<const std::int32_t>> to_tokens(const std::int32_t* tokens, std::int64_t n_tokens) {
  if (n_tokens < 0 || n_tokens > cache::kMaxTokens || (tokens == nullptr && n_tokens > 0)) {
    return invalid(fmt::format("{} tokens", n_tokens));
  }
  return std::span(tokens, to_size(n_tokens));
}

// The longest prefix of at most max_tokens tokens, 0: all of them.
Result<store::Prefix> find_prefix(tqcache_store& store, const tqcache_identity* identity,
                                  std::span<const std::int32_t> tokens, std::int64_t max_tokens) {
  TQC_TRY_ASSIGN(const cache::Identity model, to_identity(identity));
  if (tokens.empty()) return store::Prefix{};
  store::FindOptions options;
  options.max_tokens = max_tokens > 0 ? max_tokens : std::ssize(tokens);
  return store.library->find(model, tokens, options);
}

std::unique_ptr<tqcache_cache> stored_cache(std::unique_ptr<store::StoredPrompt> prompt) {
  tqcache_cache cache;
  cache.kind = "store";
  cache.content_digest = to_hex(prompt->manifest().content_name);
  cache.reader = std::move(prompt);
  return finish_cache(std::move(cache));
}

Result<std::vector<ByteView>> to_parts(const tqcache_part* parts, std::size_t n_parts) {
  std::vector<ByteView> views;
  for (std::size_t i = 0; i < n_parts; ++i) {
    if (parts[i].data == nullptr && parts[i].size > 0) return invalid("a part without data");
    views.emplace_back(static_cast<const std::byte*>(parts[i].data), parts[i].size);
  }
  return views;
}

std::vector<std::span<std::byte>> to_rooms(const tqcache_part* parts, std::size_t n_parts) {
  std::vector<std::span<std::byte>> rooms;
  for (std::size_t i = 0; i < n_parts; ++i) {
    rooms.emplace_back(static_cast<std::byte*>(parts[i].data), parts[i].size);
  }
  return rooms;
}

std::uint64_t room_bytes(const std::vector<std::span<std::byte>>& rooms) {
  std::uint64_t total = 0;
  for (const auto& room : rooms) total += room.size();
  return total;
}

ByteView to_meta(const void* meta, std::size_t size) {
  return {static_cast<const std::byte*>(meta), meta == nullptr ? 0 : size};
}

Result<store::ValueCoding> to_coding(std::int32_t planes) {
  if (planes == 0) return store::ValueCoding::kRaw;
  if (planes == 2) return store::ValueCoding::kPlanes2;
  if (planes == 4) return store::ValueCoding::kPlanes4;
  return invalid(fmt::format("planes of numbers of {} bytes: 0, 2 or 4", planes));
}

}  // namespace
}  // namespace tqcache::capi

extern "C" {

int tqcache_store_open(const char* url, const tqcache_store_options* options, tqcache_store** store,
                       tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_store_options known, known_fields(options));
    store::BackendOptions backend;
    TQC_TRY_ASSIGN(backend.keys, read_keys(known.key_file));
    backend.credentials = store::credentials_of_environment();
    auto made = std::make_unique<tqcache_store>();
    TQC_TRY_ASSIGN(made->backend, store::open_backend(url, backend));
    store::LibraryOptions library;
    library.salt = store::secret_salt(backend.keys, known.salt == nullptr ? "" : known.salt);
    library.n_threads = known.threads;
    library.on_warning = to_warning(known.warning, known.user);
    made->library = std::make_unique<store::Library>(*made->backend, std::move(library));
    *store = made.release();
    return {};
  });
}

void tqcache_store_free(tqcache_store* store) { delete store; }

int tqcache_store_put(tqcache_store* store, const tqcache_cache* cache,
                      const tqcache_put_options* options, tqcache_put_report* report,
                      tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_put_options known, known_fields(options));
    TQC_TRY_ASSIGN(const Conversion conversion, apply_config(*cache, known.config, 0));
    store::PutOptions put;
    if (known.config != nullptr) put.quantization = conversion.options;
    put.replace = known.replace != 0;
    put.created = known.created;
    if (!store->has_checked_key) {
      TQC_TRY(store::check_store_key(*store->backend, store::BeforePut::kYes));
      store->has_checked_key = true;
    }
    TQC_TRY_ASSIGN(const store::PutReport done,
                   store->library->put(*conversion.reader, known.name == nullptr ? "" : known.name,
                                       to_progress(known.progress, known.user), put));
    if (report == nullptr) return {};
    tqcache_put_report result{};
    result.n_tokens = done.n_tokens;
    result.blocks = done.blocks;
    result.new_blocks = done.new_blocks;
    result.bytes = done.bytes;
    result.new_bytes = done.new_bytes;
    give_fields(result, report);
    return {};
  });
}

int tqcache_store_find(tqcache_store* store, const tqcache_identity* identity,
                       const int32_t* tokens, int64_t n_tokens, int64_t max_tokens, int64_t* found,
                       tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto wanted, to_tokens(tokens, n_tokens));
    TQC_TRY_ASSIGN(const store::Prefix prefix, find_prefix(*store, identity, wanted, max_tokens));
    *found = prefix.n_tokens;
    return {};
  });
}

int tqcache_store_get(tqcache_store* store, const tqcache_identity* identity, const int32_t* tokens,
                      int64_t n_tokens, int64_t max_tokens, tqcache_progress progress, void* user,
                      tqcache_cache** cache, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto wanted, to_tokens(tokens, n_tokens));
    // What is lost while it is fetched may leave a shorter prefix, which a second search finds.
    for (int attempt = 0; attempt < 2; ++attempt) {
      TQC_TRY_ASSIGN(store::Prefix prefix, find_prefix(*store, identity, wanted, max_tokens));
      if (prefix.n_tokens == 0) break;
      TQC_TRY_ASSIGN(auto prompt, store->library->fetch(prefix, to_progress(progress, user)));
      if (prompt == nullptr) continue;
      const auto& ids = prompt->description().tokens;
      if (ids.size() > wanted.size() || !std::ranges::equal(ids, wanted.first(ids.size()))) {
        return corrupt("the store's tokens are not those of the prompt");
      }
      *cache = stored_cache(std::move(prompt)).release();
      return {};
    }
    *cache = nullptr;
    return {};
  });
}

int tqcache_store_get_named(tqcache_store* store, const char* name, tqcache_progress progress,
                            void* user, tqcache_cache** cache, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto record, store->library->record(name));
    if (!record) {
      *cache = nullptr;
      return {};
    }
    TQC_TRY_ASSIGN(auto prompt, store->library->fetch(*record, to_progress(progress, user)));
    *cache = stored_cache(std::move(prompt)).release();
    return {};
  });
}

int tqcache_store_names(tqcache_store* store, tqcache_bytes** json, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto records, store->library->records());
    auto names = nlohmann::ordered_json::array();
    for (const store::PromptRecord& record : records) names.push_back(record.name);
    const std::string text =
        names.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    const ByteView bytes = as_bytes(text);
    *json = new tqcache_bytes{{}, Bytes(bytes.begin(), bytes.end())};
    return {};
  });
}

int tqcache_store_remove(tqcache_store* store, const char* name, int* existed,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const bool removed, store->library->remove(name));
    *existed = removed ? 1 : 0;
    return {};
  });
}

// --- checked values

int tqcache_values_open(const char* url, const char* name_space,
                        const tqcache_values_options* options, tqcache_values** values,
                        tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const tqcache_values_options known, known_fields(options));
    store::ValuesOptions to;
    TQC_TRY_ASSIGN(to.keys, read_keys(known.key_file));
    to.credentials = store::credentials_of_environment();
    TQC_TRY_ASSIGN(to.coding, to_coding(known.planes));
    to.n_threads = known.threads;
    to.on_warning = to_warning(known.warning, known.user);
    TQC_TRY_ASSIGN(auto opened, store::Values::open(url, name_space, std::move(to)));
    *values = new tqcache_values{std::move(opened)};
    return {};
  });
}

void tqcache_values_free(tqcache_values* values) { delete values; }

int tqcache_values_put(tqcache_values* values, const char* key, const void* meta, size_t meta_size,
                       const tqcache_part* parts, size_t n_parts, int* stored,
                       tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const auto data, to_parts(parts, n_parts));
    TQC_TRY_ASSIGN(const bool is_new, values->values->put(key, to_meta(meta, meta_size), data));
    if (stored != nullptr) *stored = is_new ? 1 : 0;
    return {};
  });
}

int tqcache_values_read(tqcache_values* values, const char* key, const void* meta, size_t meta_size,
                        const tqcache_part* parts, size_t n_parts, int* found,
                        tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const auto rooms = to_rooms(parts, n_parts);
    const auto room = [&](std::uint64_t bytes) {
      return bytes == room_bytes(rooms) ? std::optional(rooms) : std::nullopt;
    };
    TQC_TRY_ASSIGN(const bool was_read, values->values->get(key, to_meta(meta, meta_size), room));
    *found = was_read ? 1 : 0;
    return {};
  });
}

int tqcache_values_get(tqcache_values* values, const char* key, const void* meta, size_t meta_size,
                       tqcache_bytes** bytes, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    auto made = std::make_unique<tqcache_bytes>();
    const auto room = [&](std::uint64_t size) {
      made->own.resize(static_cast<std::size_t>(size));
      return std::optional(std::vector{std::span<std::byte>(made->own)});
    };
    TQC_TRY_ASSIGN(const bool was_read, values->values->get(key, to_meta(meta, meta_size), room));
    *bytes = was_read ? made.release() : nullptr;
    return {};
  });
}

int tqcache_values_exist(tqcache_values* values, const char* const* keys, size_t n_keys,
                         uint8_t* exists, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    const std::vector<std::string> names(keys, keys + n_keys);
    TQC_TRY_ASSIGN(const std::vector<bool> found, values->values->exists(names));
    for (std::size_t i = 0; i < n_keys; ++i) exists[i] = found[i] ? 1 : 0;
    return {};
  });
}

int tqcache_values_remove(tqcache_values* values, const char* key, int* existed,
                          tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const bool removed, values->values->remove(key));
    if (existed != nullptr) *existed = removed ? 1 : 0;
    return {};
  });
}

int tqcache_values_total(tqcache_values* values, uint64_t* n_values, uint64_t* n_bytes,
                         tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const store::Values::Total total, values->values->total());
    if (n_values != nullptr) *n_values = total.values;
    if (n_bytes != nullptr) *n_bytes = total.bytes;
    return {};
  });
}

int tqcache_values_trim(tqcache_values* values, uint64_t max_bytes, uint64_t* n_values,
                        uint64_t* n_bytes, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const store::Values::Total removed, values->values->trim(max_bytes));
    if (n_values != nullptr) *n_values = removed.values;
    if (n_bytes != nullptr) *n_bytes = removed.bytes;
    return {};
  });
}

int tqcache_planes_encode(const tqcache_part* parts, size_t n_parts, int32_t planes,
                          unsigned threads, tqcache_bytes** packed, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const store::ValueCoding coding, to_coding(planes));
    TQC_TRY_ASSIGN(const auto data, to_parts(parts, n_parts));
    TQC_TRY_ASSIGN(Bytes made, store::encode_value({}, {}, data, coding, threads));
    *packed = new tqcache_bytes{{}, std::move(made)};
    return {};
  });
}

int tqcache_planes_size(const void* packed, size_t size, uint64_t* n_bytes, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const store::CheckedValue value,
                   store::open_value({static_cast<const std::byte*>(packed), size}));
    *n_bytes = value.data_bytes;
    return {};
  });
}

int tqcache_planes_decode(const void* packed, size_t size, const tqcache_part* parts,
                          size_t n_parts, unsigned threads, tqcache_error** error) {
  return guarded(error, [&]() -> Result<void> {
    TQC_TRY_ASSIGN(const store::CheckedValue value,
                   store::open_value({static_cast<const std::byte*>(packed), size}));
    const auto rooms = to_rooms(parts, n_parts);
    if (room_bytes(rooms) != value.data_bytes) {
      return invalid(fmt::format("room for {} bytes of {}", room_bytes(rooms), value.data_bytes));
    }
    return store::read_value(value, rooms, threads);
  });
}

}  // extern "C"
