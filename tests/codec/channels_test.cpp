// The order of channels in a codec.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tqcache/codec/head_codec.h"

namespace tqcache::codec {
namespace channels_test {

using Channels = std::vector<std::uint16_t>;

ErrorCode order_error(std::size_t head_dim, const Channels& first) {
  return make_channel_order(head_dim, first).error().code;
}

TEST(Channels, LoudOnesComeFirstAndTheOthersKeepTheirOrder) {
  EXPECT_EQ(make_channel_order(8, Channels{1, 4, 7}).value(), (Channels{1, 4, 7, 0, 2, 3, 5, 6}));
  EXPECT_EQ(make_channel_order(4, Channels{}).value(), (Channels{0, 1, 2, 3}));
  EXPECT_EQ(make_channel_order(4, Channels{0, 1, 2, 3}).value(), (Channels{0, 1, 2, 3}));
}

TEST(Channels, ThatDoNotAscendOrAreNotThereAreRefused) {
  EXPECT_EQ(order_error(8, {4, 1}), ErrorCode::kCorrupt);
  EXPECT_EQ(order_error(8, {4, 4}), ErrorCode::kCorrupt);
  EXPECT_EQ(order_error(8, {1, 8}), ErrorCode::kCorrupt);
  EXPECT_EQ(order_error(8, {65535}), ErrorCode::kCorrupt);
  EXPECT_EQ(order_error(2, {0, 1, 2}), ErrorCode::kCorrupt);
}

TEST(Channels, PutUndoesTake) {
  const Channels order = make_channel_order(8, Channels{1, 4, 7}).value();
  std::vector<float> x(8), taken(8), back(8);
  std::iota(x.begin(), x.end(), 10.0f);
  take_channels(order, x, taken);
  EXPECT_EQ(taken, (std::vector<float>{11, 14, 17, 10, 12, 13, 15, 16}));
  put_channels(order, taken, back);
  EXPECT_EQ(back, x);
}

TEST(Channels, NoOrderLeavesAllAsTheyAre) {
  const std::vector<float> x = {3.0f, 1.0f, 2.0f};
  std::vector<float> taken(3), back(3);
  take_channels({}, x, taken);
  put_channels({}, x, back);
  EXPECT_EQ(taken, x);
  EXPECT_EQ(back, x);
}

}  // namespace channels_test
}  // namespace tqcache::codec
