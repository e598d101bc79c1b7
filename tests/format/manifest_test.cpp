// One test a rule of docs/format.md §4: each file breaks one rule, with every checksum right.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "file_fixture.h"

namespace tqcache::test {
namespace {

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
  expect_rule(ErrorCode::kUnsupported, "layer 2: cache type \"tqcache.ssm.v9\"",
              [](Manifest& m) { m.layers[kArraysLayer].cache_type_id = "tqcache.ssm.v9"; });
}

TEST(Manifest, RefusesAnUnknownSideTypeByName) {
  expect_rule(ErrorCode::kUnsupported, "layer 0: k: cache type \"KVCache\"",
              [](Manifest& m) { m.layers[kDenseLayer].k.cache_type_id = "KVCache"; });
}

TEST(Manifest, RefusesUnknownNamesOfCodecParts) {
  expect_rule(ErrorCode::kUnsupported, "layer 1: v: rotation \"x\"",
              [](Manifest& m) { m.layers[kTurboLayer].v.rotation = "x"; });
  expect_rule(ErrorCode::kUnsupported, "scale \"norm.v1\"",
              [](Manifest& m) { m.layers[kTurboLayer].v.scale = "norm.v1"; });
  expect_rule(ErrorCode::kUnsupported, "layout \"\"",
              [](Manifest& m) { m.layers[kTurboLayer].v.layout = ""; });
}

TEST(Manifest, ShowsNoControlCharactersOfANameItRefuses) {
  expect_rule(ErrorCode::kUnsupported, "\"?[2Jx\"",
              [](Manifest& m) { m.layers[kDenseLayer].k.cache_type_id = "\x1b[2Jx"; });
}

TEST(Manifest, RefusesTextsBeyondTheLimit) {
  const std::string text(format::kMaxTextBytes + 1, 'x');
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.writer = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.architecture = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.model_name = text; });
  expect_rule(ErrorCode::kTooLarge, "1025", [&](Manifest& m) { m.identity.source_format = text; });
  expect_rule(ErrorCode::kTooLarge, "1025",
              [&](Manifest& m) { m.layers[kArraysLayer].arrays[0].name = text; });
  expect_rule(ErrorCode::kTooLarge, "1025",
              [&](Manifest& m) { m.layers[kTurboLayer].k.cache_type_id = text; });
}

TEST(Manifest, RefusesRopeThatIsNoRope) {
  expect_rule(ErrorCode::kTooLarge, "rope: 1025 components",
              [](Manifest& m) { m.identity.rope.n_dims = 1025; });
  for (const double base : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_rule(ErrorCode::kCorrupt, "rope: base",
                [&](Manifest& m) { m.identity.rope.base = base; });
  }
  expect_rule(ErrorCode::kCorrupt, "rope style 3",
              [](Manifest& m) { m.identity.rope.style = static_cast<cache::RopeStyle>(3); });
}

TEST(Manifest, RefusesATokenIdBelowZero) {
  expect_rule(ErrorCode::kCorrupt, "token id", [](Manifest& m) { m.tokens[7] = -1; });
}

TEST(Manifest, RefusesShapesOutOfBounds) {
  const auto expect_shape = [](ErrorCode code, cache::HeadShape shape, std::string_view part) {
    expect_rule(code, part, [&](Manifest& m) { m.layers[kDenseLayer].shape = shape; });
  };
  expect_shape(ErrorCode::kCorrupt, {0, 32}, "below 1");
  expect_shape(ErrorCode::kCorrupt, {1, 0}, "below 1");
  expect_shape(ErrorCode::kTooLarge, {1025, 32}, "1025 kv heads");
  expect_shape(ErrorCode::kTooLarge, {1, 1025}, "1025");
  expect_shape(ErrorCode::kTooLarge, {0xffffffff, 0xffffffff}, "4294967295");
}

TEST(Manifest, RefusesAnUnknownDtype) {
  const auto bad = static_cast<Dtype>(3);
  expect_rule(ErrorCode::kCorrupt, "layer 0: unknown dtype 3",
              [&](Manifest& m) { m.layers[kDenseLayer].v.dense_dtype = bad; });
  expect_rule(ErrorCode::kCorrupt, "layer 2: unknown dtype 3",
              [&](Manifest& m) { m.layers[kArraysLayer].arrays[1].dtype = bad; });
}

TEST(Manifest, RefusesADenseSideWithACodecAndATurboSideWithoutOne) {
  expect_rule(ErrorCode::kCorrupt, "layer 1: k: a dense side with a codec",
              [](Manifest& m) { m.layers[kTurboLayer].k.cache_type_id = "tqcache.dense.v1"; });
  expect_rule(ErrorCode::kCorrupt, "layer 0: v: a turbo side without a codec",
              [](Manifest& m) { m.layers[kDenseLayer].v.cache_type_id = "tqcache.turbo_mse.v1"; });
}

TEST(Manifest, RefusesACodecOutOfBounds) {
  for (const int bits : {0, 9, 255}) {
    expect_rule(ErrorCode::kUnsupported,
                "layer 1: k: ", [&](Manifest& m) { m.layers[kTurboLayer].k.codec->bits = bits; });
  }
  for (const std::int64_t head_dim : {16, 513}) {
    expect_rule(ErrorCode::kUnsupported, "layer 1: k: ", [&](Manifest& m) {
      m.layers[kTurboLayer].shape.head_dim = head_dim;
    });
  }
}

TEST(Manifest, RefusesACodebookThatIsNone) {
  const auto expect_codebook = [](const std::function<void(std::vector<float>&)>& change) {
    expect_rule(ErrorCode::kCorrupt, "layer 1: k: codebook",
                [&](Manifest& m) { change(m.layers[kTurboLayer].k.centroids); });
  };
  expect_codebook([](auto& c) { c.pop_back(); });
  expect_codebook([](auto& c) { c.push_back(1); });
  expect_codebook([](auto& c) { std::swap(c[3], c[4]); });
  expect_codebook([](auto& c) { c[3] = c[4]; });
  expect_codebook([](auto& c) { c[3] = std::nanf(""); });
  expect_codebook([](auto& c) { c.back() = 1.5f; });
  expect_rule(ErrorCode::kTooLarge, "257 centroids",
              [](Manifest& m) { m.layers[kTurboLayer].k.centroids.resize(257); });
}

// One layer, both sides centred, 300 tokens.
void expect_centring_rule(ErrorCode code, std::string_view part,
                          const std::function<void(Manifest&)>& change) {
  static const Bytes kFile =
      file_of(CacheBuilder(300).center(cache::Centring::kPreRope).turbo({2, 64}, 4, 4).build());
  expect_refused(change_manifest(kFile, change), code, part);
}

TEST(Manifest, RefusesAnUnknownCentringByName) {
  expect_centring_rule(ErrorCode::kUnsupported, "layer 0: k: centring \"pca.v1\"",
                       [](Manifest& m) { m.layers[0].k.centring = "pca.v1"; });
  expect_centring_rule(ErrorCode::kUnsupported, "layer 0: v: centring \"\"",
                       [](Manifest& m) { m.layers[0].v.centring = ""; });
}

TEST(Manifest, RefusesAMeanThatDoesNotFit) {
  expect_centring_rule(ErrorCode::kCorrupt, "layer 0: k: a mean without centring",
                       [](Manifest& m) { m.layers[0].k.centring = "none"; });
  expect_centring_rule(ErrorCode::kCorrupt, "layer 0: v: a mean of 127 values where 128 belong",
                       [](Manifest& m) { m.layers[0].v.mean.pop_back(); });
  expect_centring_rule(ErrorCode::kCorrupt, "layer 0: v: a mean of 129 values",
                       [](Manifest& m) { m.layers[0].v.mean.push_back(0); });
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_centring_rule(ErrorCode::kCorrupt, "layer 0: k: a mean that is not finite",
                         [&](Manifest& m) { m.layers[0].k.mean[9] = bad; });
  }
}

TEST(Manifest, RefusesPackedSectionsWithoutTheirMean) {
  expect_centring_rule(ErrorCode::kCorrupt,
                       "section 0 (layer 0 k, block 0): packed, but without its mean",
                       [](Manifest& m) { m.layers[0].k.mean.clear(); });
  expect_centring_rule(ErrorCode::kCorrupt,
                       "section 1 (layer 0 v, block 0): packed, but without its mean",
                       [](Manifest& m) { m.layers[0].v.mean.clear(); });
}

TEST(Manifest, RefusesCentringBeforeRopeWhereThereIsNone) {
  constexpr std::string_view kPart = "centring before RoPE where there is none";
  expect_centring_rule(ErrorCode::kCorrupt, kPart,
                       [](Manifest& m) { m.layers[0].v.centring = "pre_rope.v1"; });
  for (const cache::Rope& rope : {cache::Rope{cache::RopeStyle::kNone, 64, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 0, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 33, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 66, 1e4},
                                  cache::Rope{cache::RopeStyle::kHalfSplit, 64, 0.5},
                                  cache::Rope{cache::RopeStyle::kInterleaved, 64, 0}}) {
    expect_centring_rule(ErrorCode::kCorrupt, kPart, [&](Manifest& m) { m.identity.rope = rope; });
  }
}

TEST(Manifest, RefusesArraysBeyondTheLimits) {
  expect_rule(ErrorCode::kTooLarge, "9 dimensions",
              [](Manifest& m) { m.layers[kArraysLayer].arrays[0].shape.assign(9, 1); });
  const std::uint64_t huge = std::uint64_t{1} << 63;
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{huge, 2}, {huge}, {(format::kMaxArrayBytes >> 1) + 1}}) {
    expect_rule(ErrorCode::kTooLarge, "layer 2: array 0: its shape takes too many bytes",
                [&](Manifest& m) { m.layers[kArraysLayer].arrays[0].shape = shape; });
  }
  expect_rule(ErrorCode::kTooLarge, "65 arrays",
              [](Manifest& m) { m.layers[kArraysLayer].arrays.resize(65); });
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
  expect_rule(ErrorCode::kCorrupt, "section 0: unknown side 3",
              [](Manifest& m) { m.sections[0].side = static_cast<format::SideName>(3); });
  expect_rule(ErrorCode::kCorrupt, "section 0: unknown compression 2",
              [](Manifest& m) { m.sections[0].compression = static_cast<Compression>(2); });
}

TEST(SectionTable, RefusesAPackedSectionOfASideThatIsNotTurbo) {
  for (const std::size_t index : {kDenseSection, kArraySection}) {
    expect_rule(ErrorCode::kCorrupt, "packed, of a side that is not turbo",
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
    m.layers[kDenseLayer].shape = {2, 32};
  });
  expect_rule(ErrorCode::kCorrupt, "where the shape says", [](Manifest& m) {
    m.layers[kArraysLayer].arrays[0].shape = {3, 21};
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
  manifest.layers[0].v.dense_dtype = Dtype::kF32;
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

}  // namespace
}  // namespace tqcache::test
