#pragma once
// tests/interop/mlx_lm_small_files.h: prompt caches of mlx-lm of a few KiB, to be damaged.

#include <string>
#include <utility>
#include <vector>

#include "interop/mlx_lm_builder.h"

namespace tqcache::test {

// Every kind of layer, as small as can be.
inline Bytes small_mlx_file(MlxLayout age) {
  MlxBuilder file(age);
  const bool has_scalars = file.has_scalars();
  add_kv(file, 5, {1, 2}).user("model", "m");
  file.layer("RotatingKVCache").pair({1, 2}, positions(4));
  has_scalars ? file.number("2", 5).number("3", 1).number("4", 4).number("5", 2)
              : file.infos({1, 4, 5, 2});
  file.layer("ArraysCache").tensor(has_scalars ? "0.0" : "0", "F32", {1, 2}, Bytes(8));
  has_scalars ? file.none("1").none("2") : file.no_info();
  file.layer("QuantizedKVCache");
  for (const char* tensor : {"0", "1"}) {
    const std::string slot(tensor);
    file.tensor(slot + ".0", "U32", {1, 1, 5, 2}, Bytes(40, std::byte{0x5a}));
    file.tensor(slot + ".1", "F16", {1, 1, 5, 1}, Bytes(10));
    file.tensor(slot + ".2", "F16", {1, 1, 5, 1}, Bytes(10));
  }
  has_scalars ? file.number("2", 5).number("3", 32).number("4", 2) : file.infos({5, 32, 2});
  file.layer("CacheList");
  if (has_scalars) {
    file.rows("0.0.0", {1, 2}, positions(5)).rows("0.0.1", {1, 2}, positions(5));
    file.text("0.1", "ConcatenateKVCache");
  } else {
    file.rows("0.0", {1, 2}, positions(5)).rows("0.1", {1, 2}, positions(5));
    file.info("0.0", "ConcatenateKVCache").info("1.0", "");
  }
  return file.build();
}

// Two prompts, the second one shorter.
inline Bytes small_mlx_batch() {
  MlxBuilder file(MlxLayout::kScalars);
  const std::vector<float> values(2 * 6 * 2, 1.5f);
  const Shape shape{2, 1, 6, 2};
  file.layer("BatchKVCache").tensor("0", "F16", shape, stored(Dtype::kF16, values));
  file.tensor("1", "F16", shape, stored(Dtype::kF16, values));
  file.integers("2", {5, 3}).integers("3", {0, 2}).number("4", 5);
  file.layer("BatchRotatingKVCache").tensor("0", "F16", shape, stored(Dtype::kF16, values));
  file.tensor("1", "F16", shape, stored(Dtype::kF16, values));
  file.integers("2", {5, 3}).integers("3", {0, 2}).number("4", 6).number("5", 5).number("6", 5);
  return file.scalar("7", "scalar").tensor("7", "BOOL", {}, Bytes(1)).build();
}

// The second chunk has begun.
inline Bytes small_mlx_chunk() {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("ChunkedKVCache").pair({1, 2}, positions(4, 12));
  return file.number("2", 9).number("3", 4).number("4", 4).build();
}

inline Bytes small_mlx_pairs() {
  MlxBuilder file(MlxLayout::kNamedPairs);
  for (const char* name : {"0_keys", "0_values"}) {
    file.tensor(name, "F16", {1, 1, 3, 2}, stored(Dtype::kF16, {1, 2, 3, 4, 5, 6}));
  }
  return file.meta("model", "m").meta("max_kv_size", "8").build();
}

// By a name that is fit for a file.
inline std::vector<std::pair<std::string, Bytes>> small_mlx_files() {
  return {{"before_0_32", small_mlx_file(MlxLayout::kMetaState)},
          {"since_0_32", small_mlx_file(MlxLayout::kScalars)},
          {"batch", small_mlx_batch()},
          {"chunk", small_mlx_chunk()},
          {"pairs_2024", small_mlx_pairs()}};
}

}  // namespace tqcache::test
