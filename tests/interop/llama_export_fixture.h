#pragma once
// tests/interop/llama_export_fixture.h: caches to be written as state files of llama.cpp, and the
// models that they are of.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "foreign_cache_reading.h"
#include "llama_state_file.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::test {

using interop::LlamaExport;
using interop::LlamaFile;
using interop::LlamaGeometry;
using interop::LlamaRotation;

// The model of a cache of attention layers.
inline LlamaGeometry geometry_of(const cache::Cache& cache) {
  LlamaGeometry model;
  model.architecture = cache.identity.architecture;
  for (const cache::Layer& layer : cache.layers) {
    const cache::HeadShape shape = std::get<cache::AttentionLayer>(layer).shape;
    model.layers.push_back(
        {interop::LlamaLayerKind::kAttention, shape.n_kv_heads, shape.head_dim, shape.head_dim});
    model.n_rot = shape.head_dim;
  }
  return model;
}

inline LlamaGeometry demo_geometry() {
  const auto path = std::filesystem::path(TQCACHE_DEMO_MODEL) / "tqcache-demo-17m.q8_0.gguf";
  const MappedFile file = must(MappedFile::open(path));
  return must(interop::read_llama_geometry(must(tensors::read_gguf(file.bytes()))));
}

inline Bytes exported(const cache::Cache& cache, const LlamaGeometry& model,
                      const LlamaExport& options = {}) {
  const TempDir dir;
  must(interop::export_llama_state(*sections_of(cache), model, dir / "a", options));
  return read_all(dir / "a");
}

// Rows [n_tokens][n_kv_heads * head_dim] as a dense tensor.
inline cache::DenseTensor tensor_of_rows(Dtype dtype, cache::HeadShape shape, std::int64_t n_tokens,
                                         ByteView rows) {
  const std::size_t head_bytes = static_cast<std::size_t>(shape.head_dim) * dtype_size(dtype);
  const auto n_heads = static_cast<std::size_t>(shape.n_kv_heads);
  cache::DenseTensor tensor{dtype, {}};
  tensor.blocks.assign(static_cast<std::size_t>(cache::block_count(n_tokens)),
                       AlignedBytes(n_heads * cache::kTokenBlock * head_bytes));
  for (std::size_t token = 0; token < static_cast<std::size_t>(n_tokens); ++token) {
    AlignedBytes& block = tensor.blocks[token / cache::kTokenBlock];
    for (std::size_t head = 0; head < n_heads; ++head) {
      const std::size_t to = head * cache::kTokenBlock + token % cache::kTokenBlock;
      std::memcpy(block.data() + to * head_bytes,
                  rows.data() + (token * n_heads + head) * head_bytes, head_bytes);
    }
  }
  return tensor;
}

// [n_tokens][n_kv_heads * head_dim] of the values in a dense tensor.
inline std::vector<float> rows_of_tensor(const cache::Tensor& tensor, cache::HeadShape shape,
                                         std::int64_t n_tokens) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const auto n_heads = static_cast<std::size_t>(shape.n_kv_heads);
  std::vector<float> rows(static_cast<std::size_t>(n_tokens) * n_heads * head_dim);
  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    const auto n = static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block));
    for (std::size_t head = 0; head < n_heads; ++head) {
      std::vector<float> values(n * head_dim);
      cache::read_block(tensor, shape, n_tokens, block, static_cast<std::int64_t>(head), values);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t token = static_cast<std::size_t>(block * cache::kTokenBlock) + i;
        std::copy_n(
            values.begin() + static_cast<std::ptrdiff_t>(i * head_dim), head_dim,
            rows.begin() + static_cast<std::ptrdiff_t>((token * n_heads + head) * head_dim));
      }
    }
  }
  return rows;
}

inline const cache::AttentionLayer& attention_of(const cache::Cache& cache, std::size_t layer) {
  return std::get<cache::AttentionLayer>(cache.layers[layer]);
}

}  // namespace tqcache::test
