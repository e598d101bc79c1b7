#include "tqcache/format/section_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "tqcache/format/section_plan.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Works for Cache& and const Cache&.
auto& attention_layer(auto& cache, const SectionInfo& section) {
  return std::get<0>(cache.layers[to_size(section.layer)]);
}

auto& array_of(auto& cache, const SectionInfo& section) {
  return std::get<1>(cache.layers[to_size(section.layer)]).arrays[to_size(section.block)];
}

auto& side_of_section(auto& layer, const SectionInfo& section) {
  return section.side == SideName::kKeys ? layer.k : layer.v;
}

// Memory and file hold a dense block head by head. In memory every head has room for 256 tokens;
// in the file stand those that there are.
struct DenseRows {
  std::size_t n_heads = 0;
  std::size_t memory_bytes = 0;  // of one head in memory
  std::size_t file_bytes = 0;    // of one head in the file

  bool same() const { return memory_bytes == file_bytes; }
};

DenseRows dense_rows(cache::HeadShape shape, Dtype dtype, std::int64_t n_tokens,
                     std::int64_t block) {
  const std::size_t token_bytes = to_size(shape.head_dim) * dtype_size(dtype);
  return {to_size(shape.n_kv_heads), to_size(cache::kTokenBlock) * token_bytes,
          to_size(cache::tokens_in_block(n_tokens, block)) * token_bytes};
}

ByteView dense_section(const cache::AttentionLayer& layer, const cache::Side& side,
                       std::int64_t n_tokens, std::int64_t block, AlignedBytes& scratch) {
  const AlignedBytes& memory = cache::dense_block(side, block);
  const DenseRows rows = dense_rows(layer.shape, cache::dense_dtype(side), n_tokens, block);
  if (rows.same()) return memory;
  scratch.resize(rows.n_heads * rows.file_bytes);
  for (std::size_t head = 0; head < rows.n_heads; ++head) {
    std::memcpy(scratch.data() + head * rows.file_bytes, memory.data() + head * rows.memory_bytes,
                rows.file_bytes);
  }
  return scratch;
}

ByteView packed_section(const cache::AttentionLayer& layer, const cache::TurboSide& side,
                        std::int64_t block, AlignedBytes& scratch) {
  const cache::TurboBlock& packed = side.packed[to_size(block)];
  const PackedLayout layout = packed_layout(layer.shape, side.codec.shape());
  scratch.resize(layout.raw_bytes);
  std::ranges::copy(packed.codes, scratch.begin());
  const ByteView scales = object_bytes(packed.scales);
  std::memcpy(scratch.data() + layout.code_bytes, scales.data(), scales.size());
  return scratch;
}

void place_dense(cache::Side& side, cache::HeadShape shape, std::int64_t n_tokens,
                 std::int64_t block, AlignedBytes raw) {
  const std::int64_t index = block - cache::packed_block_count(side);
  auto* turbo = std::get_if<cache::TurboSide>(&side);
  cache::DenseSide& dense = turbo ? turbo->tail : std::get<cache::DenseSide>(side);
  AlignedBytes& memory = dense.blocks[to_size(index)];
  const DenseRows rows = dense_rows(shape, dense.dtype, n_tokens, block);
  if (rows.same()) {
    memory = std::move(raw);
    return;
  }
  memory.resize(rows.n_heads * rows.memory_bytes);
  for (std::size_t head = 0; head < rows.n_heads; ++head) {
    std::memcpy(memory.data() + head * rows.memory_bytes, raw.data() + head * rows.file_bytes,
                rows.file_bytes);
  }
}

void place_packed(cache::TurboSide& side, cache::HeadShape shape, std::int64_t block,
                  AlignedBytes raw) {
  cache::TurboBlock& packed = side.packed[to_size(block)];
  const PackedLayout layout = packed_layout(shape, side.codec.shape());
  const ByteView scales = ByteView(raw).subspan(layout.code_bytes);
  packed.scales.resize(scales.size() / sizeof(std::uint16_t));
  std::memcpy(packed.scales.data(), scales.data(), scales.size());
  raw.resize(layout.code_bytes);  // keeps the memory: the codes are not copied again
  packed.codes = std::move(raw);
}

codec::BlockOrder order_of(SideName side) {
  return side == SideName::kKeys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues;
}

// Makes the codecs of a manifest, one for all sides that describe it alike.
class CodecCache {
 public:
  Result<codec::BlockCodec> get(const SideInfo& side, codec::BlockOrder order) {
    for (const codec::BlockCodec& known : known_) {
      if (known.shape().order == order && known.quantizer().spec() == *side.codec &&
          std::ranges::equal(known.quantizer().centroids(), side.centroids)) {
        return known;
      }
    }
    TQC_TRY_ASSIGN(const codec::Quantizer quantizer,
                   codec::Quantizer::make(*side.codec, side.centroids));
    return known_.emplace_back(quantizer, order);
  }

 private:
  std::vector<codec::BlockCodec> known_;
};

// How many token blocks stand packed, [layer][side].
std::vector<std::array<std::size_t, 2>> count_packed(const Manifest& manifest) {
  std::vector<std::array<std::size_t, 2>> counts(manifest.layers.size());
  for (const SectionInfo& section : manifest.sections) {
    if (section.packed) {
      ++counts[to_size(section.layer)][static_cast<std::size_t>(section.side)];
    }
  }
  return counts;
}

cache::Mean make_mean(const SideInfo& info, const std::shared_ptr<const cache::RopeTable>& rope) {
  cache::Mean mean;
  if (info.centring == kCentringNone) return mean;
  mean.kind = cache::Centring::kPostRope;
  mean.values.assign(info.mean.begin(), info.mean.end());
  if (info.centring == kCentringPreRope) {
    mean.kind = cache::Centring::kPreRope;
    mean.rope = rope;
  }
  return mean;
}

// One table for all keys, if there are any whose mean turns.
std::shared_ptr<const cache::RopeTable> make_rope_table(const Manifest& manifest) {
  const auto turns = [](const LayerInfo& layer) { return layer.k.centring == kCentringPreRope; };
  if (std::ranges::none_of(manifest.layers, turns)) return nullptr;
  return std::make_shared<const cache::RopeTable>(manifest.identity.rope);
}

// What sides of one file share.
struct SideParts {
  CodecCache codecs;
  std::shared_ptr<const cache::RopeTable> rope;
};

Result<cache::Side> make_empty_side(const SideInfo& info, SideName name, std::size_t n_blocks,
                                    std::size_t n_packed, SideParts& parts) {
  cache::DenseSide dense{info.dense_dtype, std::vector<AlignedBytes>(n_blocks - n_packed)};
  if (!info.codec) return cache::Side(std::move(dense));
  TQC_TRY_ASSIGN(codec::BlockCodec codec, parts.codecs.get(info, order_of(name)));
  return cache::Side(cache::TurboSide{std::move(codec), std::vector<cache::TurboBlock>(n_packed),
                                      std::move(dense), make_mean(info, parts.rope)});
}

cache::ArraysLayer make_empty_arrays(const LayerInfo& info) {
  cache::ArraysLayer layer;
  for (const ArrayInfo& array : info.arrays) {
    layer.arrays.push_back({array.name, array.dtype, array.shape, {}});
  }
  return layer;
}

}  // namespace

ByteView section_bytes(const cache::Cache& cache, const SectionInfo& section,
                       AlignedBytes& scratch) {
  if (section.side == SideName::kArray) return array_of(cache, section).data;
  const cache::AttentionLayer& layer = attention_layer(cache, section);
  const cache::Side& side = side_of_section(layer, section);
  if (section.packed) {
    return packed_section(layer, std::get<cache::TurboSide>(side), section.block, scratch);
  }
  return dense_section(layer, side, cache.n_tokens(), section.block, scratch);
}

Result<cache::Cache> make_empty_cache(const Manifest& manifest) {
  cache::Cache cache{manifest.identity, manifest.tokens, {}};
  SideParts parts{{}, make_rope_table(manifest)};
  const auto n_packed = count_packed(manifest);
  const std::size_t n_blocks = to_size(cache::block_count(manifest.n_tokens()));
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    const LayerInfo& info = manifest.layers[i];
    if (!is_attention(info)) {
      cache.layers.emplace_back(make_empty_arrays(info));
      continue;
    }
    TQC_TRY_ASSIGN(cache::Side k,
                   make_empty_side(info.k, SideName::kKeys, n_blocks, n_packed[i][0], parts));
    TQC_TRY_ASSIGN(cache::Side v,
                   make_empty_side(info.v, SideName::kValues, n_blocks, n_packed[i][1], parts));
    cache.layers.emplace_back(cache::AttentionLayer{info.shape, std::move(k), std::move(v)});
  }
  return cache;
}

void place_section(const SectionInfo& section, AlignedBytes raw, cache::Cache& cache) {
  if (section.side == SideName::kArray) {
    array_of(cache, section).data = std::move(raw);
    return;
  }
  cache::AttentionLayer& layer = attention_layer(cache, section);
  cache::Side& side = side_of_section(layer, section);
  if (section.packed) {
    place_packed(std::get<cache::TurboSide>(side), layer.shape, section.block, std::move(raw));
  } else {
    place_dense(side, layer.shape, cache.n_tokens(), section.block, std::move(raw));
  }
}

}  // namespace tqcache::format
