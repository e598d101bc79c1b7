#include "tqcache/codec/channels.h"

#include <algorithm>
#include <cassert>
#include <string>

namespace tqcache::codec {
namespace {

Result<void> check_first(std::size_t head_dim, std::span<const std::uint16_t> first) {
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] >= head_dim) {
      return Error{ErrorCode::kCorrupt, "channel " + std::to_string(first[i]) + ": not one of " +
                                            std::to_string(head_dim)};
    }
    if (i > 0 && first[i] <= first[i - 1]) {
      return Error{ErrorCode::kCorrupt,
                   "channel " + std::to_string(first[i]) + ": not above the one before"};
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::uint16_t>> make_channel_order(std::size_t head_dim,
                                                      std::span<const std::uint16_t> first) {
  assert(head_dim <= std::size_t{1} << 16);
  TQC_TRY(check_first(head_dim, first));
  std::vector<std::uint16_t> order(first.begin(), first.end());
  order.reserve(head_dim);
  std::size_t next = 0;  // the first of `first` that is not below `channel`
  for (std::size_t channel = 0; channel < head_dim; ++channel) {
    if (next < first.size() && first[next] == channel) {
      ++next;
    } else {
      order.push_back(static_cast<std::uint16_t>(channel));
    }
  }
  return order;
}

void take_channels(ChannelOrder order, std::span<const float> in, std::span<float> out) {
  assert(in.size() == out.size() && (order.empty() || order.size() == in.size()));
  if (order.empty()) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < order.size(); ++i) out[i] = in[order[i]];
}

void put_channels(ChannelOrder order, std::span<const float> in, std::span<float> out) {
  assert(in.size() == out.size() && (order.empty() || order.size() == in.size()));
  if (order.empty()) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < order.size(); ++i) out[order[i]] = in[i];
}

}  // namespace tqcache::codec
