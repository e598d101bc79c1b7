// Saving, appending and compacting.

#include "operation_parts.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::faults {

namespace fs = std::filesystem;
using test::CacheBuilder;
using test::must;

const cache::Cache& new_cache() {
  static const cache::Cache made = CacheBuilder(300).dense({1, 16}).turbo({1, 32}, 4, 3).build();
  return made;
}

const cache::Cache& old_cache() {
  static const cache::Cache made = must(cache::truncate(new_cache(), 260));
  return made;
}

namespace {

const Bytes& old_bytes() {
  static const Bytes made = must(format::write_cache_bytes(old_cache(), write_options()));
  return made;
}

Files nothing() { return {}; }
Files old_file() { return {{kTargetName, old_bytes()}}; }

// The file that an append makes, with dead bytes in it.
Files grown_file() {
  static const Files made = [] {
    const test::TempDir folder;
    test::write_all(folder / kTarget, old_bytes());
    auto appender = must(format::CacheAppender::open(folder / kTarget));
    must(appender.append(new_cache(), write_options()));
    return Files{{kTargetName, test::read_all(folder / kTarget)}};
  }();
  return made;
}

// The same operations on encrypted files.
format::WriteOptions encrypted(format::WriteOptions options) {
  options.keys = test_keys(1);
  return options;
}

const Bytes& old_encrypted_bytes() {
  static const Bytes made =
      must(format::write_cache_bytes(old_cache(), encrypted(write_options())));
  return made;
}

Files old_encrypted_file() { return {{kTargetName, old_encrypted_bytes()}}; }

Files grown_encrypted_file() {
  static const Files made = [] {
    const test::TempDir folder;
    test::write_all(folder / kTarget, old_encrypted_bytes());
    auto appender = must(format::CacheAppender::open(folder / kTarget, {test_keys(1)}));
    must(appender.append(new_cache(), encrypted(write_options())));
    return Files{{kTargetName, test::read_all(folder / kTarget)}};
  }();
  return made;
}

Result<void> save_encrypted(const fs::path& folder) {
  return format::write_cache_file(new_cache(), folder / kTarget,
                                  encrypted(write_options(Overwrite::kAllow)));
}

Result<void> append_encrypted(const fs::path& folder) {
  TQC_TRY_ASSIGN(auto appender, format::CacheAppender::open(folder / kTarget, {test_keys(1)}));
  TQC_TRY(appender.read(read_options()));
  TQC_TRY(appender.append(new_cache(), encrypted(write_options())));
  return {};
}

Result<void> compact_encrypted(const fs::path& folder) {
  TQC_TRY(format::compact_file(folder / kTarget, write_options(), {}, {test_keys(1)}));
  return {};
}

// From either key to the second one.
Result<void> rekey(const fs::path& folder) {
  format::WriteOptions options = write_options();
  options.keys = test_keys(2);
  TQC_TRY(format::rekey_file(folder / kTarget, {test_keys(1).with(test_keys(2))}, folder / kTarget,
                             options));
  return {};
}

std::string state_of_rekeyed(const fs::path& folder) {
  const auto source = must(open_file(folder / kTarget));
  for (const int number : {1, 2}) {
    format::ReadOptions options = read_options();
    options.access.keys = test_keys(number);
    const auto report = format::verify_cache(*source, options);
    if (!report) continue;
    if (!report->damage.empty()) return report->damage.front();
    const cache::Cache found = must(format::read_cache(*source, options));
    const std::string difference = test::difference(found, old_cache());
    if (!difference.empty()) return difference;
    return number == 1 ? "old" : "new";
  }
  return "neither key opens the target";
}

Result<void> save_over(const fs::path& folder) {
  return format::write_cache_file(new_cache(), folder / kTarget, write_options(Overwrite::kAllow));
}

Result<void> save_new(const fs::path& folder) {
  return format::write_cache_file(new_cache(), folder / kTarget, write_options());
}

Result<void> append(const fs::path& folder) {
  TQC_TRY_ASSIGN(auto appender, format::CacheAppender::open(folder / kTarget));
  TQC_TRY(appender.read(read_options()));
  TQC_TRY(appender.append(new_cache(), write_options()));
  return {};
}

Result<void> compact(const fs::path& folder) {
  TQC_TRY(format::compact_file(folder / kTarget, write_options()));
  return {};
}

std::string state_of_cache(const fs::path& folder) {
  const Result<cache::Cache> found = read_whole(folder / kTarget);
  if (!found) return "the target: " + found.error().message;
  if (test::difference(*found, old_cache()).empty()) return "old";
  const std::string difference = test::difference(*found, new_cache());
  return difference.empty() ? "new" : "the target is neither old nor new: " + difference;
}

std::string state_of_new_file(const fs::path& folder) {
  return fs::exists(folder / kTarget) ? state_of_cache(folder) : "old";
}

// Old and new have the same content, and the new one no dead bytes.
std::string state_of_compacted(const fs::path& folder) {
  const std::string state = state_of_cache(folder);
  if (state != "new") return state == "old" ? "the target lost tokens" : state;
  const auto source = must(open_file(folder / kTarget));
  const format::CacheFileInfo info = must(format::read_cache_info(*source, test_keys(1)));
  return info.gap_bytes == 0 ? "new" : "old";
}

}  // namespace

std::vector<Operation> writing_operations() {
  return {
      {"save_over", old_file, save_over, state_of_cache, {kTargetName}, "save_over", ""},
      {"save_new", nothing, save_new, state_of_new_file, {kTargetName}, "save_over", ""},
      {"save_new_by_link",
       nothing,
       save_new,
       state_of_new_file,
       {kTargetName},
       "save_over",
       "renameat2:error=EINVAL"},
      {"append", old_file, append, state_of_cache, {kTargetName}, "append", ""},
      {"compact", grown_file, compact, state_of_compacted, {kTargetName}, "compact", ""},
      {"save_encrypted",
       old_encrypted_file,
       save_encrypted,
       state_of_cache,
       {kTargetName},
       "save_encrypted",
       ""},
      {"append_encrypted",
       old_encrypted_file,
       append_encrypted,
       state_of_cache,
       {kTargetName},
       "append_encrypted",
       ""},
      {"compact_encrypted",
       grown_encrypted_file,
       compact_encrypted,
       state_of_compacted,
       {kTargetName},
       "compact_encrypted",
       ""},
      {"rekey", old_encrypted_file, rekey, state_of_rekeyed, {kTargetName}, "rekey", ""},
  };
}

}  // namespace tqcache::faults
