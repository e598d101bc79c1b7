#include "tqcache/cache/outliers.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/token_pieces.h"

namespace tqcache::cache {
namespace {

// sum[i] += rows[t][i]^2 over t.
void add_squares(std::span<const float> rows, std::span<float> sum) {
  float* const __restrict out = sum.data();
  const std::size_t head_dim = sum.size();
  for (const float* x = rows.data(); x != rows.data() + rows.size(); x += head_dim) {
    for (std::size_t i = 0; i < head_dim; ++i) out[i] += x[i] * x[i];
  }
}

// The energy of each component of one kv head's vectors, after subtracting the mean.
std::vector<double> energies(const FullBlock& block, std::int64_t n_sinks, const Mean& mean,
                             std::int64_t kv_head) {
  std::vector<double> sum(to_size(block.shape.head_dim));
  const BlockMean in_block(mean, block.shape, block.index, kv_head);
  const Pieces pieces{block, kv_head, uncoded_tokens(block, n_sinks)};
  add_pieces(pieces, in_block.center(kv_head), sum,
             [](std::int64_t, std::span<const float> rows, std::span<float> of_piece) {
               add_squares(rows, of_piece);
             });
  return sum;
}

// The n channels with the most energy, ascending.
std::vector<std::uint16_t> loudest(const std::vector<double>& energy, std::size_t n) {
  std::vector<std::uint16_t> channels(energy.size());
  std::iota(channels.begin(), channels.end(), std::uint16_t{0});
  // NaN cannot be ordered, so it counts as zero energy.
  const auto loudness = [&](std::uint16_t i) { return energy[i] > 0 ? energy[i] : 0.0; };
  std::ranges::stable_sort(channels, std::ranges::greater{}, loudness);
  channels.resize(n);
  std::ranges::sort(channels);
  return channels;
}

}  // namespace

codec::ChannelOrder Outliers::order(std::int64_t kv_head) const {
  if (orders.empty()) return {};
  return std::span(orders).subspan(to_size(kv_head) * head_dim, head_dim);
}

std::vector<std::uint16_t> Outliers::channels() const {
  std::vector<std::uint16_t> all;
  for (auto at = orders.begin(); at != orders.end(); at += static_cast<std::ptrdiff_t>(head_dim)) {
    all.insert(all.end(), at, at + static_cast<std::ptrdiff_t>(n_channels));
  }
  return all;
}

Result<Outliers> make_outliers(HeadShape shape, std::size_t n_channels,
                               std::span<const std::uint16_t> chosen) {
  const std::size_t n_heads = to_size(shape.n_kv_heads);
  Outliers outliers{n_channels, to_size(shape.head_dim), {}};
  if (chosen.size() != n_heads * n_channels) {
    return Error{ErrorCode::kCorrupt, std::to_string(chosen.size()) + " outlier channels where " +
                                          std::to_string(n_heads * n_channels) + " belong"};
  }
  if (n_channels == 0) return outliers;
  for (std::size_t head = 0; head < n_heads; ++head) {
    auto order =
        codec::make_channel_order(outliers.head_dim, chosen.subspan(head * n_channels, n_channels));
    if (!order) return in_context("head " + std::to_string(head), std::move(order).error());
    outliers.orders.insert(outliers.orders.end(), order->begin(), order->end());
  }
  return outliers;
}

Outliers choose_outliers(const FullBlock& block, std::int64_t n_sinks, const Mean& mean,
                         std::size_t n_channels, unsigned n_threads,
                         std::span<const float> factors) {
  const HeadShape shape = block.shape;
  assert(n_channels <= to_size(shape.head_dim) && mean.is_fixed());
  std::vector<std::vector<std::uint16_t>> chosen(to_size(shape.n_kv_heads));
  parallel_for(chosen.size(), n_threads, [&](std::size_t head) {
    auto energy = energies(block, n_sinks, mean, static_cast<std::int64_t>(head));
    for (std::size_t i = 0; i < energy.size() && !factors.empty(); ++i) {
      const double factor{factors[head * energy.size() + i]};
      energy[i] *= factor * factor;
    }
    chosen[head] = loudest(energy, n_channels);
  });
  std::vector<std::uint16_t> all;
  for (const auto& of_head : chosen) all.insert(all.end(), of_head.begin(), of_head.end());
  return make_outliers(shape, n_channels, all).value();
}

}  // namespace tqcache::cache
