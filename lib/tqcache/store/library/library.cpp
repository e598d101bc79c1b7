// Records, hit statistics, and StoredPrompt.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

namespace {

Sha256 random_digest() {
  std::random_device random;
  std::array<std::uint32_t, 8> words;
  for (std::uint32_t& word : words) word = random();
  return sha256(std::as_bytes(std::span(words)));
}

}  // namespace

Library::Library(Backend& backend, LibraryOptions options)
    : backend_(backend), options_(std::move(options)) {}

Result<std::optional<PromptRecord>> Library::record(std::string_view name) {
  BlobReader reader(backend_, bad_blobs(options_), options_.on_warning);
  return read_record(reader, record_key(options_.salt, name), name);
}

Result<std::vector<PromptRecord>> Library::records() {
  std::vector<std::string> keys;
  TQC_TRY(backend_.list(record_prefix(options_.salt), [&](const Entry& entry) -> Result<void> {
    keys.push_back(entry.key);
    return {};
  }));
  BlobReader reader(backend_, bad_blobs(options_), options_.on_warning);
  std::vector<PromptRecord> records;
  TQC_TRY(reader.read(keys, [&](std::size_t, Content content, std::uint64_t) -> Result<void> {
    TQC_TRY_ASSIGN(PromptRecord record, BlobReader::take_kind<PromptRecord>(std::move(content)));
    records.push_back(std::move(record));
    return {};
  }));
  std::ranges::sort(records, {}, &PromptRecord::name);
  return records;
}

Result<bool> Library::remove(std::string_view name) {
  return backend_.remove(record_key(options_.salt, name));
}

Result<void> Library::remove_snapshot(const Prefix& prefix) {
  if (!prefix.snapshot || prefix.state_key.empty()) return {};
  const Snapshot& snapshot = *prefix.snapshot;
  // Data is named by its content, so a named prompt with the same tail has it in common.
  TQC_TRY_ASSIGN(const std::vector<PromptRecord> named, records());
  const auto has_it = [&](const PromptRecord& record) {
    return record.state_key == prefix.state_key ||
           std::ranges::any_of(snapshot.data_keys, [&](const std::string& key) {
             return std::ranges::count(record.snapshot.data_keys, key) > 0;
           });
  };
  if (std::ranges::any_of(named, has_it)) return {};
  // A snapshot without its data would be a damaged one, so it goes first.
  TQC_TRY(backend_.remove(prefix.state_key));
  for (const std::string& key : snapshot.data_keys) TQC_TRY(backend_.remove(key));
  return {};
}

Result<void> Library::note_usage(const UsageNote& usage) {
  const std::string key = usage_key(random_digest());
  TQC_TRY_ASSIGN(const Bytes blob, encode_blob(key, Content(usage)));
  TQC_TRY(backend_.put(key, blob));
  return {};
}

StoredPrompt::StoredPrompt(format::Manifest manifest, std::vector<SharedBytes> stored,
                           std::uint64_t blob_bytes)
    : manifest_(std::move(manifest)),
      blocks_(format::blocks_of(manifest_.sections)),
      stored_(std::move(stored)),
      blob_bytes_(blob_bytes),
      decompressor_(std::make_shared<const format::Decompressor>()) {}

Result<void> StoredPrompt::read(std::size_t section, AlignedBytes& raw) const {
  const format::SectionInfo& info = manifest_.sections[section];
  const ByteView stored = stored_[section].view();
  if (info.compression == format::Compression::kNone) {
    raw.assign(stored.begin(), stored.end());
    return {};
  }
  auto unpacked = format::unpack_stored(manifest_, info, stored, *decompressor_, raw);
  if (unpacked) return {};
  return in_context(cache::block_place(section, info), std::move(unpacked).error());
}

Result<std::optional<cache::StoredBlock>> StoredPrompt::stored(std::size_t section,
                                                               const cache::Room& room) const {
  const format::SectionInfo& info = manifest_.sections[section];
  const ByteView bytes = stored_[section].view();
  std::ranges::copy(bytes, room(bytes.size()).begin());
  return std::optional(cache::StoredBlock{info.compression, info.checksum, info.raw_sha256});
}

Result<SharedBytes> StoredPrompt::share(std::size_t section) const {
  const SharedBytes& stored = stored_[section];
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(stored.data()) % kAlignment == 0;
  const bool is_raw = manifest_.sections[section].compression == format::Compression::kNone;
  return is_raw && is_aligned ? Result<SharedBytes>(stored) : CacheReader::share(section);
}

}  // namespace tqcache::store
