#include "tqcache/format/sections/section_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <variant>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/window.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/section_plan.h"

namespace tqcache::format {
namespace {

// Works for Cache& and const Cache&. Requires: the section is of K or V.
auto& rows_of_section(auto& cache, const SectionInfo& section) {
  return *cache::attention_of(cache.layers[to_size(section.layer)]);
}

auto& side_of_section(auto& layer, const SectionInfo& section) {
  return section.side == SideName::kKeys ? layer.k : layer.v;
}

// K or V of the window that an array section holds.
auto& side_of_array(auto& window, const SectionInfo& section) {
  return section.block == 0 ? window.attention.k : window.attention.v;
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
  const cache::Layer& layer = cache.layers[to_size(section.layer)];
  if (const auto* window = std::get_if<cache::WindowLayer>(&layer)) {
    scratch = cache::gather_window(*window, side_of_array(*window, section), cache.n_tokens());
    return scratch;
  }
  return std::get<cache::StateLayer>(layer).arrays[to_size(section.block)].data;
}

void place_array(const SectionInfo& section, AlignedBytes raw, cache::Cache& cache) {
  cache::Layer& layer = cache.layers[to_size(section.layer)];
  if (auto* window = std::get_if<cache::WindowLayer>(&layer)) {
    cache::Side& side = side_of_array(*window, section);
    side = cache::scatter_window(window->attention.shape, window->window,
                                 cache::dense_dtype(side), raw, cache.n_tokens());
    return;
  }
  std::get<cache::StateLayer>(layer).arrays[to_size(section.block)].data = std::move(raw);
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

// The memory of a dense block, and how it is arranged there.
struct DensePlace {
  AlignedBytes& memory;
  DenseRows rows;
};

DensePlace dense_place(cache::Cache& cache, const SectionInfo& section) {
  cache::AttentionLayer& layer = rows_of_section(cache, section);
  cache::Side& side = side_of_section(layer, section);
  return {dense_memory(side, section.block),
          dense_rows(layer.shape, cache::dense_dtype(side), cache.n_tokens(), section.block)};
}

// How many token blocks stand packed, [layer][side], with those that a window has left: they were.
std::vector<std::array<std::size_t, 2>> count_packed(const Manifest& manifest) {
  std::vector<std::array<std::size_t, 2>> counts;
  for (const cache::LayerDesc& layer : manifest.layers) {
    const std::size_t n_left = to_size(cache::first_block(layer, manifest.n_tokens()));
    counts.push_back({n_left, n_left});
  }
  for (const SectionInfo& section : manifest.sections) {
    if (section.packed) {
      ++counts[to_size(section.layer)][static_cast<std::size_t>(section.side)];
    }
  }
  return counts;
}

// Makes the sides of one file, with what they share.
class SideMaker {
 public:
  explicit SideMaker(const Manifest& manifest)
      : n_blocks_(to_size(cache::block_count(manifest.n_tokens()))),
        tables_(manifest.identity.rope) {}

  // K or V whose first `n_packed` token blocks are packed, if it is quantized.
  Result<cache::Side> make_empty(const cache::AttentionDesc& layer, SideName name,
                                 std::size_t n_packed) {
    const cache::TensorDesc& tensor = name == SideName::kKeys ? layer.k : layer.v;
    if (!tensor.quant) {
      return cache::Side(cache::DenseSide{tensor.dtype, std::vector<AlignedBytes>(n_blocks_)});
    }
    TQC_TRY_ASSIGN(cache::KvCodec codec,
                   cache::KvCodec::make(tensor, layer.shape, order_of(name), tables_));
    cache::DenseSide dense{tensor.dtype, std::vector<AlignedBytes>(n_blocks_ - n_packed)};
    return cache::Side(cache::TurboSide{std::move(codec), std::vector<cache::TurboBlock>(n_packed),
                                        std::move(dense)});
  }

  Result<cache::AttentionLayer> make_layer(const cache::AttentionDesc& layer,
                                           const std::array<std::size_t, 2>& n_packed) {
    TQC_TRY_ASSIGN(cache::Side k, make_empty(layer, SideName::kKeys, n_packed[0]));
    TQC_TRY_ASSIGN(cache::Side v, make_empty(layer, SideName::kValues, n_packed[1]));
    return cache::AttentionLayer{layer.shape, std::move(k), std::move(v)};
  }

 private:
  std::size_t n_blocks_;
  cache::KvTables tables_;
};

cache::StateLayer make_empty_state(const cache::StateDesc& state) {
  cache::StateLayer layer;
  for (const cache::ArrayDesc& array : state.arrays) {
    layer.arrays.push_back({array.name, array.dtype, array.shape, {}});
  }
  return layer;
}

// Windows in memory have a place for each token block since the cache's first token.
Result<void> check_window_blocks(const Manifest& manifest) {
  const std::int64_t n_windows = std::ranges::count_if(
      manifest.layers,
      [](const cache::LayerDesc& layer) { return std::holds_alternative<cache::WindowDesc>(layer); });
  const std::int64_t n_blocks = 2 * n_windows * cache::block_count(manifest.n_tokens());
  if (n_blocks <= kMaxWindowBlocks) return {};
  return too_large("windows behind " + std::to_string(n_blocks) + " token blocks");
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
  TQC_TRY(check_window_blocks(manifest));
  SideMaker sides(manifest);
  const auto n_packed = count_packed(manifest);
  for (std::size_t i = 0; i < manifest.layers.size(); ++i) {
    TQC_TRY(std::visit(
        Overload{[&](const cache::AttentionDesc& attention) -> Result<void> {
                   TQC_TRY_ASSIGN(cache::Layer made, sides.make_layer(attention, n_packed[i]));
                   cache.layers.push_back(std::move(made));
                   return {};
                 },
                 [&](const cache::WindowDesc& window) -> Result<void> {
                   TQC_TRY_ASSIGN(cache::AttentionLayer made,
                                  sides.make_layer(window.attention, n_packed[i]));
                   cache.layers.push_back(cache::WindowLayer{std::move(made), window.window});
                   return {};
                 },
                 [&](const cache::StateDesc& state) -> Result<void> {
                   cache.layers.push_back(make_empty_state(state));
                   return {};
                 }},
        manifest.layers[i]));
  }
  return cache;
}

void place_section(const SectionInfo& section, SharedBytes raw, cache::Cache& cache) {
  if (section.packed) {
    auto& side =
        std::get<cache::TurboSide>(side_of_section(rows_of_section(cache, section), section));
    side.packed[to_size(section.block)] =
        cache::make_turbo_block(side.codec, section.block, std::move(raw));
    return;
  }
  if (section.side == SideName::kArray) {
    const ByteView bytes = raw.view();
    return place_array(section, AlignedBytes(bytes.begin(), bytes.end()), cache);
  }
  const DensePlace place = dense_place(cache, section);
  copy_dense(place.rows, raw.view(), place.memory);
}

void place_section(const SectionInfo& section, AlignedBytes raw, cache::Cache& cache) {
  if (section.packed) return place_section(section, SharedBytes(std::move(raw)), cache);
  if (section.side == SideName::kArray) return place_array(section, std::move(raw), cache);
  const DensePlace place = dense_place(cache, section);
  if (place.rows.same()) {
    place.memory = std::move(raw);
  } else {
    copy_dense(place.rows, raw, place.memory);
  }
}

}  // namespace tqcache::format
