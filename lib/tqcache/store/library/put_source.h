#pragma once
// store/library/put_source.h: a prompt that is to be put, section by section, in the form in which it will
// be stored.
//
// Only for the sources of store.

#include <cstddef>
#include <memory>
#include <utility>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/cache_content.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_memory.h"
#include "tqcache/store/blobs/section_storer.h"

namespace tqcache::store {

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

}  // namespace tqcache::store
