#pragma once
// tests/fuzz/seeds/exported.h: small caches as the library itself exports them.

#include <utility>

#include "interop/foreign_cache_reading.h"
#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"

namespace tqcache::fuzz {

// What export_hf() or export_npz() writes of a cache.
template <class Export>
Bytes exported(Export write, cache::Cache cache) {
  const test::TempDir folder;
  test::must(write(*test::sections_of(std::move(cache)), folder / "file", Overwrite::kRefuse, {}));
  return test::read_all(folder / "file");
}

inline cache::Cache attention_alone() { return test::CacheBuilder(3).dense({1, 4}).build(); }

// Attention, a window, the states of a linear layer, and a layer without any.
inline cache::Cache every_layer() {
  cache::Cache cache =
      test::CacheBuilder(5).dense({2, 4}).rotating({{1, 4}, 3, 0}, Dtype::kBF16).build();
  cache::StateLayer linear;
  linear.arrays.push_back({"conv_states.0", Dtype::kBF16, {1, 3, 2}, AlignedBytes(12)});
  linear.arrays.push_back({"recurrent_states.0", Dtype::kF32, {1, 2, 2}, AlignedBytes(16)});
  cache.layers.emplace_back(std::move(linear));
  cache.layers.emplace_back(cache::StateLayer{});
  return cache;
}

}  // namespace tqcache::fuzz
