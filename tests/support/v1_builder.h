#pragma once
// support/v1_builder.h: valid files of version 1 of any kind, with random content.
//
//   const migrations::V1File file = V1Builder(300)                       // tokens
//                                       .dense({2, 64}, V1Dtype::kF16)
//                                       .turbo({2, 64}, {.bits = 3})
//                                       .arrays()
//                                       .build();
//
// The same calls give the same file on every machine: numbers are small integers times a power of
// two, which f16 holds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_file.h"
#include "support/cache_builder.h"
#include "tqcache/description.h"

namespace tqcache::test {

using migrations::V1Dtype;

struct V1Affine {
  int bits = 4;
  std::int64_t group_size = 32;
  V1Dtype dtype = V1Dtype::kF16;  // of scales and biases
};

struct V1Mixed {
  std::int64_t outlier_channels = 8;
  int outlier_high_bits = 3;
  int regular_bits = 2;
};

// How a TurboQuantKVCache has its keys and values.
struct V1Turbo {
  int bits = 4;  // bits_total
  bool prod = false;
  bool wht = false;
  std::int64_t rotation_seed = 0;
  std::int64_t qjl_seed = 1;
  std::optional<V1Mixed> mixed = {};
  V1Dtype norms = V1Dtype::kF32;
  bool odd_norms = false;  // f16 does not hold them
  V1Dtype values = V1Dtype::kF16;
  std::optional<V1Affine> affine_values = {};
  bool calibrating = false;  // with `mixed`: the outlier channels are not chosen yet
};

struct V1Ring {
  std::int64_t n_rows = 0;
  std::int64_t keep = 0;
  std::int64_t max_size = 0;
  std::int64_t next = 0;  // "_idx"
};

class V1Builder {
 public:
  explicit V1Builder(std::int64_t n_tokens, std::uint64_t seed = 1)
      : n_tokens_(n_tokens), random_(seed) {}

  V1Builder& dense(cache::HeadShape shape, V1Dtype dtype,
                   std::string_view class_path = "mlx_lm.models.cache.KVCache");
  V1Builder& quantized(cache::HeadShape shape, const V1Affine& affine);
  V1Builder& rotating(cache::HeadShape shape, const V1Ring& ring, V1Dtype dtype = V1Dtype::kF16);
  V1Builder& arrays(std::string_view class_path = "mlx_lm.models.cache.ArraysCache");
  V1Builder& turbo(cache::HeadShape shape, const V1Turbo& options);

  // Every fact that there is: the cache is one of a known model, and its tokens are known.
  V1Builder& facts();
  V1Builder& fact(std::string key, std::string value);

  migrations::V1File build() { return std::move(file_); }

 private:
  using Shape = std::vector<std::uint64_t>;
  migrations::V1Tensor numbers(std::string name, V1Dtype dtype, Shape shape);
  migrations::V1Tensor lengths(std::string name, Shape shape, const V1Turbo& options);
  migrations::V1Tensor bytes(std::string name, V1Dtype dtype, Shape shape);
  migrations::V1Tensor mask(std::int64_t head_dim, std::int64_t n_set);
  void add_affine(const std::string& name, cache::HeadShape shape, const V1Affine& affine,
                  std::vector<migrations::V1Tensor>& state);
  void add_quantizer(const std::string& prefix, cache::HeadShape shape, int bits_total,
                     const V1Turbo& options, std::vector<migrations::V1Tensor>& state);
  void add_turbo_state(cache::HeadShape shape, const V1Turbo& options,
                       std::vector<migrations::V1Tensor>& state);
  Shape grid(cache::HeadShape shape, std::int64_t width) const;

  std::int64_t n_tokens_;
  Random random_;
  migrations::V1File file_;
};

// meta_state of a TurboQuantKVCache.
std::string v1_turbo_meta(cache::HeadShape shape, std::int64_t n_tokens, const V1Turbo& options);

// meta_state and the state's names of a layer that a builder made, for tests that change them.
migrations::V1Tensor& v1_tensor(migrations::V1Entry& entry, std::string_view name);

}  // namespace tqcache::test
