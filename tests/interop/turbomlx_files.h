#pragma once
// tests/interop/turbomlx_files.h: the files that make_turbomlx.py made.

#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "support/temp_dir.h"
#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/description.h"
#include "tqcache/interop/turbomlx/turbomlx.h"

namespace tqcache::test {

inline std::filesystem::path turbomlx_folder() {
  return std::filesystem::path(TQCACHE_TEST_DATA) / "turbomlx";
}

inline Bytes turbomlx_file(const std::string& name) {
  return read_all(turbomlx_folder() / (name + ".tqcache"));
}

inline std::shared_ptr<const ByteSource> as_source(Bytes bytes) {
  return memory_source(std::move(bytes));
}

inline Result<interop::ForeignCache> import_bytes(Bytes bytes) {
  return interop::import_turbomlx(as_source(std::move(bytes)));
}

inline std::size_t count_values(const std::vector<std::uint64_t>& shape) {
  std::size_t n = 1;
  for (const std::uint64_t dim : shape) n *= static_cast<std::size_t>(dim);
  return n;
}

// Appends values of any dtype as f32.
inline void append_f32(Dtype dtype, std::span<const std::byte> raw, std::vector<float>& values) {
  std::vector<float> more(raw.size() / dtype_size(dtype));
  load_f32(dtype, raw.data(), more);
  values.insert(values.end(), more.begin(), more.end());
}

// K or V of a layer, [n_kv_heads, n_tokens, head_dim], read a token block at a time.
inline Result<std::vector<float>> read_tensor(const interop::ForeignLayer& layer,
                                              cache::TensorKind kind, std::int64_t n_tokens) {
  const cache::HeadShape shape = cache::shape_of(layer.description, kind);
  const Dtype dtype = cache::tensor_of(layer.description, kind).dtype;
  const auto& read = kind == cache::TensorKind::kKeys ? layer.read_k : layer.read_v;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const auto heads = static_cast<std::size_t>(shape.n_kv_heads);
  std::vector<float> all(heads * static_cast<std::size_t>(n_tokens) * dim);
  for (std::int64_t first = 0; first < n_tokens; first += cache::kTokenBlock) {
    const std::int64_t n = std::min<std::int64_t>(cache::kTokenBlock, n_tokens - first);
    const std::size_t rows = static_cast<std::size_t>(n) * dim;
    Bytes raw(heads * rows * dtype_size(dtype));
    TQC_TRY(read(first, n, raw));
    std::vector<float> block;
    append_f32(dtype, raw, block);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t at =
          (head * static_cast<std::size_t>(n_tokens) + static_cast<std::size_t>(first)) * dim;
      std::copy_n(block.data() + head * rows, rows, all.data() + at);
    }
  }
  return all;
}

// All that a foreign cache holds, in the order of the ".expected" files.
inline Result<std::vector<float>> read_values(const interop::ForeignCache& cache) {
  std::vector<float> values;
  for (const interop::ForeignLayer& layer : cache.layers) {
    if (std::holds_alternative<cache::AttentionDesc>(layer.description)) {
      for (const auto kind : {cache::TensorKind::kKeys, cache::TensorKind::kValues}) {
        TQC_TRY_ASSIGN(const auto more, read_tensor(layer, kind, cache.n_tokens));
        values.insert(values.end(), more.begin(), more.end());
      }
      continue;
    }
    for (const interop::ForeignArray& array : layer.arrays) {
      const auto& [name, dtype, shape] = array.description;
      Bytes raw(count_values(shape) * dtype_size(dtype));
      TQC_TRY(array.read(raw));
      append_f32(dtype, raw, values);
    }
  }
  return values;
}

inline std::vector<float> expected_values(const std::string& name) {
  const Bytes raw = read_all(turbomlx_folder() / (name + ".expected"));
  std::vector<float> values;
  append_f32(Dtype::kF32, raw, values);
  return values;
}

}  // namespace tqcache::test
