#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "support/gaussian.h"
#include "support/matchers.h"
#include "tqcache/bytes.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"

namespace tqcache::interop {
namespace mlx_lm_affine_test {

struct Packed {
  std::vector<std::uint32_t> words;
  std::vector<std::uint32_t> scales, biases;  // bits of the dtype
};

std::vector<std::uint32_t> numbers(Dtype dtype, const Bytes& bytes) {
  std::vector<std::uint32_t> result;
  for (std::size_t at = 0; at < bytes.size(); at += dtype_size(dtype)) {
    result.push_back(dtype == Dtype::kF32 ? number_at<std::uint32_t>(bytes, at)
                                          : number_at<std::uint16_t>(bytes, at));
  }
  return result;
}

Packed encode(AffineGroups form, Dtype dtype, const std::vector<float>& x) {
  const std::int64_t head_dim = std::ssize(x);
  const std::size_t n_groups = affine_groups(form, head_dim);
  Bytes codes(affine_code_bytes(form, head_dim));
  Bytes scales(n_groups * dtype_size(dtype)), biases(n_groups * dtype_size(dtype));
  affine_encode(form, dtype, x, codes, scales, biases);
  return {numbers(Dtype::kF32, codes), numbers(dtype, scales), numbers(dtype, biases)};
}

// 64 values, multiples of 1/16.
std::vector<float> saw(int offset) {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) x.push_back(static_cast<float>(i * 37 % 101 - 50 + offset) / 16);
  return x;
}

// What mlx.core.quantize() of mlx 0.32.4 made of saw(offset), on a CPU, in groups of 32.
struct Known {
  Dtype dtype;
  int bits;
  int offset;
  std::vector<std::uint32_t> words, scales, biases;
};
const std::vector<Known> kKnown = {
    {Dtype::kF32,
     4,
     0,
     {0x7d38e4af, 0x8e4af5b1, 0x9f5b06c2, 0xa06c28d3, 0xb17d39f4, 0xd28e4af5, 0xe39f5b07,
      0xf4a06c28},
     {0xbec80000, 0xbec40000},
     {0x40480000, 0x40440000}},
    {Dtype::kF32,
     4,
     40,
     {0x7c28e4af, 0x8e49f5b1, 0x9f5a06c2, 0xa06c27d3, 0xb17d38e4, 0xc28e49f5, 0xd39f5b06,
      0xe4a06c27},
     {0xbecdb6db, 0xbecb6db7},
     {0x40b40000, 0x40b20000}},
    {Dtype::kF32,
     4,
     -40,
     {0x93d72c60, 0x82c60a5f, 0x71b5f94e, 0x6fa4e82c, 0x4e93d71b, 0x3d72c60a, 0x2c60b5f9,
      0x1b5fa4e8},
     {0x3ecdb6db, 0x3ec92492},
     {0xc0b40000, 0xc0b00000}},
    {Dtype::kF16,
     4,
     0,
     {0x7d38e4af, 0x8e4af5b1, 0x9f5b06c2, 0xa06c28d3, 0xb17d39f4, 0xd28e4af5, 0xe39f5b07,
      0xf4a06c28},
     {0xb640, 0xb620},
     {0x4240, 0x4220}},
    {Dtype::kF16,
     4,
     40,
     {0x7c28e4af, 0x8e49f5b1, 0x9f5a06c2, 0xa06c27d3, 0xb17d38e4, 0xc28e49f5, 0xd39f5b06,
      0xe4a06c27},
     {0xb66e, 0xb65b},
     {0x45a0, 0x4590}},
    {Dtype::kF16,
     4,
     -40,
     {0x93d72c60, 0x82c60a5f, 0x71b5f94e, 0x6fa4e82c, 0x4e93d71b, 0x3d72c60a, 0x2c60b5f9,
      0x1b5fa4e8},
     {0x366e, 0x3649},
     {0xc5a0, 0xc580}},
    {Dtype::kBF16,
     2,
     0,
     {0xb6dcb6df, 0xc72db72d, 0xdb6dcb6d, 0xdcb2db72},
     {0xbfc8, 0xbfc4},
     {0x4048, 0x4044}},
    {Dtype::kBF16,
     4,
     0,
     {0x7d38e4af, 0x8e4af5b1, 0x9f5b06c2, 0xa06c28d3, 0xb17d39f4, 0xd28e4af5, 0xe39f5b07,
      0xf4a06c28},
     {0xbec8, 0xbec4},
     {0x4048, 0x4044}},
    {Dtype::kBF16,
     4,
     40,
     {0x7c28e4af, 0x8e49f5b1, 0x9f5a06c2, 0xa06c27d3, 0xb17d38e4, 0xc28e49f5, 0xd39f5b06,
      0xe4a06c27},
     {0xbece, 0xbecb},
     {0x40b4, 0x40b2}},
    {Dtype::kBF16,
     4,
     -40,
     {0x93d72c60, 0x82c60a5f, 0x71b5f94e, 0x6fa4e82c, 0x4e93d71b, 0x3d72c60a, 0x2c60b5f9,
      0x1b5fa4e8},
     {0x3ece, 0x3ec9},
     {0xc0b4, 0xc0b0}},
    {Dtype::kBF16,
     8,
     0,
     {0xe643a1ff, 0x6ecd2988, 0xf854b30f, 0x80df3b9a, 0x866c521, 0x92f14dac, 0x1a78d733, 0xa4005fbd,
      0x2a8ced44, 0xb81071d3, 0x3d9eff57, 0xcb2284e5, 0x4fb00869, 0xdd3596f7, 0x61c31a7c,
      0xf047a800},
     {0xbcc8, 0xbcc2},
     {0x4048, 0x4044}}};

TEST(MlxAffine, EncodesAsMlxDoes) {
  for (const Known& known : kKnown) {
    const Packed packed =
        encode({.bits = known.bits, .group_size = 32}, known.dtype, saw(known.offset));
    EXPECT_EQ(packed.words, known.words) << known.bits << " bits " << known.offset;
    EXPECT_EQ(packed.scales, known.scales) << known.bits << " bits " << known.offset;
    EXPECT_EQ(packed.biases, known.biases) << known.bits << " bits " << known.offset;
  }
}

TEST(MlxAffine, EncodesGroupsOfOneValueAsMlxDoes) {
  const float scale = -1e-7f;
  std::uint32_t scale_bits;
  std::memcpy(&scale_bits, &scale, sizeof scale);
  for (const auto& [value, bias] :
       {std::pair(0.0f, 0u), {3.0f, 0x40400000u}, {-3.0f, 0xc0400000u}}) {
    const Packed packed =
        encode({.bits = 4, .group_size = 32}, Dtype::kF32, std::vector<float>(32, value));
    EXPECT_EQ(packed.words, std::vector<std::uint32_t>(4, 0));
    EXPECT_EQ(packed.scales, std::vector{scale_bits});
    EXPECT_EQ(packed.biases, std::vector{bias});
  }
}

// Codes that mlx made of 0, 1, ..., 2^bits - 1, 0, ... with bias 2^bits - 1 and scale -1.
void expect_counts_down(int bits, const std::vector<std::uint32_t>& words) {
  std::vector<float> x(32);
  const auto top = static_cast<float>((1 << bits) - 1);
  affine_decode({.bits = bits, .group_size = 32}, object_bytes(words), std::vector{-1.0f},
                std::vector{top}, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i], static_cast<float>(i % (std::size_t{1} << bits))) << bits << " bits " << i;
  }
}

TEST(MlxAffine, DecodesCodesThatCrossWords) {
  expect_counts_down(3, {0x77053977, 0x39770539, 0x5397705});
  expect_counts_down(5, {0x75be77df, 0x3a56d7c6, 0x35cf8465, 0xc74254b6, 0x443214});
}

TEST(MlxAffine, DecodesEachGroupWithItsOwnScale) {
  const std::vector<std::uint32_t> words(16, 0x03020100);
  std::vector<float> x(64);
  affine_decode({.bits = 8, .group_size = 32}, object_bytes(words), std::vector{2.0f, -0.5f},
                std::vector{1.0f, 10.0f}, x);
  EXPECT_EQ(x[3], 7.0f);
  EXPECT_EQ(x[32], 10.0f);
  EXPECT_EQ(x[35], 8.5f);
}

TEST(MlxAffine, DecodesToWithinHalfAStep) {
  test::GaussianSource random(1);
  for (const int bits : {2, 4, 8}) {
    const AffineGroups form{.bits = bits, .group_size = 64};
    const std::vector<float> x = random.vector(128);
    Bytes codes(affine_code_bytes(form, 128));
    std::vector<float> scales(2), biases(2), back(128);
    affine_encode(form, Dtype::kF32, x, codes, std::as_writable_bytes(std::span(scales)),
                  std::as_writable_bytes(std::span(biases)));
    affine_decode(form, codes, scales, biases, back);
    for (std::size_t i = 0; i < x.size(); ++i) {
      // The step is stretched so that 0 has a code, and values at the far end are clipped.
      EXPECT_LE(std::abs(back[i] - x[i]), std::abs(scales[i / 64])) << bits << " bits " << i;
    }
  }
}

TEST(MlxAffine, GivesACodeToWhatIsNoNumber) {
  std::vector<float> x(32, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(encode({.bits = 4, .group_size = 32}, Dtype::kF32, x).words,
            std::vector<std::uint32_t>(4, 0));
  x[0] = std::numeric_limits<float>::infinity();
  x[1] = -x[0];
  EXPECT_EQ(encode({.bits = 8, .group_size = 32}, Dtype::kF32, x).words.size(), 8u);
}

TEST(MlxAffine, RefusesFormsThatMlxDoesNotHave) {
  for (const std::int64_t bits : {2, 3, 4, 5, 6, 8}) EXPECT_TRUE(check_affine(bits, 64, 128).ok());
  for (const std::int64_t bits : {-1, 0, 1, 7, 9, 16}) {
    EXPECT_THAT(
        check_affine(bits, 64, 128),
        test::FailsWith(ErrorCode::kUnsupported, "groups of " + std::to_string(bits) + " bits"));
  }
  for (const std::int64_t size : {0, 1, 16, 63, 256}) {
    EXPECT_EQ(check_affine(4, size, 256).error().code, ErrorCode::kUnsupported);
  }
  EXPECT_EQ(check_affine(4, 64, 96).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(check_affine(4, 64, 96).error().message, "head_dim 96 in groups of 64");
}

}  // namespace mlx_lm_affine_test
}  // namespace tqcache::interop
