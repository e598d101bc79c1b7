// Whether a migrated cache says what the old file says (v1_to_v2.h).

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "migrations/v1_classes.h"
#include "migrations/v1_expected.h"
#include "migrations/v1_facts.h"
#include "migrations/v1_meta.h"
#include "migrations/v1_state.h"
#include "migrations/v1_to_v2.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/token_hashes.h"
#include "tqcache/cache/window.h"

namespace tqcache::migrations {
namespace {

Error differs(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

// --- what goes for the whole cache

Result<void> check_identity_kept(const cache::Identity& old, const cache::Identity& own) {
  const bool same = old.architecture == own.architecture && old.model_name == own.model_name &&
                    old.rope == own.rope && old.weights_fingerprint == own.weights_fingerprint &&
                    old.tokenizer_fingerprint == own.tokenizer_fingerprint &&
                    !own.adapter_fingerprint && own.source_format == old.source_format;
  if (same) return {};
  return differs("identity: not that of the old file");
}

Result<void> check_tokens(const std::optional<std::vector<std::int32_t>>& old,
                          const cache::Cache& cache) {
  const bool same = !old ? cache.hidden_tokens && cache.hidden_tokens->empty()
                    : cache::tokens_known(cache) ? cache.tokens == *old
                                                 : *cache.hidden_tokens == cache::hash_tokens(*old);
  if (same) return {};
  return differs("tokens: not those of the old file");
}

// --- layers with all tokens

// The length of the difference.
double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

struct CheckedSide {
  const cache::Side& side;
  const ExpectedRow& expected;
  cache::HeadShape shape;
  std::int64_t n_tokens;
};

Result<void> check_block(const CheckedSide& checked, std::int64_t block, std::int64_t head) {
  const std::int64_t n_block = cache::tokens_in_block(checked.n_tokens, block);
  const std::size_t head_dim = to_size(checked.shape.head_dim);
  std::vector<float> rows(to_size(n_block) * head_dim);
  std::vector<float> x(head_dim);
  cache::read_block(checked.side, checked.shape, checked.n_tokens, block, head, rows);
  for (std::int64_t i = 0; i < n_block; ++i) {
    const std::int64_t token = block * cache::kTokenBlock + i;
    const double tolerance = checked.expected(head, token, x);
    const auto row = std::span(rows).subspan(to_size(i) * head_dim, head_dim);
    // Written so that NaN fails.
    const bool same = tolerance == kExact ? same_bits(row, x) : distance(row, x) <= tolerance;
    if (same) continue;
    return differs("head " + std::to_string(head) + " token " + std::to_string(token) +
                   ": not the value of the old file");
  }
  return {};
}

Result<void> check_side(const char* place, const CheckedSide& checked, unsigned n_threads) {
  const std::size_t n_blocks = to_size(cache::block_count(checked.n_tokens));
  const std::size_t n_heads = to_size(checked.shape.n_kv_heads);
  const auto check = [&](std::size_t i) {
    return check_block(checked, static_cast<std::int64_t>(i / n_heads),
                       static_cast<std::int64_t>(i % n_heads));
  };
  auto done = parallel_try(n_blocks * n_heads, n_threads, check);
  if (!done) return in_context(place, std::move(done).error());
  return {};
}

Result<void> check_attention(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens,
                             CodecPool& maps, unsigned n_threads) {
  const auto* attention = std::get_if<cache::AttentionLayer>(&layer);
  if (attention == nullptr) return differs("no attention layer");
  TQC_TRY_ASSIGN(const ExpectedLayer expected, expected_layer(entry, maps));
  if (!(attention->shape == expected.shape) || n_tokens != expected.n_tokens) {
    return differs("of another shape than in the old file");
  }
  TQC_TRY(check_side("k", {attention->k, expected.k, expected.shape, n_tokens}, n_threads));
  return check_side("v", {attention->v, expected.v, expected.shape, n_tokens}, n_threads);
}

// --- arrays

bool same_dtype(const V1Tensor& tensor, Dtype dtype) {
  const auto own = dense_dtype(tensor);
  return own && *own == dtype;
}

Result<void> check_arrays(const V1Entry& entry, const cache::Layer& layer) {
  const auto* arrays = std::get_if<cache::StateLayer>(&layer);
  if (arrays == nullptr) return differs("no arrays layer");
  const auto same = [](const V1Tensor& tensor, const cache::NamedArray& array) {
    return tensor.name == array.name && tensor.shape == array.shape &&
           same_dtype(tensor, array.dtype) && tensor.data == array.data;
  };
  if (std::ranges::equal(entry.state, arrays->arrays, same)) return {};
  return differs("arrays: not those of the old file");
}

// --- rings

Result<void> check_window_side(const V1Tensor& tensor, const cache::WindowLayer& layer,
                               const cache::Side& side, const RingPlace& ring) {
  const cache::Window& window = layer.window;
  const cache::HeadShape shape = layer.attention.shape;
  const std::int64_t n_tokens = cache::window_tokens(window, ring.offset);
  const Dtype dtype = cache::dense_dtype(side);
  if (!same_dtype(tensor, dtype)) return differs(describe(tensor) + ": not carried over");
  const std::size_t row_bytes = to_size(shape.head_dim) * dtype_size(dtype);
  const AlignedBytes array = cache::gather_window(layer, side, ring.offset);
  const ByteView old(tensor.data), own(array);
  for (std::int64_t i = 0; i < shape.n_kv_heads * n_tokens; ++i) {
    const std::int64_t head = i / n_tokens;
    const std::int64_t token = i % n_tokens;
    const std::int64_t position = token < window.keep ? token : ring.offset - n_tokens + token;
    const std::int64_t row = head * ring.n_rows + ring.row_of(position);
    if (!std::ranges::equal(own.subspan(to_size(i) * row_bytes, row_bytes),
                            old.subspan(to_size(row) * row_bytes, row_bytes))) {
      return differs("head " + std::to_string(head) + " token " + std::to_string(position) +
                     ": not the value of the old file");
    }
  }
  return {};
}

Result<void> check_ring(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens) {
  const auto* window = std::get_if<cache::WindowLayer>(&layer);
  if (window == nullptr) return differs("no rotating layer");
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 4) return differs("meta_state: no ring");
  const State state(entry.state);
  TQC_TRY_ASSIGN(const V1Tensor* keys, state.named("keys"));
  TQC_TRY_ASSIGN(const V1Tensor* values, state.named("values"));
  TQC_TRY_ASSIGN(const Grid grid, grid_of(*keys));
  const cache::Window expected{numbers[1], numbers[0]};
  const cache::HeadShape shape{grid.n_kv_heads, grid.width};
  if (window->window != expected || window->attention.shape != shape || n_tokens != numbers[2]) {
    return differs("another window");
  }
  const RingPlace ring{numbers[0], grid.n_tokens, numbers[2], numbers[3]};
  TQC_TRY(check_window_side(*keys, *window, window->attention.k, ring));
  return check_window_side(*values, *window, window->attention.v, ring);
}

Result<void> check_layer(const V1Entry& entry, const cache::Layer& layer, std::int64_t n_tokens,
                         CodecPool& maps, unsigned n_threads) {
  TQC_TRY_ASSIGN(const V1Class kind, class_of(entry.class_path));
  if (kind == V1Class::kArrays) return check_arrays(entry, layer);
  if (kind == V1Class::kRotating) return check_ring(entry, layer, n_tokens);
  return check_attention(entry, layer, n_tokens, maps, n_threads);
}

}  // namespace

Result<void> check_migrated(const V1File& file, const cache::Cache& cache, unsigned n_threads) {
  TQC_TRY_ASSIGN(const V1Facts facts, read_facts(file.metadata));
  TQC_TRY(check_identity_kept(facts.identity, cache.identity));
  TQC_TRY(check_tokens(facts.tokens, cache));
  if (cache.layers.size() != file.entries.size()) {
    return differs(std::to_string(cache.layers.size()) + " layers where " +
                   std::to_string(file.entries.size()) + " belong");
  }
  CodecPool maps;
  for (std::size_t i = 0; i < file.entries.size(); ++i) {
    auto done = check_layer(file.entries[i], cache.layers[i], cache.n_tokens(), maps, n_threads);
    if (!done) return in_context("layer " + std::to_string(i), std::move(done).error());
  }
  return {};
}

}  // namespace tqcache::migrations
