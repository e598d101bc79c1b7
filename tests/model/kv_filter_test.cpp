#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/decoder.h"
#include "tqcache/quantize.h"

namespace tqcache::model {
namespace kv_filter_test {

using test::must;
using testing::HasSubstr;

constexpr cache::HeadShape kShape = {2, 64};
constexpr std::size_t kRow = 128;  // n_kv_heads * head_dim

// The rows [n, n_kv_heads, head_dim] of a tensor's tokens [first, first + n), of one token block.
std::vector<float> read_rows(const cache::Tensor& tensor, std::int64_t n_tokens, std::size_t first,
                             std::size_t n) {
  const auto block = static_cast<std::int64_t>(first / 256);
  const auto in_block = static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block));
  std::vector<float> head(in_block * 64);
  std::vector<float> rows(n * kRow);
  for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
    cache::read_block(tensor, kShape, n_tokens, block, static_cast<std::int64_t>(kv_head), head);
    for (std::size_t i = 0; i < n; ++i) {
      std::copy_n(head.data() + (first % 256 + i) * 64, 64, rows.data() + i * kRow + kv_head * 64);
    }
  }
  return rows;
}

std::vector<cache::TensorPlan> all_plans() {
  const auto plan = [](codec::CodecSpec spec, cache::Centering center, std::int64_t n_sinks) {
    cache::TensorPlan tensor;
    tensor.codec = spec;
    tensor.center = center;
    tensor.n_sinks = n_sinks;
    return tensor;
  };
  using enum cache::Centering;
  return {plan({.bits = 4}, kPreRope, 0),
          plan({.bits = 3}, kNone, 0),
          plan({.bits = 2}, kPostRope, 6),
          plan({.mode = codec::Mode::kProd, .bits = 3}, kPreRope, 0),
          plan({.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3},
               kPreRope, 3),
          plan({.mode = codec::Mode::kAffine, .group_size = 32}, kPreRope, 0)};
}

const cache::AttentionLayer& first_layer(const cache::Cache& cache) {
  return std::get<cache::AttentionLayer>(cache.layers.front());
}

TEST(CodingFilter, GivesWhatTheTensorsKeepOfTheSameTokens) {
  const cache::Cache dense = test::CacheBuilder(512).dense(kShape, Dtype::kF32).build();
  for (const cache::TensorPlan& plan : all_plans()) {
    const cache::Cache turbo =
        must(cache::convert(dense, {.keys = plan, .values = plan, .n_threads = 1}));
    const KvFilter filter = coding_filter(turbo);
    // Whole blocks, and tokens from the middle of one.
    const std::pair<std::size_t, std::size_t> kRuns[] = {
        {0, 256}, {256, 256}, {1, 9}, {300, 100}, {511, 1}};
    for (const auto& [first, n] : kRuns) {
      SCOPED_TRACE(std::string(codec::mode_word(plan.codec.mode)) + " from token " +
                   std::to_string(first));
      std::vector<float> k = read_rows(first_layer(dense).k, 512, first, n);
      std::vector<float> v = read_rows(first_layer(dense).v, 512, first, n);
      must(filter(0, static_cast<std::int64_t>(first), k, v));
      EXPECT_EQ(k, read_rows(first_layer(turbo).k, 512, first, n));
      EXPECT_EQ(v, read_rows(first_layer(turbo).v, 512, first, n));
    }
  }
}

TEST(CodingFilter, LeavesDenseTensorsAlone) {
  const cache::Cache dense = test::CacheBuilder(256).dense(kShape, Dtype::kF32).build();
  cache::TensorPlan none;
  none.dense = true;
  const cache::Cache turbo = must(cache::convert(dense, {.keys = none, .n_threads = 1}));
  std::vector<float> k = read_rows(first_layer(dense).k, 256, 0, 256);
  std::vector<float> v = read_rows(first_layer(dense).v, 256, 0, 256);
  const std::vector<float> k_before = k, v_before = v;
  must(coding_filter(turbo)(0, 0, k, v));
  EXPECT_EQ(k, k_before);
  EXPECT_NE(v, v_before);
}

// The same keys and values, as a window as wide as they are.
cache::Cache as_window(cache::Cache cache) {
  cache.layers.front() = cache::WindowLayer{first_layer(cache), {cache.n_tokens(), 0}};
  return cache;
}

TEST(CodingFilter, CodesTurboWindowsAsFullAttention) {
  const cache::Cache dense = test::CacheBuilder(512).dense(kShape, Dtype::kF32).build();
  const cache::ConvertOptions options{.n_threads = 1, .windows = cache::WindowMode::kTurboCentered};
  const cache::Cache full = must(cache::convert(dense, options));
  const cache::Cache window = must(cache::convert(as_window(dense), options));
  const cache::Cache kept = must(cache::convert(as_window(dense), {.n_threads = 1}));
  const std::vector<float> k = read_rows(first_layer(dense).k, 512, 256, 256);
  const std::vector<float> v = read_rows(first_layer(dense).v, 512, 256, 256);
  const auto coded = [&](const cache::Cache& cache) {
    std::pair<std::vector<float>, std::vector<float>> rows = {k, v};
    must(coding_filter(cache)(0, 256, rows.first, rows.second));
    return rows;
  };
  EXPECT_EQ(coded(window), coded(full));
  EXPECT_EQ(coded(kept), std::pair(k, v));
}

TEST(CodingFilter, NamesWhatItCannotCode) {
  const cache::Cache dense = test::CacheBuilder(256).dense(kShape, Dtype::kF32).build();
  const cache::Cache turbo = must(cache::convert(dense, {.n_threads = 1}));
  std::vector<float> k(3 * kRow, 1.0f), v(3 * kRow, 1.0f);
  v[kRow + 64] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(coding_filter(turbo)(0, 7, k, v),
              test::FailsWith(ErrorCode::kCorrupt,
                              HasSubstr("layer 0 v: head 1, from token 7 on: token 1")));
}

TEST(CodingFilter, RefusesATensorWhoseMeanIsNotKnown) {
  const cache::Cache dense = test::CacheBuilder(100).dense(kShape, Dtype::kF32).build();
  const cache::Cache turbo = must(cache::convert(dense, {.n_threads = 1}));
  std::vector<float> k(kRow, 1.0f), v(kRow, 1.0f);
  EXPECT_THAT(
      coding_filter(turbo)(0, 0, k, v),
      test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("layer 0 k: nothing is packed")));
}

}  // namespace kv_filter_test
}  // namespace tqcache::model
