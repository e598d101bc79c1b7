// Every mode of the codec through a cache: packed, read back, grown token by token.

#include <gtest/gtest.h>

#include <map>

#include "cache/random_cache.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace modes_test {

using test::attention;
using test::packed_bytes;
using test::values_of;

constexpr HeadShape kShape{2, 64};
constexpr Rope kRope{RopeStyle::kHalfSplit, 64, 1e4};

Cache dense_cache(std::int64_t n_tokens, Dtype dtype = Dtype::kF16) {
  Cache cache = test::random_cache(31, n_tokens, dtype, kShape, 1);
  cache.identity.rope = kRope;
  return cache;
}

struct Case {
  std::string name;
  ConvertOptions options;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string_view name : preset_names()) {
    Case each{std::string(name), preset(name).value()};
    all.push_back(each);
    each.name += ", 5 sinks";
    each.options.keys.n_sinks = each.options.values.n_sinks = 5;
    all.push_back(each);
    each.name += ", not centered";
    each.options.keys.center = each.options.values.center = Centering::kNone;
    all.push_back(each);
  }
  Case dense_qr{"dense rotation, orthogonal residual", preset("prod3").value()};
  for (TensorPlan* const plan : {&dense_qr.options.keys, &dense_qr.options.values}) {
    plan->codec.rotation = plan->codec.residual = codec::TransformKind::kDenseQr;
  }
  all.push_back(dense_qr);
  return all;
}

// What a packed block stands for, step by step: the mean taken out of all tokens, the codec there
// and back, the mean added again, and sink tokens as they were.
std::vector<float> by_definition(const Tensor& dense, const TurboTensor& turbo,
                                 std::int64_t n_tokens, std::int64_t block, std::int64_t head) {
  std::vector<float> rows(256 * 64);
  read_block(dense, kShape, n_tokens, block, head, rows);
  const std::vector<float> before = rows;
  const BlockMean mean(turbo.codec.state().mean, kShape, block);
  mean.subtract_from(head, 0, rows);
  const codec::HeadCodec& codec = turbo.codec.state().codec;
  const codec::ChannelOrder order = turbo.codec.state().outliers.order(head);
  std::vector<std::byte> codes(codec.code_bytes());
  std::vector<std::uint16_t> scales(codec.n_scale_rows() * 256);
  const codec::VectorRows x{Dtype::kF32, std::as_bytes(std::span(rows)).data(), 64 * sizeof(float)};
  EXPECT_TRUE(codec.encode(x, {}, order, 256, 0, codes, scales));
  codec.decode({codes, scales}, order, 256, rows);
  mean.add_to(head, 0, rows);
  const auto n_sinks = static_cast<std::ptrdiff_t>(turbo.codec.layout(block).n_sinks);
  std::copy_n(before.begin(), n_sinks * 64, rows.begin());
  return rows;
}

TEST(Modes, ReadBackWhatTheyAreDefinedToBe) {
  const Cache dense = dense_cache(700);
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    const Cache turbo = convert(dense, each.options).value();
    ASSERT_TRUE(validate(turbo));
    for (const auto tensor : {&AttentionLayer::k, &AttentionLayer::v}) {
      const auto* const packed = std::get_if<TurboTensor>(&(attention(turbo, 0).*tensor));
      if (packed == nullptr) continue;  // kfv4 has dense keys
      for (const std::int64_t block : {0, 1}) {
        for (const std::int64_t head : {0, 1}) {
          std::vector<float> read(256 * 64);
          read_block(attention(turbo, 0).*tensor, kShape, 700, block, head, read);
          ASSERT_EQ(read, by_definition(attention(dense, 0).*tensor, *packed, 700, block, head));
        }
      }
    }
  }
}

// Fewer tokens than a block has may be asked for, even fewer than are sinks.
TEST(Modes, ReadTheFirstTokensOfAPackedBlock) {
  ConvertOptions options = preset("turbo2.5").value();
  options.keys.n_sinks = 5;
  const Cache turbo = convert(dense_cache(256), options).value();
  std::vector<float> whole(256 * 64);
  read_block(attention(turbo, 0).k, kShape, 256, 0, 1, whole);
  for (const std::int64_t n : {1, 4, 5, 6, 255}) {
    std::vector<float> part(static_cast<std::size_t>(n * 64));
    read_block(attention(turbo, 0).k, kShape, n, 0, 1, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin())) << n;
  }
}

TEST(Modes, KeepSinkTokensBitForBit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    const Cache dense = dense_cache(512, dtype);
    for (const Case& each : cases()) {
      SCOPED_TRACE(each.name);
      const std::int64_t n_sinks = each.options.values.n_sinks;
      const Cache turbo = convert(dense, each.options).value();
      const auto a = values_of(attention(dense, 0).v, kShape, 512);
      const auto b = values_of(attention(turbo, 0).v, kShape, 512);
      std::int64_t n_equal = 0;  // whole head vectors of each head
      for (std::size_t row = 0; row < a.size(); row += 64) {
        n_equal += std::equal(a.begin() + static_cast<std::ptrdiff_t>(row),
                              a.begin() + static_cast<std::ptrdiff_t>(row + 64),
                              b.begin() + static_cast<std::ptrdiff_t>(row));
      }
      EXPECT_EQ(n_equal, 2 * n_sinks);
    }
  }
}

// Squared error of values, of their energy about the mean: two-sided, so that a mode that is by
// mistake another one is found out. docs/reference/codec.md §7 has the figures of Gaussian vectors;
// these components are uniform, but the rotation makes them much the same.
TEST(Modes, HaveTheErrorOfTheirBits) {
  const std::map<std::string_view, std::pair<double, double>> bounds = {
      {"turbo4", {.0080, .0100}},      {"turbo3.5", {.025, .032}}, {"turbo3", {.031, .037}},
      {"turbo2.5", {.085, .110}},      {"turbo2", {.110, .130}},   {"k8v4", {.0080, .0100}},
      {"k4v3", {.031, .037}},          {"kfv4", {.0080, .0100}},   {"prod4", {.047, .057}},
      {"prod3", {.160, .190}},         {"prod2", {.500, .600}},    {"affine4", {.0037, .0045}},
      {"affine8", {.000012, .000016}},
  };
  const Cache dense = dense_cache(1024, Dtype::kF32);
  const auto a = values_of(attention(dense, 0).v, kShape, 1024);
  for (const auto& [name, bound] : bounds) {
    const Cache turbo = convert(dense, preset(name).value()).value();
    const auto b = values_of(attention(turbo, 0).v, kShape, 1024);
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      error += (a[i] - b[i]) * (a[i] - b[i]);
      energy += a[i] * a[i];
    }
    std::printf("%-9s %.6f\n", std::string(name).c_str(), error / energy);
    EXPECT_GT(error / energy, bound.first) << name;
    EXPECT_LT(error / energy, bound.second) << name;
  }
}

TEST(Modes, GiveTheSameBytesOnAnyNumberOfThreads) {
  const Cache dense = dense_cache(600);
  for (Case each : cases()) {
    SCOPED_TRACE(each.name);
    each.options.n_threads = 1;
    const Cache one = convert(dense, each.options).value();
    each.options.n_threads = 4;
    const Cache four = convert(dense, each.options).value();
    const auto& a = std::get<TurboTensor>(attention(one, 0).v);
    const auto& b = std::get<TurboTensor>(attention(four, 0).v);
    EXPECT_TRUE(a.codec.state().mean == b.codec.state().mean);
    EXPECT_EQ(a.codec.state().outliers, b.codec.state().outliers);
    for (const std::size_t block : {0u, 1u})
      EXPECT_EQ(packed_bytes(a, block), packed_bytes(b, block));
  }
}

// A tensor that starts empty fixes its mean and its outlier channels with its first block, so it
// becomes what one does that was converted when it had just that block.
TEST(Modes, GrowFromNothingAsFromTheirFirstBlock) {
  for (const Case& each : cases()) {
    SCOPED_TRACE(each.name);
    std::mt19937 random(31), same(31);
    Cache empty = convert(dense_cache(0), each.options).value();
    test::append_tokens(empty, random, 513);
    Cache first = dense_cache(0);
    test::append_tokens(first, same, 256);
    first = convert(std::move(first), each.options).value();
    test::append_tokens(first, same, 257);
    ASSERT_TRUE(validate(empty));
    for (const auto tensor : {&AttentionLayer::k, &AttentionLayer::v}) {
      const auto* const a = std::get_if<TurboTensor>(&(attention(empty, 0).*tensor));
      if (a == nullptr) continue;
      const auto& b = std::get<TurboTensor>(attention(first, 0).*tensor);
      ASSERT_EQ(a->packed.size(), 2u);
      ASSERT_EQ(b.packed.size(), 2u);
      EXPECT_TRUE(a->codec.state().mean == b.codec.state().mean);
      EXPECT_EQ(a->codec.state().outliers, b.codec.state().outliers);
      for (const std::size_t i : {0u, 1u}) EXPECT_EQ(packed_bytes(*a, i), packed_bytes(b, i));
    }
  }
}

TEST(Modes, CountTheBytesOfAllTheyKeep) {
  ConvertOptions options = preset("turbo2.5").value();
  options.values.n_sinks = 7;
  const Cache turbo = convert(dense_cache(512), options).value();
  const Tensor& tensor = attention(turbo, 0).v;
  // Codes of 16 channels at 3 bits and 48 at 2, two scales; sink tokens of f16; mean and orders.
  const std::size_t expected =
      2 * 512 * (6 + 12 + 2 * 2) + 2 * 7 * 64 * 2 + 2 * 64 * 4 + 2 * 64 * 2;
  EXPECT_EQ(byte_count(tensor, kShape, 512).used, expected);
  EXPECT_EQ(byte_count(tensor, kShape, 512).allocated, expected);
}

}  // namespace modes_test
}  // namespace tqcache::cache
