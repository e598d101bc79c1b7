// One kv head's block in every mode (docs/reference/codec.md §5): what stands where, the same bytes
// on every CPU, and that composing parts adds nothing to them.

#include "tqcache/codec/head_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codec/packed_head.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::codec {
namespace head_codec_test {

using test::decode;
using test::encode;
using test::GaussianSource;
using test::keys_of;
using test::kHeadDims;
using test::make_codec;
using test::name_of;
using test::order_for;
using test::Packed;
using test::rows_of;
using test::specs_of_every_mode;

constexpr BlockOrder kOrders[] = {BlockOrder::kKeys, BlockOrder::kValues};

std::vector<std::uint16_t> reversed_order(std::size_t head_dim) {
  std::vector<std::uint16_t> order(head_dim);
  for (std::size_t i = 0; i < head_dim; ++i)
    order[i] = static_cast<std::uint16_t>(head_dim - 1 - i);
  return order;
}

std::vector<std::uint16_t> same_order(std::size_t head_dim) {
  std::vector<std::uint16_t> order = reversed_order(head_dim);
  std::reverse(order.begin(), order.end());
  return order;
}

TEST(HeadCodec, PutsCodesOfPartsBehindEachOtherAndScalesInRows) {
  for (const int head_dim : kHeadDims) {
    for (const CodecSpec& spec : specs_of_every_mode(head_dim)) {
      for (const BlockOrder order : kOrders) {
        const HeadCodec codec = make_codec(spec, order);
        const Packed packed = encode(codec, keys_of(kBlockTokens, codec.head_dim(), 1));
        std::size_t bytes = 0, coded = 0, n_biases = 0;
        for (std::size_t i = 0; i < codec.n_parts(); ++i) {
          const PackedBlock block = codec.view(packed.head(), i, kBlockTokens);
          const auto* const begin = reinterpret_cast<const std::uint8_t*>(packed.codes.data());
          EXPECT_EQ(block.codes, begin + bytes);
          EXPECT_EQ(block.scales, packed.scales.data() + i * kBlockTokens);
          EXPECT_EQ(codec.coded_offset(i), coded);
          EXPECT_EQ(block.shape, codec.part(i).shape());
          bytes += block.shape.block_bytes();
          coded += (block.shape.dim() + 15) / 16 * 16;
          if (!codec.parts()[i].has_bias) continue;
          EXPECT_EQ(codec.biases(packed.head(), i).data(),
                    packed.scales.data() + (codec.n_parts() + n_biases++) * kBlockTokens);
        }
        EXPECT_EQ(codec.code_bytes(), bytes) << name_of(spec);
        EXPECT_EQ(codec.code_bytes() % 64, 0u);
        EXPECT_EQ(codec.coded_dim(), coded);
        EXPECT_EQ(codec.n_scale_rows(), codec.n_parts() + n_biases);
      }
    }
  }
}

// Bits a value, with scales and biases, of head_dim 128.
TEST(HeadCodec, TakesTheBytesThatItsModePromises) {
  const auto bits_a_value = [](const CodecSpec& spec) {
    const HeadCodec codec = make_codec(spec);
    const std::size_t bytes = codec.code_bytes() + codec.n_scale_rows() * kBlockTokens * 2;
    return static_cast<double>(bytes) * 8.0 / (kBlockTokens * 128.0);
  };
  EXPECT_EQ(bits_a_value({.head_dim = 128, .bits = 4}), 4.125);
  EXPECT_EQ(bits_a_value({.head_dim = 128, .mode = Mode::kProd, .bits = 3}), 3.25);
  CodecSpec mixed = {.head_dim = 128, .mode = Mode::kMixed, .bits = 2};
  mixed.outlier_channels = 32;
  mixed.outlier_bits = 3;
  EXPECT_EQ(bits_a_value(mixed), 2.5);
  mixed.bits = 3, mixed.outlier_bits = 4;
  EXPECT_EQ(bits_a_value(mixed), 3.5);
  EXPECT_EQ(bits_a_value({.head_dim = 128, .mode = Mode::kAffine, .bits = 4, .group_size = 64}),
            4.5);
  EXPECT_EQ(bits_a_value({.head_dim = 128, .mode = Mode::kAffine, .bits = 8, .group_size = 32}),
            9.0);
}

TEST(HeadCodec, EncodesTheSameBytesOnEveryTable) {
  for (const int head_dim : kHeadDims) {
    const auto dim = static_cast<std::size_t>(head_dim);
    for (const CodecSpec& spec : specs_of_every_mode(head_dim)) {
      for (const std::size_t n : {std::size_t{21}, kBlockTokens}) {
        if (n == kBlockTokens && head_dim == 576) continue;  // for the time it takes
        const std::vector<float> x = keys_of(n, dim, 2);
        for (const BlockOrder order : kOrders) {
          const HeadCodec scalar = make_codec(spec, order, *all_kernels()[0]);
          const std::vector<std::uint16_t> channels = order_for(scalar);
          const Packed expected = encode(scalar, x, channels, /*n_skipped=*/2);
          const std::vector<float> decoded = decode(scalar, expected, n, channels);
          for (const Kernels* kernels : all_kernels().subspan(1)) {
            const HeadCodec codec =
                HeadCodec::make(head_dim, scalar.parts(), order, *kernels).value();
            const Packed packed = encode(codec, x, channels, 2);
            EXPECT_EQ(packed, expected) << name_of(spec) << ", " << kernels->name;
            EXPECT_EQ(decode(codec, packed, n, channels), decoded)
                << name_of(spec) << ", " << kernels->name;
          }
        }
      }
    }
  }
}

// The short way for a single part and the long one for several are one and the same.
TEST(HeadCodec, ASinglePartIsABlockCodec) {
  const std::vector<float> x = keys_of(200, 96, 3);
  const std::vector<float> mean = GaussianSource(4).vector(96);
  const Center center = {.mean = mean.data()};
  for (const BlockOrder order : kOrders) {
    const HeadCodec codec = make_codec({.head_dim = 96, .bits = 3}, order);
    Packed expected(codec);
    ASSERT_TRUE(
        codec.part(0).encode(rows_of(x, 96), center, 200, expected.codes, expected.scales).ok());
    EXPECT_EQ(encode(codec, x, {}, 0, center), expected);
    EXPECT_EQ(encode(codec, x, same_order(96), 0, center), expected);
  }
}

TEST(HeadCodec, TakesTheCenterOutOfEveryPart) {
  const std::vector<float> x = keys_of(30, 64, 5);
  const std::vector<float> mean = GaussianSource(6).vector(64);
  std::vector<float> rest = x;
  for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= mean[i % 64];
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    const HeadCodec codec = make_codec(spec);
    const auto order = order_for(codec);
    EXPECT_EQ(encode(codec, x, order, 0, {.mean = mean.data()}), encode(codec, rest, order))
        << name_of(spec);
  }
}

// Part i of token t, as Quantizer has it.
void expect_part_is(const HeadCodec& codec, const Packed& packed, std::size_t part, std::size_t t,
                    std::span<const float> expected) {
  const PackedBlock block = codec.view(packed.head(), part, kBlockTokens);
  const Quantizer& quantizer = codec.part(part).quantizer();
  std::vector<std::byte> bytes(quantizer.code_bytes());
  EXPECT_EQ(block.scales[t], quantizer.encode(expected, bytes).value());
  std::vector<std::uint8_t> wanted(expected.size()), codes(expected.size());
  unpack_codes(bytes, block.shape.bits, wanted);
  const auto all = std::as_bytes(std::span(block.codes, block.shape.block_bytes()));
  unpack_token(block.shape, all, t, codes);
  EXPECT_EQ(codes, wanted) << "part " << part << ", token " << t;
}

TEST(HeadCodec, MixedIsAQuantizerForEachSetOfChannels) {
  for (const int head_dim : kHeadDims) {
    const auto dim = static_cast<std::size_t>(head_dim);
    const HeadCodec codec = make_codec({.head_dim = head_dim,
                                        .mode = Mode::kMixed,
                                        .bits = 2,
                                        .outlier_channels = head_dim / 4,
                                        .outlier_bits = 3});
    const auto order = order_for(codec);
    const std::vector<float> x = keys_of(50, dim, 7);
    const Packed packed = encode(codec, x, order);
    for (std::size_t t = 0; t < 50; ++t) {
      std::vector<float> loud, others;
      for (std::size_t i = 0; i < dim; ++i) {
        const bool is_loud = i % 3 == 1 && i / 3 < dim / 4;
        (is_loud ? loud : others).push_back(x[t * dim + i]);
      }
      expect_part_is(codec, packed, 0, t, loud);
      expect_part_is(codec, packed, 1, t, others);
    }
  }
}

TEST(HeadCodec, ProdCodesWhatTheFirstPartLeaves) {
  for (const TransformKind residual : {TransformKind::kGaussian, TransformKind::kDenseQr}) {
    const HeadCodec codec =
        make_codec({.head_dim = 80, .mode = Mode::kProd, .bits = 4, .residual = residual});
    const std::vector<float> x = keys_of(40, 80, 8);
    const Packed packed = encode(codec, x);
    const Quantizer& first = codec.part(0).quantizer();
    EXPECT_EQ(first.spec().bits, 3);
    EXPECT_EQ(codec.part(1).quantizer().spec().bits, 1);
    for (std::size_t t = 0; t < 40; ++t) {
      const auto vector = std::span(x).subspan(t * 80, 80);
      expect_part_is(codec, packed, 0, t, vector);
      std::vector<std::byte> codes(first.code_bytes());
      std::vector<float> rest(80);
      const std::uint16_t scale = first.encode(vector, codes).value();
      first.decode(codes, scale, rest);
      for (std::size_t i = 0; i < 80; ++i) rest[i] = vector[i] - rest[i];
      expect_part_is(codec, packed, 1, t, rest);
    }
  }
}

TEST(HeadCodec, AffineTakesTheMiddleOutOfEachGroup) {
  const HeadCodec codec =
      make_codec({.head_dim = 128, .mode = Mode::kAffine, .bits = 4, .group_size = 32});
  const std::vector<float> x = keys_of(40, 128, 9);
  const Packed packed = encode(codec, x);
  for (std::size_t t = 0; t < 40; ++t) {
    for (std::size_t group = 0; group < 4; ++group) {
      std::vector<float> rest(x.begin() + static_cast<std::ptrdiff_t>(t * 128 + group * 32),
                              x.begin() + static_cast<std::ptrdiff_t>(t * 128 + group * 32 + 32));
      const auto [least, most] = std::minmax_element(rest.begin(), rest.end());
      const std::uint16_t bias = f32_to_f16((*least + *most) / 2.0f);
      EXPECT_EQ(codec.biases(packed.head(), group)[t], bias);
      for (float& value : rest) value -= f16_to_f32(bias);
      expect_part_is(codec, packed, group, t, rest);
    }
  }
}

TEST(HeadCodec, LeavesZerosBehindTheLastToken) {
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    for (const BlockOrder order : kOrders) {
      const HeadCodec codec = make_codec(spec, order);
      const Packed packed = encode(codec, keys_of(19, 64, 10));
      std::vector<std::uint8_t> codes;
      for (std::size_t i = 0; i < codec.n_parts(); ++i) {
        const PackedBlock block = codec.view(packed.head(), i, 19);
        const auto all = std::as_bytes(std::span(block.codes, block.shape.block_bytes()));
        codes.assign(block.shape.dim(), 1);
        unpack_token(block.shape, all, 19, codes);
        EXPECT_EQ(codes, std::vector<std::uint8_t>(block.shape.dim(), 0)) << name_of(spec);
      }
      for (std::size_t row = 0; row < codec.n_scale_rows(); ++row) {
        for (std::size_t t = 19; t < kBlockTokens; ++t) {
          EXPECT_EQ(packed.scales[row * kBlockTokens + t], 0) << name_of(spec);
        }
      }
    }
  }
}

TEST(HeadCodec, SkippedTokensAreZerosAndChangeNoOthers) {
  for (const CodecSpec& spec : specs_of_every_mode(96)) {
    const HeadCodec codec = make_codec(spec);
    const auto order = order_for(codec);
    std::vector<float> x = keys_of(60, 96, 11), zeros = x;
    std::fill_n(x.begin(), 5 * 96, std::numeric_limits<float>::quiet_NaN());  // never looked at
    std::fill_n(zeros.begin(), 5 * 96, 0.0f);
    const Packed packed = encode(codec, x, order, 5);
    EXPECT_EQ(packed, encode(codec, zeros, order)) << name_of(spec);
    for (std::size_t row = 0; row < codec.n_scale_rows(); ++row) {
      for (std::size_t t = 0; t < 5; ++t) EXPECT_EQ(packed.scales[row * kBlockTokens + t], 0);
    }
    const std::vector<float> decoded = decode(codec, packed, 60, order);
    for (std::size_t i = 0; i < 5 * 96; ++i) EXPECT_EQ(decoded[i], 0.0f);
  }
}

TEST(HeadCodec, SkipsAWholeBlock) {
  const HeadCodec codec = make_codec({.head_dim = 64, .bits = 4});
  const Packed packed = encode(codec, keys_of(7, 64, 12), {}, 7);
  EXPECT_EQ(packed.codes, std::vector<std::byte>(codec.code_bytes()));
  EXPECT_EQ(packed.scales, std::vector<std::uint16_t>(kBlockTokens));
}

TEST(HeadCodec, AChannelOrderIsTakenAndPutBack) {
  for (const CodecSpec& spec : specs_of_every_mode(112)) {
    const HeadCodec codec = make_codec(spec);
    const std::vector<float> x = keys_of(33, 112, 13);
    std::vector<float> turned = x;
    for (std::size_t t = 0; t < 33; ++t) {
      std::reverse(turned.begin() + static_cast<std::ptrdiff_t>(t * 112),
                   turned.begin() + static_cast<std::ptrdiff_t>(t * 112 + 112));
    }
    const auto order = reversed_order(112);
    const Packed packed = encode(codec, x, order);
    EXPECT_EQ(packed, encode(codec, turned)) << name_of(spec);
    const std::vector<float> decoded = decode(codec, packed, 33, order);
    const std::vector<float> expected = decode(codec, packed, 33);
    for (std::size_t t = 0; t < 33; ++t) {
      for (std::size_t i = 0; i < 112; ++i) {
        EXPECT_EQ(decoded[t * 112 + i], expected[t * 112 + 111 - i]) << name_of(spec);
      }
    }
  }
}

Error refusal(const HeadCodec& codec, std::span<const float> x, ChannelOrder order = {}) {
  Packed packed(codec);
  const auto encoded = codec.encode(rows_of(x, codec.head_dim()), {}, order,
                                    x.size() / codec.head_dim(), 0, packed.codes, packed.scales);
  if (encoded.ok()) return {ErrorCode::kInvalidArgument, "nothing was refused"};
  return encoded.error();
}

TEST(HeadCodec, RefusesWhatIsNotFiniteAndNamesTokenAndChannel) {
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    const HeadCodec codec = make_codec(spec);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> x = keys_of(30, 64, 14);
      x[20 * 64 + 17] = value;
      x[27 * 64 + 2] = value;
      const Error error = refusal(codec, x, order_for(codec));
      EXPECT_EQ(error.code, ErrorCode::kCorrupt);
      EXPECT_EQ(error.message, "token 20: component 17: not finite") << name_of(spec);
    }
  }
}

TEST(HeadCodec, RefusesScalesAndBiasesBeyondF16) {
  for (const CodecSpec& spec : specs_of_every_mode(64)) {
    const HeadCodec codec = make_codec(spec);
    std::vector<float> x = keys_of(30, 64, 15);
    x[12 * 64 + 3] = 3e38f;
    const Error error = refusal(codec, x, order_for(codec));
    EXPECT_EQ(error.code, ErrorCode::kUnsupported) << name_of(spec);
    EXPECT_THAT(error.message, testing::StartsWith("token 12: ")) << name_of(spec);
    EXPECT_THAT(error.message, testing::HasSubstr("beyond f16")) << name_of(spec);
  }
  const HeadCodec affine =
      make_codec({.head_dim = 64, .mode = Mode::kAffine, .bits = 4, .group_size = 32});
  EXPECT_EQ(refusal(affine, std::vector<float>(2 * 64, -70000.0f)).message,
            "token 0: bias beyond f16");
}

TEST(HeadCodec, AnyBytesDecodeToSomethingFinite) {
  test::GaussianSource random(16);
  for (const CodecSpec& spec : specs_of_every_mode(80)) {
    for (const BlockOrder order : kOrders) {
      const HeadCodec codec = make_codec(spec, order);
      Packed packed(codec);
      for (std::byte& byte : packed.codes)
        byte = std::byte(static_cast<int>(60 * random.next()) & 255);
      for (std::uint16_t& scale : packed.scales) scale = f32_to_f16(random.next());
      for (const float value : decode(codec, packed, kBlockTokens)) {
        ASSERT_TRUE(std::isfinite(value)) << name_of(spec);
      }
    }
  }
}

TEST(HeadCodec, RefusesPartsThatDoNotFitTogether) {
  std::vector<PartSpec> parts = make_parts({.head_dim = 64, .bits = 4}).value();
  EXPECT_FALSE(HeadCodec::make(128, parts, BlockOrder::kKeys).ok());
  parts[0].centroids[3] = parts[0].centroids[4];
  EXPECT_THAT(HeadCodec::make(64, parts, BlockOrder::kKeys),
              test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr("centroid")));
}

}  // namespace head_codec_test
}  // namespace tqcache::codec
