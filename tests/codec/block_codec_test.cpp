// A block at once gives the bytes that Quantizer gives for each vector (docs/codec.md §4).

#include "tqcache/codec/block_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/packing.h"

namespace tqcache::codec {
namespace {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kHeadDims[] = {32, 33, 64, 80, 96, 112, 128, 192, 256, 512};
constexpr BlockOrder kOrders[] = {BlockOrder::kKeys, BlockOrder::kValues};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Quantizer make_quantizer(int head_dim, int bits) {
  return Quantizer::make(CodecSpec{.head_dim = head_dim, .bits = bits}).value();
}

// Vectors of `dtype`, and what they are in f32.
struct Vectors {
  Dtype dtype;
  std::size_t head_dim;
  std::vector<float> values;
  std::vector<std::byte> bytes;

  Vectors(Dtype type, std::size_t dim, std::vector<float> wanted)
      : dtype(type), head_dim(dim), values(std::move(wanted)) {
    bytes.resize(values.size() * dtype_size(dtype));
    store_f32(dtype, values, bytes.data());
    load_f32(dtype, bytes.data(), values);
  }

  std::size_t count() const { return values.size() / head_dim; }
  VectorRows rows() const { return {dtype, bytes.data(), head_dim * dtype_size(dtype)}; }
  std::span<const float> vector(std::size_t i) const {
    return std::span(values).subspan(i * head_dim, head_dim);
  }
};

struct Block {
  std::vector<std::byte> codes;
  std::vector<std::uint16_t> scales;
  bool operator==(const Block&) const = default;
};

// Vector by vector, by the definition.
Block encode_by_quantizer(const Quantizer& quantizer, BlockOrder order, const Vectors& x) {
  const BlockShape shape = {quantizer.spec().head_dim, quantizer.spec().bits, order};
  Block block{std::vector<std::byte>(shape.block_bytes()),
              std::vector<std::uint16_t>(kBlockTokens)};
  std::vector<std::uint8_t> codes(kBlockTokens * shape.dim());
  std::vector<std::byte> packed(quantizer.code_bytes());
  for (std::size_t t = 0; t < x.count(); ++t) {
    block.scales[t] = quantizer.encode(x.vector(t), packed).value();
    unpack_codes(packed, shape.bits, std::span(codes).subspan(t * shape.dim(), shape.dim()));
  }
  pack_block(shape, codes, block.codes);
  return block;
}

Block encode(const BlockCodec& codec, const Vectors& x) {
  Block block{std::vector<std::byte>(codec.shape().block_bytes(), std::byte{0xee}),
              std::vector<std::uint16_t>(kBlockTokens, 0xeeee)};
  EXPECT_TRUE(codec.encode(x.rows(), x.count(), block.codes, block.scales).ok());
  return block;
}

// Gaussian vectors with, among them, what encoders get wrong: zeros, the smallest and the largest
// numbers, signed zeros, one component alone, components on a boundary.
std::vector<float> hard_vectors(std::size_t n, std::size_t head_dim) {
  GaussianSource random(41);
  std::vector<float> x = random.vector(n * head_dim);
  for (std::size_t t = 0; t < n; ++t) {
    float* const v = x.data() + t * head_dim;
    for (std::size_t i = 0; i < head_dim; ++i) {
      if (t % 16 == 1) v[i] = 0.0f;
      if (t % 16 == 2) v[i] = i % 2 == 0 ? -0.0f : 0.0f;
      if (t % 16 == 3) v[i] *= 1e-40f;   // subnormal f32: its square is 0
      if (t % 16 == 4) v[i] *= 1e-21f;   // squares are subnormal
      if (t % 16 == 5) v[i] *= 1e-7f;    // scale is a subnormal f16, or 0
      if (t % 16 == 6) v[i] *= 1000.0f;  // scale is near the largest f16 at head_dim 512
      if (t % 16 == 7) v[i] = i == t % head_dim ? -2.5f : 0.0f;
      if (t % 16 == 8) v[i] = i % 2 == 0 ? 1.0f : -1.0f;
      if (t % 16 == 9) v[i] = 1.0f;
      if (t % 16 == 10) v[i] *= 6e-6f;
    }
  }
  return x;
}

TEST(BlockCodec, EncodesWhatQuantizerEncodes) {
  for (const Kernels* kernels : all_kernels()) {
    for (const int head_dim : kHeadDims) {
      for (int bits = 1; bits <= 8; ++bits) {
        const Quantizer quantizer = make_quantizer(head_dim, bits);
        for (const Dtype dtype : kDtypes) {
          // f16 and bf16 differ from f32 only on the way in.
          if (dtype != Dtype::kF32 && bits != 3 && bits != 4) continue;
          const auto dim = static_cast<std::size_t>(head_dim);
          const Vectors x(dtype, dim, hard_vectors(kBlockTokens, dim));
          for (const BlockOrder order : kOrders) {
            const BlockCodec codec(quantizer, order, *kernels);
            EXPECT_EQ(encode(codec, x), encode_by_quantizer(quantizer, order, x))
                << kernels->name << " head_dim " << head_dim << " bits " << bits << " "
                << dtype_name(dtype) << " order " << static_cast<int>(order);
          }
        }
      }
    }
  }
}

TEST(BlockCodec, EncodesPartOfABlockAndLeavesTheRestZero) {
  for (const Kernels* kernels : all_kernels()) {
    const Quantizer quantizer = make_quantizer(64, 4);
    for (const std::size_t n : {1u, 15u, 16u, 17u, 32u, 33u, 250u}) {
      const Vectors x(Dtype::kF16, 64, hard_vectors(n, 64));
      for (const BlockOrder order : kOrders) {
        const BlockCodec codec(quantizer, order, *kernels);
        EXPECT_EQ(encode(codec, x), encode_by_quantizer(quantizer, order, x))
            << kernels->name << " " << n;
      }
    }
  }
}

TEST(BlockCodec, ReadsRowsThatStandApart) {
  // As the rows of one kv head stand among those of the others.
  constexpr std::size_t kHeads = 3, kDim = 64;
  const Vectors all(Dtype::kF16, kDim, GaussianSource(42).vector(kBlockTokens * kHeads * kDim));
  const Quantizer quantizer = make_quantizer(kDim, 4);
  std::vector<float> second;
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    const auto v = all.vector(t * kHeads + 1);
    second.insert(second.end(), v.begin(), v.end());
  }
  const Vectors expected(Dtype::kF16, kDim, second);
  for (const Kernels* kernels : all_kernels()) {
    const BlockCodec codec(quantizer, BlockOrder::kKeys, *kernels);
    Block block{std::vector<std::byte>(codec.shape().block_bytes()),
                std::vector<std::uint16_t>(kBlockTokens)};
    const VectorRows rows = {Dtype::kF16, all.bytes.data() + kDim * 2, kHeads * kDim * 2};
    ASSERT_TRUE(codec.encode(rows, kBlockTokens, block.codes, block.scales).ok());
    EXPECT_EQ(block, encode(codec, expected)) << kernels->name;
  }
}

// A codebook that no solver made: uneven, and away from zero on one side.
TEST(BlockCodec, EncodesWithACodebookThatAFileBrought) {
  const std::vector<float> centroids = {-0.9f, -0.2f, -0.19f, -0.01f, 0.0f, 0.05f, 0.3f, 0.31f};
  const Quantizer quantizer =
      Quantizer::make(CodecSpec{.head_dim = 128, .bits = 3}, centroids).value();
  std::vector<float> x;
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    const std::vector<float> v = GaussianSource(43 + t).vector(128);
    x.insert(x.end(), v.begin(), v.end());
  }
  const Vectors vectors(Dtype::kF32, 128, x);
  for (const Kernels* kernels : all_kernels()) {
    const BlockCodec codec(quantizer, BlockOrder::kValues, *kernels);
    EXPECT_EQ(encode(codec, vectors), encode_by_quantizer(quantizer, BlockOrder::kValues, vectors))
        << kernels->name;
  }
}

struct Refusal {
  float value;
  ErrorCode code;
  const char* message;
};

TEST(BlockCodec, RefusesWhatQuantizerRefusesAndNamesTheFirstToken) {
  const Refusal refusals[] = {
      {std::numeric_limits<float>::quiet_NaN(), ErrorCode::kCorrupt, "component 17: not finite"},
      {kInfinity, ErrorCode::kCorrupt, "component 17: not finite"},
      {-kInfinity, ErrorCode::kCorrupt, "component 17: not finite"},
      {3e38f, ErrorCode::kUnsupported, "scale beyond f16"},  // the length overflows
      {7e4f, ErrorCode::kUnsupported, "scale beyond f16"}};
  for (const Kernels* kernels : all_kernels()) {
    for (const Refusal& refusal : refusals) {
      for (const std::size_t token : {0u, 21u, 255u}) {
        std::vector<float> x = GaussianSource(44).vector(kBlockTokens * 64);
        for (std::size_t t = token; t < kBlockTokens; t += 3) x[t * 64 + 17] = refusal.value;
        const Vectors vectors(Dtype::kF32, 64, x);
        for (const BlockOrder order : kOrders) {
          const BlockCodec codec(make_quantizer(64, 4), order, *kernels);
          std::vector<std::byte> codes(codec.shape().block_bytes());
          std::vector<std::uint16_t> scales(kBlockTokens);
          const Result<void> result = codec.encode(vectors.rows(), kBlockTokens, codes, scales);
          ASSERT_FALSE(result.ok()) << kernels->name;
          EXPECT_EQ(result.error().code, refusal.code) << kernels->name;
          EXPECT_THAT(result.error().message, StartsWith("token " + std::to_string(token) + ": "));
          EXPECT_THAT(result.error().message, HasSubstr(refusal.message));
        }
      }
    }
  }
}

// The scale at the edge of f16: 65504 is kept, what rounds beyond is refused.
TEST(BlockCodec, AgreesWithQuantizerAtTheEdgeOfF16) {
  for (const Kernels* kernels : all_kernels()) {
    const Quantizer quantizer = make_quantizer(64, 4);
    const BlockCodec codec(quantizer, BlockOrder::kKeys, *kernels);
    std::vector<std::byte> packed(quantizer.code_bytes());
    for (int step = -8; step <= 8; ++step) {
      std::vector<float> x = GaussianSource(45).vector(64);
      const float now = f16_to_f32(quantizer.encode(x, packed).value());
      for (float& value : x) value *= (65512.0f + 8.0f * static_cast<float>(step)) / now;
      const Vectors vectors(Dtype::kF32, 64, x);
      std::vector<std::byte> codes(codec.shape().block_bytes());
      std::vector<std::uint16_t> scales(kBlockTokens);
      const Result<void> result = codec.encode(vectors.rows(), 1, codes, scales);
      const Result<std::uint16_t> expected = quantizer.encode(x, packed);
      ASSERT_EQ(result.ok(), expected.ok()) << kernels->name << " " << step;
      if (expected.ok()) {
        EXPECT_EQ(scales[0], *expected);
      }
    }
  }
}

TEST(BlockCodec, DecodesWhatQuantizerDecodes) {
  for (const Kernels* kernels : all_kernels()) {
    for (const int head_dim : kHeadDims) {
      for (int bits = 1; bits <= 8; ++bits) {
        const Quantizer quantizer = make_quantizer(head_dim, bits);
        const auto dim = static_cast<std::size_t>(head_dim);
        const std::size_t n = bits % 2 == 0 ? kBlockTokens : 201;
        const Vectors x(Dtype::kF32, dim, hard_vectors(n, dim));
        for (const BlockOrder order : kOrders) {
          const BlockCodec codec(quantizer, order, *kernels);
          const Block block = encode(codec, x);
          for (const Dtype dtype : kDtypes) {
            std::vector<std::byte> decoded(n * dim * dtype_size(dtype));
            codec.decode(block.codes, block.scales, n,
                         {dtype, decoded.data(), dim * dtype_size(dtype)});
            std::vector<std::byte> packed(quantizer.code_bytes());
            std::vector<float> value(dim);
            std::vector<std::byte> expected(decoded.size());
            for (std::size_t t = 0; t < n; ++t) {
              const std::uint16_t scale = quantizer.encode(x.vector(t), packed).value();
              quantizer.decode(packed, scale, value);
              store_f32(dtype, value, expected.data() + t * dim * dtype_size(dtype));
            }
            EXPECT_EQ(decoded, expected)
                << kernels->name << " head_dim " << head_dim << " bits " << bits << " "
                << dtype_name(dtype) << " order " << static_cast<int>(order);
          }
        }
      }
    }
  }
}

TEST(BlockCodec, AnyBytesDecodeTheSameWithAllKernels) {
  SplitMix64 random(46);
  for (const BlockOrder order : kOrders) {
    for (int bits = 1; bits <= 8; ++bits) {
      const Quantizer quantizer = make_quantizer(128, bits);
      const BlockCodec definition(quantizer, order, *all_kernels().front());
      std::vector<std::byte> codes(definition.shape().block_bytes());
      for (std::byte& byte : codes) byte = static_cast<std::byte>(random.next());
      std::vector<std::uint16_t> scales(kBlockTokens);
      for (std::uint16_t& scale : scales) scale = static_cast<std::uint16_t>(random.below(0x7c00));
      std::vector<float> expected(kBlockTokens * 128), decoded(expected.size());
      definition.decode(codes, scales, kBlockTokens,
                        {Dtype::kF32, std::as_writable_bytes(std::span(expected)).data(), 512});
      for (const Kernels* kernels : all_kernels()) {
        const BlockCodec codec(quantizer, order, *kernels);
        codec.decode(codes, scales, kBlockTokens,
                     {Dtype::kF32, std::as_writable_bytes(std::span(decoded)).data(), 512});
        EXPECT_EQ(decoded, expected) << kernels->name << " bits " << bits;
      }
    }
  }
}

TEST(BlockCodec, SaysWhichKernelsConvert) {
  const Kernels& definition = *all_kernels().front();
  for (const Kernels* kernels : all_kernels()) {
    const bool own = kernels->encode_lines != definition.encode_lines;
    const BlockCodec codec(make_quantizer(128, 4), BlockOrder::kKeys, *kernels);
    EXPECT_STREQ(codec.conversion_kernels(), own ? kernels->name : "scalar");
    const BlockCodec odd(make_quantizer(80, 4), BlockOrder::kKeys, *kernels);
    EXPECT_STREQ(odd.conversion_kernels(), "scalar");
  }
}

}  // namespace
}  // namespace tqcache::codec
