// Which parts a mode is made of, and which lists of parts are a mode (docs/reference/codec.md §1).

#include "tqcache/codec_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tqcache/codec/codebook.h"
#include "tqcache/codec/random.h"

namespace tqcache::codec {
namespace codec_spec_test {

using testing::HasSubstr;

ErrorCode quantizer_error(const PartSpec& spec) { return validate(spec).error().code; }

std::vector<PartSpec> parts_of(const CodecSpec& spec) { return make_parts(spec).value(); }

std::string refusal(const CodecSpec& spec) {
  const Error error = make_parts(spec).error();
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  return error.message;
}

std::string damage(int head_dim, const std::vector<PartSpec>& parts) {
  const Error error = mode_of(head_dim, parts).error();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  return error.message;
}

constexpr CodecSpec kMse{.head_dim = 128};
constexpr CodecSpec kProd{.head_dim = 128, .mode = Mode::kProd, .bits = 3};
constexpr CodecSpec kMixed{
    .head_dim = 128, .mode = Mode::kMixed, .bits = 2, .outlier_channels = 32, .outlier_bits = 3};
constexpr CodecSpec kAffine{.head_dim = 128, .mode = Mode::kAffine, .bits = 4, .group_size = 32};

TEST(PartSpec, IsRefusedOutOfRange) {
  EXPECT_TRUE(validate({.head_dim = 8, .bits = 1}).ok());
  EXPECT_TRUE(validate({.head_dim = 1024, .bits = 8, .rounds = 3}).ok());
  EXPECT_EQ(quantizer_error({.head_dim = 7, .bits = 1}), ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 1025, .bits = 1}), ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 0}), ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 9}), ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 4, .rounds = 0}), ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 4, .rounds = 4}), ErrorCode::kUnsupported);
}

TEST(PartSpec, OnlyHadamardHasRounds) {
  for (const TransformKind kind :
       {TransformKind::kDenseQr, TransformKind::kGaussian, TransformKind::kNone}) {
    EXPECT_TRUE(validate({.head_dim = 64, .bits = 4, .rotation = kind}).ok());
    EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 4, .rotation = kind, .rounds = 2}),
              ErrorCode::kUnsupported);
  }
}

TEST(PartSpec, KindsThatAreNotKnownAreRefused) {
  const auto rotation = static_cast<TransformKind>(200);
  const auto scale = static_cast<ScaleRule>(200);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 4, .rotation = rotation}),
            ErrorCode::kUnsupported);
  EXPECT_EQ(quantizer_error({.head_dim = 64, .bits = 4, .scale = scale}), ErrorCode::kUnsupported);
}

TEST(Parts, OfMseAreOneOfAllChannels) {
  CodecSpec spec = kMse;
  spec.rounds = 2;
  spec.scale = ScaleRule::kNorm;
  spec.seed = 99;
  const std::vector<PartSpec> parts = parts_of(spec);
  const PartSpec expected{.head_dim = 128,
                          .bits = 4,
                          .seed = 99,
                          .rounds = 2,
                          .scale = ScaleRule::kNorm,
                          .centroids = lloyd_max_centroids(128, 4)};
  EXPECT_EQ(parts, std::vector<PartSpec>{expected});
}

TEST(Parts, OfProdAreOneBitLessAndASignOfTheResidual) {
  CodecSpec spec = kProd;
  spec.scale = ScaleRule::kRaw;
  std::uint64_t state = kDefaultSeed;
  const std::uint64_t second_seed = splitmix64(state);
  for (const TransformKind residual : {TransformKind::kGaussian, TransformKind::kDenseQr}) {
    spec.residual = residual;
    const std::vector<PartSpec> parts = parts_of(spec);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(parts[0], (PartSpec{.head_dim = 128,
                                  .bits = 2,
                                  .scale = ScaleRule::kRaw,
                                  .centroids = lloyd_max_centroids(128, 2)}));
    EXPECT_EQ(parts[1], (PartSpec{.head_dim = 128,
                                  .bits = 1,
                                  .seed = second_seed,
                                  .rotation = residual,
                                  .scale = ScaleRule::kRaw,
                                  .of_residual = true,
                                  .centroids = residual_centroids(128, residual)}));
  }
}

TEST(Parts, OfMixedAreTheOutliersAndTheOthers) {
  const std::vector<PartSpec> parts = parts_of(kMixed);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].first, 0);
  EXPECT_EQ(parts[0].centroids, lloyd_max_centroids(32, 3));
  EXPECT_EQ(parts[1].first, 32);
  EXPECT_EQ(parts[1].centroids, lloyd_max_centroids(96, 2));
  EXPECT_EQ(parts[0].seed, kDefaultSeed);
  EXPECT_NE(parts[1].seed, kDefaultSeed);
}

TEST(Parts, OfAffineAreGroupsThatDoNotTurn) {
  const std::vector<PartSpec> parts = parts_of(kAffine);
  ASSERT_EQ(parts.size(), 4u);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].first, static_cast<int>(32 * i));
    EXPECT_EQ(parts[i].head_dim, 32);
    EXPECT_EQ(parts[i].rotation, TransformKind::kNone);
    EXPECT_EQ(parts[i].scale, ScaleRule::kPeak);
    EXPECT_EQ(parts[i].centroids, linear_centroids(4));
    EXPECT_TRUE(parts[i].has_bias);
  }
}

TEST(Parts, OfEveryModeAreThatMode) {
  for (const CodecSpec& spec : {kMse, kProd, kMixed, kAffine}) {
    EXPECT_EQ(mode_of(128, parts_of(spec)).value(), spec.mode) << mode_word(spec.mode);
  }
  // a single group is still affine
  CodecSpec one_group = kAffine;
  one_group.group_size = 128;
  EXPECT_EQ(mode_of(128, parts_of(one_group)).value(), Mode::kAffine);
}

TEST(Parts, OfTheLargestAndTheSmallestHeadDimAreMade) {
  for (const int head_dim : {kMinHeadDim, 80, 576, kMaxHeadDim}) {
    CodecSpec mixed = kMixed;
    mixed.head_dim = head_dim;
    mixed.outlier_channels = 8;
    EXPECT_EQ(mode_of(head_dim, parts_of(mixed)).value(), Mode::kMixed);
    EXPECT_EQ(mode_of(head_dim, parts_of({.head_dim = head_dim})).value(), Mode::kMse);
  }
  CodecSpec affine = kAffine;
  affine.head_dim = kMaxHeadDim;
  EXPECT_EQ(parts_of(affine).size(), kMaxParts);
}

CodecSpec with(CodecSpec spec, void (*change)(CodecSpec&)) {
  change(spec);
  return spec;
}

TEST(Parts, RefusalsNameTheNumbersThatDoNotGoTogether) {
  EXPECT_EQ(refusal(with(kProd, [](CodecSpec& s) { s.bits = 1; })), "mode prod with 1 bit");
  EXPECT_EQ(refusal(with(kMse, [](CodecSpec& s) { s.head_dim = 31; })),
            "head_dim 31: outside 32 to 1024");
  EXPECT_EQ(refusal(with(kProd, [](CodecSpec& s) { s.bits = 9; })), "bits 9: outside 1 to 8");
  EXPECT_EQ(refusal(with(kMse, [](CodecSpec& s) { s.rounds = 4; })), "rounds 4: outside 1 to 3");
  EXPECT_EQ(refusal(with(kMixed, [](CodecSpec& s) { s.outlier_channels = 121; })),
            "mode mixed with 121 outlier channels of 128");
  EXPECT_EQ(refusal(with(kMixed, [](CodecSpec& s) { s.outlier_channels = 7; })),
            "mode mixed with 7 outlier channels of 128");
  EXPECT_EQ(refusal(with(kMixed, [](CodecSpec& s) { s.outlier_bits = 2; })),
            "mode mixed with 2 outlier bits and 2 regular bits");
  EXPECT_EQ(refusal(with(kMixed, [](CodecSpec& s) { s.outlier_bits = 9; })),
            "bits 9: outside 1 to 8");
  EXPECT_EQ(refusal(with(kAffine, [](CodecSpec& s) { s.group_size = 48; })),
            "mode affine with groups of 48: not 32, 64 or 128");
  EXPECT_EQ(refusal(with(kAffine, [](CodecSpec& s) { s.head_dim = 80; })),
            "mode affine with groups of 32: head_dim 80 is no multiple");
  EXPECT_EQ(refusal(with(kAffine, [](CodecSpec& s) { s.bits = 40; })), "bits 40: outside 1 to 8");
}

TEST(Parts, RefusesKindsThatAModeDoesNotHave) {
  EXPECT_THAT(refusal(with(kMse, [](CodecSpec& s) { s.rotation = TransformKind::kNone; })),
              HasSubstr("does not rotate"));
  EXPECT_THAT(refusal(with(kMixed, [](CodecSpec& s) { s.rotation = TransformKind::kGaussian; })),
              HasSubstr("does not rotate"));
  EXPECT_THAT(refusal(with(kMse, [](CodecSpec& s) { s.scale = ScaleRule::kPeak; })),
              HasSubstr("peak"));
  EXPECT_THAT(refusal(with(kProd, [](CodecSpec& s) { s.residual = TransformKind::kHadamard; })),
              HasSubstr("residual"));
  EXPECT_THAT(refusal(with(kMse, [](CodecSpec& s) { s.mode = static_cast<Mode>(7); })),
              HasSubstr("mode 7"));
}

TEST(Mode, OfPartsThatDoNotTileTheChannelsIsRefused) {
  std::vector<PartSpec> parts = parts_of(kMixed);
  EXPECT_THAT(damage(160, parts), HasSubstr("128 channels where 160 belong"));
  parts[1].first = 31;
  EXPECT_THAT(damage(128, parts), HasSubstr("part 1: begins at channel 31 where 32 belongs"));
  parts[1].first = 33;
  EXPECT_THAT(damage(128, parts), HasSubstr("part 1"));
  parts[1].first = -96;
  EXPECT_THAT(damage(128, parts), HasSubstr("part 1"));
}

TEST(Mode, OfTooManyOrNoPartsIsRefused) {
  EXPECT_THAT(damage(128, {}), HasSubstr("parts: 0"));
  const std::vector<PartSpec> parts(kMaxParts + 1, parts_of(kMse)[0]);
  EXPECT_THAT(damage(128, parts), HasSubstr("parts: 33"));
}

TEST(Mode, OfAResidualNeedsTwoPartsOfAllChannels) {
  std::vector<PartSpec> parts = parts_of(kProd);
  EXPECT_THAT(damage(128, {parts[1]}), HasSubstr("residual"));
  EXPECT_THAT(damage(128, {parts[1], parts[0]}), HasSubstr("residual"));
  EXPECT_THAT(damage(128, {parts[0], parts[1], parts[1]}), HasSubstr("residual"));
  EXPECT_THAT(damage(160, parts), HasSubstr("residual"));
  parts[1].bits = 2;
  EXPECT_THAT(damage(128, parts), HasSubstr("residual of 2 bits"));
  parts = parts_of(kProd);
  parts[0].bits = 8;
  EXPECT_THAT(damage(128, parts), HasSubstr("beside 8 bits"));
}

TEST(Mode, OfABiasNeedsGroupsThatDoNotTurn) {
  std::vector<PartSpec> mse = parts_of(kMse);
  mse[0].has_bias = true;
  EXPECT_THAT(damage(128, mse), HasSubstr("bias"));
  std::vector<PartSpec> affine = parts_of(kAffine);
  affine[2].has_bias = false;
  EXPECT_THAT(damage(128, affine), HasSubstr("part 2"));
  affine = parts_of(kAffine);
  affine[3].bits = 8;
  EXPECT_THAT(damage(128, affine), HasSubstr("part 3"));
}

TEST(Mode, OfMixedNeedsMoreBitsForTheOutliers) {
  std::vector<PartSpec> parts = parts_of(kMixed);
  parts[1].bits = 3;
  EXPECT_THAT(damage(128, parts), HasSubstr("part 0"));
}

TEST(Mode, OfAPartOutOfRangeIsRefusedAsThatPart) {
  std::vector<PartSpec> parts = parts_of(kMixed);
  parts[1].bits = 9;
  const Error error = mode_of(128, parts).error();
  EXPECT_EQ(error.code, ErrorCode::kUnsupported);
  EXPECT_EQ(error.message, "part 1: bits 9: outside 1 to 8");
}

}  // namespace codec_spec_test
}  // namespace tqcache::codec
