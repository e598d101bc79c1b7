#pragma once
// format/section_source.h: a cache that is had section by section, wherever it comes from: a .tqkv
// file, or a file of another program.
//
// What converts and what exports works on this, and so never holds a whole cache.

#include <cstddef>
#include <optional>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

class SectionSource {
 public:
  virtual ~SectionSource() = default;

  // What the cache is: tokens, layers, and of each section which part it is, its form and its size
  // before compression, in the order of docs/reference/format.md §6. Where sections stand in a file
  // and their digests are only there if the source is a .tqkv file.
  //
  // Keeps to check_contents() and, but for offsets, to check_sections() (manifest_rules.h).
  virtual const Manifest& manifest() const = 0;

  // The bytes of a section, as docs/reference/format.md §6 has them, before compression. `raw` gets
  // their size; its memory is used again if it has enough.
  //
  // Threads: may be called from several at once.
  // Errors:  those of what is read. The message names the section's place.
  virtual Result<void> read(std::size_t section, AlignedBytes& raw) const = 0;

  // The same where they stand, if the source has them in memory, at a multiple of 64, and somebody
  // may keep them. Threads: as read().
  virtual std::optional<SharedBytes> in_memory(std::size_t) const { return std::nullopt; }
};

}  // namespace tqcache::format
