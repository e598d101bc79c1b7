#pragma once
// cache/outliers.h: the outlier channels of K or V, for mode mixed of the codec.
//
// Chosen per kv head by the energy of what will be encoded (the mean is removed, so this is the
// variance), when the first token block is quantized; used for all later blocks.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/cache/centering.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::cache {

// The channel orders of K or V.
struct Outliers {
  std::size_t n_channels = 0;  // outlier channels per kv head; 0: not mode mixed
  std::size_t head_dim = 0;
  std::vector<std::uint16_t> orders = {};  // [n_kv_heads, head_dim]; empty: not mixed, or not fixed

  bool is_fixed() const { return n_channels == 0 || !orders.empty(); }

  // The order of one kv head; empty when the codec takes channels in their own order.
  codec::ChannelOrder order(std::int64_t kv_head) const;
  // The outlier channels of all kv heads, ascending: [n_kv_heads, n_channels].
  std::vector<std::uint16_t> channels() const;

  bool operator==(const Outliers&) const = default;
};

// From channels(), as stored in a file. Errors: kCorrupt when the count is wrong, or as
// codec::make_channel_order.
Result<Outliers> make_outliers(HeadShape shape, std::size_t n_channels,
                               std::span<const std::uint16_t> chosen);

// Chooses them from the tokens of a full block of K or V, without the first `n_sinks` tokens.
//
// If a value is not finite the choice is meaningless: encoding then reports where.
// Requires: mean.is_fixed(); the mean is subtracted, and what is left multiplied by the factors:
//           [n_kv_heads, head_dim], or empty.
// Bytes:    identical on every CPU and for any number of threads; equal variances go to the lower
//           channel.
Outliers choose_outliers(const FullBlock& block, std::int64_t n_sinks, const Mean& mean,
                         std::size_t n_channels, unsigned n_threads,
                         std::span<const float> factors = {});

}  // namespace tqcache::cache
