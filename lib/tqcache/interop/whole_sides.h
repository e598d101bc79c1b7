#pragma once
// interop/whole_sides.h: sides of a cache put together from their token blocks, for files that have
// them whole.

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/format/section_source.h"

namespace tqcache::interop {

class WholeSides {
 public:
  // Nothing in `source` is packed (format/dense_sections.h). Both must outlive this. Progress
  // counts bytes of sections.
  WholeSides(const format::SectionSource& source, const Progress& progress);

  // [n_kv_heads, n_tokens, head_dim]. The memory of `out` is used again if it has enough.
  // Requires: an attention layer; kKeys or kValues.
  // Errors:   those of the source; kInterrupted.
  Result<void> read_side(std::size_t layer, format::SideName side, AlignedBytes& out);

  // An array of a layer that has arrays. Errors: as above.
  Result<void> read_array(std::size_t layer, std::size_t array, AlignedBytes& out);

 private:
  const std::vector<std::size_t>& sections_of(std::size_t layer, format::SideName side) const;
  Result<void> read_section(std::size_t section, AlignedBytes& raw);

  const format::SectionSource& source_;
  const Progress& progress_;
  std::map<std::pair<std::size_t, format::SideName>, std::vector<std::size_t>> numbers_;
  AlignedBytes block_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace tqcache::interop
