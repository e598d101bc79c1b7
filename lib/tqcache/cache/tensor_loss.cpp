#include "tqcache/cache/tensor_loss.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/cache/centering.h"

namespace tqcache::cache {

TensorLoss measure_loss(const KvCodec& codec, const FullBlock& block, ByteView packed,
                        const std::shared_ptr<const RopeTable>& rope) {
  const HeadShape shape = block.shape;
  const std::size_t dim = to_size(shape.head_dim);
  const std::size_t first = to_size(uncoded_tokens(block, codec.n_sinks()));
  TensorLoss loss;
  if (first == to_size(kTokenBlock)) return loss;

  // What tells the tokens of the block apart: what their own mean leaves. RoPE rotates pairs of
  // components, so the energy of a pair is the same before and after it.
  Mean mean{rope ? Centering::kPreRope : Centering::kPostRope, {}, rope};
  mean.values = compute_mean({&block, 1}, codec.n_sinks(), rope.get(), 1);
  const BlockMean own(mean, shape, block.index);
  const std::size_t n_pairs = rope ? to_size(rope->rope().n_dims / 2) : 0;

  AlignedFloats rows(to_size(kTokenBlock) * dim), left(rows.size()), decoded(rows.size());
  std::vector<double> error(dim), signal(dim);
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    load_f32(block.dtype, block.head(head).data(), rows);
    left = rows;
    own.subtract_from(head, 0, left);
    codec.decode(packed, block.index, head, decoded);
    std::ranges::fill(error, 0.0);
    std::ranges::fill(signal, 0.0);
    for (std::size_t i = first * dim; i < rows.size(); ++i) {
      const double e = double{rows[i]} - double{decoded[i]};
      const std::size_t component = i % dim;
      const std::size_t at =
          component >= n_pairs && component < 2 * n_pairs ? component - n_pairs : component;
      error[at] += e * e;
      signal[at] += double{left[i]} * double{left[i]};
    }
    // Some components hardly vary in any model, so the median says how the head fares. Those that
    // never vary, as the zeros of padded heads, tell nothing apart.
    std::vector<double> shares;
    for (std::size_t i = 0; i < dim; ++i) {
      if (signal[i] == 0 || (i >= n_pairs && i < 2 * n_pairs)) continue;
      shares.push_back(error[i] / std::max(signal[i], 1e-3 * error[i]));
    }
    if (shares.empty()) continue;
    const auto middle = shares.begin() + std::ssize(shares) / 2;
    std::ranges::nth_element(shares, middle);
    loss.share = std::max(loss.share, *middle);
  }
  return loss;
}

void LossLog::add(const TensorLoss& loss) {
  const std::lock_guard lock(mutex_);
  TensorLoss& worst = worst_[{loss.layer, loss.kind}];
  if (worst.share <= loss.share) worst = loss;
}

std::vector<TensorLoss> LossLog::losses() const {
  const std::lock_guard lock(mutex_);
  std::vector<TensorLoss> all;
  for (const auto& [key, loss] : worst_) all.push_back(loss);
  return all;
}

}  // namespace tqcache::cache
