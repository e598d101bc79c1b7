#include "tqcache/cache/window_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/diff.h"
#include "tqcache/format/cache_file.h"

namespace tqcache::cache {
namespace window_rows_test {

using test::must;
using testing::HasSubstr;

constexpr HeadShape kShape = {2, 3};

float value_of(std::size_t side, std::int64_t head, std::int64_t token, std::int64_t i) {
  return static_cast<float>(((static_cast<std::int64_t>(side) * 2 + head) * 3 + i) * 1000 + token);
}

// A rotating layer, closed, of a cache of n_tokens.
ArraysLayer make_layer(std::int64_t size, std::int64_t n_tokens, Dtype dtype = Dtype::kF32) {
  ArraysLayer layer;
  layer.window = Window{kShape, size, 0};
  for (std::size_t side = 0; side < 2; ++side) {
    std::vector<float> values;
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t t = window_begin(*layer.window, n_tokens); t < n_tokens; ++t) {
        for (std::int64_t i = 0; i < 3; ++i) values.push_back(value_of(side, head, t, i));
      }
    }
    AlignedBytes data(values.size() * dtype_size(dtype));
    store_f32(dtype, values, data.data());
    layer.arrays.push_back({std::string(side == 0 ? kWindowKeys : kWindowValues), dtype,
                            window_array_shape(*layer.window, n_tokens), std::move(data)});
  }
  return layer;
}

void append_tokens(ArraysLayer& layer, std::int64_t first, std::int64_t n) {
  for (std::size_t side = 0; side < 2; ++side) {
    std::vector<float> rows;
    for (std::int64_t t = first; t < first + n; ++t) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t i = 0; i < 3; ++i) rows.push_back(value_of(side, head, t, i));
      }
    }
    append(side == 0 ? layer.rows->k : layer.rows->v, kShape, first, rows);
  }
  advance_window(layer, first + n);
}

Cache cache_of(ArraysLayer layer, std::int64_t n_tokens) {
  Cache cache;
  cache.tokens.assign(static_cast<std::size_t>(n_tokens), 7);
  cache.layers.emplace_back(std::move(layer));
  return cache;
}

void expect_same(const ArraysLayer& a, const ArraysLayer& b) {
  ASSERT_EQ(a.arrays.size(), b.arrays.size());
  for (std::size_t i = 0; i < a.arrays.size(); ++i) {
    EXPECT_EQ(a.arrays[i].shape, b.arrays[i].shape);
    EXPECT_EQ(a.arrays[i].data, b.arrays[i].data);
  }
}

TEST(WindowRows, OpensAndClosesWithoutAChange) {
  for (const std::int64_t n_tokens : {0, 1, 5, 255, 256, 257, 300, 1000}) {
    for (const std::int64_t size : {1, 5, 256, 300}) {
      const ArraysLayer before = make_layer(size, n_tokens);
      ArraysLayer layer = before;
      open_window(layer, n_tokens);
      open_window(layer, n_tokens);
      must(validate(cache_of(layer, n_tokens)));
      close_window(layer, n_tokens);
      close_window(layer, n_tokens);
      EXPECT_FALSE(layer.rows);
      expect_same(layer, before);
    }
  }
}

TEST(WindowRows, HoldsTheNewestTokensAfterAnyAppends) {
  for (const std::int64_t size : {1, 7, 300}) {
    for (const std::int64_t n_before : {0, 6, 250, 256, 900}) {
      ArraysLayer layer = make_layer(size, n_before);
      open_window(layer, n_before);
      std::int64_t n_tokens = n_before;
      for (int i = 0; i < 20; ++i) {
        const std::int64_t n =
            std::min<std::int64_t>(i * 5 + 1, kTokenBlock - n_tokens % kTokenBlock);
        append_tokens(layer, n_tokens, n);
        n_tokens += n;
        must(validate(cache_of(layer, n_tokens)));
      }
      close_window(layer, n_tokens);
      expect_same(layer, make_layer(size, n_tokens));
    }
  }
}

TEST(WindowRows, GivesBlocksBehindTheWindowBack) {
  ArraysLayer layer = make_layer(10, 255);
  open_window(layer, 255);
  append_tokens(layer, 255, 1);
  append_tokens(layer, 256, 8);
  const auto& blocks = std::get<DenseSide>(layer.rows->v).blocks;
  EXPECT_FALSE(blocks[0].empty());  // token 254 is one of the newest ten
  append_tokens(layer, 264, 2);
  EXPECT_TRUE(blocks[0].empty());
  EXPECT_FALSE(blocks[1].empty());
}

TEST(WindowRows, CountsWhatTheWindowHoldsAndWhatItTakes) {
  const Cache closed = cache_of(make_layer(10, 300, Dtype::kF16), 300);
  Cache open = closed;
  open_window(std::get<ArraysLayer>(open.layers[0]), 300);
  EXPECT_EQ(byte_count(closed).used, 2u * 2 * 10 * 3 * 2);
  EXPECT_EQ(byte_count(closed).allocated, byte_count(closed).used);
  EXPECT_EQ(byte_count(open).used, byte_count(closed).used);
  EXPECT_EQ(byte_count(open).allocated, 2u * 2 * 256 * 3 * 2);
}

TEST(WindowRows, AreWrittenAndComparedAsIfTheyWereClosed) {
  const Cache closed = cache_of(make_layer(10, 300), 300);
  Cache open = closed;
  open_window(std::get<ArraysLayer>(open.layers[0]), 300);
  EXPECT_EQ(must(format::write_cache_bytes(open, {})), must(format::write_cache_bytes(closed, {})));
  EXPECT_TRUE(must(diff(open, closed, 1)).arrays_equal);
  auto& block = std::get<DenseSide>(std::get<ArraysLayer>(open.layers[0]).rows->k).blocks[1];
  block[40 * 12] ^= std::byte{1};
  EXPECT_FALSE(must(diff(closed, open, 1)).arrays_equal);
}

TEST(WindowRows, AreValidated) {
  const auto error_of = [](const std::function<void(ArraysLayer&)>& change) {
    ArraysLayer layer = make_layer(10, 300);
    open_window(layer, 300);
    change(layer);
    const auto checked = validate(cache_of(std::move(layer), 300));
    EXPECT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
    return checked.ok() ? std::string() : checked.error().message;
  };
  EXPECT_THAT(error_of([](auto& layer) { layer.window->keep = 1; }),
              HasSubstr("rows of no window"));
  EXPECT_THAT(error_of([](auto& layer) { layer.window.reset(); }), HasSubstr("rows of no window"));
  EXPECT_THAT(error_of([](auto& layer) { layer.arrays[1].dtype = Dtype::kF16; }),
              HasSubstr("values: rows of another kind"));
  EXPECT_THAT(error_of([](auto& layer) { layer.arrays[0].data.resize(4); }),
              HasSubstr("keys: rows of another kind"));
  EXPECT_THAT(error_of([](auto& layer) { std::get<DenseSide>(layer.rows->k).blocks.pop_back(); }),
              HasSubstr("0 dense token blocks where 1 belong"));
  EXPECT_THAT(error_of([](auto& layer) { std::get<DenseSide>(layer.rows->k).blocks[1].clear(); }),
              HasSubstr("a dense token block of the wrong size"));
}

}  // namespace window_rows_test
}  // namespace tqcache::cache
