#include "tqcache/cache.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "tqcache/base/integers.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/cache/window.h"
#include "tqcache/error.h"

namespace tqcache::cache {
namespace {

Result<void> validate_blocks(std::span<const AlignedBytes> blocks, HeadShape shape, Dtype dtype,
                             std::int64_t n_blocks) {
  if (std::ssize(blocks) != n_blocks) {
    return corrupt(std::to_string(blocks.size()) + " dense token blocks where " +
                   std::to_string(n_blocks) + " belong");
  }
  const auto expected =
      static_cast<std::size_t>(shape.n_kv_heads * kTokenBlock * shape.head_dim) * dtype_size(dtype);
  for (const AlignedBytes& block : blocks) {
    if (block.size() != expected) return corrupt("a dense token block of the wrong size");
  }
  return {};
}

Result<void> validate_dense(const DenseTensor& tensor, HeadShape shape, std::int64_t n_blocks) {
  return validate_blocks(tensor.blocks, shape, tensor.dtype, n_blocks);
}

// Facts that K and V of one layer share, and the layer they belong to.
struct TensorContext {
  HeadShape shape;
  std::int64_t n_tokens;
  Rope rope;
  bool is_keys;
  std::int64_t first_block = 0;  // of a window; earlier blocks are absent
};

// The packed blocks that are present.
std::span<const TurboBlock> packed_blocks(const TurboTensor& tensor, const TensorContext& context) {
  const auto n_left = std::min(static_cast<std::size_t>(context.first_block), tensor.packed.size());
  return std::span(tensor.packed).subspan(n_left);
}

// A codec is consistent in itself (KvCodec::make), but it may not fit this layer.
Result<void> validate_codec(const TurboTensor& tensor, const TensorContext& context) {
  const KvCodec& codec = tensor.codec;
  if (codec.shape().head_dim != context.shape.head_dim) {
    return corrupt("codec for head_dim " + std::to_string(codec.shape().head_dim) +
                   " in a layer of head_dim " + std::to_string(context.shape.head_dim));
  }
  if (codec.shape() != context.shape) return corrupt("codec for another number of kv heads");
  const codec::BlockOrder order =
      context.is_keys ? codec::BlockOrder::kKeys : codec::BlockOrder::kValues;
  if (codec.order() != order) return corrupt("codes in the order of the other tensor");
  if (codec.dtype() != tensor.tail.dtype) return corrupt("a tail of another dtype than the codec");
  if (codec.centering() != Centering::kPreRope) return {};
  if (!context.is_keys || !can_rotate(context.rope, context.shape.head_dim)) {
    return corrupt("centering before RoPE where there is none");
  }
  const RopeTable* const table = codec.state().mean.rope.get();
  if (table == nullptr || table->rope() != context.rope) {
    return corrupt("a mean that turns as keys of another model do");
  }
  return {};
}

Result<void> validate_fixed(const TurboTensor& tensor, const TensorContext& context) {
  if (packed_blocks(tensor, context).empty()) return {};
  const KvCodec::State& state = tensor.codec.state();
  if (!state.mean.is_fixed()) return corrupt("packed, but without its mean");
  if (!state.outliers.is_fixed()) return corrupt("packed, but without its outlier channels");
  if (!state.transforms.is_fixed()) return corrupt("packed, but without its maps");
  if (!tensor.codec.must_keep_decoded()) return {};
  const HeadShape shape = context.shape;
  const std::size_t block_bytes =
      static_cast<std::size_t>(shape.n_kv_heads * kTokenBlock * shape.head_dim) *
      dtype_size(tensor.tail.dtype);
  for (const TurboBlock& block : packed_blocks(tensor, context)) {
    if (block.decoded.size() != block_bytes) return corrupt("a mapped token block, not decoded");
  }
  return {};
}

Result<void> validate_packed(const TurboTensor& tensor, const TensorContext& context) {
  for (auto i = static_cast<std::size_t>(context.first_block); i < tensor.packed.size(); ++i) {
    const SharedBytes& bytes = tensor.packed[i].bytes;
    if (bytes.size() != tensor.codec.packed_bytes(static_cast<std::int64_t>(i))) {
      return corrupt("a packed token block of the wrong size");
    }
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0) {
      return corrupt("a packed token block that is not aligned");
    }
  }
  return {};
}

Result<void> validate_turbo(const TurboTensor& tensor, const TensorContext& context) {
  TQC_TRY(validate_codec(tensor, context));
  const auto n_packed = static_cast<std::int64_t>(tensor.packed.size());
  if (n_packed > context.n_tokens / kTokenBlock) {
    return corrupt("more packed token blocks than tokens");
  }
  const std::int64_t n_tail = block_count(context.n_tokens) - n_packed;
  if (n_tail > 1) return corrupt("a token block before the last is not packed");
  TQC_TRY(validate_packed(tensor, context));
  TQC_TRY(validate_fixed(tensor, context));
  return validate_dense(tensor.tail, context.shape, n_tail);
}

Result<void> validate_tensor(const Tensor& tensor, const TensorContext& context) {
  if (const auto* turbo = std::get_if<TurboTensor>(&tensor)) return validate_turbo(*turbo, context);
  return validate_dense(std::get<DenseTensor>(tensor), context.shape,
                        block_count(context.n_tokens));
}

Result<void> validate_layer(const AttentionLayer& layer, std::int64_t n_tokens, const Rope& rope) {
  TQC_TRY(validate_shapes(layer.shape, layer.value_dim));
  if (auto k = validate_tensor(layer.k, {layer.shape, n_tokens, rope, true}); !k) {
    return in_context("k", std::move(k).error());
  }
  if (auto v = validate_tensor(layer.v, {layer.value_shape(), n_tokens, rope, false}); !v) {
    return in_context("v", std::move(v).error());
  }
  return {};
}

// Checks the blocks of a window; those before its first one may be empty.
Result<void> validate_window_blocks(const DenseTensor& tensor, const Window& window,
                                    const TensorContext& context) {
  const std::int64_t n_blocks = block_count(context.n_tokens);
  if (std::ssize(tensor.blocks) != n_blocks) {
    return corrupt(std::to_string(tensor.blocks.size()) + " dense token blocks where " +
                   std::to_string(n_blocks) + " belong");
  }
  for (std::int64_t i = 0; i < n_blocks; ++i) {
    if (!holds_block(window, context.n_tokens, i)) continue;
    TQC_TRY(validate_blocks({&tensor.blocks[static_cast<std::size_t>(i)], 1}, context.shape,
                            tensor.dtype, 1));
  }
  return {};
}

Result<void> validate_window_tensor(const Tensor& tensor, const Window& window,
                                    const TensorContext& context) {
  if (const auto* turbo = std::get_if<TurboTensor>(&tensor)) {
    if (window.keep != 0) return corrupt("quantized, in a window that keeps first tokens");
    if (turbo->codec.n_sinks() != 0) return corrupt("sink tokens in a window");
    return validate_turbo(*turbo, context);
  }
  return validate_window_blocks(std::get<DenseTensor>(tensor), window, context);
}

Result<void> validate_layer(const WindowLayer& layer, std::int64_t n_tokens, const Rope& rope) {
  const AttentionLayer& attention = layer.attention;
  TQC_TRY(validate_shapes(attention.shape, attention.value_dim));
  TQC_TRY(validate_window(attention.shape, layer.window));
  const auto check = [&](const Tensor& tensor, bool is_keys) {
    return validate_window_tensor(tensor, layer.window,
                                  {is_keys ? attention.shape : attention.value_shape(), n_tokens,
                                   rope, is_keys, first_window_block(layer.window, n_tokens)});
  };
  if (auto k = check(attention.k, true); !k) return in_context("k", std::move(k).error());
  if (auto v = check(attention.v, false); !v) return in_context("v", std::move(v).error());
  return {};
}

Result<void> validate_layer(const StateLayer& layer, std::int64_t, const Rope&) {
  for (const NamedArray& array : layer.arrays) {
    const auto count = element_count(array.shape);
    const auto bytes = count ? checked_mul(*count, dtype_size(array.dtype)) : std::nullopt;
    if (!bytes || *bytes != array.data.size()) {
      return corrupt("array \"" + array.name + "\": its shape and its bytes disagree");
    }
  }
  return {};
}

ByteCount byte_count(const AttentionLayer& layer, std::int64_t n_tokens) {
  ByteCount bytes = byte_count(layer.k, layer.shape, n_tokens);
  bytes += byte_count(layer.v, layer.value_shape(), n_tokens);
  return bytes;
}

// In dense blocks only the tokens of the window count as used.
ByteCount byte_count(const WindowLayer& layer, std::int64_t n_tokens) {
  const AttentionLayer& attention = layer.attention;
  ByteCount bytes = byte_count(attention, n_tokens);
  const std::int64_t n_outside = n_tokens - window_tokens(layer.window, n_tokens);
  const auto subtract = [&](const Tensor& tensor, HeadShape shape) {
    if (!std::holds_alternative<DenseTensor>(tensor)) return;
    bytes.used -= static_cast<std::uint64_t>(n_outside * shape.n_kv_heads * shape.head_dim) *
                  dtype_size(dense_dtype(tensor));
  };
  subtract(attention.k, attention.shape);
  subtract(attention.v, attention.value_shape());
  return bytes;
}

ByteCount byte_count(const StateLayer& layer, std::int64_t) {
  ByteCount bytes;
  for (const NamedArray& array : layer.arrays) {
    bytes.used += element_count(array.shape).value_or(0) * dtype_size(array.dtype);
    bytes.allocated += array.data.size();
  }
  return bytes;
}

std::string describe(const Rope& rope) {
  constexpr std::string_view kStyles[] = {"none", "half-split", "interleaved"};
  return std::string(kStyles[static_cast<std::size_t>(rope.style)]) + " over " +
         std::to_string(rope.n_dims) + " components, base " + std::to_string(rope.base);
}

Error identity_mismatch(std::string_view what, std::string_view cache, std::string_view model) {
  return {ErrorCode::kMismatch, "made by another model: " + std::string(what) +
                                    " of the cache is " + std::string(cache) + ", of the model " +
                                    std::string(model)};
}

std::string describe(const std::optional<Sha256>& fingerprint) {
  return fingerprint ? to_hex(*fingerprint) : "none";
}

}  // namespace

Result<Cache> make_cache(Identity identity, std::span<const LayerPlan> layers) {
  if (static_cast<std::int64_t>(layers.size()) > kMaxLayers) {
    return Error{ErrorCode::kInvalidArgument, std::to_string(layers.size()) + " layers"};
  }
  Cache cache;
  cache.identity = std::move(identity);
  for (const LayerPlan& plan : layers) {
    if (auto shape = validate_shape(plan.shape); !shape) {
      return Error{ErrorCode::kInvalidArgument, shape.error().message};
    }
    cache.layers.emplace_back(
        AttentionLayer{plan.shape, DenseTensor{plan.dtype, {}}, DenseTensor{plan.dtype, {}}});
  }
  return cache;
}

Result<void> validate(const Cache& cache) {
  TQC_TRY(validate_tokens(cache.tokens, cache.hidden_tokens, cache.media));
  if (static_cast<std::int64_t>(cache.layers.size()) > kMaxLayers) {
    return too_large(std::to_string(cache.layers.size()) + " layers");
  }
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    auto checked = std::visit(
        [&](const auto& layer) {
          return validate_layer(layer, cache.n_tokens(), cache.identity.rope);
        },
        cache.layers[i]);
    if (!checked) return in_context("layer " + std::to_string(i), std::move(checked).error());
  }
  return {};
}

bool share_model_fingerprint(const Identity& a, const Identity& b) {
  return a.model_fingerprint && b.model_fingerprint &&
         a.model_fingerprint->version == b.model_fingerprint->version;
}

Result<void> check_identity(const Cache& cache, const Identity& model) {
  return check_identity(cache.identity, model);
}

Result<void> check_identity(const Identity& own, const Identity& model) {
  if (own.architecture.empty()) {
    return Error{ErrorCode::kMismatch, "the cache does not say which model it belongs to"};
  }
  if (own.architecture != model.architecture) {
    return identity_mismatch("the architecture", own.architecture, model.architecture);
  }
  if (own.weights_fingerprint != model.weights_fingerprint) {
    return identity_mismatch("the weights fingerprint", to_hex(own.weights_fingerprint),
                             to_hex(model.weights_fingerprint));
  }
  if (own.tokenizer_fingerprint != model.tokenizer_fingerprint) {
    return identity_mismatch("the tokenizer fingerprint", to_hex(own.tokenizer_fingerprint),
                             to_hex(model.tokenizer_fingerprint));
  }
  if (own.adapter_fingerprint != model.adapter_fingerprint) {
    return identity_mismatch("the adapter fingerprint", describe(own.adapter_fingerprint),
                             describe(model.adapter_fingerprint));
  }
  if (own.rope != model.rope)
    return identity_mismatch("RoPE", describe(own.rope), describe(model.rope));
  if (share_model_fingerprint(own, model) && own.model_fingerprint != model.model_fingerprint) {
    return identity_mismatch("the fingerprint of configuration and weights",
                             to_hex(own.model_fingerprint->digest),
                             to_hex(model.model_fingerprint->digest));
  }
  return {};
}

CacheDesc describe(const Cache& cache) {
  CacheDesc desc{cache.identity, cache.tokens, cache.hidden_tokens, {}, cache.media};
  for (const Layer& layer : cache.layers) desc.layers.push_back(describe(layer));
  return desc;
}

ByteCount byte_count(const Cache& cache) {
  ByteCount total;
  for (const Layer& layer : cache.layers) {
    total +=
        std::visit([&](const auto& kind) { return byte_count(kind, cache.n_tokens()); }, layer);
  }
  return total;
}

}  // namespace tqcache::cache
