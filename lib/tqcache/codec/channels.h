#pragma once
// codec/channels.h: the order in which a codec takes the channels of a head vector.
//
// Mode mixed codes outlier channels apart. They are chosen by what a kv head's vectors look like,
// so they belong to the data and not to the codec: each kv head has its own list. The codec sees
// the head vector with those channels first and the others behind them, both in ascending order.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::codec {

// channel[i] is the channel that stands at place i. Empty: all as they are.
using ChannelOrder = std::span<const std::uint16_t>;

// The whole order, from the channels that come first.
// Errors: kCorrupt when they are not strictly ascending and below head_dim.
Result<std::vector<std::uint16_t>> make_channel_order(std::size_t head_dim,
                                                      std::span<const std::uint16_t> first);

// out[i] = in[order[i]], and the inverse. Shapes: in, out [head_dim]; not the same memory.
void take_channels(ChannelOrder order, std::span<const float> in, std::span<float> out);
void put_channels(ChannelOrder order, std::span<const float> in, std::span<float> out);

}  // namespace tqcache::codec
