#include "tqcache/format/sections/section_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "tqcache/base/integers.h"
#include "tqcache/cache/window_rows.h"
#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

// Works for Cache& and const Cache&. Requires: the section is of a side.
auto& rows_of_section(auto& cache, const SectionInfo& section) {
  return *cache::rows_of(cache.layers[to_size(section.layer)]);
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

ByteView array_section(const cache::Cache& cache, const SectionInfo& section,
                       AlignedBytes& scratch) {
  const auto& layer = std::get<cache::ArraysLayer>(cache.layers[to_size(section.layer)]);
  if (!layer.rows) return array_of(cache, section).data;
  scratch = cache::window_array(layer, to_size(section.block), cache.n_tokens());
  return scratch;
}

AlignedBytes& dense_memory(cache::Side& side, std::int64_t block) {
  const std::int64_t index = block - cache::packed_block_count(side);
  auto* turbo = std::get_if<cache::TurboSide>(&side);
  cache::DenseSide& dense = turbo ? turbo->tail : std::get<cache::DenseSide>(side);
  return dense.blocks[to_size(index)];
}

void copy_dense(const DenseRows& rows, ByteView raw, AlignedBytes& memory) {
  memory.resize(rows.n_heads * rows.memory_bytes);
  for (std::size_t head = 0; head < rows.n_heads; ++head) {
    std::copy_n(raw.data() + head * rows.file_bytes, rows.file_bytes,
                memory.data() + head * rows.memory_bytes);
  }
}

cache::TurboBlock& packed_block(cache::Cache& cache, const SectionInfo& section) {
  cache::Side& side = side_of_section(rows_of_section(cache, section), section);
  return std::get<cache::TurboSide>(side).packed[to_size(section.block)];
}

// The memory of an array or a dense block, and how it is arranged there.
struct DensePlace {
  AlignedBytes& memory;
  DenseRows rows;  // of an array: one row
};

DensePlace dense_place(cache::Cache& cache, const SectionInfo& section) {
  if (section.side == SideName::kArray) {
    return {array_of(cache, section).data, {1, section.raw_bytes, section.raw_bytes}};
  }
  cache::AttentionLayer& layer = rows_of_section(cache, section);
  cache::Side& side = side_of_section(layer, section);
  return {dense_memory(side, section.block),
          dense_rows(layer.shape, cache::dense_dtype(side), cache.n_tokens(), section.block)};
}

// Makes the codecs of a manifest, one for all sides that describe it alike.
class CodecCache {
 public:
  Result<codec::HeadCodec> get(const SideInfo& side, int head_dim, codec::BlockOrder order) {
    for (const codec::HeadCodec& known : known_) {
      if (known.order() == order && static_cast<int>(known.head_dim()) == head_dim &&
          same_bits(known.parts(), side.parts)) {
        return known;
      }
    }
    TQC_TRY_ASSIGN(codec::HeadCodec made, codec::HeadCodec::make(head_dim, side.parts, order));
    return known_.emplace_back(std::move(made));
  }

 private:
  std::vector<codec::HeadCodec> known_;
};

// How many token blocks stand packed, [layer][side], with those that a window has left: they were.
std::vector<std::array<std::size_t, 2>> count_packed(const Manifest& manifest) {
  std::vector<std::array<std::size_t, 2>> counts;
  for (const LayerInfo& layer : manifest.layers) {
    const std::size_t n_left = to_size(first_block(layer, manifest.n_tokens()));
    counts.push_back({n_left, n_left});
  }
  for (const SectionInfo& section : manifest.sections) {
    if (section.packed) {
      ++counts[to_size(section.layer)][static_cast<std::size_t>(section.side)];
    }
  }
  return counts;
}

cache::Mean make_mean(const SideInfo& info, const std::shared_ptr<const cache::RopeTable>& rope) {
  cache::Mean mean;
  mean.kind = info.centering;
  mean.values.assign(info.mean.begin(), info.mean.end());
  if (info.centering == cache::Centering::kPreRope) mean.rope = rope;
  return mean;
}

// Outlier channels that are not fixed yet leave only their number.
Result<cache::Outliers> make_outliers(const SideInfo& info, cache::HeadShape shape,
                                      const codec::HeadCodec& codec) {
  if (!info.outliers.empty()) {
    return cache::make_outliers(shape, codec.outlier_channels(), info.outliers);
  }
  return cache::Outliers{codec.outlier_channels(), codec.head_dim(), {}};
}

// One table for all keys, if there are any whose mean turns.
std::shared_ptr<const cache::RopeTable> make_rope_table(const Manifest& manifest) {
  const auto turns = [](const LayerInfo& layer) {
    return layer.k.centering == cache::Centering::kPreRope;
  };
  if (std::ranges::none_of(manifest.layers, turns)) return nullptr;
  return std::make_shared<const cache::RopeTable>(manifest.identity.rope);
}

// Makes the sides of one file, with what they share.
class SideMaker {
 public:
  explicit SideMaker(const Manifest& manifest)
      : n_blocks_(to_size(cache::block_count(manifest.n_tokens()))),
        rope_(make_rope_table(manifest)) {}

  // A side whose first `n_packed` token blocks stand packed, if it is turbo.
  Result<cache::Side> make_empty(const LayerInfo& layer, SideName name, std::size_t n_packed) {
    const SideInfo& info = side_of(layer, name);
    if (!is_turbo(info)) {
      return cache::Side(cache::DenseSide{info.dense_dtype, std::vector<AlignedBytes>(n_blocks_)});
    }
    cache::DenseSide dense{info.dense_dtype, std::vector<AlignedBytes>(n_blocks_ - n_packed)};
    TQC_TRY_ASSIGN(codec::HeadCodec codec,
                   codecs_.get(info, static_cast<int>(layer.shape.head_dim), order_of(name)));
    TQC_TRY_ASSIGN(cache::Outliers outliers, make_outliers(info, layer.shape, codec));
    cache::HeadTransforms maps;
    if (!info.transforms.empty()) {
      TQC_TRY_ASSIGN(maps, cache::make_head_transforms(layer.shape, info.transforms));
    }
    return cache::Side(cache::TurboSide{std::move(codec), std::vector<cache::TurboBlock>(n_packed),
                                        std::move(dense), make_mean(info, rope_),
                                        std::move(outliers), info.n_sinks, std::move(maps)});
  }

 private:
  std::size_t n_blocks_;
  std::shared_ptr<const cache::RopeTable> rope_;
  CodecCache codecs_;
};

cache::ArraysLayer make_empty_arrays(const LayerInfo& info) {
  cache::ArraysLayer layer;
  for (const ArrayInfo& array : info.arrays) {
    layer.arrays.push_back({array.name, array.dtype, array.shape, {}});
  }
  if (is_rotating(info)) layer.window = cache::Window{info.shape, info.window, info.keep};
  return layer;
}

cache::ArraysLayer make_turbo_window(const LayerInfo& info, cache::AttentionLayer rows,
                                     std::int64_t n_tokens) {
  cache::ArraysLayer layer;
  layer.window = cache::Window{info.shape, info.window, info.keep};
  const auto shape = cache::window_array_shape(*layer.window, n_tokens);
  layer.arrays.push_back({std::string(cache::kWindowKeys), info.k.dense_dtype, shape, {}});
  layer.arrays.push_back({std::string(cache::kWindowValues), info.v.dense_dtype, shape, {}});
  layer.rows = std::move(rows);
  return layer;
}

}  // namespace

ByteView section_bytes(const cache::Cache& cache, const SectionInfo& section,
                       AlignedBytes& scratch) {
  if (section.side == SideName::kArray) return array_section(cache, section, scratch);
  const cache::AttentionLayer& layer = rows_of_section(cache, section);
  const cache::Side& side = side_of_section(layer, section);
  if (section.packed) {
    return std::get<cache::TurboSide>(side).packed[to_size(section.block)].bytes.view();
  }
  return dense_section(layer, side, cache.n_tokens(), section.block, scratch);
}

Result<cache::Cache> make_empty_cache(const Manifest& manifest) {
  cache::Cache cache{manifest.identity, manifest.tokens, manifest.hidden_tokens, {}};
  SideMaker sides(manifest);
  const auto n_packed = count_packed(manifest);
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    const LayerInfo& info = manifest.layers[i];
    if (!has_sides(info)) {
      cache.layers.emplace_back(make_empty_arrays(info));
      continue;
    }
    TQC_TRY_ASSIGN(cache::Side k, sides.make_empty(info, SideName::kKeys, n_packed[i][0]));
    TQC_TRY_ASSIGN(cache::Side v, sides.make_empty(info, SideName::kValues, n_packed[i][1]));
    cache::AttentionLayer rows{info.shape, std::move(k), std::move(v)};
    if (is_attention(info)) {
      cache.layers.emplace_back(std::move(rows));
    } else {
      cache.layers.emplace_back(make_turbo_window(info, std::move(rows), manifest.n_tokens()));
    }
  }
  return cache;
}

void place_section(const SectionInfo& section, SharedBytes raw, cache::Cache& cache) {
  if (section.packed) {
    packed_block(cache, section).bytes = std::move(raw);
    cache::AttentionLayer& layer = rows_of_section(cache, section);
    auto& side = std::get<cache::TurboSide>(side_of_section(layer, section));
    return cache::complete_block(side, layer.shape, section.block);
  }
  const DensePlace place = dense_place(cache, section);
  copy_dense(place.rows, raw.view(), place.memory);
}

void place_section(const SectionInfo& section, AlignedBytes raw, cache::Cache& cache) {
  if (section.packed) return place_section(section, SharedBytes(std::move(raw)), cache);
  const DensePlace place = dense_place(cache, section);
  if (place.rows.same()) {
    place.memory = std::move(raw);
  } else {
    copy_dense(place.rows, raw, place.memory);
  }
}

}  // namespace tqcache::format
