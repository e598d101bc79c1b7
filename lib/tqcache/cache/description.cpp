#include "tqcache/description.h"

#include <cstring>
#include <iterator>

#include "tqcache/base/integers.h"

namespace tqcache::cache {
namespace {

bool same_named(const ArrayDesc& a, const ArrayDesc& b) {
  return a.name == b.name && a.dtype == b.dtype;
}

bool same_attention(const AttentionDesc& a, const AttentionDesc& b) {
  return same_shapes(a, b) && same_encoding(a.k, b.k) && same_encoding(a.v, b.v);
}

}  // namespace

const AttentionDesc* attention_of(const LayerDesc& layer) {
  using Found = const AttentionDesc*;
  return std::visit(Overload{[](const AttentionDesc& attention) -> Found { return &attention; },
                             [](const WindowDesc& window) -> Found { return &window.attention; },
                             [](const StateDesc&) -> Found { return nullptr; }},
                    layer);
}

AttentionDesc* attention_of(LayerDesc& layer) {
  return const_cast<AttentionDesc*>(attention_of(std::as_const(layer)));
}

std::int64_t tokens_held(const LayerDesc& layer, std::int64_t n_tokens) {
  return std::visit(
      Overload{[&](const AttentionDesc&) { return n_tokens; },
               [&](const WindowDesc& window) { return window_tokens(window.window, n_tokens); },
               [](const StateDesc&) { return std::int64_t{0}; }},
      layer);
}

std::vector<std::uint64_t> window_array_shape(HeadShape shape, const Window& window,
                                              std::int64_t n_tokens) {
  return {to_u64(shape.n_kv_heads), to_u64(window_tokens(window, n_tokens)),
          to_u64(shape.head_dim)};
}

bool is_in_token_blocks(const LayerDesc& layer) {
  return std::visit(
      Overload{[](const AttentionDesc&) { return true; },
               [](const WindowDesc& window) { return is_quantized(window.attention); },
               [](const StateDesc&) { return false; }},
      layer);
}

std::int64_t first_block(const LayerDesc& layer, std::int64_t n_tokens) {
  return std::visit(Overload{[](const AttentionDesc&) { return std::int64_t{0}; },
                             [&](const WindowDesc& window) {
                               return first_window_block(window.window, n_tokens);
                             },
                             [](const StateDesc&) { return std::int64_t{0}; }},
                    layer);
}

std::vector<ArrayDesc> arrays_of(const LayerDesc& layer, std::optional<std::int64_t> n_tokens) {
  using Arrays = std::vector<ArrayDesc>;
  return std::visit(
      Overload{[](const AttentionDesc&) { return Arrays{}; },
               [&](const WindowDesc& window) {
                 const AttentionDesc& attention = window.attention;
                 if (is_quantized(attention)) return Arrays{};
                 std::vector<std::uint64_t> k_shape, v_shape;
                 if (n_tokens) {
                   k_shape = window_array_shape(attention.shape, window.window, *n_tokens);
                   v_shape = window_array_shape(attention.value_shape(), window.window, *n_tokens);
                 }
                 return Arrays{{std::string(kWindowKeys), attention.k.dtype, k_shape},
                               {std::string(kWindowValues), attention.v.dtype, v_shape}};
               },
               [](const StateDesc& state) { return state.arrays; }},
      layer);
}

Result<void> validate_shape(HeadShape shape) {
  const auto [n_kv_heads, head_dim] = shape;
  if (n_kv_heads < 1 || head_dim < 1) return corrupt("a shape has a size below 1");
  if (n_kv_heads > kMaxKvHeads) return too_large(std::to_string(n_kv_heads) + " kv heads");
  if (head_dim > kMaxHeadDim) return too_large("head_dim " + std::to_string(head_dim));
  return {};
}

Result<void> validate_shapes(HeadShape shape, std::int64_t value_dim) {
  TQC_TRY(validate_shape(shape));
  if (value_dim == 0) return {};
  if (value_dim == shape.head_dim)
    return corrupt("values of a size of their own, that of the keys");
  return validate_shape({shape.n_kv_heads, value_dim});
}

Result<void> validate_window(HeadShape shape, const Window& window) {
  TQC_TRY(validate_shape(shape));
  if (window.size < 1) return corrupt("a window of no tokens");
  if (window.size > kMaxTokens) {
    return too_large("a window of " + std::to_string(window.size) + " tokens");
  }
  if (window.keep < 0 || window.keep >= window.size) {
    return corrupt(std::to_string(window.keep) + " first tokens kept in a window of " +
                   std::to_string(window.size));
  }
  return {};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool same_bits(const codec::TransformMatrix& a, const codec::TransformMatrix& b) { return a == b; }

bool same_bits(const codec::PartSpec& a, const codec::PartSpec& b) {
  codec::PartSpec like = a;
  like.centroids = b.centroids;
  return like == b && same_bits(a.centroids, b.centroids);
}

bool same_bits(const std::vector<codec::PartSpec>& a, const std::vector<codec::PartSpec>& b) {
  return std::ranges::equal(
      a, b, [](const codec::PartSpec& x, const codec::PartSpec& y) { return same_bits(x, y); });
}

bool same_bits(const QuantSpec& a, const QuantSpec& b) {
  return a.mode == b.mode && same_bits(a.parts, b.parts) && a.centering == b.centering &&
         same_bits(a.mean, b.mean) && a.outliers == b.outliers && a.n_sinks == b.n_sinks &&
         a.transforms == b.transforms && a.factors == b.factors;
}

bool same_encoding(const TensorDesc& a, const TensorDesc& b) {
  if (a.dtype != b.dtype || is_quantized(a) != is_quantized(b)) return false;
  if (!is_quantized(a)) return true;
  return a.quant->mode == b.quant->mode && same_bits(a.quant->parts, b.quant->parts) &&
         a.quant->centering == b.quant->centering && a.quant->n_sinks == b.quant->n_sinks &&
         a.quant->factors == b.quant->factors;
}

bool same_encoding(const LayerDesc& a, const LayerDesc& b) {
  if (a.index() != b.index()) return false;
  if (const auto* attention = std::get_if<AttentionDesc>(&a)) {
    return same_attention(*attention, std::get<AttentionDesc>(b));
  }
  if (const auto* window = std::get_if<WindowDesc>(&a)) {
    const auto& other = std::get<WindowDesc>(b);
    return window->window == other.window && same_attention(window->attention, other.attention);
  }
  return std::ranges::equal(std::get<StateDesc>(a).arrays, std::get<StateDesc>(b).arrays,
                            same_named);
}

}  // namespace tqcache::cache
