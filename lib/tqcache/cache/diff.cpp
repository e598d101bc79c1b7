#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <variant>

#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/error.h"

namespace tqcache::cache {
namespace {

// Sums over pairs of values, which add up over blocks, heads and layers.
struct Sums {
  double aa = 0, bb = 0, ab = 0, error = 0, max_abs = 0;
  double cosines = 0, min_cosine = 1;  // of head vectors
  std::uint64_t n_values = 0, n_vectors = 0;

  void add(const Sums& other) {
    aa += other.aa;
    bb += other.bb;
    ab += other.ab;
    error += other.error;
    max_abs = std::max(max_abs, other.max_abs);
    cosines += other.cosines;
    min_cosine = std::min(min_cosine, other.min_cosine);
    n_values += other.n_values;
    n_vectors += other.n_vectors;
  }
};

double cosine_of(const Sums& sums) {
  const double lengths = std::sqrt(sums.aa) * std::sqrt(sums.bb);
  return lengths > 0 ? sums.ab / lengths : (sums.error == 0 ? 1 : 0);
}

// An all-zero tensor that is reproduced has error 0 and cosine 1; otherwise it has an infinite
// relative error and cosine 0. The same holds for a single head vector.
Difference difference_of(const Sums& sums) {
  Difference d;
  d.relative_mse = sums.error == 0 ? 0 : sums.error / sums.aa;
  d.cosine = cosine_of(sums);
  d.max_abs = sums.max_abs;
  d.min_cosine = sums.min_cosine;
  if (sums.n_vectors > 0) d.mean_cosine = sums.cosines / static_cast<double>(sums.n_vectors);
  d.n_values = sums.n_values;
  return d;
}

Sums compare_vector(std::span<const float> a, std::span<const float> b) {
  Sums sums;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i];
    const double y = b[i];
    sums.aa += x * x;
    sums.bb += y * y;
    sums.ab += x * y;
    sums.error += (x - y) * (x - y);
    sums.max_abs = std::max(sums.max_abs, std::abs(x - y));
  }
  sums.n_values = a.size();
  sums.n_vectors = 1;
  sums.cosines = sums.min_cosine = cosine_of(sums);
  return sums;
}

// Shapes: a, b [n, head_dim].
Sums compare(std::span<const float> a, std::span<const float> b, std::size_t head_dim) {
  Sums sums;
  for (std::size_t i = 0; i < a.size(); i += head_dim) {
    sums.add(compare_vector(a.subspan(i, head_dim), b.subspan(i, head_dim)));
  }
  return sums;
}

struct TensorOf {
  const Tensor& tensor;
  std::int64_t n_tokens;  // the number that it holds; the first of them are compared
};

// Tokens [begin, end).
struct TokenRange {
  std::int64_t begin;
  std::int64_t end;
};

// Compares some tokens for each kv head. Sums are joined in block order, so the result does not
// depend on the number of threads.
std::vector<Sums> compare_tensors(TensorOf a, TensorOf b, HeadShape shape, TokenRange range,
                                  unsigned n_threads) {
  const std::int64_t first_block = range.begin / kTokenBlock;
  const std::int64_t n_blocks = block_count(range.end) - first_block;
  std::vector<Sums> parts(static_cast<std::size_t>(n_blocks * shape.n_kv_heads));
  parallel_for(parts.size(), n_threads, [&](std::size_t i) {
    const std::int64_t block = first_block + static_cast<std::int64_t>(i) / shape.n_kv_heads;
    const std::int64_t head = static_cast<std::int64_t>(i) % shape.n_kv_heads;
    const auto n_before = tokens_before(range.begin, block) * shape.head_dim;
    const auto read = [&](TensorOf x) {
      std::vector<float> values(
          static_cast<std::size_t>(tokens_in_block(x.n_tokens, block) * shape.head_dim));
      read_block(x.tensor, shape, x.n_tokens, block, head, values);
      values.resize(static_cast<std::size_t>(tokens_in_block(range.end, block) * shape.head_dim));
      values.erase(values.begin(), values.begin() + n_before);
      return values;
    };
    parts[i] = compare(read(a), read(b), static_cast<std::size_t>(shape.head_dim));
  });
  std::vector<Sums> heads(static_cast<std::size_t>(shape.n_kv_heads));
  for (std::size_t i = 0; i < parts.size(); ++i) heads[i % heads.size()].add(parts[i]);
  return heads;
}

Sums total(const std::vector<Sums>& parts) {
  Sums sum;
  for (const Sums& part : parts) sum.add(part);
  return sum;
}

std::vector<Difference> differences_of(const std::vector<Sums>& heads) {
  std::vector<Difference> differences;
  for (const Sums& head : heads) differences.push_back(difference_of(head));
  return differences;
}

bool same_arrays(const std::vector<NamedArray>& a, const std::vector<NamedArray>& b) {
  return std::ranges::equal(a, b, [](const NamedArray& x, const NamedArray& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && x.data == y.data;
  });
}

bool same_window(const WindowLayer& a, std::int64_t n_a, const WindowLayer& b, std::int64_t n_b) {
  const auto same = [&](const Tensor& of_a, const Tensor& of_b) {
    return dense_dtype(of_a) == dense_dtype(of_b) &&
           gather_window(a, of_a, n_a) == gather_window(b, of_b, n_b);
  };
  return same(a.attention.k, b.attention.k) && same(a.attention.v, b.attention.v);
}

// Bitwise equality of recurrent state and windows.
bool same_values(const Layer& a, std::int64_t n_a, const Layer& b, std::int64_t n_b) {
  if (const auto* window = std::get_if<WindowLayer>(&a)) {
    return same_window(*window, n_a, std::get<WindowLayer>(b), n_b);
  }
  return same_arrays(std::get<StateLayer>(a).arrays, std::get<StateLayer>(b).arrays);
}

// Keys and values of a pair of layers, and the tokens to compare.
struct RowsPair {
  const AttentionLayer* a;
  const AttentionLayer* b;
  TokenRange range;
};

// Windows are compared value by value if one of them is quantized; otherwise only for equality.
// Windows that hold different tokens are not compared.
//
// Requires: check_layer(a, b).
std::optional<RowsPair> find_rows(const Layer& a, std::int64_t n_a, const Layer& b,
                                  std::int64_t n_b) {
  using Found = std::optional<RowsPair>;
  return std::visit(
      Overload{[&](const AttentionLayer& attention) -> Found {
                 return RowsPair{&attention, attention_of(b), {0, std::min(n_a, n_b)}};
               },
               [&](const WindowLayer& window) -> Found {
                 const AttentionLayer& other = *attention_of(b);
                 const bool is_exact = !is_quantized(window.attention) && !is_quantized(other);
                 if (is_exact || n_a != n_b) return std::nullopt;
                 const TokenRange range = {window_begin(window.window, n_a), n_a};
                 return RowsPair{&window.attention, &other, range};
               },
               [](const StateLayer&) -> Found { return std::nullopt; }},
      a);
}

Result<void> check_layer(const Layer& a, const Layer& b) {
  constexpr std::array kNames = {"attention", "a sliding window", "recurrent state"};
  static_assert(kNames.size() == std::variant_size_v<Layer>);
  if (a.index() != b.index()) {
    return mismatch(std::string(kNames[a.index()]) + " and " + kNames[b.index()]);
  }
  return std::visit(Overload{[&](const AttentionLayer& attention) -> Result<void> {
                               if (same_shapes(attention, *attention_of(b))) return {};
                               return mismatch("of another shape");
                             },
                             [&](const WindowLayer& window) -> Result<void> {
                               const auto& other = std::get<WindowLayer>(b);
                               if (window.window == other.window &&
                                   same_shapes(window.attention, other.attention)) {
                                 return {};
                               }
                               return mismatch("of another window");
                             },
                             [](const StateLayer&) -> Result<void> { return {}; }},
                    a);
}

Result<void> check_layers(const Cache& a, const Cache& b) {
  if (a.layers.size() != b.layers.size()) {
    return mismatch(std::to_string(a.layers.size()) + " layers against " +
                    std::to_string(b.layers.size()));
  }
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    if (auto checked = check_layer(a.layers[i], b.layers[i]); !checked) {
      return in_context("layer " + std::to_string(i), std::move(checked).error());
    }
  }
  return {};
}

// The hashes of token blocks that lie within the first `n_tokens` tokens. The last block may be
// incomplete if the cache ends there.
std::vector<Sha256> hashes_within(const Cache& cache, std::int64_t n_tokens) {
  const auto n = static_cast<std::size_t>(n_tokens);
  if (tokens_known(cache)) return hash_tokens(std::span(cache.tokens).first(n));
  std::vector<Sha256> hashes = *cache.hidden_tokens;
  const std::int64_t n_whole =
      n_tokens == cache.n_tokens() ? block_count(n_tokens) : n_tokens / kTokenBlock;
  if (std::ssize(hashes) > n_whole) hashes.resize(static_cast<std::size_t>(n_whole));
  return hashes;
}

// Returns how many of the first `n_tokens` tokens are known to be equal.
Result<std::int64_t> check_hashes(const Cache& a, const Cache& b, std::int64_t n_tokens) {
  const std::vector<Sha256> of_a = hashes_within(a, n_tokens);
  const std::vector<Sha256> of_b = hashes_within(b, n_tokens);
  const auto [in_a, in_b] = std::ranges::mismatch(of_a, of_b);
  const std::int64_t n_equal = (in_a - of_a.begin()) * kTokenBlock;
  if (in_a != of_a.end() && in_b != of_b.end()) {
    return mismatch("other tokens, from token " + std::to_string(n_equal) +
                    " or a later one of its token block on");
  }
  return std::min(n_equal, n_tokens);
}

// The same by token ids if both caches have them, otherwise by hashes.
Result<std::int64_t> check_tokens(const Cache& a, const Cache& b, std::int64_t n_tokens) {
  if (!tokens_known(a) || !tokens_known(b)) return check_hashes(a, b, n_tokens);
  const auto [in_a, in_b] = std::ranges::mismatch(a.tokens, b.tokens);
  if (in_a != a.tokens.end() && in_b != b.tokens.end()) {
    return mismatch("other tokens, from token " + std::to_string(in_a - a.tokens.begin()) + " on");
  }
  return n_tokens;
}

}  // namespace

Result<CacheDifference> diff(const Cache& a, const Cache& b, unsigned n_threads) {
  TQC_TRY(validate(a));
  TQC_TRY(validate(b));
  TQC_TRY(check_layers(a, b));
  CacheDifference result;
  result.n_tokens = std::min(a.n_tokens(), b.n_tokens());
  TQC_TRY_ASSIGN(result.n_tokens_checked, check_tokens(a, b, result.n_tokens));
  Sums all_k, all_v;
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const auto rows = find_rows(a.layers[i], a.n_tokens(), b.layers[i], b.n_tokens());
    if (!rows) {
      result.arrays_equal &= same_values(a.layers[i], a.n_tokens(), b.layers[i], b.n_tokens());
      continue;
    }
    const auto compare_pair = [&](const Tensor& of_a, const Tensor& of_b, HeadShape shape) {
      return compare_tensors({of_a, a.n_tokens()}, {of_b, b.n_tokens()}, shape, rows->range,
                             n_threads);
    };
    const std::vector<Sums> k = compare_pair(rows->a->k, rows->b->k, rows->a->shape);
    const std::vector<Sums> v = compare_pair(rows->a->v, rows->b->v, rows->a->value_shape());
    all_k.add(total(k));
    all_v.add(total(v));
    result.layers.push_back({static_cast<std::int64_t>(i), difference_of(total(k)),
                             difference_of(total(v)), differences_of(k), differences_of(v)});
  }
  result.k = difference_of(all_k);
  result.v = difference_of(all_v);
  return result;
}

}  // namespace tqcache::cache
