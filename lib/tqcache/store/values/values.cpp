#include "tqcache/store/values/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tqcache/hash.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {
namespace {

constexpr std::size_t kMaxNamespaceBytes = 64;
constexpr std::size_t kMaxWarnedKeys = 1 << 16;  // then damage is not reported any more
constexpr std::string_view kNameLabel = "tqcache value 1";

Result<void> check_namespace(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxNamespaceBytes && name.front() != '.' &&
      std::ranges::all_of(name, is_allowed)) {
    return {};
  }
  return invalid(
      fmt::format("namespace '{}': 1 to {} of a-z 0-9 _ . - are allowed, and no '.' at "
                  "the beginning",
                  name, kMaxNamespaceBytes));
}

}  // namespace

Result<std::unique_ptr<Values>> Values::open(std::string_view url, std::string_view name_space,
                                             ValuesOptions options) {
  TQC_TRY(check_namespace(name_space));
  BackendOptions backend;
  backend.max_value_bytes = kMaxValueBytes;
  backend.keys = options.keys;
  backend.credentials = options.credentials;
  TQC_TRY_ASSIGN(std::unique_ptr<Backend> opened, open_backend(url, backend));
  std::string salt = secret_salt(options.keys, "");
  return std::unique_ptr<Values>(new Values(std::move(opened), fmt::format("v/{}/", name_space),
                                            std::move(salt), std::move(options)));
}

Values::Values(std::unique_ptr<Backend> backend, std::string prefix, std::string salt,
               ValuesOptions options)
    : backend_(std::move(backend)),
      prefix_(std::move(prefix)),
      salt_(std::move(salt)),
      options_(std::move(options)) {}

std::string Values::stored_key(std::string_view key) const {
  const std::array fields = {as_bytes(kNameLabel), as_bytes(salt_), as_bytes(prefix_),
                             as_bytes(key)};
  return prefix_ + to_hex(hash_fields(fields));
}

// Errors: also kMismatch for another key or other metadata.
Result<CheckedValue> Values::checked(std::string_view key, ByteView meta, ByteView envelope) const {
  TQC_TRY_ASSIGN(const CheckedValue value, open_value(envelope, options_.memory));
  if (value.key != key) return mismatch("the value of another key");
  if (!std::ranges::equal(value.meta, meta)) return mismatch("other metadata");
  return value;
}

void Values::warn_once(std::string_view key, const std::string& message) {
  if (!options_.on_warning) return;
  const std::lock_guard lock(warned_mutex_);
  if (warned_.size() >= kMaxWarnedKeys || !warned_.emplace(key).second) return;
  options_.on_warning(fmt::format("{}: {}", key, message));
}

Result<bool> Values::put(std::string_view key, ByteView meta, std::span<const ByteView> data) {
  TQC_TRY_ASSIGN(const Bytes envelope,
                 encode_value(key, meta, data, options_.coding, options_.n_threads));
  const std::string name = stored_key(key);
  // A damaged value is replaced. Another process may do the same at the same time, or put a value
  // in between: then that one is looked at again.
  for (int attempt = 0;; ++attempt) {
    TQC_TRY_ASSIGN(const PutOutcome outcome, backend_->put(name, envelope));
    if (outcome == PutOutcome::kStored) return true;
    TQC_TRY_ASSIGN(const std::optional<Bytes> existing, backend_->get(name));
    if (!existing && attempt < 8) continue;
    if (!existing) return Error{ErrorCode::kBusy, "the store drops values as they are put"};
    const Result<CheckedValue> value = checked(key, meta, *existing);
    if (value) return false;
    const ErrorCode code = value.error().code;
    if (code == ErrorCode::kNoKey || code == ErrorCode::kUnsupported || attempt >= 2) {
      return value.error();
    }
    TQC_TRY(backend_->remove_if_same(name, *existing));
  }
}

Result<bool> Values::get(std::string_view key, ByteView meta, const Room& room) {
  const std::string name = stored_key(key);
  bool found = false;
  Result<void> wrong;
  TQC_TRY(backend_->get(std::span(&name, 1),
                        [&](std::size_t, std::optional<ByteView> envelope) -> Result<void> {
                          if (!envelope) return {};
                          const Result<CheckedValue> value = checked(key, meta, *envelope);
                          if (!value) {
                            wrong = value.error();
                            return {};
                          }
                          const auto parts = room(value->data_bytes);
                          if (!parts) return {};
                          wrong = read_value(*value, *parts, options_.n_threads);
                          found = wrong.ok();
                          return {};
                        }));
  if (!wrong) warn_once(key, wrong.error().message);
  // For trim(). A store that cannot note the use now still has returned the value.
  if (found && backend_->touches_cheaply()) (void)backend_->touch(std::span(&name, 1)).ok();
  return found;
}

Result<std::vector<bool>> Values::exists(std::span<const std::string> keys) {
  std::vector<std::string> names;
  for (const std::string& key : keys) names.push_back(stored_key(key));
  return backend_->exists(names);
}

Result<bool> Values::remove(std::string_view key) { return backend_->remove(stored_key(key)); }

Result<Values::Total> Values::total() {
  Total total;
  TQC_TRY(backend_->list(prefix_, [&](const Entry& entry) -> Result<void> {
    total.values += 1;
    total.bytes += entry.bytes;
    return {};
  }));
  return total;
}

Result<Values::Total> Values::trim(std::uint64_t max_bytes) {
  std::vector<Entry> entries;
  std::uint64_t bytes = 0;
  TQC_TRY(backend_->list(prefix_, [&](const Entry& entry) -> Result<void> {
    entries.push_back(entry);
    bytes += entry.bytes;
    return {};
  }));
  std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
    return a.idle.value_or(std::chrono::seconds(0)) > b.idle.value_or(std::chrono::seconds(0));
  });
  Total removed;
  for (const Entry& entry : entries) {
    if (bytes <= max_bytes) break;
    bytes -= entry.bytes;
    TQC_TRY_ASSIGN(const bool existed, backend_->remove(entry.key));
    if (!existed) continue;
    removed.values += 1;
    removed.bytes += entry.bytes;
  }
  return removed;
}

}  // namespace tqcache::store
