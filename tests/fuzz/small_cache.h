#pragma once
// tests/fuzz/small_cache.h: any small cache that is valid, made up by an input.
//
// Packed blocks hold any codes: nothing is encoded, so that a cache costs next to nothing.

#include <cstdint>
#include <vector>

#include "fuzz/fuzz.h"
#include "tqcache/cache.h"

namespace tqcache::fuzz {

// A cache as it grows: the same input with more tokens makes a cache that begins with the smaller
// one, but for arrays and windows, which are state of the newest token.
class SmallCache {
 public:
  explicit SmallCache(Input& input);

  std::int64_t n_tokens() const { return n_tokens_; }
  std::int64_t more_tokens() const { return more_tokens_; }  // above n_tokens()
  bool hide_tokens() const { return hide_tokens_; }

  cache::Cache at(std::int64_t n_tokens) const;

 private:
  struct TensorChoice {
    std::uint8_t kind = 0;  // index of a codec; 0: dense
    std::uint8_t centering = 0;
    std::uint8_t n_sinks = 0;
    Dtype dtype = Dtype::kF16;
  };
  struct LayerChoice {
    std::uint8_t kind = 0;
    cache::HeadShape shape;
    TensorChoice k, v;
    std::int64_t window = 0, keep = 0;
    std::uint64_t seed = 0;
  };

  static TensorChoice choose_tensor(Input& input);
  static LayerChoice choose_layer(Input& input);
  cache::Layer make_layer(const LayerChoice& layer, std::int64_t n_tokens) const;
  cache::WindowLayer make_turbo_window(const LayerChoice& layer, std::int64_t n_tokens) const;
  cache::Tensor make_tensor(const TensorChoice& tensor, const LayerChoice& layer, bool keys,
                            std::int64_t n_tokens) const;

  std::int64_t n_tokens_ = 0;
  std::int64_t more_tokens_ = 0;
  bool hide_tokens_ = false;
  std::uint64_t seed_ = 0;
  std::vector<LayerChoice> layers_;
};

}  // namespace tqcache::fuzz
