// A block at once gives the bytes that Quantizer gives for each vector (docs/reference/codec.md
// §4).

#include "tqcache/codec/block_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/gaussian.h"
#include "support/long_tests.h"
#include "support/matchers.h"
#include "tqcache/base/half.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/codebook.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {
namespace block_codec_test {

using test::GaussianSource;
using test::SplitMix64;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kHeadDims[] = {8,   24,  32,  33,  40,  64,  80,  96,  112,
                             128, 160, 176, 192, 256, 512, 576, 1024};
constexpr BlockOrder kOrders[] = {BlockOrder::kKeys, BlockOrder::kValues};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBF16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Quantizer make_quantizer(int head_dim, int bits) {
  return Quantizer::make(PartSpec{.head_dim = head_dim, .bits = bits}).value();
}

// 2^bits centroids, evenly spaced from -1 to 1.
std::vector<float> even_centroids(int bits) {
  const int last = (1 << bits) - 1;
  std::vector<float> centroids;
  for (int i = 0; i <= last; ++i) {
    centroids.push_back(static_cast<float>(2 * i - last) / static_cast<float>(last));
  }
  return centroids;
}

// Every kind of rotation and of scale, each at some sizes.
std::vector<Quantizer> all_kinds_of_quantizers() {
  std::vector<PartSpec> specs;
  const auto add = [&](int head_dim, int bits, TransformKind rotation, int rounds,
                       ScaleRule scale) {
    specs.push_back({.head_dim = head_dim,
                     .bits = bits,
                     .seed = static_cast<std::uint64_t>(7 * head_dim + bits),
                     .rotation = rotation,
                     .rounds = rounds,
                     .scale = scale});
  };
  constexpr ScaleRule kRules[] = {ScaleRule::kUnbiased, ScaleRule::kNorm, ScaleRule::kRaw,
                                  ScaleRule::kPeak};
  for (const int head_dim : {8, 24, 32, 33, 40, 96, 128, 144, 192, 512, 576, 1024}) {
    for (const int rounds : {2, 3}) {
      add(head_dim, 1 + head_dim % 7, TransformKind::kHadamard, rounds, kRules[head_dim / 8 % 3]);
    }
  }
  for (const ScaleRule rule : kRules) {
    for (int bits = 1; bits <= 8; ++bits) add(80, bits, TransformKind::kHadamard, 1, rule);
    for (const TransformKind kind : {TransformKind::kDenseQr, TransformKind::kGaussian}) {
      for (const int head_dim : {8, 33, 64, 96}) add(head_dim, 2, kind, 1, rule);
    }
    for (const int head_dim : {8, 24, 33, 64, 128}) add(head_dim, 4, TransformKind::kNone, 1, rule);
  }
  for (const int head_dim : {8, 33, 96}) {
    add(head_dim, 2, TransformKind::kMatrix, 1, ScaleRule::kRaw);
    const std::vector<float> values =
        GaussianSource(3).vector(static_cast<std::size_t>(head_dim * head_dim));
    specs.back().matrix = TransformMatrix::make({values.begin(), values.end()}).value();
  }
  std::vector<Quantizer> quantizers;
  for (const PartSpec& spec : specs) {
    quantizers.push_back(spec.rotation == TransformKind::kNone || spec.scale == ScaleRule::kPeak
                             ? Quantizer::make(spec, even_centroids(spec.bits)).value()
                             : Quantizer::make(spec).value());
  }
  return quantizers;
}

std::string name_of(const PartSpec& spec) {
  return "head_dim " + std::to_string(spec.head_dim) + " bits " + std::to_string(spec.bits) +
         " rotation " + std::to_string(static_cast<int>(spec.rotation)) + " rounds " +
         std::to_string(spec.rounds) + " scale " + std::to_string(static_cast<int>(spec.scale));
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

Block encode(const BlockCodec& codec, const Vectors& x, const Center& center = {}) {
  Block block{std::vector<std::byte>(codec.shape().block_bytes(), std::byte{0xee}),
              std::vector<std::uint16_t>(kBlockTokens, 0xeeee)};
  EXPECT_TRUE(codec.encode(x.rows(), center, x.count(), block.codes, block.scales).ok());
  return block;
}

// As encode_by_quantizer has it, on every table.
void expect_encodes_as_quantizer(const Quantizer& quantizer, BlockOrder order, const Vectors& x) {
  const Block expected = encode_by_quantizer(quantizer, order, x);
  for (const Kernels* kernels : all_kernels()) {
    EXPECT_EQ(encode(BlockCodec(quantizer, order, *kernels), x), expected)
        << kernels->name << " " << name_of(quantizer.spec()) << " " << dtype_name(x.dtype)
        << " order " << static_cast<int>(order) << " tokens " << x.count();
  }
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

TEST(BlockCodec, MakesItsTablesOnceForAllThreadsAndCopies) {
  const Quantizer quantizer = make_quantizer(128, 8);
  const CodeTables expected = make_code_tables(128, 8, quantizer.centroids());
  for (int round = 0; round < 20; ++round) {
    const BlockCodec codec(quantizer, BlockOrder::kKeys);
    std::vector<const CodeTables*> found(8);
    std::vector<std::thread> threads;
    for (const CodeTables*& each : found) {
      threads.emplace_back([&each, &expected, copy = codec] {
        each = &copy.tables();
        // All of them, also where another thread makes them.
        EXPECT_TRUE(std::ranges::equal(each->values, expected.values));
        EXPECT_TRUE(std::ranges::equal(each->remainder, expected.remainder));
        EXPECT_EQ(each->remainder_step, expected.remainder_step);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(found, testing::Each(&codec.tables()));
  }
}

TEST(BlockCodec, EncodesWhatQuantizerEncodes) {
  for (const int head_dim : kHeadDims) {
    for (int bits = 1; bits <= 8; ++bits) {
      if (!test::takes_emulated_case(static_cast<std::size_t>(bits - 1), 3)) continue;
      const auto dim = static_cast<std::size_t>(head_dim);
      const Quantizer quantizer = make_quantizer(head_dim, bits);
      const BlockOrder order = kOrders[(head_dim / 8 + bits) % 2];
      expect_encodes_as_quantizer(quantizer, order,
                                  Vectors(Dtype::kF32, dim, hard_vectors(kBlockTokens, dim)));
    }
  }
}

TEST(BlockCodec, EncodesEveryDtypeInBothOrders) {
  for (const int head_dim : {24, 33, 80, 128}) {
    for (const int bits : {3, 4}) {
      const auto dim = static_cast<std::size_t>(head_dim);
      for (const Dtype dtype : kDtypes) {
        const Vectors x(dtype, dim, hard_vectors(kBlockTokens, dim));
        for (const BlockOrder order : kOrders) {
          expect_encodes_as_quantizer(make_quantizer(head_dim, bits), order, x);
        }
      }
    }
  }
}

TEST(BlockCodec, EncodesWithEveryKindOfRotationAndScale) {
  for (const Quantizer& quantizer : all_kinds_of_quantizers()) {
    const std::size_t dim = quantizer.rotation().head_dim();
    // 37 tokens: two whole groups and a part of one.
    expect_encodes_as_quantizer(quantizer, BlockOrder::kKeys,
                                Vectors(Dtype::kF32, dim, hard_vectors(37, dim)));
  }
}

TEST(BlockCodec, EncodesPartOfABlockAndLeavesTheRestZero) {
  const Quantizer quantizer = make_quantizer(32, 4);
  for (std::size_t n = 1; n <= kBlockTokens; ++n) {
    const Vectors x(Dtype::kF16, 32, hard_vectors(n, 32));
    expect_encodes_as_quantizer(quantizer, kOrders[n % 2], x);
    if (n % 16 == 1) expect_encodes_as_quantizer(quantizer, kOrders[(n + 1) % 2], x);
  }
}

// Lines of sixteen tokens, in memory that held something else before.
std::vector<std::uint8_t> encode_lines(const Kernels& kernels, const RotationTables& tables,
                                       const Vectors& x) {
  const std::size_t units = (tables.head_dim + kUnitLaneCodes - 1) / kUnitLaneCodes;
  std::vector<std::uint8_t> lines(units * kUnitLines * kLineBytes, 0xee);
  std::vector<std::uint16_t> scales(x.count());
  EXPECT_EQ(kernels.encode_lines(tables, x.rows(), x.count(), lines.data(), scales.data()), 0u);
  return lines;
}

TEST(BlockCodec, WritesWholeUnitsOfLinesWithZerosBeyondTheVectors) {
  for (const int head_dim : {8, 24, 33, 40, 80, 130}) {
    const Quantizer quantizer = make_quantizer(head_dim, 4);
    const RotationTables tables(quantizer);
    for (const std::size_t n : {1u, 4u, 7u, 8u, 11u, 16u}) {
      const Vectors x(Dtype::kF32, tables.head_dim, hard_vectors(n, tables.head_dim));
      const std::vector<std::uint8_t> expected = encode_lines(*all_kernels().front(), tables, x);
      for (const Kernels* kernels : all_kernels()) {
        EXPECT_EQ(encode_lines(*kernels, tables, x), expected)
            << kernels->name << " " << head_dim << " " << n;
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
    ASSERT_TRUE(codec.encode(rows, {}, kBlockTokens, block.codes, block.scales).ok());
    EXPECT_EQ(block, encode(codec, expected)) << kernels->name;
  }
}

// A codebook that no solver made: uneven, and away from zero on one side.
TEST(BlockCodec, EncodesWithACodebookThatAFileBrought) {
  const std::vector<float> centroids = {-0.9f, -0.2f, -0.19f, -0.01f, 0.0f, 0.05f, 0.3f, 0.31f};
  const Quantizer quantizer =
      Quantizer::make(PartSpec{.head_dim = 128, .bits = 3}, centroids).value();
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

// Boundaries so close together that no bins of equal width can hold them one by one.
TEST(BlockCodec, EncodesWithCentroidsThatNearlyMeet) {
  for (int bits = 2; bits <= 4; ++bits) {
    std::vector<float> centroids = even_centroids(bits);
    centroids[1] = std::nextafter(centroids[0], 0.0f);
    centroids[2] = std::nextafter(centroids[1], 0.0f);
    const Quantizer quantizer =
        Quantizer::make(PartSpec{.head_dim = 64, .bits = bits, .scale = ScaleRule::kRaw}, centroids)
            .value();
    EXPECT_FALSE(make_code_bins(decision_boundaries(centroids)).is_usable);
    expect_encodes_as_quantizer(quantizer, BlockOrder::kKeys,
                                Vectors(Dtype::kF32, 64, hard_vectors(kBlockTokens, 64)));
  }
}

TEST(CodeBins, HoldTheCodebooksOfTheFormat) {
  for (int head_dim = 8; head_dim <= 1024; head_dim += 8) {
    for (int bits = 2; bits <= 4; ++bits) {
      const auto boundaries = decision_boundaries(lloyd_max_centroids(head_dim, bits));
      EXPECT_TRUE(make_code_bins(boundaries).is_usable) << head_dim << " " << bits;
    }
  }
}

// What lies on a boundary, or between the bins that vector units look it up in, and next to it.
std::vector<float> edges_of(const std::vector<float>& boundaries) {
  std::vector<float> edges = boundaries;
  const CodeBins bins = make_code_bins(boundaries);
  for (int bin = -16; bins.is_usable && bin <= 15; ++bin) {
    edges.push_back((static_cast<float>(bin) + 0.5f) / bins.bins_per_unit);
  }
  const std::size_t n = edges.size();
  for (std::size_t i = 0; i < n; ++i) {
    edges.push_back(std::nextafter(edges[i], 2.0f));
    edges.push_back(std::nextafter(edges[i], -2.0f));
  }
  return edges;
}

TEST(BlockCodec, EncodesComponentsOnBoundariesAndNextToThem) {
  constexpr std::size_t kDim = 128;
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<float> centroids = lloyd_max_centroids(kDim, bits);
    const Quantizer quantizer = Quantizer::make(PartSpec{.head_dim = kDim,
                                                         .bits = bits,
                                                         .rotation = TransformKind::kNone,
                                                         .scale = ScaleRule::kPeak},
                                                centroids)
                                    .value();
    // Component 0 is 1, so that nothing else is scaled.
    std::vector<float> x;
    for (const float edge : edges_of(decision_boundaries(centroids))) {
      if (x.size() % kDim == 0) x.push_back(1.0f);
      x.push_back(edge);
    }
    x.resize((x.size() + kDim - 1) / kDim * kDim, -1.0f);
    expect_encodes_as_quantizer(quantizer, BlockOrder::kKeys, Vectors(Dtype::kF32, kDim, x));
  }
}

// One of each kind of rotation and of scale.
std::vector<Quantizer> refusing_quantizers() {
  std::vector<Quantizer> quantizers;
  PartSpec spec = {.head_dim = 64, .bits = 4};
  for (const ScaleRule rule : {ScaleRule::kUnbiased, ScaleRule::kNorm, ScaleRule::kRaw}) {
    spec.scale = rule;
    quantizers.push_back(Quantizer::make(spec).value());
  }
  for (const TransformKind kind :
       {TransformKind::kDenseQr, TransformKind::kGaussian, TransformKind::kNone}) {
    spec.rotation = kind;
    quantizers.push_back(Quantizer::make(spec).value());
  }
  spec.scale = ScaleRule::kPeak;
  quantizers.push_back(Quantizer::make(spec, even_centroids(4)).value());
  return quantizers;
}

struct Refusal {
  float value;
  ErrorCode code;
  const char* message;
};

constexpr Refusal kRefusals[] = {
    {std::numeric_limits<float>::quiet_NaN(), ErrorCode::kCorrupt, "component 17: not finite"},
    {kInfinity, ErrorCode::kCorrupt, "component 17: not finite"},
    {-kInfinity, ErrorCode::kCorrupt, "component 17: not finite"},
    {3e38f, ErrorCode::kUnsupported, "scale beyond f16"},  // the length overflows
    {7e4f, ErrorCode::kUnsupported, "scale beyond f16"}};

void expect_refused(const BlockCodec& codec, const Refusal& refusal, std::size_t token) {
  std::vector<float> x = GaussianSource(44).vector(kBlockTokens * 64);
  for (std::size_t t = token; t < kBlockTokens; t += 3) x[t * 64 + 17] = refusal.value;
  const Vectors vectors(Dtype::kF32, 64, x);
  std::vector<std::byte> codes(codec.shape().block_bytes());
  std::vector<std::uint16_t> scales(kBlockTokens);
  const Result<void> result = codec.encode(vectors.rows(), {}, kBlockTokens, codes, scales);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, refusal.code);
  EXPECT_THAT(result.error().message, StartsWith("token " + std::to_string(token) + ": "));
  EXPECT_THAT(result.error().message, HasSubstr(refusal.message));
}

TEST(BlockCodec, RefusesWhatQuantizerRefusesAndNamesTheFirstToken) {
  for (const Quantizer& quantizer : refusing_quantizers()) {
    for (const Kernels* kernels : all_kernels()) {
      SCOPED_TRACE(kernels->name + (" " + name_of(quantizer.spec())));
      for (const Refusal& refusal : kRefusals) {
        for (const std::size_t token : {0u, 21u, 255u}) {
          const BlockOrder order = kOrders[token % 2];
          expect_refused(BlockCodec(quantizer, order, *kernels), refusal, token);
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
      const Result<void> result = codec.encode(vectors.rows(), {}, 1, codes, scales);
      const Result<std::uint16_t> expected = quantizer.encode(x, packed);
      ASSERT_EQ(result.ok(), expected.ok()) << kernels->name << " " << step;
      if (expected.ok()) {
        EXPECT_EQ(scales[0], *expected);
      }
    }
  }
}

// By the definition, rounded to dtype.
std::vector<std::byte> decode_by_quantizer(const Quantizer& quantizer, const Vectors& x,
                                           Dtype dtype) {
  std::vector<std::byte> packed(quantizer.code_bytes());
  std::vector<float> value(x.head_dim);
  std::vector<std::byte> decoded(x.values.size() * dtype_size(dtype));
  for (std::size_t t = 0; t < x.count(); ++t) {
    const std::uint16_t scale = quantizer.encode(x.vector(t), packed).value();
    quantizer.decode(packed, scale, value);
    store_f32(dtype, value, decoded.data() + t * x.head_dim * dtype_size(dtype));
  }
  return decoded;
}

void expect_decodes_as_quantizer(const Quantizer& quantizer, BlockOrder order, const Vectors& x,
                                 Dtype dtype) {
  const std::vector<std::byte> expected = decode_by_quantizer(quantizer, x, dtype);
  for (const Kernels* kernels : all_kernels()) {
    const BlockCodec codec(quantizer, order, *kernels);
    const Block block = encode(codec, x);
    std::vector<std::byte> decoded(expected.size());
    codec.decode(block.codes, block.scales, x.count(),
                 {dtype, decoded.data(), x.head_dim * dtype_size(dtype)});
    EXPECT_EQ(decoded, expected) << kernels->name << " " << name_of(quantizer.spec()) << " "
                                 << dtype_name(dtype) << " order " << static_cast<int>(order);
  }
}

TEST(BlockCodec, DecodesWhatQuantizerDecodes) {
  for (const int head_dim : kHeadDims) {
    for (int bits = 1; bits <= 8; ++bits) {
      if (!test::takes_emulated_case(static_cast<std::size_t>(bits - 1), 3)) continue;
      const auto dim = static_cast<std::size_t>(head_dim);
      const std::size_t n = bits % 2 == 0 ? kBlockTokens : 201;
      expect_decodes_as_quantizer(
          make_quantizer(head_dim, bits), kOrders[(head_dim / 8 + bits) % 2],
          Vectors(Dtype::kF32, dim, hard_vectors(n, dim)), kDtypes[bits % 3]);
    }
  }
}

TEST(BlockCodec, DecodesEveryDtypeInBothOrders) {
  for (const int head_dim : {24, 33, 80, 128}) {
    const auto dim = static_cast<std::size_t>(head_dim);
    const Vectors x(Dtype::kF32, dim, hard_vectors(201, dim));
    for (const Dtype dtype : kDtypes) {
      for (const BlockOrder order : kOrders) {
        expect_decodes_as_quantizer(make_quantizer(head_dim, 4), order, x, dtype);
      }
    }
  }
}

TEST(BlockCodec, DecodesWithEveryKindOfRotationAndScale) {
  for (const Quantizer& quantizer : all_kinds_of_quantizers()) {
    const std::size_t dim = quantizer.rotation().head_dim();
    expect_decodes_as_quantizer(quantizer, BlockOrder::kValues,
                                Vectors(Dtype::kF32, dim, hard_vectors(37, dim)), Dtype::kF32);
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

// A mean, and cosines and sines of any angles for every place in the block.
struct RotatingCenter {
  std::vector<float> mean, cos, sin;
  std::size_t n_pairs;

  RotatingCenter(std::size_t head_dim, std::size_t pairs)
      : mean(GaussianSource(47).vector(head_dim)), n_pairs(pairs) {
    SplitMix64 random(48);
    for (std::size_t i = 0; i < kBlockTokens * pairs; ++i) {
      const double angle = static_cast<double>(random.below(1u << 20)) * 1e-3;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }

  Center view() const { return {mean.data(), n_pairs, cos.data(), sin.data()}; }

  // The mean as it stands in one token. Every product and sum is an f32.
  std::vector<float> at(std::size_t token) const {
    std::vector<float> turned = mean;
    for (std::size_t i = 0; i < n_pairs; ++i) {
      const float c = cos[token * n_pairs + i], s = sin[token * n_pairs + i];
      const float a = mean[i], b = mean[i + n_pairs];
      const float ac = a * c, bs = b * s, bc = b * c, as = a * s;
      turned[i] = ac - bs;
      turned[i + n_pairs] = bc + as;
    }
    return turned;
  }

  Vectors taken_out_of(const Vectors& x, std::size_t first_token = 0) const {
    std::vector<float> rest = x.values;
    for (std::size_t t = 0; t < x.count(); ++t) {
      const std::vector<float> m = at(first_token + t);
      for (std::size_t i = 0; i < x.head_dim; ++i) rest[t * x.head_dim + i] -= m[i];
    }
    return Vectors(Dtype::kF32, x.head_dim, rest);
  }
};

TEST(BlockCodec, TakesOutTheCenterOnEveryTable) {
  for (const std::size_t dim : {8u, 24u, 33u, 80u, 128u, 576u}) {
    for (const std::size_t pairs : {std::size_t{0}, dim / 2, dim / 4, std::size_t{3}}) {
      const RotatingCenter center(dim, pairs);
      for (const Dtype dtype : kDtypes) {
        const Vectors x(dtype, dim, hard_vectors(13, dim));
        for (const std::size_t first : {0u, 5u, 243u}) {
          const std::vector<float> expected = center.taken_out_of(x, first).values;
          for (const Kernels* kernels : all_kernels()) {
            std::vector<float> out(expected.size());
            kernels->center_rows(x.rows(), x.count(), dim, center.view(), first, out.data());
            EXPECT_EQ(out, expected) << kernels->name << " " << dim << " " << pairs << " "
                                     << dtype_name(dtype) << " from token " << first;
          }
        }
      }
    }
  }
}

TEST(BlockCodec, WidensRowsThatHaveNoCenter) {
  for (const std::size_t dim : {8u, 33u, 128u}) {
    for (const Dtype dtype : kDtypes) {
      const Vectors x(dtype, dim, hard_vectors(16, dim));
      for (const Kernels* kernels : all_kernels()) {
        std::vector<float> out(x.values.size());
        kernels->center_rows(x.rows(), x.count(), dim, {}, 0, out.data());
        EXPECT_EQ(out, x.values) << kernels->name << " " << dim << " " << dtype_name(dtype);
      }
    }
  }
}

// What restore_rows() is, value by value.
std::vector<float> restored(const RotatingCenter& center, bool has_mean, bool rotates,
                            std::size_t first_token, const Vectors& x) {
  std::vector<float> out = x.values;
  for (std::size_t t = 0; t < x.count(); ++t) {
    const std::size_t pairs = rotates ? center.n_pairs : 0;
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::size_t at = (first_token + t) * center.n_pairs + i;
      float& low = out[t * x.head_dim + i];
      float& high = out[t * x.head_dim + i + center.n_pairs];
      const float ac = low * center.cos[at], bs = high * center.sin[at];
      const float bc = high * center.cos[at], as = low * center.sin[at];
      low = ac - bs;
      high = bc + as;
    }
    const std::vector<float> mean = center.at(first_token + t);
    for (std::size_t i = 0; has_mean && i < x.head_dim; ++i) out[t * x.head_dim + i] += mean[i];
  }
  return out;
}

TEST(BlockCodec, RestoresRowsOnEveryTable) {
  for (const std::size_t dim : {8u, 24u, 33u, 80u, 128u}) {
    for (const std::size_t pairs : {std::size_t{0}, dim / 2, dim / 4, std::size_t{3}}) {
      const RotatingCenter center(dim, pairs);
      const Vectors x(Dtype::kF32, dim, GaussianSource(50).vector(11 * dim));
      for (const bool rotates : {false, pairs > 0}) {
        for (const Dtype dtype : kDtypes) {
          const Vectors expected(dtype, dim, restored(center, true, rotates, 245, x));
          for (const Kernels* kernels : all_kernels()) {
            Vectors out(dtype, dim, std::vector<float>(x.values.size()));
            kernels->restore_rows({x.values.data(), x.count(), dim, rotates}, center.view(), 245,
                                  {dtype, out.bytes.data(), dim * dtype_size(dtype)});
            EXPECT_EQ(out.bytes, expected.bytes) << kernels->name << " " << dim << " " << pairs
                                                 << " " << dtype_name(dtype) << " " << rotates;
          }
        }
      }
    }
  }
}

TEST(BlockCodec, RestoresRowsThatHaveNoCenter) {
  const RotatingCenter none(33, 0);
  for (const Dtype dtype : kDtypes) {
    const Vectors x(Dtype::kF32, 33, GaussianSource(51).vector(5 * 33));
    const Vectors expected(dtype, 33, restored(none, false, false, 0, x));
    for (const Kernels* kernels : all_kernels()) {
      Vectors out(dtype, 33, std::vector<float>(x.values.size()));
      kernels->restore_rows({x.values.data(), 5, 33, false}, {}, 0,
                            {dtype, out.bytes.data(), 33 * dtype_size(dtype)});
      EXPECT_EQ(out.bytes, expected.bytes) << kernels->name << " " << dtype_name(dtype);
    }
  }
}

TEST(BlockCodec, EncodesWhatIsLeftOfTheCenter) {
  for (const std::size_t dim : {64u, 96u, 128u}) {
    const Quantizer quantizer = make_quantizer(static_cast<int>(dim), 4);
    const RotatingCenter center(dim, dim / 2);
    for (const Dtype dtype : kDtypes) {
      for (const std::size_t n : {1u, 7u, 40u, 256u}) {
        const Vectors x(dtype, dim, GaussianSource(49).vector(n * dim));
        const Vectors rest = center.taken_out_of(x);
        for (const BlockOrder order : kOrders) {
          const Block expected = encode_by_quantizer(quantizer, order, rest);
          for (const Kernels* kernels : all_kernels()) {
            const BlockCodec codec(quantizer, order, *kernels);
            EXPECT_EQ(encode(codec, x, center.view()), expected)
                << kernels->name << " " << dim << " " << dtype_name(dtype) << " " << n;
          }
        }
      }
    }
  }
}

TEST(BlockCodec, RefusesWithACenterAsWithout) {
  const RotatingCenter center(64, 32);
  std::vector<float> x = GaussianSource(50).vector(40 * 64);
  x[35 * 64 + 9] = -kInfinity;
  const Vectors vectors(Dtype::kF32, 64, x);
  for (const Kernels* kernels : all_kernels()) {
    const BlockCodec codec(make_quantizer(64, 4), BlockOrder::kKeys, *kernels);
    std::vector<std::byte> codes(codec.shape().block_bytes());
    std::vector<std::uint16_t> scales(kBlockTokens);
    EXPECT_THAT(codec.encode(vectors.rows(), center.view(), 40, codes, scales),
                test::FailsWith(ErrorCode::kCorrupt, "token 35: component 9: not finite"));
  }
}

}  // namespace block_codec_test
}  // namespace tqcache::codec
