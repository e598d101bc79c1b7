#pragma once
// support/forged_file.h: .tqkv files whose values are not those of their content digest.
//
// Everything that anybody can mend is mended: the checksums of sections, of the manifest and of the
// header. Only the SHA-256 of the section table, of which the content digest is made, remain those
// of the true values.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

// The same cache, with a bit of the first value of every block turned that `is_chosen`.
class TurnedReader : public cache::CacheReader {
 public:
  using IsChosen = std::function<bool(const cache::BlockInfo&)>;
  explicit TurnedReader(const cache::CacheReader& source, IsChosen is_chosen = {})
      : source_(source), is_chosen_(std::move(is_chosen)) {}

  const cache::CacheDesc& description() const override { return source_.description(); }
  const std::vector<cache::BlockInfo>& blocks() const override { return source_.blocks(); }
  Result<void> read(std::size_t i, AlignedBytes& raw) const override {
    TQC_TRY(source_.read(i, raw));
    if (raw.size() < 2 || (is_chosen_ && !is_chosen_(blocks()[i]))) return {};
    raw[1] ^= std::byte{0x80};  // of f16 and bf16: the sign
    return {};
  }

 private:
  const cache::CacheReader& source_;
  IsChosen is_chosen_;
};

// The file that `cache` would be written to, with other values and the same content digest.
inline Bytes forged_file(const cache::CacheReader& cache, const format::WriteOptions& options,
                         const TurnedReader::IsChosen& is_chosen = {}) {
  const Bytes honest = must(format::write_cache_bytes(cache, options));
  Bytes file = must(format::write_cache_bytes(TurnedReader(cache, is_chosen), options));
  const auto source = memory_source(file);
  const format::Manifest shown = must(format::read_cache_info(*memory_source(honest)));
  format::Manifest manifest = must(format::read_cache_info(*source));
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    manifest.sections[i].raw_sha256 = shown.sections[i].raw_sha256;
  }
  manifest.content_name = shown.content_name;
  const Bytes bytes = must(format::encode_manifest(manifest));
  format::HeaderSlot slot = must(format::read_header(*source)).slot;
  file.resize(slot.manifest_offset);
  file.insert(file.end(), bytes.begin(), bytes.end());
  slot.file_bytes = file.size();
  slot.manifest_checksum = xxh3_128(bytes);
  std::ranges::copy(format::encode_slot(slot), file.begin());
  return file;
}

inline Bytes forged_file(const cache::Cache& cache, const format::WriteOptions& options,
                         const TurnedReader::IsChosen& is_chosen = {}) {
  return forged_file(*cache::reader_of(cache), options, is_chosen);
}

}  // namespace tqcache::test
