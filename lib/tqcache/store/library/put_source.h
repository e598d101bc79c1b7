#pragma once
// store/library/put_source.h: the sections of a prompt that is to be put, as they will be stored.
//
// Only for the sources of store.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/reader.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

// Compresses sections of a cache in memory for a store. Packed blocks are stored unchanged, except
// trellis codes, which become symbols; dense ones become byte planes (docs/reference/store.md,
// "Putting").
//
// Threads: any number may use one at once.
class SectionStorer {
 public:
  static Result<SectionStorer> make();

  // With all digests. `info` and `layer` say what the section is.
  StoredSection store(const cache::LayerDesc& layer, const format::SectionInfo& info,
                      SharedBytes raw) const;

 private:
  SectionStorer(format::SectionCompressor as_it_is, format::SectionCompressor smaller)
      : as_it_is_(std::move(as_it_is)), smaller_(std::move(smaller)) {}

  format::SectionCompressor as_it_is_, smaller_;
};

// A prompt that is to be put, section by section as a store keeps it.
//
// The sections of a .tqkv file are used as the file has them, after their checksums are compared;
// those of any other reader are compressed by SectionStorer.
class PutSource {
 public:
  // `reader` must outlive it.
  static Result<PutSource> open(const cache::CacheReader& reader);

  // Digests of sections are only there if the reader is a .tqkv file.
  const format::Manifest& manifest() const { return manifest_; }
  // SHA-256 of a section before compression. Threads: any number at once. Errors: as section().
  Result<Sha256> digest(std::size_t i) const;
  // With all digests. Threads: any number at once. Errors: name the section's place.
  Result<StoredSection> section(std::size_t i) const;

 private:
  PutSource(const cache::CacheReader& reader, SectionStorer storer);

  const cache::CacheReader* reader_;
  const format::SectionReader* file_;  // the reader, if it is a .tqkv file
  format::Manifest manifest_;
  SectionStorer storer_;
  std::unique_ptr<BlobMemory> memory_ = std::make_unique<BlobMemory>();
};

// --- the pieces of a growing cache, which own or share their memory: the cache may be changed or
//     destroyed while they are put

// A section before compression. `info` has layer, side, block, packed and raw size.
struct RawSection {
  format::SectionInfo info;
  SharedBytes raw;
};

std::uint64_t total_bytes(const std::vector<RawSection>& sections);

// Whether a layer has a window or recurrent state, so that the cache cannot be cut.
bool keeps_state(const cache::Cache& cache);

// The parameters of all token blocks of the cache.
// Requires: a token block is final; then every mean is, too.
Parameters parameters_of(const cache::Cache& cache);

// One token block. Packed sections are shared with the cache, dense ones are copied.
// Requires: `block` < final_blocks(cache.n_tokens()); `layers` are those of parameters_of(cache).
std::vector<RawSection> block_pieces(const cache::Cache& cache,
                                     const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t block);

// Everything that is not in a final block: the tail, windows, arrays. Packed sections are shared.
struct StatePieces {
  Snapshot snapshot;  // without data and content digest; layers are complete, not bare
  std::vector<RawSection> sections;
};

// Requires: the cache has a token and is consistent: no append is in progress.
StatePieces state_pieces(const cache::Cache& cache);

}  // namespace tqcache::store
