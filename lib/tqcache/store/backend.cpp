// The common part of all backends: checks of keys and sizes.

#include <fmt/format.h>

#include "tqcache/base/posix.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/backend_support.h"

namespace tqcache::store {
namespace {

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
}

// Whether the text is segments with single '/' between them. `open_end`: the last may be
// incomplete.
bool is_words(std::string_view text, bool open_end) {
  bool begins = true;
  for (const char c : text) {
    if (c == '/' ? begins : !is_key_character(c) || (begins && c == '.')) return false;
    begins = c == '/';
  }
  return open_end || !begins;
}

Error no_key(std::string_view what, std::string_view text) {
  return {ErrorCode::kInvalidArgument, std::string(what) + " " + in_quotes(text) +
                                           ": 1 to 200 of a-z 0-9 / _ . - are allowed, in words"};
}

Result<void> check_size(const std::string& key, std::uint64_t size, std::uint64_t limit) {
  if (size <= limit) return {};
  return too_large(fmt::format("{}: {} bytes, at most {} are allowed", key, size, limit));
}

}  // namespace

Result<void> check_key(std::string_view key) {
  if (key.size() <= kMaxKeyBytes && is_words(key, false)) return {};
  return no_key("key", key);
}

Backend::Backend(std::string name, const BackendOptions& options)
    : name_(std::move(name)), options_(options), process_(posix::getpid()) {}

// Of one connection, two processes would read each other's answers.
Result<void> Backend::check_process() const {
  if (process_ == posix::getpid()) return {};
  return invalid("the store was opened before fork(): open it again in this process");
}

Result<void> Backend::check_keys(std::span<const std::string> keys) const {
  TQC_TRY(check_process());
  for (const std::string& key : keys) TQC_TRY(check_key(key));
  return {};
}

Result<PutOutcome> Backend::put(const std::string& key, ByteView value) {
  const Blob blob{key, value};
  TQC_TRY_ASSIGN(const std::vector<PutOutcome> outcomes, put(std::span(&blob, 1)));
  return outcomes.front();
}

Result<std::vector<PutOutcome>> Backend::put(std::span<const Blob> blobs) {
  TQC_TRY(check_process());
  for (const Blob& blob : blobs) {
    TQC_TRY(check_key(blob.key));
    TQC_TRY(check_size(blob.key, blob.value.size(), options_.max_value_bytes));
  }
  return do_put(blobs);
}

Result<void> Backend::replace(const std::string& key, ByteView value) {
  TQC_TRY(check_process());
  TQC_TRY(check_key(key));
  TQC_TRY(check_size(key, value.size(), options_.max_value_bytes));
  return do_replace({key, value});
}

Result<void> Backend::do_replace(const Blob& blob) {
  TQC_TRY(do_remove(blob.key, std::nullopt));
  TQC_TRY(do_put(std::span(&blob, 1)));
  return {};
}

Result<std::optional<Bytes>> Backend::get(const std::string& key) {
  std::optional<Bytes> found;
  TQC_TRY(get(std::span(&key, 1), [&](std::size_t, std::optional<ByteView> value) -> Result<void> {
    if (value) found.emplace(value->begin(), value->end());
    return {};
  }));
  return found;
}

Result<void> Backend::get(std::span<const std::string> keys, const ValueSink& sink) {
  TQC_TRY(check_keys(keys));
  return do_get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
    if (value) TQC_TRY(check_size(keys[i], value->size(), options_.max_value_bytes));
    return sink(i, value);
  });
}

Result<bool> Backend::exists(const std::string& key) {
  TQC_TRY_ASSIGN(const std::vector<bool> found, exists(std::span(&key, 1)));
  return bool{found.front()};
}

Result<std::vector<bool>> Backend::exists(std::span<const std::string> keys) {
  TQC_TRY(check_keys(keys));
  return do_exists(keys);
}

Result<bool> Backend::remove(const std::string& key) {
  TQC_TRY(check_process());
  TQC_TRY(check_key(key));
  return do_remove(key, std::nullopt);
}

Result<bool> Backend::remove_if_same(const std::string& key, ByteView value) {
  TQC_TRY(check_process());
  TQC_TRY(check_key(key));
  return do_remove(key, value);
}

Result<void> Backend::list(const std::string& prefix, const EntrySink& sink) {
  TQC_TRY(check_process());
  if (prefix.size() > kMaxKeyBytes || !is_words(prefix, true)) return no_key("prefix", prefix);
  std::uint64_t n_listed = 0;
  return do_list(prefix, [&](const Entry& entry) -> Result<void> {
    if (++n_listed > options_.max_listed_keys) {
      return too_large(fmt::format("the store lists more than {} keys", options_.max_listed_keys));
    }
    // A server may list what it was not asked for; such keys are skipped as foreign ones are.
    return entry.key.starts_with(prefix) ? sink(entry) : Result<void>();
  });
}

Result<Backend::Leftovers> Backend::leftovers(std::chrono::seconds, bool) { return Leftovers{}; }

Result<void> Backend::touch(std::span<const std::string> keys) {
  TQC_TRY(check_keys(keys));
  return keys.empty() ? Result<void>() : do_touch(keys);
}

}  // namespace tqcache::store
