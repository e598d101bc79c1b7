#pragma once
// support/cache_builder.h: valid caches of any shape with random content, and their comparison.
//
//   const cache::Cache cache = CacheBuilder(513)             // tokens
//                                  .dense({2, 64}, Dtype::kF16)
//                                  .turbo({2, 64}, 4, 3)      // key bits, value bits
//                                  .preset({2, 64}, "turbo2.5")
//                                  .arrays()
//                                  .build();
//
// The same calls give the same cache on every machine.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/cache/window.h"
#include "tqcache/quantize.h"

namespace tqcache::test {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere, unlike <random>'s
// distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // Uniform in [-1, 1), a multiple of 2^-23.
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1.0f; }
  // Bell-shaped with variance 1: a sum of three uniforms, each of variance 1/3.
  float bell() {
    const float first = uniform();
    const float second = uniform();
    return first + second + uniform();
  }

 private:
  std::uint64_t state_;
};

// What the tests take for granted; a failure ends the test with the error's message.
template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
inline void must(Result<void> result) {
  if (!result) throw std::runtime_error(result.error().message);
}

inline cache::Identity random_identity(Random& random) {
  cache::Identity identity;
  identity.architecture = "qwen3";
  identity.model_name = "a test's model";
  identity.rope = {cache::RopeStyle::kHalfSplit, 64, 1e6};
  for (std::byte& byte : identity.weights_fingerprint) byte = std::byte(random.below(256));
  for (std::byte& byte : identity.tokenizer_fingerprint) byte = std::byte(random.below(256));
  identity.source_format = "tqcache";
  return identity;
}

// Heads, size and kept first tokens of a sliding window.
struct TestWindow {
  cache::HeadShape shape;
  std::int64_t size = 0;
  std::int64_t keep = 0;
  std::int64_t value_dim = 0;  // of AttentionDesc

  cache::Window window() const { return {size, keep}; }
  cache::HeadShape value_shape() const {
    return {shape.n_kv_heads, value_dim == 0 ? shape.head_dim : value_dim};
  }
  std::vector<std::uint64_t> array_shape(std::int64_t n_tokens) const {
    return cache::window_array_shape(shape, window(), n_tokens);
  }
  std::vector<std::uint64_t> value_array_shape(std::int64_t n_tokens) const {
    return cache::window_array_shape(value_shape(), window(), n_tokens);
  }
};

// A dense window of these arrays.
inline cache::WindowLayer window_layer(const TestWindow& window, const cache::NamedArray& k,
                                       const cache::NamedArray& v, std::int64_t n_tokens) {
  const auto tensor = [&](cache::HeadShape shape, const cache::NamedArray& array) {
    return cache::scatter_window(shape, window.window(), array.dtype, array.data, n_tokens);
  };
  return {
      {window.shape, tensor(window.shape, k), tensor(window.value_shape(), v), window.value_dim},
      window.window()};
}

// K or V of a window changed as the array that files have: change(bytes, dtype). It is dense then.
template <class Change>
void change_window(cache::WindowLayer& layer, cache::Tensor& tensor, std::int64_t n_tokens,
                   const Change& change) {
  const Dtype dtype = cache::dense_dtype(tensor);
  AlignedBytes array = cache::gather_window(layer, tensor, n_tokens);
  change(array, dtype);
  const bool is_keys = &tensor == &layer.attention.k;
  tensor = cache::scatter_window(is_keys ? layer.attention.shape : layer.attention.value_shape(),
                                 layer.window, dtype, array, n_tokens);
}

// The same window with what its packed blocks decode to.
inline void make_dense(cache::WindowLayer& layer, std::int64_t n_tokens) {
  for (cache::Tensor* tensor : {&layer.attention.k, &layer.attention.v}) {
    change_window(layer, *tensor, n_tokens, [](AlignedBytes&, Dtype) {});
  }
}

// Gives a window the values of next().
template <class Next>
void make_finite(cache::WindowLayer& layer, std::int64_t n_tokens, const Next& next) {
  for (cache::Tensor* tensor : {&layer.attention.k, &layer.attention.v}) {
    change_window(layer, *tensor, n_tokens, [&](AlignedBytes& array, Dtype dtype) {
      std::vector<float> values(array.size() / dtype_size(dtype));
      for (float& value : values) value = next();
      store_f32(dtype, values, array.data());
    });
  }
}

class CacheBuilder {
 public:
  explicit CacheBuilder(std::int64_t n_tokens, std::uint64_t seed = 1) : random_(seed) {
    cache_.identity = random_identity(random_);
    for (std::int64_t i = 0; i < n_tokens; ++i) {
      cache_.tokens.push_back(static_cast<std::int32_t>(random_.below(150000)));
    }
  }

  // Every other random choice may follow; the identity is free to be changed.
  cache::Identity& identity() { return cache_.identity; }

  // Turbo tensors of the layers added from here on keep a full last block dense, as a tensor does
  // that has grown token by token; otherwise they pack it, as convert does.
  CacheBuilder& keep_full_tail() {
    keep_full_tail_ = true;
    return *this;
  }

  // Turbo tensors that are given by their bits from here on are centered, as convert centers them.
  CacheBuilder& center(cache::Centering wanted) {
    center_ = wanted;
    return *this;
  }

  CacheBuilder& dense(cache::HeadShape shape, Dtype dtype = Dtype::kF16) {
    return mixed(shape, dtype, 16, dtype, 16);
  }
  CacheBuilder& turbo(cache::HeadShape shape, int key_bits, int value_bits,
                      Dtype dtype = Dtype::kF16) {
    return mixed(shape, dtype, key_bits, dtype, value_bits);
  }
  // 16 bits: that tensor is dense.
  CacheBuilder& mixed(cache::HeadShape shape, Dtype key_dtype, int key_bits, Dtype value_dtype,
                      int value_bits) {
    return tensors(shape, key_dtype, plan_of_bits(key_bits), value_dtype, plan_of_bits(value_bits));
  }
  // Without sink tokens, so that all packed blocks are alike.
  CacheBuilder& preset(cache::HeadShape shape, std::string_view name, Dtype dtype = Dtype::kF16) {
    cache::ConvertOptions options = must(cache::preset(name));
    options.keys.n_sinks = options.values.n_sinks = 0;
    return tensors(shape, dtype, options.keys, dtype, options.values);
  }
  // The plans' own centering counts, not center().
  CacheBuilder& tensors(cache::HeadShape shape, Dtype key_dtype, const cache::TensorPlan& keys,
                        Dtype value_dtype, const cache::TensorPlan& values) {
    cache::Tensor k = tensor(shape, key_dtype, keys, codec::BlockOrder::kKeys);
    cache::Tensor v = tensor(shape, value_dtype, values, codec::BlockOrder::kValues);
    cache_.layers.emplace_back(cache::AttentionLayer{shape, std::move(k), std::move(v)});
    return *this;
  }
  // Values of another size than the keys. 16 bits: that tensor is dense.
  CacheBuilder& unequal(cache::HeadShape shape, std::int64_t value_dim, Dtype key_dtype,
                        int key_bits, Dtype value_dtype, int value_bits) {
    const cache::HeadShape of_values{shape.n_kv_heads, value_dim};
    cache::Tensor k = tensor(shape, key_dtype, plan_of_bits(key_bits), codec::BlockOrder::kKeys);
    cache::Tensor v =
        tensor(of_values, value_dtype, plan_of_bits(value_bits), codec::BlockOrder::kValues);
    cache_.layers.emplace_back(cache::AttentionLayer{shape, std::move(k), std::move(v), value_dim});
    return *this;
  }
  // A convolution state [3, 20] of bf16 and a recurrent state [2, 5, 7] of f32.
  CacheBuilder& arrays() {
    cache::StateLayer layer;
    layer.arrays.push_back(array("conv", Dtype::kBF16, {3, 20}));
    layer.arrays.push_back(array("state", Dtype::kF32, {2, 5, 7}));
    cache_.layers.emplace_back(std::move(layer));
    return *this;
  }

  // Random state of a sliding window.
  CacheBuilder& rotating(const TestWindow& window, Dtype keys = Dtype::kF16,
                         Dtype values = Dtype::kF16) {
    const std::int64_t n = cache_.n_tokens();
    const cache::NamedArray k = array(std::string(cache::kWindowKeys), keys, window.array_shape(n));
    const cache::NamedArray v =
        array(std::string(cache::kWindowValues), values, window.value_array_shape(n));
    cache_.layers.emplace_back(window_layer(window, k, v, cache_.n_tokens()));
    return *this;
  }

  // A window whose tensors are packed by convert, of values that are finite. 16 bits: a dense
  // tensor.
  CacheBuilder& turbo_rotating(const TestWindow& window, int key_bits, int value_bits,
                               Dtype keys = Dtype::kF16, Dtype values = Dtype::kF16) {
    rotating(window, keys, values);
    cache::Cache one{cache_.identity, cache_.tokens, {}, {}};
    one.layers.push_back(std::move(cache_.layers.back()));
    make_finite(std::get<cache::WindowLayer>(one.layers.front()), cache_.n_tokens(),
                [&] { return random_.bell(); });
    const cache::ConvertOptions options{.keys = plan_of_bits(key_bits),
                                        .values = plan_of_bits(value_bits),
                                        .n_threads = 1,
                                        .windows = cache::WindowMode::kTurboCentered};
    cache_.layers.back() = std::move(must(cache::convert(std::move(one), options)).layers.front());
    return *this;
  }

  CacheBuilder& hide_tokens() {
    cache::hide_tokens(cache_);
    return *this;
  }
  // As if nobody knew the ids.
  CacheBuilder& forget_tokens() {
    std::ranges::fill(cache_.tokens, cache::kUnknownToken);
    cache_.hidden_tokens.emplace();
    return *this;
  }

  // Requires: called once, and last.
  cache::Cache build() { return std::move(cache_); }

 private:
  cache::TensorPlan plan_of_bits(int bits) const {
    cache::TensorPlan plan;
    plan.dense = bits == 16;
    plan.codec.bits = bits;
    plan.center = center_;
    return plan;
  }

  cache::Tensor tensor(cache::HeadShape shape, Dtype dtype, const cache::TensorPlan& plan,
                       codec::BlockOrder order) {
    cache::DenseTensor dense = dense_tensor(shape, dtype);
    if (plan.dense) return dense;
    cache::TurboTensor tensor{
        must(cache::make_codec(plan, order, shape, dtype, cache_.identity.rope)), {}, {dtype, {}}};
    pack(tensor, shape, std::move(dense));
    return tensor;
  }

  cache::DenseTensor dense_tensor(cache::HeadShape shape, Dtype dtype) {
    cache::DenseTensor tensor{dtype, {}};
    for (std::int64_t block = 0; block < cache::block_count(cache_.n_tokens()); ++block) {
      tensor.blocks.push_back(
          dense_block(shape, dtype, cache::tokens_in_block(cache_.n_tokens(), block)));
    }
    return tensor;
  }

  AlignedBytes dense_block(cache::HeadShape shape, Dtype dtype, std::int64_t n_tokens) {
    const std::size_t head_bytes = static_cast<std::size_t>(shape.head_dim) * dtype_size(dtype);
    AlignedBytes block(static_cast<std::size_t>(shape.n_kv_heads * cache::kTokenBlock) *
                       head_bytes);
    std::vector<float> head(static_cast<std::size_t>(shape.head_dim));
    for (std::int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      for (std::int64_t token = 0; token < n_tokens; ++token) {
        for (float& value : head) value = random_.bell();
        const auto row = static_cast<std::size_t>(kv_head * cache::kTokenBlock + token);
        store_f32(dtype, head, block.data() + row * head_bytes);
      }
    }
    return block;
  }

  // Packs the full blocks of `dense`, but for a full last one that is to be kept.
  void pack(cache::TurboTensor& tensor, cache::HeadShape shape, cache::DenseTensor dense) const {
    std::vector<cache::FullBlock> full;
    for (std::int64_t i = 0; i < cache_.n_tokens() / cache::kTokenBlock; ++i) {
      full.push_back({shape, dense.dtype, i, dense.blocks[static_cast<std::size_t>(i)]});
    }
    std::size_t n_packed = full.size();
    if (keep_full_tail_ && n_packed == dense.blocks.size() && n_packed > 0) --n_packed;
    if (n_packed > 0) tensor.codec.fit(full, 1);
    for (std::size_t i = 0; i < n_packed; ++i) {
      tensor.packed.push_back(cache::make_turbo_block(tensor.codec, full[i].index,
                                                      must(tensor.codec.encode(full[i], 1))));
    }
    for (std::size_t i = n_packed; i < dense.blocks.size(); ++i) {
      tensor.tail.blocks.push_back(std::move(dense.blocks[i]));
    }
  }

  cache::NamedArray array(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    std::uint64_t count = 1;
    for (const std::uint64_t n : shape) count *= n;
    cache::NamedArray result{std::move(name), dtype, std::move(shape),
                             AlignedBytes(count * dtype_size(dtype))};
    for (std::byte& byte : result.data) byte = std::byte(random_.below(256));
    return result;
  }

  Random random_;
  cache::Cache cache_;
  bool keep_full_tail_ = false;
  cache::Centering center_ = cache::Centering::kNone;
};

// Changes the inside of a codec, also to what KvCodec::make() would refuse.
template <class Change>
void edit_codec(cache::KvCodec& codec, const Change& change) {
  cache::KvCodec::State state = codec.state();
  change(state);
  codec = cache::KvCodec(std::move(state));
}

// KvCodec::make() of a changed description of `codec`.
template <class Change>
Result<cache::KvCodec> remade(const cache::KvCodec& codec, const cache::Rope& rope,
                              const Change& change) {
  cache::TensorDesc tensor = codec.describe();
  change(*tensor.quant);
  return cache::KvCodec::make(tensor, codec.shape(), codec.order(), rope);
}

// The codes and scales of one kv head.
inline codec::PackedHead packed_head(const cache::TurboTensor& tensor, std::int64_t block,
                                     std::int64_t kv_head) {
  const ByteView bytes = tensor.packed[static_cast<std::size_t>(block)].bytes.view();
  return tensor.codec.state().head(bytes, block, kv_head);
}

namespace difference_detail {

inline std::string of_dense(const cache::DenseTensor& a, const cache::DenseTensor& b,
                            cache::HeadShape shape, std::int64_t first_block,
                            std::int64_t n_tokens) {
  if (a.dtype != b.dtype) return "dtype";
  if (a.blocks.size() != b.blocks.size()) return "number of dense blocks";
  const std::size_t head_bytes = static_cast<std::size_t>(shape.head_dim) * dtype_size(a.dtype);
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    if (a.blocks[i].size() != b.blocks[i].size()) return "size of a dense block";
    if (a.blocks[i].empty()) continue;  // a window has left it
    const std::int64_t valid =
        cache::tokens_in_block(n_tokens, first_block + static_cast<std::int64_t>(i));
    for (std::int64_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      const std::size_t start = static_cast<std::size_t>(kv_head * cache::kTokenBlock) * head_bytes;
      if (std::memcmp(a.blocks[i].data() + start, b.blocks[i].data() + start,
                      static_cast<std::size_t>(valid) * head_bytes) != 0) {
        return "dense block " + std::to_string(first_block + static_cast<std::int64_t>(i));
      }
    }
  }
  return {};
}

inline std::string of_turbo(const cache::TurboTensor& a, const cache::TurboTensor& b,
                            cache::HeadShape shape, std::int64_t n_tokens) {
  if (a.codec.parts() != b.codec.parts()) return "parts of the codec";
  if (a.codec.order() != b.codec.order()) return "order of codes";
  if (a.codec.shape() != b.codec.shape()) return "shape of the codec";
  if (a.codec.dtype() != b.codec.dtype()) return "dtype of the codec";
  if (!(a.codec.state().mean == b.codec.state().mean)) return "mean";
  if (a.codec.state().outliers != b.codec.state().outliers) return "outlier channels";
  if (a.codec.n_sinks() != b.codec.n_sinks()) return "number of sink tokens";
  if (!(a.codec.state().transforms == b.codec.state().transforms)) return "maps";
  if (a.packed.size() != b.packed.size()) return "number of packed blocks";
  for (std::size_t i = 0; i < a.packed.size(); ++i) {
    if (!std::ranges::equal(a.packed[i].bytes.view(), b.packed[i].bytes.view())) {
      return "packed block " + std::to_string(i);
    }
    if (a.packed[i].decoded != b.packed[i].decoded) {
      return "decoded block " + std::to_string(i);
    }
  }
  return of_dense(a.tail, b.tail, shape, static_cast<std::int64_t>(a.packed.size()), n_tokens);
}

inline std::string of_tensor(const cache::Tensor& a, const cache::Tensor& b, cache::HeadShape shape,
                             std::int64_t n_tokens) {
  if (a.index() != b.index()) return "kind of tensor";
  if (const auto* dense = std::get_if<cache::DenseTensor>(&a)) {
    return of_dense(*dense, std::get<cache::DenseTensor>(b), shape, 0, n_tokens);
  }
  return of_turbo(std::get<cache::TurboTensor>(a), std::get<cache::TurboTensor>(b), shape,
                  n_tokens);
}

inline std::string of_rows(const cache::AttentionLayer& a, const cache::AttentionLayer& b,
                           std::int64_t n_tokens) {
  if (!cache::same_shapes(a, b)) return "head shape";
  const std::string k = of_tensor(a.k, b.k, a.shape, n_tokens);
  if (!k.empty()) return "k: " + k;
  const std::string v = of_tensor(a.v, b.v, a.value_shape(), n_tokens);
  return v.empty() ? v : "v: " + v;
}

// Of a dense window only the tokens in it count.
inline std::string of_window(const cache::WindowLayer& a, const cache::WindowLayer& b,
                             std::int64_t n_tokens) {
  if (a.window != b.window) return "window";
  const bool is_turbo = cache::is_quantized(a.attention);
  if (is_turbo != cache::is_quantized(b.attention)) return "kind of window";
  if (is_turbo) return of_rows(a.attention, b.attention, n_tokens);
  if (!cache::same_shapes(a.attention, b.attention)) return "head shape";
  const auto same = [&](const cache::Tensor& x, const cache::Tensor& y) {
    return cache::dense_dtype(x) == cache::dense_dtype(y) &&
           cache::gather_window(a, x, n_tokens) == cache::gather_window(b, y, n_tokens);
  };
  if (!same(a.attention.k, b.attention.k)) return "keys of the window";
  return same(a.attention.v, b.attention.v) ? "" : "values of the window";
}

inline std::string of_layer(const cache::Layer& a, const cache::Layer& b, std::int64_t n_tokens) {
  if (a.index() != b.index()) return "kind of layer";
  if (const auto* attention = std::get_if<cache::AttentionLayer>(&a)) {
    return of_rows(*attention, std::get<cache::AttentionLayer>(b), n_tokens);
  }
  if (const auto* window = std::get_if<cache::WindowLayer>(&a)) {
    return of_window(*window, std::get<cache::WindowLayer>(b), n_tokens);
  }
  const auto& arrays = std::get<cache::StateLayer>(a).arrays;
  const auto& others = std::get<cache::StateLayer>(b).arrays;
  const auto equal = [](const cache::NamedArray& x, const cache::NamedArray& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && x.data == y.data;
  };
  return std::ranges::equal(arrays, others, equal) ? std::string() : "arrays";
}

inline bool same_identity(const cache::Identity& a, const cache::Identity& b) {
  return a.architecture == b.architecture && a.model_name == b.model_name && a.rope == b.rope &&
         a.weights_fingerprint == b.weights_fingerprint &&
         a.tokenizer_fingerprint == b.tokenizer_fingerprint &&
         a.adapter_fingerprint == b.adapter_fingerprint &&
         a.model_fingerprint == b.model_fingerprint && a.source_format == b.source_format &&
         a.llama_streams == b.llama_streams && a.source_layout == b.source_layout &&
         a.standing == b.standing;
}

}  // namespace difference_detail

// The first difference between two caches in what counts: identity, tokens and the valid part
// of every block, bit for bit. Empty when there is none.
inline std::string difference(const cache::Cache& a, const cache::Cache& b) {
  if (!difference_detail::same_identity(a.identity, b.identity)) return "identity";
  if (a.tokens != b.tokens) return "tokens";
  if (a.hidden_tokens != b.hidden_tokens) return "hidden tokens";
  if (a.layers.size() != b.layers.size()) return "number of layers";
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const std::string where = difference_detail::of_layer(a.layers[i], b.layers[i], a.n_tokens());
    if (!where.empty()) return "layer " + std::to_string(i) + ": " + where;
  }
  return {};
}

}  // namespace tqcache::test
