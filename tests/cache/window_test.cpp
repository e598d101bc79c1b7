#include "tqcache/cache/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::cache {
namespace window_test {

using test::must;
using testing::HasSubstr;

constexpr HeadShape kShape = {2, 3};

float value_of(std::size_t tensor, std::int64_t head, std::int64_t token, std::int64_t i) {
  return static_cast<float>(((static_cast<std::int64_t>(tensor) * 2 + head) * 3 + i) * 1000 +
                            token);
}

// The positions of a window's tokens in a cache of n_tokens.
std::vector<std::int64_t> positions_of(const Window& window, std::int64_t n_tokens) {
  std::vector<std::int64_t> positions;
  const std::int64_t n_held = std::min(window.size, n_tokens);
  for (std::int64_t i = 0; i < n_held; ++i) {
    const bool is_kept = n_tokens <= window.size || i < window.keep;
    positions.push_back(is_kept ? i : n_tokens - n_held + i);
  }
  return positions;
}

// K or V of a window as files have it.
AlignedBytes array_of(std::size_t tensor, const Window& window, std::int64_t n_tokens,
                      Dtype dtype) {
  std::vector<float> values;
  for (std::int64_t head = 0; head < 2; ++head) {
    for (const std::int64_t t : positions_of(window, n_tokens)) {
      for (std::int64_t i = 0; i < 3; ++i) values.push_back(value_of(tensor, head, t, i));
    }
  }
  AlignedBytes data(values.size() * dtype_size(dtype));
  store_f32(dtype, values, data.data());
  return data;
}

WindowLayer make_layer(Window window, std::int64_t n_tokens, Dtype dtype = Dtype::kF32) {
  const auto tensor = [&](std::size_t index) {
    return scatter_window(kShape, window, dtype, array_of(index, window, n_tokens, dtype),
                          n_tokens);
  };
  return {{kShape, tensor(0), tensor(1)}, window};
}

void append_tokens(WindowLayer& layer, std::int64_t first, std::int64_t n) {
  for (std::size_t tensor = 0; tensor < 2; ++tensor) {
    std::vector<float> rows;
    for (std::int64_t t = first; t < first + n; ++t) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t i = 0; i < 3; ++i) rows.push_back(value_of(tensor, head, t, i));
      }
    }
    append(tensor == 0 ? layer.attention.k : layer.attention.v, kShape, first, rows);
  }
  advance_window(layer, first + n);
}

Cache cache_of(WindowLayer layer, std::int64_t n_tokens) {
  Cache cache;
  cache.tokens.assign(static_cast<std::size_t>(n_tokens), 7);
  cache.layers.emplace_back(std::move(layer));
  return cache;
}

void expect_arrays(const WindowLayer& layer, std::int64_t n_tokens) {
  const AttentionLayer& attention = layer.attention;
  EXPECT_EQ(gather_window(layer, attention.k, n_tokens),
            array_of(0, layer.window, n_tokens, dense_dtype(attention.k)));
  EXPECT_EQ(gather_window(layer, attention.v, n_tokens),
            array_of(1, layer.window, n_tokens, dense_dtype(attention.v)));
}

std::vector<AlignedBytes>& key_blocks(WindowLayer& layer) {
  return std::get<DenseTensor>(layer.attention.k).blocks;
}

TEST(Window, IsScatteredAndGatheredWithoutAChange) {
  for (const std::int64_t n_tokens : {0, 1, 5, 255, 256, 257, 300, 1000}) {
    for (const Window window : {Window{1, 0}, {5, 0}, {5, 4}, {256, 0}, {300, 0}, {300, 260}}) {
      SCOPED_TRACE(testing::Message() << n_tokens << " " << window.size << " " << window.keep);
      const WindowLayer layer = make_layer(window, n_tokens);
      must(validate(cache_of(layer, n_tokens)));
      expect_arrays(layer, n_tokens);
    }
  }
}

TEST(Window, HoldsTheNewestTokensAfterAnyAppends) {
  for (const Window window : {Window{1, 0}, {7, 0}, {7, 3}, {300, 0}, {300, 270}}) {
    for (const std::int64_t n_before : {0, 6, 250, 256, 900}) {
      SCOPED_TRACE(testing::Message() << n_before << " " << window.size << " " << window.keep);
      WindowLayer layer = make_layer(window, n_before);
      std::int64_t n_tokens = n_before;
      for (int i = 0; i < 20; ++i) {
        const std::int64_t n =
            std::min<std::int64_t>(i * 5 + 1, kTokenBlock - n_tokens % kTokenBlock);
        append_tokens(layer, n_tokens, n);
        n_tokens += n;
        must(validate(cache_of(layer, n_tokens)));
      }
      expect_arrays(layer, n_tokens);
    }
  }
}

TEST(Window, GivesBlocksBehindTheWindowBack) {
  WindowLayer layer = make_layer({10, 0}, 255);
  append_tokens(layer, 255, 1);
  append_tokens(layer, 256, 8);
  const auto& blocks = key_blocks(layer);
  EXPECT_FALSE(blocks[0].empty());  // token 254 is one of the newest ten
  append_tokens(layer, 264, 2);
  EXPECT_TRUE(blocks[0].empty());
  EXPECT_FALSE(blocks[1].empty());
}

TEST(Window, LeavesTheBlocksOfKeptTokens) {
  WindowLayer layer = make_layer({10, 2}, 600);
  const auto& blocks = key_blocks(layer);
  EXPECT_FALSE(blocks[0].empty());
  EXPECT_TRUE(blocks[1].empty());
  EXPECT_FALSE(blocks[2].empty());
}

TEST(Window, CountsItsTokensAndTheMemoryOfItsBlocks) {
  const Cache cache = cache_of(make_layer({10, 0}, 300, Dtype::kF16), 300);
  EXPECT_EQ(byte_count(cache).used, 2u * 2 * 10 * 3 * 2);
  EXPECT_EQ(byte_count(cache).allocated, 2u * 2 * 256 * 3 * 2);
}

TEST(Window, IsWrittenAndComparedWithoutTheTokensOutside) {
  for (const std::int64_t keep : {0, 3}) {
    const Cache cache = cache_of(make_layer({10, keep}, 300), 300);
    Cache other = cache;
    auto& block = key_blocks(std::get<WindowLayer>(other.layers[0]))[1];
    block[5] ^= std::byte{1};  // of token 256
    const auto bytes_of = [](const Cache& each) {
      return must(format::write_cache_bytes(each, {}));
    };
    EXPECT_EQ(bytes_of(other), bytes_of(cache));
    EXPECT_EQ(bytes_of(must(format::read_cache(*memory_source(bytes_of(cache))))), bytes_of(cache));
    EXPECT_TRUE(must(diff(other, cache, 1)).arrays_equal);
    block[43 * 12] ^= std::byte{1};
    EXPECT_FALSE(must(diff(cache, other, 1)).arrays_equal);
  }
}

TEST(Window, IsValidated) {
  const auto error_of = [](const std::function<void(WindowLayer&)>& change) {
    WindowLayer layer = make_layer({10, 0}, 300);
    change(layer);
    const auto checked = validate(cache_of(std::move(layer), 300));
    EXPECT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
    return checked.ok() ? std::string() : checked.error().message;
  };
  EXPECT_THAT(error_of([](auto& layer) { layer.window.keep = 1; }),
              HasSubstr("k: a dense token block of the wrong size"));
  EXPECT_THAT(error_of([](auto& layer) { layer.window.size = 100; }),
              HasSubstr("k: a dense token block of the wrong size"));
  EXPECT_THAT(error_of([](auto& layer) { key_blocks(layer).pop_back(); }),
              HasSubstr("1 dense token blocks where 2 belong"));
  EXPECT_THAT(error_of([](auto& layer) { key_blocks(layer)[1].clear(); }),
              HasSubstr("a dense token block of the wrong size"));
}

}  // namespace window_test
}  // namespace tqcache::cache
