#include "fuzz/small_cache.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/cache/window.h"
#include "tqcache/codec_spec.h"

namespace tqcache::fuzz {
namespace {

using test::SplitMix64;

constexpr std::int64_t kRopeDims = 4;

cache::Rope small_rope() { return {cache::RopeStyle::kHalfSplit, kRopeDims, 100.0, {}}; }

const std::shared_ptr<const cache::RopeTable>& rope_table() {
  static const auto table = std::make_shared<const cache::RopeTable>(small_rope());
  return table;
}

// Of every mode, with as few bits as can be.
constexpr std::size_t kCodecKinds = 5;

codec::CodecSpec spec_of(std::size_t kind, std::int64_t head_dim) {
  codec::CodecSpec spec;
  spec.head_dim = static_cast<int>(head_dim);
  spec.mode = static_cast<codec::Mode>((kind - 1) % 4);
  spec.bits = spec.mode == codec::Mode::kProd || kind == kCodecKinds ? 2 : 1;
  spec.outlier_channels = 8;
  spec.outlier_bits = 2;
  spec.group_size = 32;
  return spec;
}

// Made once each: a codec's tables take longer than everything else here.
const codec::HeadCodec& codec_of(std::size_t kind, std::int64_t head_dim, bool keys) {
  static std::map<std::tuple<std::size_t, std::int64_t, bool>, codec::HeadCodec> made;
  const auto found = made.find({kind, head_dim, keys});
  if (found != made.end()) return found->second;
  const auto order = keys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues;
  auto codec = must(codec::HeadCodec::make(spec_of(kind, head_dim), order), "a codec can be made");
  return made.emplace(std::tuple(kind, head_dim, keys), std::move(codec)).first->second;
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + i, &word, 8);
  }
  for (; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random.next());
}

// Rows are filled token by token, so that a longer cache begins with the shorter one's.
AlignedBytes dense_block(cache::HeadShape shape, Dtype dtype, std::int64_t n_valid,
                         std::uint64_t seed) {
  const std::size_t row = static_cast<std::size_t>(shape.head_dim) * dtype_size(dtype);
  AlignedBytes block(static_cast<std::size_t>(shape.n_kv_heads * cache::kTokenBlock) * row);
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const auto first = static_cast<std::size_t>(head * cache::kTokenBlock) * row;
    fill(std::span(block).subspan(first, static_cast<std::size_t>(n_valid) * row),
         seed + static_cast<std::uint64_t>(head));
  }
  return block;
}

void fill_dense(cache::DenseTensor& tensor, cache::HeadShape shape, std::int64_t first_block,
                std::int64_t n_tokens, std::uint64_t seed) {
  for (std::int64_t i = first_block; i < cache::block_count(n_tokens); ++i) {
    tensor.blocks.push_back(dense_block(shape, tensor.dtype, cache::tokens_in_block(n_tokens, i),
                                        seed + 1000 * static_cast<std::uint64_t>(i)));
  }
}

void fix(cache::KvCodec::State& state, std::uint64_t seed) {
  SplitMix64 random(seed);
  const cache::HeadShape shape = state.shape;
  if (state.mean.kind != cache::Centering::kNone) {
    state.mean.values.resize(static_cast<std::size_t>(shape.n_kv_heads * shape.head_dim));
    for (float& x : state.mean.values) x = static_cast<float>(random.uniform());
  }
  const std::size_t n_loud = state.codec.outlier_channels();
  if (n_loud == 0) return;
  std::vector<std::uint16_t> loud;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    const std::size_t first = random.below(static_cast<std::size_t>(shape.head_dim) - n_loud + 1);
    for (std::size_t i = 0; i < n_loud; ++i) loud.push_back(static_cast<std::uint16_t>(first + i));
  }
  state.outliers = must(cache::make_outliers(shape, n_loud, loud), "outlier channels that ascend");
}

}  // namespace

SmallCache::TensorChoice SmallCache::choose_tensor(Input& input) {
  TensorChoice tensor;
  tensor.kind = static_cast<std::uint8_t>(input.below(8) != 0 ? 0 : input.below(kCodecKinds + 1));
  tensor.centering = static_cast<std::uint8_t>(input.below(3));
  tensor.n_sinks = static_cast<std::uint8_t>(input.flag() ? 0 : input.below(5));
  tensor.dtype = static_cast<Dtype>(input.below(3));
  return tensor;
}

SmallCache::LayerChoice SmallCache::choose_layer(Input& input) {
  LayerChoice layer;
  layer.kind = static_cast<std::uint8_t>(input.below(5));
  layer.shape.n_kv_heads = 1 + static_cast<std::int64_t>(input.below(2));
  layer.k = choose_tensor(input);
  layer.v = choose_tensor(input);
  const bool is_turbo = layer.k.kind != 0 || layer.v.kind != 0;
  layer.shape.head_dim = is_turbo ? 32 : 1 + static_cast<std::int64_t>(input.below(4));
  layer.window = 1 + static_cast<std::int64_t>(input.below(20));
  layer.keep = static_cast<std::int64_t>(input.below(static_cast<std::size_t>(layer.window)));
  layer.seed = input.take<std::uint16_t>();
  return layer;
}

// Most have a few tokens. Where there is a full token block, one layer has to do.
SmallCache::SmallCache(Input& input) {
  constexpr std::int64_t kBlockEnds[] = {255, 256, 257, 511, 512, 513};
  seed_ = input.take<std::uint16_t>();
  const bool is_long = input.below(32) == 0;
  n_tokens_ = is_long ? input.one_of(kBlockEnds) : static_cast<std::int64_t>(input.below(12));
  more_tokens_ = static_cast<std::int64_t>(input.below(is_long && input.flag() ? 258 : 4));
  hide_tokens_ = input.below(4) == 0;
  const std::size_t n_layers = input.below(is_long ? 2 : 3);
  for (std::size_t i = 0; i < n_layers; ++i) {
    layers_.push_back(choose_layer(input));
    if (is_long) layers_.back().shape.n_kv_heads = 1;
  }
}

cache::Tensor SmallCache::make_tensor(const TensorChoice& choice, const LayerChoice& layer,
                                      bool keys, std::int64_t n_tokens) const {
  const std::uint64_t seed = layer.seed + (keys ? 0 : 77);
  cache::DenseTensor dense{choice.dtype, {}};
  if (choice.kind == 0) {
    fill_dense(dense, layer.shape, 0, n_tokens, seed);
    return dense;
  }
  cache::KvCodec::State state{.shape = layer.shape,
                              .dtype = choice.dtype,
                              .codec = codec_of(choice.kind, layer.shape.head_dim, keys)};
  state.n_sinks = choice.n_sinks;
  const auto wanted = static_cast<cache::Centering>(choice.centering);
  state.mean.kind = keys ? wanted : cache::value_centering(wanted);
  if (state.mean.kind == cache::Centering::kPreRope) state.mean.rope = rope_table();
  state.outliers = {
      state.codec.outlier_channels(), static_cast<std::size_t>(layer.shape.head_dim), {}};
  const std::int64_t n_packed = n_tokens / cache::kTokenBlock;
  if (n_packed > 0) fix(state, seed);
  cache::TurboTensor tensor{cache::KvCodec(std::move(state)), {}, dense};
  for (std::int64_t i = 0; i < n_packed; ++i) {
    AlignedBytes bytes(tensor.codec.packed_bytes(i));
    fill(std::span(bytes).first(std::min<std::size_t>(bytes.size(), 64)), seed);
    tensor.packed.push_back({SharedBytes(std::move(bytes))});
  }
  fill_dense(tensor.tail, layer.shape, n_packed, n_tokens, seed);
  return tensor;
}

// Tensors as full attention has them, without the token blocks that the window has left.
cache::WindowLayer SmallCache::make_turbo_window(const LayerChoice& choice,
                                                 std::int64_t n_tokens) const {
  LayerChoice layer = choice;
  layer.k.n_sinks = layer.v.n_sinks = 0;
  cache::Tensor k = make_tensor(layer.k, layer, true, n_tokens);
  cache::Tensor v = make_tensor(layer.v, layer, false, n_tokens);
  cache::WindowLayer made{{layer.shape, std::move(k), std::move(v)}, {16 * layer.window, 0}};
  cache::advance_window(made, n_tokens);
  return made;
}

cache::Layer SmallCache::make_layer(const LayerChoice& layer, std::int64_t n_tokens) const {
  const auto array = [&](std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t n : shape) count *= n;
    cache::NamedArray made{std::move(name), dtype, std::move(shape),
                           AlignedBytes(count * dtype_size(dtype))};
    fill(made.data, layer.seed + static_cast<std::uint64_t>(n_tokens));
    return made;
  };
  if (layer.kind == 0) {
    cache::StateLayer state;
    state.arrays.push_back(array("conv", layer.k.dtype, {2, layer.seed % 5}));
    state.arrays.push_back(array("", layer.v.dtype, {}));
    return state;
  }
  if (layer.kind == 1) {
    const cache::Window window{layer.window, layer.keep};
    const auto tensor = [&](Dtype dtype) {
      const auto shape = cache::window_array_shape(layer.shape, window, n_tokens);
      return cache::scatter_window(layer.shape, window, dtype, array("", dtype, shape).data,
                                   n_tokens);
    };
    return cache::WindowLayer{{layer.shape, tensor(layer.k.dtype), tensor(layer.v.dtype)}, window};
  }
  const bool is_turbo = layer.k.kind != 0 || layer.v.kind != 0;
  if (layer.kind == 4 && is_turbo) return make_turbo_window(layer, n_tokens);
  return cache::AttentionLayer{layer.shape, make_tensor(layer.k, layer, true, n_tokens),
                               make_tensor(layer.v, layer, false, n_tokens)};
}

cache::Cache SmallCache::at(std::int64_t n_tokens) const {
  cache::Cache cache;
  cache.identity.architecture = "qwen3";
  cache.identity.rope = small_rope();
  SplitMix64 random(seed_);
  for (std::byte& byte : cache.identity.weights_fingerprint) byte = std::byte(random.below(256));
  for (std::int64_t i = 0; i < n_tokens; ++i) {
    cache.tokens.push_back(static_cast<std::int32_t>(random.below(150000)));
  }
  for (const LayerChoice& layer : layers_) cache.layers.push_back(make_layer(layer, n_tokens));
  return cache;
}

}  // namespace tqcache::fuzz
