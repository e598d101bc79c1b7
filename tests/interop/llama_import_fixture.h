#pragma once
// tests/interop/llama_import_fixture.h: small models, and what an import of their state holds.

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "foreign_cache_reading.h"
#include "llama_models.h"
#include "llama_state_writer.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/file.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::test {

using interop::LlamaFile;
using interop::LlamaImport;
using interop::LlamaImported;
using interop::LlamaOutputs;
using interop::LlamaRotation;

inline Result<LlamaImported> import_bytes(Bytes file, const LlamaGeometry& model,
                                          const LlamaImport& options = {}) {
  return interop::import_llama_state(memory_source(std::move(file)), model, options);
}

inline Result<LlamaImported> import_spec(const LlamaGeometry& model, const StateSpec& spec,
                                         const LlamaImport& options = {}) {
  return import_bytes(write_state(model, spec), model, options);
}

// What a row of a tensor is once it is read: all heads.
inline std::vector<float> expected_row(const LlamaGeometry& model, const StateSpec& spec,
                                       std::size_t layer, bool is_key, std::int64_t position) {
  const interop::LlamaLayer& shape = model.layers[layer];
  const auto n = static_cast<std::size_t>(is_key ? shape.k_head_dim : shape.v_head_dim);
  std::vector<float> values(static_cast<std::size_t>(model.layers[layer].n_kv_heads) * n);
  const auto* type = interop::find_row_type(is_key ? spec.k_type : spec.v_type);
  interop::decode_row(*type, state_row(model, spec, layer, is_key, position), values);
  const std::int64_t run = state_rotation(model, spec, layer, is_key);
  if (run != 0) interop::hadamard(run, values);
  for (std::size_t at = 0; is_key && model.interleaved_keys && at < values.size(); at += n) {
    interop::to_half_split(model.n_rot, sizeof(float),
                           std::as_writable_bytes(std::span(values).subspan(at, n)));
  }
  return values;
}

// [n_kv_heads, n, head_dim] of the positions from `first` on.
inline std::vector<float> expected_tensor(const LlamaGeometry& model, const StateSpec& spec,
                                          std::size_t layer, bool is_key, std::int64_t first,
                                          std::int64_t n) {
  const interop::LlamaLayer& shape = model.layers[layer];
  const auto head_dim = static_cast<std::size_t>(is_key ? shape.k_head_dim : shape.v_head_dim);
  std::vector<std::vector<float>> rows;
  for (std::int64_t i = 0; i < n; ++i) {
    rows.push_back(expected_row(model, spec, layer, is_key, first + i));
  }
  std::vector<float> tensor;
  for (std::size_t head = 0; head < rows.front().size() / head_dim; ++head) {
    for (const auto& row : rows) {
      const auto part = std::span(row).subspan(head * head_dim, head_dim);
      tensor.insert(tensor.end(), part.begin(), part.end());
    }
  }
  return tensor;
}

inline std::vector<float> tensor_values(const cache::Tensor& tensor, cache::HeadShape shape,
                                        std::int64_t n_tokens) {
  std::vector<float> values;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const std::int64_t n = cache::tokens_in_block(n_tokens, block);
      std::vector<float> part(static_cast<std::size_t>(n * shape.head_dim));
      cache::read_block(tensor, shape, n_tokens, block, head, part);
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  return values;
}

inline std::vector<float> array_values(const cache::NamedArray& array) {
  std::vector<float> values(array.data.size() / dtype_size(array.dtype));
  load_f32(array.dtype, array.data.data(), values);
  return values;
}

inline void expect_layer(const cache::AttentionLayer& layer, const LlamaGeometry& model,
                         const StateSpec& spec, std::size_t i) {
  const auto n = static_cast<std::int64_t>(spec.positions.size());
  EXPECT_EQ(tensor_values(layer.k, layer.shape, n), expected_tensor(model, spec, i, true, 0, n))
      << i;
  EXPECT_EQ(tensor_values(layer.v, layer.value_shape(), n),
            expected_tensor(model, spec, i, false, 0, n))
      << i;
}

inline void expect_layer(const cache::WindowLayer& layer, const LlamaGeometry& model,
                         const StateSpec& spec, std::size_t i) {
  const auto n_tokens = static_cast<std::int64_t>(spec.tokens.size());
  const std::int64_t n = cache::window_tokens(layer.window, n_tokens);
  for (const bool is_key : {true, false}) {
    const cache::Tensor& tensor = is_key ? layer.attention.k : layer.attention.v;
    const cache::NamedArray array{
        "", cache::dense_dtype(tensor), {}, cache::gather_window(layer, tensor, n_tokens)};
    EXPECT_EQ(array_values(array), expected_tensor(model, spec, i, is_key, n_tokens - n, n)) << i;
  }
}

inline void expect_layer(const cache::StateLayer& layer, const LlamaGeometry&,
                         const StateSpec& spec, std::size_t i) {
  const auto n_tokens = static_cast<std::int64_t>(spec.tokens.size());
  ASSERT_EQ(layer.arrays.size(), 2U);
  for (const bool first : {true, false}) {
    const cache::NamedArray& array = layer.arrays[first ? 0 : 1];
    EXPECT_EQ(array.name, first ? "r" : "s");
    std::vector<float> expected;
    for (std::uint64_t k = 0; k < array.shape.at(0); ++k) {
      expected.push_back(state_value(i, first, n_tokens - 1, static_cast<std::int64_t>(k)));
    }
    EXPECT_EQ(array_values(array), expected) << i;
  }
}

// That the file of a spec is read, and every value of it is where it belongs.
inline void expect_imported(const LlamaGeometry& model, const StateSpec& spec,
                            const LlamaImport& options = {}) {
  auto imported = import_spec(model, spec, options);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->cache.identity.llama_streams, spec.profile.has_streams ? spec.n_streams : 1U);
  const auto cache = read_foreign(std::move(imported->cache));
  ASSERT_TRUE(cache) << cache.error().message;
  EXPECT_EQ(cache->tokens, spec.tokens);
  ASSERT_EQ(cache->layers.size(), model.layers.size());
  for (std::size_t i = 0; i < cache->layers.size(); ++i) {
    std::visit([&](const auto& layer) { expect_layer(layer, model, spec, i); }, cache->layers[i]);
  }
}

}  // namespace tqcache::test
