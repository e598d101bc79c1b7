// One test a rule of docs/reference/format.md §4: each file breaks one rule, with every checksum
// right.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "file_fixture.h"

namespace tqcache::test {
namespace manifest_test {

// Layers of mixed_file() and some of its sections.
constexpr std::size_t kDenseLayer = 0;
constexpr std::size_t kTurboLayer = 1;
constexpr std::size_t kArraysLayer = 2;
constexpr std::size_t kDenseSection = 0;
constexpr std::size_t kPackedSection = 2;
constexpr std::size_t kTailSection = 8;  // of the turbo layer
constexpr std::size_t kArraySection = 12;

void expect_rule(ErrorCode code, std::string_view part,
                 const std::function<void(Manifest&)>& change) {
  static const Bytes kFile = mixed_file();
  expect_refused(change_manifest(kFile, change), code, part);
}

TEST(Manifest, RefusesAnUnknownLayerTypeByName) {
  expect_refused(change_text(mixed_file(), "tqcache.arrays.v1", "tqcache.arrays.v9"),
                 ErrorCode::kUnsupported, "layer 2: cache type \"tqcache.arrays.v9\"");
}

TEST(Manifest, RefusesAnUnknownTensorTypeByName) {
  expect_refused(change_text(mixed_file(), "tqcache.dense.v1", "KVCache of mlx 1"),
                 ErrorCode::kUnsupported, "layer 0: k: cache type \"KVCache of mlx 1\"");
}

TEST(Manifest, RefusesUnknownNamesOfACodec) {
  const auto expect_name = [](std::string_view what, std::string_view name) {
    static const Bytes kFile = modes_file();
    std::string other(name);
    other.back() = '9';
    const std::string refused = std::string(what) + " \"" + other + "\"";
    expect_refused(change_text(kFile, name, other), ErrorCode::kUnsupported, refused);
  };
  expect_name("layer 0: k: layout", "lanes.v1");
  expect_name("layer 0: k: part 0: rotation", "hartley_hadamard.v1");
  expect_name("layer 1: k: part 1: rotation", "gaussian.v1");
  expect_name("layer 3: k: part 0: rotation", "none.v1");
  expect_name("layer 0: k: part 0: scale", "unbiased.v1");
  expect_name("layer 1: k: part 1: scale", "raw.v1");
  expect_name("layer 3: k: part 0: scale", "peak.v1");
  expect_name("layer 0: k: centering", "pre_rope.v1");
  expect_name("layer 0: v: centering", "post_rope.v1");
  expect_name("layer 1: k: cache type", "tqcache.turbo_prod.v1");
}

TEST(Manifest, ShowsNoControlCharactersOfANameItRefuses) {
  expect_refused(change_text(mixed_file(), "tqcache.dense.v1", "\x1b[2Jche.dense.v1"),
                 ErrorCode::kUnsupported, "\"?[2Jche.dense.v1\"");
}

TEST(Manifest, RefusesTextsBeyondTheLimit) {
  const std::string text(cache::kMaxTextBytes + 1, 'x');
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.writer = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.architecture = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.model_name = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.source_format = text; });
  expect_rule(ErrorCode::kTooLarge, "1025",
              [&](Manifest& m) { arrays_of(m, kArraysLayer)[0].name = text; });
}

TEST(Manifest, RefusesRopeThatIsNoRope) {
  expect_rule(ErrorCode::kTooLarge, "rope: 1025 components",
              [](Manifest& m) { m.identity.rope.n_dims = 1025; });
  for (const double base : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_rule(ErrorCode::kCorrupt, "rope: base",
                [&](Manifest& m) { m.identity.rope.base = base; });
  }
  for (const std::vector<float>& factors :
       {std::vector<float>{1}, {1, 0}, {1, -2}, {std::nanf(""), 1}, {1, 1, 1}}) {
    expect_rule(ErrorCode::kCorrupt, "rope: ", [&](Manifest& m) {
      m.identity.rope = {cache::RopeStyle::kHalfSplit, 4, 1e4, factors};
    });
  }
  expect_rule(ErrorCode::kTooLarge, "rope factors", [](Manifest& m) {
    m.identity.rope = {cache::RopeStyle::kHalfSplit, 4, 1e4, std::vector<float>(513, 1.0f)};
  });
  expect_rule(ErrorCode::kCorrupt, "rope style 3",
              [](Manifest& m) { m.identity.rope.style = static_cast<cache::RopeStyle>(3); });
}

TEST(Manifest, RefusesATokenIdBelowZero) {
  expect_rule(ErrorCode::kCorrupt, "token id", [](Manifest& m) { m.tokens[7] = -1; });
}

// 300 tokens of which the file has hashes.
void expect_hidden_rule(ErrorCode code, std::string_view part,
                        const std::function<void(Manifest&)>& change) {
  static const Bytes kFile = file_of(CacheBuilder(300).dense({1, 4}).hide_tokens().build());
  expect_refused(change_manifest(kFile, change), code, part);
}

TEST(Manifest, RefusesAnotherNumberOfHashesThanTokenBlocks) {
  expect_hidden_rule(ErrorCode::kCorrupt, "1 hashes for 300 tokens",
                     [](Manifest& m) { m.hidden_tokens->pop_back(); });
  expect_hidden_rule(ErrorCode::kCorrupt, "3 hashes for 300 tokens",
                     [](Manifest& m) { m.hidden_tokens->emplace_back(); });
  expect_hidden_rule(ErrorCode::kCorrupt, "2 hashes for 256 tokens", [](Manifest& m) {
    m.tokens.resize(256);
    m.sections.resize(2);
  });
}

TEST(Manifest, RefusesMoreHiddenTokensThanACacheMayHave) {
  expect_hidden_rule(ErrorCode::kTooLarge, "16777217 tokens", [](Manifest& m) {
    m.tokens.resize(cache::kMaxTokens + 1, cache::kUnknownToken);
  });
  expect_hidden_rule(ErrorCode::kTooLarge, "65537 hashes",
                     [](Manifest& m) { m.hidden_tokens->resize(65537); });
}

TEST(Manifest, RefusesNoStreamsAndTooMany) {
  for (const std::uint32_t n_streams : {0U, cache::kMaxLlamaStreams + 1, UINT32_MAX}) {
    expect_rule(ErrorCode::kCorrupt, std::to_string(n_streams) + " streams of llama.cpp",
                [&](Manifest& m) { m.identity.llama_streams = n_streams; });
  }
}

TEST(Manifest, RefusesShapesOutOfBounds) {
  const auto expect_shape = [](ErrorCode code, cache::HeadShape shape, std::string_view part) {
    expect_rule(code, part, [&](Manifest& m) { attention_of(m, kDenseLayer).shape = shape; });
  };
  expect_shape(ErrorCode::kCorrupt, {0, 32}, "below 1");
  expect_shape(ErrorCode::kCorrupt, {1, 0}, "below 1");
  expect_shape(ErrorCode::kTooLarge, {1025, 32}, "1025 kv heads");
  expect_shape(ErrorCode::kTooLarge, {1, 1025}, "1025");
  expect_shape(ErrorCode::kTooLarge, {0xffffffff, 0xffffffff}, "4294967295");
}

TEST(Manifest, RefusesAnUnknownDtype) {
  const auto bad = static_cast<Dtype>(3);
  expect_rule(ErrorCode::kCorrupt, "layer 0: v: unknown dtype 3",
              [&](Manifest& m) { attention_of(m, kDenseLayer).v.dtype = bad; });
  expect_rule(ErrorCode::kCorrupt, "layer 2: unknown dtype 3",
              [&](Manifest& m) { arrays_of(m, kArraysLayer)[1].dtype = bad; });
}

TEST(Manifest, RefusesACodecOutOfBounds) {
  for (const int bits : {0, 9, 255}) {
    expect_rule(ErrorCode::kUnsupported, "layer 1: k: part 0: ", [&](Manifest& m) {
      k_of(m, kTurboLayer).parts[0].bits = bits;
    });
  }
  for (const int rounds : {0, 4, 255}) {
    expect_rule(ErrorCode::kUnsupported, "layer 1: v: part 0: ", [&](Manifest& m) {
      v_of(m, kTurboLayer).parts[0].rounds = rounds;
    });
  }
  for (const std::int64_t head_dim : {16, 31}) {
    expect_rule(ErrorCode::kUnsupported, "layer 1: k: ", [&](Manifest& m) {
      attention_of(m, kTurboLayer).shape.head_dim = head_dim;
    });
  }
  for (const int channels : {1025, 0x7fffffff}) {
    expect_rule(ErrorCode::kTooLarge, "channels of a part",
                [&](Manifest& m) { k_of(m, kTurboLayer).parts[0].head_dim = channels; });
    expect_rule(ErrorCode::kTooLarge, "channels before a part",
                [&](Manifest& m) { k_of(m, kTurboLayer).parts[0].first = channels; });
  }
}

TEST(Manifest, RefusesACodebookThatIsNone) {
  const auto expect_codebook = [](const std::function<void(std::vector<float>&)>& change) {
    expect_rule(ErrorCode::kCorrupt, "layer 1: k: part 0: codebook",
                [&](Manifest& m) { change(k_of(m, kTurboLayer).parts[0].centroids); });
  };
  expect_codebook([](auto& c) { c.pop_back(); });
  expect_codebook([](auto& c) { c.push_back(1); });
  expect_codebook([](auto& c) { c.clear(); });
  expect_codebook([](auto& c) { std::swap(c[3], c[4]); });
  expect_codebook([](auto& c) { c[3] = c[4]; });
  expect_codebook([](auto& c) { c[3] = std::nanf(""); });
  expect_codebook([](auto& c) { c.back() = 1.5f; });
  expect_codebook([](auto& c) { c.front() = -1.5f; });
  expect_codebook([](auto& c) { c.back() = std::numeric_limits<float>::infinity(); });
  expect_rule(ErrorCode::kTooLarge, "257 centroids",
              [](Manifest& m) { k_of(m, kTurboLayer).parts[0].centroids.resize(257); });
}

// Layers of modes_file() and, of its sections, the first of each.
constexpr std::size_t kMseLayer = 0;
constexpr std::size_t kProdLayer = 1;
constexpr std::size_t kMixedLayer = 2;
constexpr std::size_t kAffineLayer = 3;

void expect_mode_rule(ErrorCode code, std::string_view part,
                      const std::function<void(Manifest&)>& change) {
  static const Bytes kFile = modes_file();
  expect_refused(change_manifest(kFile, change), code, part);
}

TEST(Manifest, RefusesPartsOfAnotherModeThanTheTypeSays) {
  const codec::Mode modes[] = {codec::Mode::kMse, codec::Mode::kProd, codec::Mode::kMixed,
                               codec::Mode::kAffine};
  const std::string_view words[] = {"mse", "prod", "mixed", "affine"};
  for (std::size_t layer = 0; layer < 4; ++layer) {
    for (std::size_t type = 0; type < 4; ++type) {
      if (type == layer) continue;
      const std::string refused = "layer " + std::to_string(layer) + ": v: codec of mode " +
                                  std::string(words[type]) + " with parts of mode " +
                                  std::string(words[layer]);
      expect_mode_rule(ErrorCode::kCorrupt, refused,
                       [&](Manifest& m) { v_of(m, layer).mode = modes[type]; });
    }
  }
}

TEST(Manifest, RefusesPartsThatFitNoMode) {
  const auto expect_parts = [](std::size_t layer, std::string_view refused,
                               const std::function<void(std::vector<codec::PartSpec>&)>& change) {
    expect_mode_rule(ErrorCode::kCorrupt,
                     "layer " + std::to_string(layer) + ": k: " + std::string(refused),
                     [&](Manifest& m) { change(k_of(m, layer).parts); });
  };
  expect_parts(kMseLayer, "part 0", [](auto& p) { p[0].of_residual = true; });
  expect_parts(kMseLayer, "part 0", [](auto& p) { p[0].has_bias = true; });
  expect_parts(kMseLayer, "part 0", [](auto& p) { p[0].first = 1; });
  expect_parts(kMseLayer, "parts", [](auto& p) { p[0].head_dim = 32; });
  expect_parts(kProdLayer, "part", [](auto& p) { p[1].of_residual = false; });
  expect_parts(kProdLayer, "part", [](auto& p) { p[1].bits = 2; });
  expect_parts(kProdLayer, "part", [](auto& p) { p.push_back(p[1]); });
  expect_parts(kMixedLayer, "part", [](auto& p) { std::swap(p[0], p[1]); });
  expect_parts(kMixedLayer, "part", [](auto& p) { p[1].first -= 1; });
  expect_parts(kMixedLayer, "part 1", [](auto& p) { p[1].first += 1; });
  expect_parts(kMixedLayer, "part", [](auto& p) { p.pop_back(); });
  expect_parts(kMixedLayer, "part", [](auto& p) { p[0] = p[1]; });
}

TEST(Manifest, RefusesAMatrixThatDoesNotFit) {
  static const Bytes kFile = file_of(matrix_cache());
  const auto expect_matrix = [](std::string_view refused, const auto& change) {
    expect_refused(change_manifest(kFile, [&](Manifest& m) { change(v_of(m, 1).parts); }),
                   ErrorCode::kCorrupt, "layer 1: v: " + std::string(refused));
  };
  expect_matrix("part 0: matrix: 0 values where 1024 belong",
                [](auto& parts) { parts[0].matrix = {}; });
  expect_matrix("part 1: matrix: 4 values where 1024 belong", [](auto& parts) {
    parts[1].matrix = must(codec::TransformMatrix::make({1, 0, 0, 1}));
  });
  expect_matrix("part 0: matrix: 1024 values where 0 belong",
                [](auto& parts) { parts[0].rotation = codec::TransformKind::kDenseQr; });
}

// Values that no writer of ours would take.
TEST(Manifest, RefusesAMatrixWithValuesThatAreNone) {
  const cache::Cache cache = matrix_cache();
  const auto& tensor =
      std::get<cache::TurboTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  const std::span<const float> values = tensor.codec.parts()[0].matrix.values();
  const Bytes file = file_of(cache);
  const auto found = std::search(file.begin(), file.end(), std::as_bytes(values).begin(),
                                 std::as_bytes(values).end());
  ASSERT_NE(found, file.end());
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 16.5f}) {
    Bytes changed = file;
    patch(changed, static_cast<std::size_t>(found - file.begin()) + 7 * sizeof(float), bad);
    reseal(changed);
    expect_refused(changed, ErrorCode::kCorrupt,
                   "layer 0: k: part 0: matrix: value 7 outside -16 to 16");
  }
}

TEST(Manifest, RefusesACodecWithoutPartsOrWithTooMany) {
  expect_rule(ErrorCode::kTooLarge, "layer 1: k: 33 parts", [](Manifest& m) {
    auto& parts = k_of(m, kTurboLayer).parts;
    parts.resize(33, parts[0]);
  });
}

TEST(Manifest, RefusesOutlierChannelsThatAreNone) {
  const auto expect_outliers = [](std::string_view refused, const auto& change) {
    expect_mode_rule(ErrorCode::kCorrupt, "layer 2: k: " + std::string(refused),
                     [&](Manifest& m) { change(k_of(m, kMixedLayer).outliers); });
  };
  expect_outliers("outlier channels: 31", [](auto& c) { c.pop_back(); });
  expect_outliers("outlier channels: 33", [](auto& c) { c.push_back(63); });
  expect_outliers("outlier channels: head 1", [](auto& c) { std::swap(c[20], c[21]); });
  expect_outliers("outlier channels: head 0", [](auto& c) { c[3] = c[4]; });
  expect_outliers("outlier channels: head 1", [](auto& c) { c.back() = 64; });
  expect_outliers("more outlier channels than channels", [](auto& c) { c.resize(129); });
}

TEST(Manifest, RefusesOutlierChannelsOfACodecThatHasNone) {
  for (const std::size_t layer : {kMseLayer, kProdLayer, kAffineLayer}) {
    expect_mode_rule(
        ErrorCode::kCorrupt,
        "layer " + std::to_string(layer) + ": v: outlier channels of a codec that has none",
        [&](Manifest& m) { v_of(m, layer).outliers = {1, 2, 3, 4, 5, 6, 7, 8}; });
  }
}

TEST(Manifest, RefusesPackedSectionsWithoutTheirOutlierChannels) {
  expect_mode_rule(ErrorCode::kCorrupt,
                   "section 5 (layer 2 v, block 0): packed, but without its outlier channels",
                   [](Manifest& m) { v_of(m, kMixedLayer).outliers.clear(); });
}

TEST(Manifest, RefusesFactorsThatAreNone) {
  const auto with = [](std::size_t n) { return std::vector<std::int8_t>(n, 3); };
  for (const std::size_t layer : {kMseLayer, kProdLayer, kMixedLayer}) {
    const std::string place = "layer " + std::to_string(layer) + ": k: ";
    expect_mode_rule(ErrorCode::kCorrupt, place + "127 factors where 128 belong",
                     [&](Manifest& m) { k_of(m, layer).factors = with(127); });
    expect_mode_rule(ErrorCode::kCorrupt, "more factors than channels",
                     [&](Manifest& m) { k_of(m, layer).factors = with(129); });
    expect_mode_rule(ErrorCode::kCorrupt, place + "a factor of 2^-16", [&](Manifest& m) {
      k_of(m, layer).factors = with(128);
      k_of(m, layer).factors[77] = -128;
    });
    expect_mode_rule(ErrorCode::kCorrupt,
                     "layer " + std::to_string(layer) + ": v: factors of a codec that has none",
                     [&](Manifest& m) { v_of(m, layer).factors = with(128); });
  }
}

TEST(Manifest, RefusesMoreSinkTokensThanABlockHas) {
  for (const std::int64_t n : {257, 65535}) {
    expect_mode_rule(ErrorCode::kCorrupt, "layer 0: k: " + std::to_string(n) + " sink tokens",
                     [&](Manifest& m) { k_of(m, kMseLayer).n_sinks = n; });
  }
}

TEST(Manifest, LetsTensorsShareWhatIsEqual) {
  const auto size_with = [](std::size_t n_layers) {
    CacheBuilder builder(3);
    for (std::size_t i = 0; i < n_layers; ++i) builder.preset({1, 64}, "affine8");
    return info_of(file_of(builder.build())).manifest_bytes;
  };
  // A layer, its two tensors and their vtable entries; no part, codebook or text of its own. What
  // the table of sections takes comes on top.
  EXPECT_LT((size_with(101) - size_with(1)) / 100, 2 * sizeof(std::byte[88]) + 100);
}

TEST(Manifest, KeepsZeroAndMinusZeroApart) {
  cache::Cache cache = CacheBuilder(3).turbo({1, 32}, 1, 1).build();
  const Bytes file = file_of(cache);
  const Bytes changed = change_manifest(file, [](Manifest& m) {
    k_of(m, 0).parts[0].centroids = {-1.0f, 0.0f};
    v_of(m, 0).parts[0].centroids = {-1.0f, -0.0f};
  });
  const CacheFileInfo info = info_of(file_of(must(load(changed))));
  const auto& layer = std::get<cache::AttentionDesc>(info.layers[0]);
  EXPECT_FALSE(std::signbit(layer.k.quant->parts[0].centroids[1]));
  EXPECT_TRUE(std::signbit(layer.v.quant->parts[0].centroids[1]));
}

// One layer, both tensors centered, 300 tokens.
void expect_centering_rule(ErrorCode code, std::string_view part,
                           const std::function<void(Manifest&)>& change) {
  static const Bytes kFile =
      file_of(CacheBuilder(300).center(cache::Centering::kPreRope).turbo({2, 64}, 4, 4).build());
  expect_refused(change_manifest(kFile, change), code, part);
}

TEST(Manifest, RefusesAMeanThatDoesNotFit) {
  expect_centering_rule(ErrorCode::kCorrupt, "layer 0: k: a mean without centering",
                        [](Manifest& m) { k_of(m, 0).centering = cache::Centering::kNone; });
  expect_centering_rule(ErrorCode::kCorrupt, "layer 0: v: a mean of 127 values where 128 belong",
                        [](Manifest& m) { v_of(m, 0).mean.pop_back(); });
  expect_centering_rule(ErrorCode::kCorrupt, "layer 0: v: a mean of 129 values",
                        [](Manifest& m) { v_of(m, 0).mean.push_back(0); });
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_centering_rule(ErrorCode::kCorrupt, "layer 0: k: a mean that is not finite",
                          [&](Manifest& m) { k_of(m, 0).mean[9] = bad; });
  }
}

TEST(Manifest, RefusesPackedSectionsWithoutTheirMean) {
  expect_centering_rule(ErrorCode::kCorrupt,
                        "section 0 (layer 0 k, block 0): packed, but without its mean",
                        [](Manifest& m) { k_of(m, 0).mean.clear(); });
  expect_centering_rule(ErrorCode::kCorrupt,
                        "section 1 (layer 0 v, block 0): packed, but without its mean",
                        [](Manifest& m) { v_of(m, 0).mean.clear(); });
}

TEST(Manifest, RefusesCenteringBeforeRopeWhereThereIsNone) {
  constexpr std::string_view kPart = "centering before RoPE where there is none";
  expect_centering_rule(ErrorCode::kCorrupt, kPart,
                        [](Manifest& m) { v_of(m, 0).centering = cache::Centering::kPreRope; });
  for (const cache::Rope& rope : {cache::Rope{cache::RopeStyle::kNone, 64, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 0, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 33, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 66, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 64, 0.5},
                                  cache::Rope{cache::RopeStyle::kInterleaved, 64, 0},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 4, 1e4, {1, 3e6f}}}) {
    expect_centering_rule(ErrorCode::kCorrupt, kPart, [&](Manifest& m) { m.identity.rope = rope; });
  }
}

TEST(Manifest, RefusesArraysBeyondTheLimits) {
  expect_rule(ErrorCode::kTooLarge, "9 dimensions",
              [](Manifest& m) { arrays_of(m, kArraysLayer)[0].shape.assign(9, 1); });
  const std::uint64_t huge = std::uint64_t{1} << 63;
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{huge, 2}, {huge}, {(cache::kMaxArrayBytes >> 1) + 1}}) {
    expect_rule(ErrorCode::kTooLarge, "layer 2: array 0: its shape takes too many bytes",
                [&](Manifest& m) { arrays_of(m, kArraysLayer)[0].shape = shape; });
  }
  expect_rule(ErrorCode::kTooLarge, "65 arrays",
              [](Manifest& m) { arrays_of(m, kArraysLayer).resize(65); });
}

// Of 300 tokens: a window of 8, full, and an attention layer.
void expect_window_rule(ErrorCode code, std::string_view part,
                        const std::function<void(cache::WindowDesc&)>& change) {
  static const Bytes kFile =
      file_of(CacheBuilder(300).rotating({{2, 4}, 8, 7}).dense({1, 4}).build());
  expect_refused(change_manifest(
                     kFile, [&](Manifest& m) { change(std::get<cache::WindowDesc>(m.layers[0])); }),
                 code, "layer 0: " + std::string(part));
}

TEST(Manifest, RefusesAWindowThatIsNone) {
  expect_window_rule(ErrorCode::kCorrupt, "a window of no tokens",
                     [](auto& l) { l.window.size = 0; });
  expect_window_rule(ErrorCode::kTooLarge, "a window of 16777217 tokens",
                     [](auto& l) { l.window.size = cache::kMaxTokens + 1; });
  expect_window_rule(ErrorCode::kTooLarge, "a window of 4294967295 tokens",
                     [](auto& l) { l.window.size = 0xffffffff; });
  expect_window_rule(ErrorCode::kCorrupt, "8 first tokens kept in a window of 8",
                     [](auto& l) { l.window.keep = 8; });
  expect_window_rule(ErrorCode::kCorrupt, "4294967295 first tokens kept",
                     [](auto& l) { l.window.keep = 0xffffffff; });
  expect_window_rule(ErrorCode::kCorrupt, "a shape has a size below 1",
                     [](auto& l) { l.attention.shape.n_kv_heads = 0; });
  expect_window_rule(ErrorCode::kTooLarge, "head_dim 1025",
                     [](auto& l) { l.attention.shape.head_dim = 1025; });
}

// The largest array of a window is within the limit of arrays.
TEST(Manifest, RefusesAWindowLargerThanItsSections) {
  const Bytes file = file_of(CacheBuilder(300).rotating({{2, 4}, 8, 7}).dense({1, 4}).build());
  const Bytes changed = change_manifest(file, [](Manifest& m) {
    auto& window = std::get<cache::WindowDesc>(m.layers[0]);
    window.attention.shape = {1024, 1024};
    window.attention.k.dtype = Dtype::kF32;
    window.window = {cache::kMaxTokens, 0};
  });
  expect_refused(changed, ErrorCode::kCorrupt,
                 "(layer 0 array 0): raw size 128 where the shape says");
}

TEST(SectionTable, RefusesASectionTooFewOrTooMany) {
  expect_rule(ErrorCode::kCorrupt, "13 sections where the layers have 14",
              [](Manifest& m) { m.sections.pop_back(); });
  expect_rule(ErrorCode::kCorrupt, "15 sections where the layers have 14",
              [](Manifest& m) { m.sections.push_back(m.sections.back()); });
  expect_rule(ErrorCode::kCorrupt, "sections where the layers have",
              [](Manifest& m) { m.tokens.resize(600); });
}

TEST(SectionTable, RefusesSectionsInAnotherOrder) {
  expect_rule(ErrorCode::kCorrupt, "section 0 (layer 0 v, block 0): not the section that follows",
              [](Manifest& m) { std::swap(m.sections[0], m.sections[1]); });
  expect_rule(ErrorCode::kCorrupt, "section 1 (layer 0 k, block 0): not the section that follows",
              [](Manifest& m) { m.sections[1] = m.sections[0]; });
  expect_rule(ErrorCode::kCorrupt, "not the section that follows",
              [](Manifest& m) { m.sections[3].layer = 0xffffffff; });
  expect_rule(ErrorCode::kCorrupt, "not the section that follows",
              [](Manifest& m) { m.sections[3].block = 0xffffffff; });
}

TEST(SectionTable, RefusesUnknownEnumerations) {
  expect_rule(ErrorCode::kCorrupt, "section 0: unknown tensor 3",
              [](Manifest& m) { m.sections[0].tensor = static_cast<cache::TensorKind>(3); });
  expect_rule(ErrorCode::kCorrupt, "section 0: unknown compression 5",
              [](Manifest& m) { m.sections[0].compression = static_cast<Compression>(5); });
}

TEST(SectionTable, RefusesAPackedSectionOfATensorThatIsNotTurbo) {
  for (const std::size_t index : {kDenseSection, kArraySection}) {
    expect_rule(ErrorCode::kCorrupt, "packed, of a tensor that is not turbo",
                [&](Manifest& m) { m.sections[index].packed = true; });
  }
}

TEST(SectionTable, RefusesAPackedTokenBlockThatIsNotFull) {
  expect_rule(ErrorCode::kCorrupt, "packed, but not full",
              [](Manifest& m) { m.sections[kTailSection].packed = true; });
}

TEST(SectionTable, RefusesATokenBlockBeforeTheLastThatIsNotPacked) {
  expect_rule(ErrorCode::kCorrupt, "a token block before the last is not packed",
              [](Manifest& m) { m.sections[kPackedSection].packed = false; });
}

TEST(SectionTable, RefusesARawSizeThatIsNotTheShapes) {
  for (const std::uint64_t off_by : {std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
    expect_rule(ErrorCode::kCorrupt, "where the shape says",
                [&](Manifest& m) { m.sections[kPackedSection].raw_bytes += off_by; });
  }
  expect_rule(ErrorCode::kCorrupt, "where the shape says", [](Manifest& m) {
    attention_of(m, kDenseLayer).shape = {2, 32};
  });
  expect_rule(ErrorCode::kCorrupt, "where the shape says", [](Manifest& m) {
    arrays_of(m, kArraysLayer)[0].shape = {3, 21};
  });
}

TEST(SectionTable, RefusesAStoredSizeThatDoesNotGoWithTheRawSize) {
  expect_rule(ErrorCode::kCorrupt, "stored size",
              [](Manifest& m) { --m.sections[0].stored_bytes; });
  expect_rule(ErrorCode::kCorrupt, "stored size",
              [](Manifest& m) { m.sections[0].compression = Compression::kZstd; });
  expect_rule(ErrorCode::kCorrupt, "stored size", [](Manifest& m) {
    m.sections[0].compression = Compression::kZstd;
    m.sections[0].stored_bytes = 0;
  });
}

TEST(SectionTable, RefusesGapsAndOverlaps) {
  for (const std::uint64_t off_by :
       {std::uint64_t{64}, ~std::uint64_t{63}, std::uint64_t{1}, std::uint64_t{1} << 63}) {
    expect_rule(ErrorCode::kCorrupt, "section 1 (layer 0 v, block 0): file offset",
                [&](Manifest& m) { m.sections[1].file_offset += off_by; });
  }
}

// A file in which compressed sizes are free to be wrong: what is stored of a section may be
// anything below its raw size.
Manifest with_zstd_size(Manifest manifest, std::size_t index, std::uint64_t stored_bytes) {
  manifest.sections[index].compression = Compression::kZstd;
  manifest.sections[index].stored_bytes = stored_bytes;
  return manifest;
}

TEST(SectionTable, RefusesASectionThatReachesIntoTheManifest) {
  const Bytes file = file_of(CacheBuilder(200).dense({1, 4}).build());
  Manifest manifest = info_of(file);
  attention_of(manifest, 0).v.dtype = Dtype::kF32;
  manifest.sections[1].raw_bytes *= 2;
  const std::uint64_t too_many = manifest.sections[1].stored_bytes + 100;
  expect_refused(with_manifest(file, with_zstd_size(manifest, 1, too_many)), ErrorCode::kCorrupt,
                 "reaches into the manifest");
}

TEST(SectionTable, RefusesAManifestThatDoesNotFollowTheLastSection) {
  const Bytes file = file_of(CacheBuilder(200).dense({1, 4}).build());
  expect_refused(with_manifest(file, with_zstd_size(info_of(file), 1, 100)), ErrorCode::kCorrupt,
                 "but the sections end at");
}

TEST(Manifest, RefusesAContentNameThatIsNotTheContents) {
  Bytes file = small_file();
  const Sha256 name = info_of(file).content_name;
  const auto at = std::search(file.begin(), file.end(), name.begin(), name.end());
  ASSERT_NE(at, file.end());
  *at ^= std::byte{1};
  reseal(file);
  expect_refused(file, ErrorCode::kCorrupt, "manifest: content name mismatch");
}

}  // namespace manifest_test
}  // namespace tqcache::test
