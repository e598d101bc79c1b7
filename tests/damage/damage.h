#pragma once
// damage/damage.h: small files of every kind, and what has to be said of one that is damaged.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/file_fixture.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"

namespace tqcache::test {

inline Bytes golden(std::string_view name) {
  return read_all(std::filesystem::path(TQCACHE_GOLDEN_FILES) / (std::string(name) + ".tqkv"));
}

// Of files of version 2; of version 1 the suffix is ".tqcache".
inline std::vector<std::string> golden_names(
    const std::filesystem::path& folder = TQCACHE_GOLDEN_FILES, std::string_view suffix = ".tqkv") {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == suffix) names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

// Bytes that stand elsewhere: reading them costs no copy of the file.
class ViewSource : public ByteSource {
 public:
  explicit ViewSource(ByteView bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
      return Error{ErrorCode::kTruncated, "the source ends"};
    }
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return {};
  }

 private:
  ByteView bytes_;
};

inline Result<cache::Cache> load_view(ByteView file, const MemoryBudget& memory = {}) {
  return format::read_cache(ViewSource(file), {.n_threads = 1, .access = {.memory = memory}});
}

// Whether verify says that something is wrong.
inline bool is_reported(ByteView file, const MemoryBudget& memory = {}) {
  const auto report =
      format::verify_cache(ViewSource(file), {.n_threads = 1, .access = {.memory = memory}});
  return !report || !report->damage.empty();
}

// The state that a file had before it was appended to, told to be so.
inline bool is_earlier_state(const cache::Cache& loaded, ByteView damaged,
                             const cache::Cache& original) {
  const auto info = format::read_cache_info(ViewSource(damaged));
  return info && !info->damage.empty() && loaded.n_tokens() < original.n_tokens() &&
         std::equal(loaded.tokens.begin(), loaded.tokens.end(), original.tokens.begin());
}

// A load of a damaged file fails, or gives the same cache where what is damaged is of no weight to
// it (docs/reference/format.md: a slot that is not in use, gaps), or the state before if the slot
// of the newest one is damaged: after a loss of power that is the state which counts.
inline void expect_not_another(ByteView damaged, const cache::Cache& original,
                               std::string_view what) {
  const auto loaded = load_view(damaged);
  if (!loaded || is_earlier_state(*loaded, damaged, original)) return;
  ASSERT_EQ(difference(*loaded, original), "") << what;
}

// And verify reports it in any case.
inline void expect_found(ByteView damaged, const cache::Cache& original, std::string_view what) {
  expect_not_another(damaged, original, what);
  ASSERT_TRUE(is_reported(damaged)) << what;
}

// Where the slot in use begins.
inline std::size_t slot_in_use(const Bytes& file) {
  const auto first = value_at<std::uint32_t>(file, kGenerationAt);
  const auto second = value_at<std::uint32_t>(file, format::kSlotBytes + kGenerationAt);
  return second > first ? format::kSlotBytes : 0;
}

inline std::uint64_t manifest_offset_of(const Bytes& file) {
  return value_at<std::uint64_t>(file, slot_in_use(file) + kManifestOffsetAt);
}

// Makes the checksums of the header fit what stands behind it.
inline void reseal_header(Bytes& file) {
  const std::size_t slot = slot_in_use(file);
  const Checksum128 sum = xxh3_128(ByteView(file).subspan(manifest_offset_of(file)));
  format::HeaderSlot empty;
  empty.manifest_checksum = sum;
  const format::SlotBytes encoded = format::encode_slot(empty);  // for the order of its bytes
  constexpr std::size_t kChecksumAt = 40;
  std::copy_n(encoded.begin() + kChecksumAt, 16,
              file.begin() + static_cast<std::ptrdiff_t>(slot + kChecksumAt));
  patch(file, slot + kFileBytesAt, std::uint64_t{file.size()});
  reseal_slot(file, slot / format::kSlotBytes);
}

// The file with another manifest, under which only `manifest` itself can be wrong.
inline Bytes with_sealed_manifest(Bytes file, const Manifest& manifest) {
  const Bytes bytes = must(format::encode_manifest(manifest));
  file.resize(manifest_offset_of(file));
  file.insert(file.end(), bytes.begin(), bytes.end());
  reseal_header(file);
  return file;
}

inline Bytes with_named_manifest(Bytes file, Manifest manifest) {
  manifest.content_name = format::content_name(manifest);
  return with_sealed_manifest(std::move(file), manifest);
}

inline std::span<std::byte> stored_bytes(Bytes& file, const SectionInfo& section) {
  return std::span(file).subspan(section.file_offset, section.stored_bytes);
}

// Makes the file, one of whose sections was changed, right again but for the SHA-256 of what it
// holds, which the content name is made of.
inline Bytes with_checksum_repaired(Bytes file, Manifest manifest, std::size_t section) {
  manifest.sections[section].checksum = xxh3_128(stored_bytes(file, manifest.sections[section]));
  return with_sealed_manifest(std::move(file), manifest);
}

}  // namespace tqcache::test
