#pragma once
// format/section_values.h: the values of one section of a cache that was read from a file, for
// comparison with another reader.

#include <span>
#include <variant>
#include <vector>

#include "tqcache/cache/blocks.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

// The values of a dense section, as the file has them.
inline std::vector<float> dense_values(const cache::Cache& cache, const cache::CacheDesc& info,
                                       const format::SectionInfo& section) {
  const cache::LayerDesc& layer = info.layers[static_cast<std::size_t>(section.layer)];
  const Dtype dtype =
      section.tensor == cache::TensorKind::kArray
          ? cache::arrays_of(layer, {})[static_cast<std::size_t>(section.block)].dtype
          : tensor_of(layer, section.tensor).dtype;
  AlignedBytes scratch;
  const ByteView raw = cache::block_bytes(cache, section, scratch);
  std::vector<float> values(raw.size() / dtype_size(dtype));
  load_f32(dtype, raw.data(), values);
  return values;
}

// The values of a packed section: [n_kv_heads, 256, head_dim].
inline std::vector<float> packed_values(const cache::Cache& cache,
                                        const format::SectionInfo& section) {
  const auto& layer = *cache::attention_of(cache.layers[static_cast<std::size_t>(section.layer)]);
  const bool keys = section.tensor == cache::TensorKind::kKeys;
  const cache::Tensor& tensor = keys ? layer.k : layer.v;
  const auto shape = keys ? layer.shape : layer.value_shape();
  const auto head_values = static_cast<std::size_t>(cache::kTokenBlock * shape.head_dim);
  std::vector<float> values(static_cast<std::size_t>(shape.n_kv_heads) * head_values);
  // Of the codes: a copy that was decoded for attention is rounded to the dtype of the tensor.
  const auto& turbo = std::get<cache::TurboTensor>(tensor);
  const ByteView codes = turbo.packed[static_cast<std::size_t>(section.block)].bytes.view();
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    turbo.codec.decode(
        codes, section.block, head,
        std::span(values).subspan(static_cast<std::size_t>(head) * head_values, head_values));
  }
  return values;
}

}  // namespace tqcache::test
