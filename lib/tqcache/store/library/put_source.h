#pragma once
// store/library/put_source.h: the sections of a prompt to be put, as they will be stored.
//
// Only for the sources of store.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/reader.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

// Compresses sections of a cache in memory for a store. Quantized blocks are stored unchanged,
// except trellis codes, which become symbols; dense ones become byte planes
// (docs/reference/store.md, "Putting").
//
// Threads: any number may use one at once.
class SectionStorer {
 public:
  static Result<SectionStorer> make();

  // With all digests. `info` and `layer` describe the section.
  StoredSection store(const cache::LayerDesc& layer, const format::SectionInfo& info,
                      SharedBytes raw) const;

 private:
  SectionStorer(format::SectionCompressor as_it_is, format::SectionCompressor smaller)
      : as_it_is_(std::move(as_it_is)), smaller_(std::move(smaller)) {}

  format::SectionCompressor as_it_is_, smaller_;
};

// A prompt to be put, section by section as a store keeps it.
//
// What the reader has stored is used unchanged; everything else is compressed by SectionStorer. A
// store knows no profiles, so predicted sections are decoded.
class PutSource {
 public:
  // `reader` must outlive it.
  static Result<PutSource> open(const cache::CacheReader& reader);

  // Without digests of sections.
  const format::Manifest& manifest() const { return manifest_; }
  // SHA-256 of a section before compression. Threads: any number at once. Errors: as section().
  Result<Sha256> digest(std::size_t i) const;
  // With all digests. Threads: any number at once. Errors: name the section's place.
  Result<StoredSection> section(std::size_t i) const;

 private:
  PutSource(const cache::CacheReader& reader, SectionStorer storer);
  // The section as the reader has it stored; nullopt: it has not.
  Result<std::optional<StoredSection>> as_stored(std::size_t i) const;

  const cache::CacheReader* reader_;
  format::Manifest manifest_;
  SectionStorer storer_;
  std::unique_ptr<BlobMemory> memory_ = std::make_unique<BlobMemory>();
};

// --- Sections of a growing cache, which own or share their memory: the cache may be changed or
// destroyed while they are put

// A section before compression. `info` has layer, K or V, block, packed and raw size.
struct RawSection {
  format::SectionInfo info;
  SharedBytes raw;
};

std::uint64_t total_bytes(const std::vector<RawSection>& sections);

// Whether a layer has a window or recurrent state, so that the cache cannot be truncated.
bool keeps_state(const cache::Cache& cache);

// The parameters of all token blocks of the cache.
// Requires: a token block is final, so that every mean is fixed.
Parameters parameters_of(const cache::Cache& cache);

// One token block. Quantized sections are shared with the cache, dense ones are copied.
//
// Requires: `block` < final_blocks(cache.n_tokens()); `layers` are those of parameters_of(cache).
std::vector<RawSection> block_pieces(const cache::Cache& cache,
                                     const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t block);

// Everything outside final blocks: the tail, windows, arrays. Quantized sections are shared.
struct StatePieces {
  Snapshot snapshot;  // without data and content digest; layers are complete, not bare
  std::vector<RawSection> sections;
};

// Requires: the cache has a token and is consistent: no append is in progress.
StatePieces state_pieces(const cache::Cache& cache);

}  // namespace tqcache::store
