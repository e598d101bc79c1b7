#include "tqcache/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace cache_test {

using test::attention;
using test::random_cache;
using testing::HasSubstr;

constexpr int kDenseBits = 16;

// The error of validate() after `change` was made to a good cache of 600 tokens, turbo if `bits`.
Error error_after(int bits, const std::function<void(Cache&)>& change) {
  Cache cache = convert(random_cache(1, 600), test::options_of_bits(bits, bits)).value();
  EXPECT_TRUE(validate(cache));
  change(cache);
  const auto checked = validate(cache);
  return checked ? Error{ErrorCode::kIo, "no error"} : checked.error();
}

TEST(Cache, IsValidAtEveryBlockBorder) {
  for (const std::int64_t n : {0, 1, 255, 256, 257, 511, 512, 513}) {
    EXPECT_TRUE(validate(random_cache(1, n))) << n;
    EXPECT_TRUE(validate(convert(random_cache(1, n), {}).value())) << n;
  }
}

TEST(Cache, MakeCacheRefusesImpossibleShapes) {
  for (const HeadShape shape : {HeadShape{0, 64}, HeadShape{2, 0}, HeadShape{kMaxKvHeads + 1, 64},
                                HeadShape{2, kMaxHeadDim + 1}}) {
    const LayerPlan plan{shape, Dtype::kF16};
    const auto made = make_cache({}, {&plan, 1});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  }
  const std::vector<LayerPlan> many(kMaxLayers + 1, LayerPlan{{1, 64}, Dtype::kF16});
  EXPECT_FALSE(make_cache({}, many));
}

TEST(CacheValidate, RefusesAMissingDenseBlock) {
  const Error error = error_after(kDenseBits, [](Cache& cache) {
    std::get<DenseTensor>(attention(cache, 1).v).blocks.pop_back();
  });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("layer 1: v: 2 dense token blocks where 3 belong"));
}

TEST(CacheValidate, RefusesADenseBlockOfTheWrongSize) {
  const Error error = error_after(kDenseBits, [](Cache& cache) {
    std::get<DenseTensor>(attention(cache, 0).k).blocks[1].pop_back();
  });
  EXPECT_THAT(error.message, HasSubstr("layer 0: k: a dense token block of the wrong size"));
}

TEST(CacheValidate, RefusesMorePackedBlocksThanTokens) {
  const Error error = error_after(4, [](Cache& cache) { cache.tokens.resize(300); });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("more packed token blocks than tokens"));
}

TEST(CacheValidate, RefusesATailOfTwoBlocks) {
  const Error error = error_after(
      4, [](Cache& cache) { std::get<TurboTensor>(attention(cache, 0).k).packed.pop_back(); });
  EXPECT_THAT(error.message, HasSubstr("a token block before the last is not packed"));
}

// Some of the bytes of a packed block, where they are.
SharedBytes piece(const SharedBytes& bytes, std::size_t first, std::size_t n) {
  auto owner = std::make_shared<const SharedBytes>(bytes);
  const ByteView view = bytes.view().subspan(first, n);
  return {std::move(owner), view};
}

TEST(CacheValidate, RefusesAPackedBlockOfTheWrongSize) {
  const auto shorten = [](Cache& cache) {
    SharedBytes& bytes = std::get<TurboTensor>(attention(cache, 0).k).packed[0].bytes;
    bytes = piece(bytes, 0, bytes.size() - 1);
  };
  const auto add_sinks = [](Cache& cache) {
    test::edit_codec(std::get<TurboTensor>(attention(cache, 1).v).codec,
                     [](auto& state) { state.n_sinks = 1; });
  };
  EXPECT_THAT(error_after(4, shorten).message, HasSubstr("packed token block of the wrong"));
  EXPECT_THAT(error_after(4, add_sinks).message,
              HasSubstr("layer 1: v: a packed token block of the wrong size"));
}

TEST(CacheValidate, RefusesAPackedBlockThatIsNotAligned) {
  const Error error = error_after(4, [](Cache& cache) {
    SharedBytes& bytes = std::get<TurboTensor>(attention(cache, 0).k).packed[1].bytes;
    AlignedBytes moved(bytes.size() + 32);
    std::ranges::copy(bytes.view(), moved.begin() + 32);
    bytes = piece(SharedBytes(std::move(moved)), 32, bytes.size());
  });
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_THAT(error.message, HasSubstr("not aligned"));
}

TEST(KvCodec, RefusesSinkTokensBeyondABlock) {
  const Cache cache = convert(random_cache(1, 300), {}).value();
  for (const std::int64_t n : {-1, 257}) {
    const auto made = test::remade(std::get<TurboTensor>(attention(cache, 0).k).codec,
                                   cache.identity.rope, [&](QuantSpec& q) { q.n_sinks = n; });
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(made.error().message, std::to_string(n) + " sink tokens");
  }
}

TEST(CacheValidate, RefusesACodecOfAnotherShapeOrDtype) {
  const auto with_codec = [](HeadShape shape, Dtype dtype) {
    return error_after(4, [&](Cache& cache) {
      auto& tensor = std::get<TurboTensor>(attention(cache, 0).k);
      TensorDesc desc = tensor.codec.describe();
      desc.dtype = dtype;
      desc.quant->mean.clear();
      tensor.codec = KvCodec::make(desc, shape, tensor.codec.order(), cache.identity.rope).value();
    });
  };
  EXPECT_THAT(with_codec({3, 64}, Dtype::kF16).message, HasSubstr("another number of kv heads"));
  EXPECT_THAT(with_codec({2, 64}, Dtype::kF32).message, HasSubstr("a tail of another dtype"));
}

TEST(CacheValidate, RefusesACodecForAnotherHeadDim) {
  const Error error = error_after(4, [](Cache& cache) {
    std::get<TurboTensor>(attention(cache, 0).k).codec =
        make_codec({}, codec::BlockOrder::kKeys, {2, 128}, Dtype::kF16, Rope()).value();
  });
  EXPECT_THAT(error.message, HasSubstr("codec for head_dim 128 in a layer of head_dim 64"));
}

TEST(CacheValidate, RefusesValuesInTheOrderOfKeys) {
  const Error error = error_after(4, [](Cache& cache) {
    auto& tensor = std::get<TurboTensor>(attention(cache, 1).v);
    tensor.codec = KvCodec::make(tensor.codec.describe(), tensor.codec.shape(),
                                 codec::BlockOrder::kKeys, Rope())
                       .value();
  });
  EXPECT_THAT(error.message, HasSubstr("layer 1: v: codes in the order of the other tensor"));
}

TEST(CacheValidate, RefusesPackedBlocksWithoutOutlierChannels) {
  Cache cache = convert(random_cache(1, 300), preset("turbo2.5").value()).value();
  ASSERT_TRUE(validate(cache));
  test::edit_codec(std::get<TurboTensor>(attention(cache, 0).k).codec,
                   [](auto& state) { state.outliers.orders.clear(); });
  EXPECT_THAT(validate(cache),
              test::FailsWith(ErrorCode::kCorrupt, HasSubstr("without its outlier channels")));
}

TEST(KvCodec, RefusesOutlierChannelsThatDoNotFit) {
  const Cache cache = convert(random_cache(1, 300), preset("turbo2.5").value()).value();
  const KvCodec& codec = std::get<TurboTensor>(attention(cache, 0).k).codec;
  const auto expect_refused = [&](std::string_view part, auto change) {
    const auto made =
        test::remade(codec, cache.identity.rope, [&](QuantSpec& quant) { change(quant.outliers); });
    ASSERT_FALSE(made.ok()) << part;
    EXPECT_EQ(made.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(made.error().message, HasSubstr(part));
  };
  using Channels = std::vector<std::uint16_t>;
  ASSERT_EQ(codec.describe().quant->outliers.size(), 32u);
  expect_refused("31 outlier channels where 32 belong", [](Channels& o) { o.pop_back(); });
  expect_refused("33 outlier channels where 32 belong", [](Channels& o) { o.push_back(63); });
  expect_refused("head 0", [](Channels& o) { std::swap(o[0], o[1]); });
  expect_refused("head 1", [](Channels& o) { o[31] = 64; });
}

TEST(CacheValidate, RefusesAnArrayWhoseBytesAreNotItsShape) {
  Cache cache = random_cache(1, 3);
  cache.layers.emplace_back(
      StateLayer{{NamedArray{"state", Dtype::kF32, {2, 3}, AlignedBytes(24)}}});
  EXPECT_TRUE(validate(cache));
  auto& array = std::get<StateLayer>(cache.layers.back()).arrays[0];
  array.shape = {std::uint64_t{1} << 62, 16};  // times 4 bytes wraps around to 0
  array.data.clear();
  EXPECT_EQ(validate(cache).error().code, ErrorCode::kCorrupt);
}

// A cache of 30 tokens whose layer 2 is rotating, with a window of 8.
Cache with_window() {
  Cache cache = random_cache(1, 30);
  cache.layers.emplace_back(test::rotating_layer({{2, 4}, 8, 7}, 30, Dtype::kF32, Dtype::kBF16));
  return cache;
}

void expect_window_refused(ErrorCode code, std::string_view part,
                           const std::function<void(WindowLayer&)>& change) {
  Cache cache = with_window();
  ASSERT_TRUE(validate(cache));
  change(std::get<WindowLayer>(cache.layers[2]));
  EXPECT_THAT(validate(cache), test::FailsWith(code, HasSubstr("layer 2: " + std::string(part))));
}

TEST(CacheValidate, RefusesAWindowThatIsNone) {
  const auto expect_window = [](ErrorCode code, std::string_view part, HeadShape shape,
                                Window window) {
    expect_window_refused(code, part, [&](WindowLayer& layer) {
      layer.attention.shape = shape;
      layer.window = window;
    });
  };
  constexpr HeadShape kWindowShape{2, 4};
  expect_window(ErrorCode::kCorrupt, "a window of no tokens", kWindowShape, {0, 0});
  expect_window(ErrorCode::kTooLarge, "a window of 16777217", kWindowShape, {kMaxTokens + 1, 0});
  expect_window(ErrorCode::kCorrupt, "8 first tokens kept in a window of 8", kWindowShape, {8, 8});
  expect_window(ErrorCode::kCorrupt, "-1 first tokens", kWindowShape, {8, -1});
  expect_window(ErrorCode::kCorrupt, "a shape has a size below 1", {0, 4}, {8, 0});
  expect_window(ErrorCode::kTooLarge, "head_dim 1025", {2, 1025}, {8, 0});
  expect_window(ErrorCode::kCorrupt, "k: a dense token block of the wrong size", {2, 5}, {8, 0});
}

TEST(Cache, HoldsOfAWindowThatIsNotFullWhatThereIs) {
  for (const std::int64_t n : {0, 1, 7, 8, 9}) {
    Cache cache = random_cache(1, n);
    cache.layers.emplace_back(test::rotating_layer({{2, 4}, 8, 2}, n));
    EXPECT_TRUE(validate(cache)) << n;
    const auto& layer = std::get<WindowLayer>(cache.layers[2]);
    EXPECT_EQ(gather_window(layer, layer.attention.k, n).size(),
              static_cast<std::size_t>(2 * 4 * 2 * std::min<std::int64_t>(n, 8)));
  }
}

void expect_tokens_refused(std::string_view part, const std::function<void(Cache&)>& change) {
  Cache cache = random_cache(1, 300);
  change(cache);
  EXPECT_THAT(validate(cache), test::FailsWith(ErrorCode::kCorrupt, HasSubstr(part)));
}

TEST(CacheValidate, RefusesTokensThatAreNeitherKnownNorHidden) {
  expect_tokens_refused("a token id below 0", [](Cache& c) { c.tokens[7] = -1; });
  expect_tokens_refused("a token id that is not hidden",
                        [](Cache& c) { c.hidden_tokens.emplace(); });
  expect_tokens_refused("a token id that is not hidden", [](Cache& c) {
    hide_tokens(c);
    c.tokens[299] = -2;
  });
}

TEST(CacheValidate, RefusesAnotherNumberOfHashesThanTokenBlocks) {
  expect_tokens_refused("1 hashes for 300 tokens", [](Cache& c) {
    hide_tokens(c);
    c.hidden_tokens->pop_back();
  });
  expect_tokens_refused("3 hashes for 300 tokens", [](Cache& c) {
    hide_tokens(c);
    c.hidden_tokens->emplace_back();
  });
}

Identity some_identity() {
  Identity identity;
  identity.architecture = "qwen3";
  identity.rope = {RopeStyle::kHalfSplit, 64, 1e6};
  identity.weights_fingerprint[0] = std::byte{0xab};
  identity.tokenizer_fingerprint[0] = std::byte{0xcd};
  return identity;
}

Result<void> check_with(const std::function<void(Identity&)>& change) {
  Cache cache;
  cache.identity = some_identity();
  Identity model = some_identity();
  change(model);
  return check_identity(cache, model);
}

TEST(CacheIdentity, AcceptsTheSameModelUnderAnotherName) {
  EXPECT_TRUE(check_with([](Identity& model) { model.model_name = "a copy"; }));
}

TEST(CacheIdentity, NamesBothWeightsFingerprints) {
  const auto checked =
      check_with([](Identity& model) { model.weights_fingerprint[0] = std::byte{0xef}; });
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kMismatch);
  EXPECT_THAT(checked.error().message, HasSubstr("ab00"));
  EXPECT_THAT(checked.error().message, HasSubstr("ef00"));
}

TEST(CacheIdentity, RefusesAnotherTokenizerAdapterRopeOrArchitecture) {
  const std::function<void(Identity&)> changes[] = {
      [](Identity& model) { model.tokenizer_fingerprint[3] = std::byte{1}; },
      [](Identity& model) { model.adapter_fingerprint = Sha256{}; },
      [](Identity& model) { model.rope.base = 1e4; },
      [](Identity& model) { model.rope.n_dims = 32; },
      [](Identity& model) { model.rope.style = RopeStyle::kInterleaved; },
      [](Identity& model) { model.architecture = "llama"; },
  };
  for (const auto& change : changes) {
    const auto checked = check_with(change);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kMismatch);
  }
}

// Fingerprints of different versions are not compared.
TEST(CacheIdentity, ComparesModelFingerprintsOfTheSameVersion) {
  const auto with = [](std::uint8_t version, int seed) {
    Identity identity = some_identity();
    if (version > 0) identity.model_fingerprint = {version, Sha256{std::byte(seed)}};
    return identity;
  };
  const auto check = [](Identity own, Identity model) {
    Cache cache;
    cache.identity = std::move(own);
    return check_identity(cache, model);
  };
  EXPECT_TRUE(check(with(2, 1), with(2, 1)));
  EXPECT_TRUE(check(with(0, 1), with(2, 1)));
  EXPECT_TRUE(check(with(2, 1), with(0, 1)));
  EXPECT_TRUE(check(with(3, 1), with(2, 2)));
  EXPECT_FALSE(share_model_fingerprint(with(0, 1), with(2, 1)));
  EXPECT_FALSE(share_model_fingerprint(with(3, 1), with(2, 1)));
  EXPECT_TRUE(share_model_fingerprint(with(2, 1), with(2, 2)));
  const auto refused = check(with(2, 1), with(2, 2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
  EXPECT_THAT(refused.error().message, HasSubstr("fingerprint of configuration and weights"));
  EXPECT_THAT(refused.error().message, HasSubstr("0200"));
}

TEST(CacheIdentity, FitsNoModelWhenTheCacheIsOfUnknownOrigin) {
  EXPECT_THAT(
      check_identity(Cache{}, Identity{}),
      test::FailsWith(ErrorCode::kMismatch, HasSubstr("does not say which model it belongs to")));
}

TEST(Cache, CountsBytesOfAllLayers) {
  Cache cache = random_cache(1, 10);
  cache.layers.emplace_back(
      StateLayer{{NamedArray{"state", Dtype::kF32, {2, 3}, AlignedBytes(24)}}});
  EXPECT_EQ(byte_count(cache).used, 2u * 2 * 10 * 2 * 64 * 2 + 24);
}

}  // namespace cache_test
}  // namespace tqcache::cache
