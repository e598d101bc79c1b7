// What a file cannot grow to be is refused, and leaves it as it was.

#include <gtest/gtest.h>

#include <numeric>

#include "append_fixture.h"
#include "tqcache/cache.h"

namespace tqcache::test {
namespace append_mismatch_test {

using cache::Cache;
using format::CacheAppender;

cache::AttentionLayer& attention(Cache& cache, std::size_t layer) {
  return std::get<cache::AttentionLayer>(cache.layers[layer]);
}
cache::TurboTensor& turbo_keys(Cache& cache, std::size_t layer) {
  return std::get<cache::TurboTensor>(attention(cache, layer).k);
}
cache::StateLayer& arrays(Cache& cache, std::size_t layer) {
  return std::get<cache::StateLayer>(cache.layers[layer]);
}

struct Plan {
  std::int64_t n_tokens = 300;
  Dtype dtype = Dtype::kF16;
  std::int64_t head_dim = 4;
  int bits = 4;
  cache::Centering center = cache::Centering::kPostRope;
  std::int64_t n_sinks = 0;
  std::int64_t window = 300;
  std::uint64_t seed = 1;
};

// Layers: dense, turbo, turbo with outlier channels, arrays, rotating.
Cache make(const Plan& plan = {}) {
  cache::TensorPlan turbo;
  turbo.codec.bits = plan.bits;
  turbo.center = plan.center;
  turbo.n_sinks = plan.n_sinks;
  cache::TensorPlan mixed;
  mixed.codec = {.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 8, .outlier_bits = 3};
  return CacheBuilder(plan.n_tokens, plan.seed)
      .dense({1, plan.head_dim}, plan.dtype)
      .tensors({1, 32}, Dtype::kF16, turbo, Dtype::kF16, turbo)
      .tensors({1, 32}, Dtype::kF16, mixed, Dtype::kF16, mixed)
      .arrays()
      .rotating({{1, 4}, plan.window, 0})
      .build();
}

class Mismatch : public testing::Test {
 protected:
  void expect_refused(const Cache& other, ErrorCode code, std::string_view part) const {
    expect_error(dropped(file_.append(other)), code, part);
    EXPECT_EQ(file_.bytes(), before_);
  }
  void expect_mismatch(const Cache& other, std::string_view part) const {
    expect_refused(other, ErrorCode::kMismatch, part);
  }

  const Cache cache_ = make();
  const CacheOnDisk file_{cache_};
  const Bytes before_ = file_.bytes();
};

TEST_F(Mismatch, OfTheModel) {
  Cache other = cache_;
  other.identity.weights_fingerprint[0] ^= std::byte{1};
  expect_mismatch(other, "weights fingerprint");
  other = cache_;
  other.identity.rope.base = 5;
  expect_mismatch(other, "RoPE");
}

TEST_F(Mismatch, OfTheTokens) {
  Cache other = cache_;
  other.tokens[123] ^= 1;
  expect_mismatch(other, "token 123 is another than in the file");
}

TEST(MismatchOfTheTokens, NamesHowManyThereAre) {
  const Cache cache = CacheBuilder(300).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  expect_error(dropped(file.append(must(cache::truncate(cache, 299)))), ErrorCode::kMismatch,
               "299 tokens where the file has 300");
}

TEST_F(Mismatch, OfTheLayers) {
  Cache other = cache_;
  other.layers.pop_back();
  expect_mismatch(other, "4 layers where the file has 5");
  other = cache_;
  std::swap(other.layers[0], other.layers[3]);
  expect_mismatch(other, "layer 0: tqcache.arrays.v1 where the file has tqcache.attention.v1");
  expect_mismatch(make({.head_dim = 5}), "layer 0: another shape");
  expect_mismatch(make({.dtype = Dtype::kBF16}), "layer 0: k: another dtype");
  other = cache_;
  attention(other, 0).v =
      std::get<cache::AttentionLayer>(make({.dtype = Dtype::kBF16}).layers[0]).v;
  expect_mismatch(other, "layer 0: v: another dtype");
  expect_mismatch(make({.window = 400}), "layer 4: another window");
  other = cache_;
  std::get<cache::WindowLayer>(other.layers[4]).window.keep = 1;
  expect_mismatch(other, "layer 4: another window");
}

TEST_F(Mismatch, OfTheArrays) {
  Cache other = cache_;
  arrays(other, 3).arrays[1].name = "other";
  expect_mismatch(other, "layer 3: other arrays");
  other = cache_;
  std::swap(arrays(other, 3).arrays[1].shape[0], arrays(other, 3).arrays[1].shape[1]);
  expect_mismatch(other, "layer 3: other arrays");
  other = cache_;
  arrays(other, 3).arrays.pop_back();
  expect_mismatch(other, "layer 3: other arrays");
  other = cache_;
  arrays(other, 3).arrays[0].dtype = Dtype::kF16;
  expect_mismatch(other, "layer 3: other arrays");
}

TEST_F(Mismatch, OfHowATensorIsKept) {
  Cache other = cache_;
  other.layers[1] = other.layers[2];
  expect_mismatch(other,
                  "layer 1: k: tqcache.turbo_mixed.v1 where the file has "
                  "tqcache.turbo_mse.v1");
  expect_mismatch(make({.bits = 3}), "layer 1: k: another codec");
  expect_mismatch(make({.center = cache::Centering::kNone}), "layer 1: k: other centering");
  expect_mismatch(make({.n_sinks = 3}), "layer 1: k: another number of sink tokens");
  other = cache_;
  cache::KvCodec& codec = turbo_keys(other, 1).codec;
  codec = must(remade(codec, other.identity.rope, [&](cache::QuantSpec& quant) {
    quant.factors.assign(quant.mean.size(), 8);
  }));
  expect_mismatch(other, "layer 1: k: other factors of keys");
}

TEST_F(Mismatch, OfWhatTheFirstPackedBlockFixed) {
  Cache other = cache_;
  edit_codec(turbo_keys(other, 1).codec, [](auto& state) { state.mean.values[5] += 1; });
  expect_mismatch(other, "layer 1: k: another mean");
  other = cache_;
  cache::KvCodec& codec = turbo_keys(other, 2).codec;
  codec = must(remade(codec, other.identity.rope, [](cache::QuantSpec& quant) {
    const std::uint16_t first = quant.outliers.front() == 0 ? 1 : 0;
    std::iota(quant.outliers.begin(), quant.outliers.end(), first);
  }));
  expect_mismatch(other, "layer 2: k: other outlier channels");
}

TEST_F(Mismatch, OfACacheThatIsNone) {
  Cache other = cache_;
  attention(other, 0).k = cache::DenseTensor{};
  expect_refused(other, ErrorCode::kCorrupt, "layer 0");
}

// Files that tell no token ids.

TEST(AppendHidden, KeepsThemHidden) {
  std::mt19937 random(5);
  Cache cache = CacheBuilder(100).turbo({1, 32}, 4, 4).build();
  const CacheOnDisk file(cache, {.hide_tokens = true});
  for (const std::int64_t n : {0, 100, 56, 1, 300}) {
    grow(cache, random, n);
    CacheAppender appender = must(CacheAppender::open(file.path()));
    const Cache read = must(appender.read());
    EXPECT_FALSE(cache::tokens_known(read));
    const auto report = must(appender.append(cache, {.hide_tokens = n == 1}));
    EXPECT_EQ(report.bytes_written == 0, n == 0);
    Cache hidden = cache;
    cache::hide_tokens(hidden);
    EXPECT_EQ(difference(must(load(file.bytes())), hidden), "");
    EXPECT_TRUE(damage_of(file.bytes()).empty());
    const Bytes fresh = must(format::write_cache_bytes(cache, {.hide_tokens = true}));
    EXPECT_EQ(info_of(file.bytes()).content_name, info_of(fresh).content_name);
  }
  EXPECT_EQ(info_of(file.bytes()).required_features,
            format::kFeatureGaps | format::kFeatureHiddenTokens);
}

TEST(AppendHidden, RefusesOtherTokens) {
  const Cache cache = CacheBuilder(300).dense({1, 4}).build();
  const CacheOnDisk file(cache, {.hide_tokens = true});
  const Bytes before = file.bytes();
  for (const std::size_t token : {0u, 255u, 256u, 299u}) {
    Cache other = grown(cache, 10);
    other.tokens[token] ^= 1;
    expect_error(dropped(file.append(other)), ErrorCode::kMismatch,
                 token < 256 ? "token block 0: other tokens" : "token block 1: other tokens");
  }
  EXPECT_EQ(file.bytes(), before);
  Cache longer = grown(cache, 10);
  longer.tokens[300] ^= 1;  // a new one
  EXPECT_TRUE(file.append(longer).ok());
}

TEST(AppendHidden, RefusesACacheThatDoesNotKnowItsTokens) {
  const Cache cache = CacheBuilder(3).dense({1, 4}).build();
  Cache hidden = cache;
  cache::hide_tokens(hidden);
  for (const bool hide : {false, true}) {
    const CacheOnDisk file(cache, {.hide_tokens = hide});
    expect_error(dropped(file.append(hidden)), ErrorCode::kUnsupported,
                 "the tokens of the cache are hidden");
  }
}

TEST(AppendHidden, RefusesAFileThatHasNoHashesEither) {
  const CacheOnDisk file(CacheBuilder(3).dense({1, 4}).forget_tokens().build());
  expect_error(dropped(file.append(CacheBuilder(3).dense({1, 4}).build())), ErrorCode::kUnsupported,
               "does not tell which tokens it holds");
}

}  // namespace append_mismatch_test
}  // namespace tqcache::test
