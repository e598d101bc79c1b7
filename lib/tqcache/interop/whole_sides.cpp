#include "tqcache/interop/whole_sides.h"

#include <cstring>

#include "tqcache/base/dtype.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"

namespace tqcache::interop {
namespace {

using format::Manifest;
using format::SideName;

}  // namespace

WholeSides::WholeSides(const format::SectionSource& source, const Progress& progress)
    : source_(source), progress_(progress) {
  const auto& sections = source.manifest().sections;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    numbers_[{to_size(sections[i].layer), sections[i].side}].push_back(i);
    total_ += sections[i].raw_bytes;
  }
}

const std::vector<std::size_t>& WholeSides::sections_of(std::size_t layer, SideName side) const {
  static const std::vector<std::size_t> kNone;  // a side of a cache without tokens
  const auto found = numbers_.find({layer, side});
  return found == numbers_.end() ? kNone : found->second;
}

Result<void> WholeSides::read_section(std::size_t section, AlignedBytes& raw) {
  TQC_TRY(source_.read(section, raw));
  done_ += raw.size();
  if (!progress_ || progress_(done_, total_)) return {};
  return interrupted_error();
}

Result<void> WholeSides::read_side(std::size_t layer, SideName side, AlignedBytes& out) {
  const Manifest& manifest = source_.manifest();
  const cache::LayerDesc& desc = manifest.layers[layer];
  const cache::HeadShape shape = cache::attention_of(desc)->shape;
  const std::size_t row_bytes =
      to_size(shape.head_dim) * dtype_size(format::side_of(desc, side).dtype);
  const std::size_t head_bytes = to_size(manifest.n_tokens()) * row_bytes;
  out.resize(to_size(shape.n_kv_heads) * head_bytes);
  for (const std::size_t section : sections_of(layer, side)) {
    TQC_TRY(read_section(section, block_));
    const std::int64_t block = manifest.sections[section].block;
    const std::size_t n_bytes =
        to_size(cache::tokens_in_block(manifest.n_tokens(), block)) * row_bytes;
    const std::size_t begin = to_size(block * cache::kTokenBlock) * row_bytes;
    for (std::size_t head = 0; head < to_size(shape.n_kv_heads); ++head) {
      std::memcpy(out.data() + head * head_bytes + begin, block_.data() + head * n_bytes, n_bytes);
    }
  }
  return {};
}

Result<void> WholeSides::read_array(std::size_t layer, std::size_t array, AlignedBytes& out) {
  return read_section(sections_of(layer, SideName::kArray)[array], out);
}

}  // namespace tqcache::interop
