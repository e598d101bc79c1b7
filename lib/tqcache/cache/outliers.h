#pragma once
// cache/outliers.h: which channels of a side are loud, for mode mixed of the codec.
//
// Chosen by the energy of what would be packed (the mean is out, so this is the variance), for each
// kv head apart, when the first token block of a side is packed; kept for all that come later.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/centering.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::cache {

// The channel orders of one side.
struct Outliers {
  std::size_t n_channels = 0;  // outlier channels of a kv head; 0: the codec has no such mode
  std::size_t head_dim = 0;
  std::vector<std::uint16_t> orders = {};  // [n_kv_heads, head_dim]; empty: none, or not fixed yet

  bool is_fixed() const { return n_channels == 0 || !orders.empty(); }

  // Of one kv head; empty when the codec takes channels as they are.
  codec::ChannelOrder order(std::int64_t kv_head) const;
  // The outlier channels of all kv heads, ascending: [n_kv_heads, n_channels].
  std::vector<std::uint16_t> channels() const;

  bool operator==(const Outliers&) const = default;
};

// From channels(): of a file. Errors: kCorrupt when the count is wrong, or as
// codec::make_channel_order.
Result<Outliers> make_outliers(HeadShape shape, std::size_t n_channels,
                               std::span<const std::uint16_t> loud);

// Chooses them by the tokens in some full blocks of a side, but for its first `n_sinks` tokens.
//
// Shapes:   blocks in ascending order, at least one, all of one shape and dtype. Where a value is
//           not finite the choice means nothing: then packing tells where.
// Requires: mean.is_fixed(): it is taken out.
// Bytes:    identical on every CPU and for any number of threads; equal variances go to the lower
//           channel.
Outliers choose_outliers(std::span<const FullBlock> blocks, std::int64_t n_sinks, const Mean& mean,
                         std::size_t n_channels, unsigned n_threads);

}  // namespace tqcache::cache
