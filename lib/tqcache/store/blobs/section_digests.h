#pragma once
// store/blobs/section_digests.h: the comparison of the sections of blobs with their SHA-256.
//
// Reading a blob compares checksums, which anybody who can write to a backend can make right for
// other values. Whoever relies on the digests that a blob states has to compare the content, too.
//
// Spec: docs/reference/store.md, 8.5.

#include <map>
#include <memory>
#include <vector>

#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/hash.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

// Threads: any number may compare at once, but not while layers are added.
class SectionDigests {
 public:
  SectionDigests() = default;
  explicit SectionDigests(const std::vector<cache::LayerDesc>& layers) { add_layers(layers); }

  // Layers that sections may belong to. Only symbols need them: their shape is not in the blob.
  void add_layers(const std::vector<cache::LayerDesc>& layers);

  // Decompresses every section and compares it with its SHA-256. Symbols that fit none of the
  // layers are passed over: without parameters nobody can find or decode them.
  // Errors: kCorrupt; kTooLarge for a section of more than 128 MiB from a much smaller blob.
  Result<void> compare(const std::vector<StoredSection>& sections, unsigned n_threads = 1) const;
  // Of a block or of data; other content has no sections.
  Result<void> compare(const Content& content, unsigned n_threads = 1) const;

 private:
  Result<void> compare_section(const StoredSection& section) const;
  Result<void> compare_symbols(const StoredSection& section) const;

  std::map<Sha256, std::vector<cache::LayerDesc>> layers_;  // by what the shapes of symbols need
  std::unique_ptr<const format::Decompressor> decompressor_ =
      std::make_unique<const format::Decompressor>();
};

}  // namespace tqcache::store
