#pragma once
// store/library/put_source.h: a prompt that is to be put, section by section, in the form in which
// it will be stored.
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
#include "tqcache/format/cache_content.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

// sections of a cache in memory in the form in which a store keeps them.
//
// Packed blocks are stored as they are, but for trellis codes, which become symbols; dense ones
// become planes (docs/reference/store.md, "Putting", says why).

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

class PutSource {
 public:
  virtual ~PutSource() = default;

  virtual const format::Manifest& manifest() const = 0;
  // SHA-256 of a section before compression. Threads: any number at once. Errors: as section().
  virtual Result<Sha256> digest(std::size_t i) const = 0;
  // With all digests. Threads: any number at once. Errors: name the section's place.
  virtual Result<StoredSection> section(std::size_t i) const = 0;
};

// A .tqkv file, whose sections are taken as they stand there once their checksums are compared.
class FileSource : public PutSource {
 public:
  // `file` must outlive it. Errors: as SectionReader::open().
  static Result<FileSource> open(const ByteSource& file);

  const format::Manifest& manifest() const override { return info_; }
  Result<Sha256> digest(std::size_t i) const override { return info_.sections[i].raw_sha256; }
  Result<StoredSection> section(std::size_t i) const override;

 private:
  FileSource(const ByteSource& file, format::CacheFileInfo info)
      : file_(&file), info_(std::move(info)) {}

  const ByteSource* file_;
  format::CacheFileInfo info_;
  std::unique_ptr<BlobMemory> memory_ = std::make_unique<BlobMemory>();
};

// A cache in memory.
class CacheSource : public PutSource {
 public:
  // `cache` must outlive it. Errors: as cache::validate().
  static Result<CacheSource> open(const cache::Cache& cache);

  const format::Manifest& manifest() const override { return content_.manifest; }
  Result<Sha256> digest(std::size_t i) const override;
  Result<StoredSection> section(std::size_t i) const override;

 private:
  CacheSource(format::ContainerContent content, SectionStorer storer)
      : content_(std::move(content)), storer_(std::move(storer)) {}

  format::ContainerContent content_;
  SectionStorer storer_;
};

// what a store is given of a cache in memory: its parameters, one token
// block, or all that stands behind the last of them.
//
// Pieces own what they hold, or share it: the cache may grow, be cut or go while they are put.

// A section before compression. Of `info` layer, side, block, form and size are there.
struct RawSection {
  format::SectionInfo info;
  SharedBytes raw;
};

std::uint64_t total_bytes(const std::vector<RawSection>& sections);

// Whether a layer keeps what cannot be cut shorter: a window, or state without attention.
bool keeps_state(const cache::Cache& cache);

// What all token blocks of the cache are coded with.
// Requires: a token block is final; so is then every mean.
Parameters parameters_of(const cache::Cache& cache);

// One token block. Packed sections are shared with the cache, dense ones are copied.
// Requires: `block` < final_blocks(cache.n_tokens()); `layers` are those of parameters_of(cache).
std::vector<RawSection> block_pieces(const cache::Cache& cache,
                                     const std::vector<cache::LayerDesc>& layers,
                                     std::int64_t block);

// All that no final block has: the tail, windows, arrays. Packed sections are shared.
struct StatePieces {
  State state;  // without data and content name; layers are whole, not bare
  std::vector<RawSection> sections;
};

// Requires: the cache has a token, and is whole: nothing is half appended.
StatePieces state_pieces(const cache::Cache& cache);

}  // namespace tqcache::store
