#include "tqcache/cache/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tqcache/base/threads.h"

namespace tqcache::cache {
namespace {

// Sums over pairs of values, which add up over blocks, heads and layers.
struct Sums {
  double aa = 0, bb = 0, ab = 0, error = 0, max_abs = 0;
  std::uint64_t n_values = 0;

  void add(const Sums& other) {
    aa += other.aa;
    bb += other.bb;
    ab += other.ab;
    error += other.error;
    max_abs = std::max(max_abs, other.max_abs);
    n_values += other.n_values;
  }
};

// A zero side that is reproduced has error 0 and cosine 1; one that is not has an infinite
// relative error and cosine 0.
Difference difference_of(const Sums& sums) {
  Difference d;
  d.relative_mse = sums.error == 0 ? 0 : sums.error / sums.aa;
  const double lengths = std::sqrt(sums.aa) * std::sqrt(sums.bb);
  d.cosine = lengths > 0 ? sums.ab / lengths : (sums.error == 0 ? 1 : 0);
  d.max_abs = sums.max_abs;
  d.n_values = sums.n_values;
  return d;
}

Sums compare(std::span<const float> a, std::span<const float> b) {
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
  return sums;
}

struct SideOf {
  const Side& side;
  std::int64_t n_tokens;  // that the side holds, of which the first are compared
};

// Compares the first `n_tokens` tokens. Sums are joined in block order, so the result does not
// depend on the number of threads.
Sums compare_sides(SideOf a, SideOf b, HeadShape shape, std::int64_t n_tokens, unsigned n_threads) {
  const std::int64_t n_blocks = block_count(n_tokens);
  std::vector<Sums> parts(static_cast<std::size_t>(n_blocks * shape.n_kv_heads));
  parallel_for(parts.size(), n_threads, [&](std::size_t i) {
    const std::int64_t block = static_cast<std::int64_t>(i) / shape.n_kv_heads;
    const std::int64_t head = static_cast<std::int64_t>(i) % shape.n_kv_heads;
    const auto read = [&](SideOf x) {
      std::vector<float> values(
          static_cast<std::size_t>(tokens_in_block(x.n_tokens, block) * shape.head_dim));
      read_block(x.side, shape, x.n_tokens, block, head, values);
      values.resize(static_cast<std::size_t>(tokens_in_block(n_tokens, block) * shape.head_dim));
      return values;
    };
    parts[i] = compare(read(a), read(b));
  });
  Sums total;
  for (const Sums& part : parts) total.add(part);
  return total;
}

bool same_arrays(const ArraysLayer& a, const ArraysLayer& b) {
  return std::ranges::equal(a.arrays, b.arrays, [](const NamedArray& x, const NamedArray& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && x.data == y.data;
  });
}

Error mismatch(std::string message) { return {ErrorCode::kMismatch, std::move(message)}; }

Result<void> check_comparable(const Cache& a, const Cache& b) {
  if (a.layers.size() != b.layers.size()) {
    return mismatch(std::to_string(a.layers.size()) + " layers against " +
                    std::to_string(b.layers.size()));
  }
  const auto [in_a, in_b] =
      std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  if (in_a != a.tokens.end() && in_b != b.tokens.end()) {
    return mismatch("other tokens, from token " + std::to_string(in_a - a.tokens.begin()) + " on");
  }
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const std::string layer = "layer " + std::to_string(i);
    if (a.layers[i].index() != b.layers[i].index()) return mismatch(layer + ": of another kind");
    const auto* x = std::get_if<AttentionLayer>(&a.layers[i]);
    if (x != nullptr && x->shape != std::get<AttentionLayer>(b.layers[i]).shape) {
      return mismatch(layer + ": of another shape");
    }
  }
  return {};
}

}  // namespace

Result<CacheDifference> diff(const Cache& a, const Cache& b, unsigned n_threads) {
  TQC_TRY(validate(a));
  TQC_TRY(validate(b));
  TQC_TRY(check_comparable(a, b));
  CacheDifference result;
  result.n_tokens = std::min(a.n_tokens(), b.n_tokens());
  Sums all_k, all_v;
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const auto* x = std::get_if<AttentionLayer>(&a.layers[i]);
    if (x == nullptr) {
      result.arrays_equal &=
          same_arrays(std::get<ArraysLayer>(a.layers[i]), std::get<ArraysLayer>(b.layers[i]));
      continue;
    }
    const auto& y = std::get<AttentionLayer>(b.layers[i]);
    const auto compare_pair = [&](const Side& of_a, const Side& of_b) {
      return compare_sides({of_a, a.n_tokens()}, {of_b, b.n_tokens()}, x->shape, result.n_tokens,
                           n_threads);
    };
    const Sums k = compare_pair(x->k, y.k);
    const Sums v = compare_pair(x->v, y.v);
    all_k.add(k);
    all_v.add(v);
    result.layers.push_back({static_cast<std::int64_t>(i), difference_of(k), difference_of(v)});
  }
  result.k = difference_of(all_k);
  result.v = difference_of(all_v);
  return result;
}

}  // namespace tqcache::cache
