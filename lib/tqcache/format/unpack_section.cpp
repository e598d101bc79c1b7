#include "tqcache/format/unpack_section.h"

#include <span>
#include <utility>
#include <variant>

#include "tqcache/base/dtype.h"
#include "tqcache/base/integers.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::format {
Result<cache::Cache> make_decoders(const Manifest& manifest) {
  Manifest empty;
  empty.identity = manifest.identity;
  empty.layers = manifest.layers;
  TQC_TRY_ASSIGN(cache::Cache decoders, make_empty_cache(empty));
  decoders.tokens = manifest.tokens;
  decoders.hidden_tokens = manifest.hidden_tokens;
  return decoders;
}

AlignedBytes unpack_section(const cache::Cache& decoders, const SectionInfo& section,
                            SharedBytes packed, std::int64_t n_tokens) {
  const auto& layer = *cache::attention_of(decoders.layers[to_size(section.layer)]);
  cache::Side side = section.side == SideName::kKeys ? layer.k : layer.v;
  auto& turbo = std::get<cache::TurboSide>(side);
  turbo.packed.resize(to_size(section.block) + 1);
  turbo.packed.back().bytes = std::move(packed);

  AlignedFloats values(to_size(cache::kTokenBlock * layer.shape.head_dim));
  const auto wanted = std::span(values).first(to_size(n_tokens * layer.shape.head_dim));
  const std::size_t head_bytes = wanted.size() * dtype_size(turbo.tail.dtype);
  AlignedBytes dense(to_size(layer.shape.n_kv_heads) * head_bytes);
  const std::int64_t n_whole = (section.block + 1) * cache::kTokenBlock;
  for (std::int64_t head = 0; head < layer.shape.n_kv_heads; ++head) {
    cache::read_block(side, layer.shape, n_whole, section.block, head, values);
    store_f32(turbo.tail.dtype, wanted, dense.data() + to_size(head) * head_bytes);
  }
  return dense;
}

}  // namespace tqcache::format
