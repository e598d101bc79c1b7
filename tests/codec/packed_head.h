#pragma once
// codec/packed_head.h: packed blocks of every mode, for the tests of HeadCodec.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::codec::test {

using namespace tqcache::test;  // NOLINT: this namespace hides that one

using tqcache::test::GaussianSource;

#ifdef TQCACHE_TEST_EMULATED  // an emulator (tests/neon) is slow
inline constexpr int kHeadDims[] = {80, 128};
#else
inline constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 576};
#endif

// Every mode, with the parts and widths that take different roads. A dense map takes d^2 a vector.
inline std::vector<CodecSpec> specs_of_every_mode(int head_dim) {
  std::vector<CodecSpec> specs;
  for (const int bits : {1, 3, 4, 8}) specs.push_back({.head_dim = head_dim, .bits = bits});
  if (head_dim <= 192) specs.push_back({.head_dim = head_dim, .mode = Mode::kProd, .bits = 2});
  specs.push_back({.head_dim = head_dim, .mode = Mode::kProd, .bits = 4});
  if (head_dim <= 128) {
    specs.push_back({.head_dim = head_dim,
                     .mode = Mode::kProd,
                     .bits = 3,
                     .scale = ScaleRule::kRaw,
                     .residual = TransformKind::kDenseQr});
  }
  specs.push_back({.head_dim = head_dim,
                   .mode = Mode::kMixed,
                   .bits = 2,
                   .outlier_channels = head_dim / 4,
                   .outlier_bits = 3});
  specs.push_back({.head_dim = head_dim, .mode = Mode::kTrellis, .step = 0.25f});
  const int group_size = std::gcd(head_dim, 64);
  for (const int bits : {4, 8}) {
    if (group_size < 32) continue;
    specs.push_back(
        {.head_dim = head_dim, .mode = Mode::kAffine, .bits = bits, .group_size = group_size});
  }
  return specs;
}

inline std::string name_of(const CodecSpec& spec) {
  return std::string(mode_word(spec.mode)) + " of head_dim " + std::to_string(spec.head_dim) +
         ", " + std::to_string(spec.bits) + " bits";
}

inline HeadCodec make_codec(const CodecSpec& spec, BlockOrder order = BlockOrder::kKeys,
                            const Kernels& kernels = best_kernels()) {
  auto codec = HeadCodec::make(spec, order, kernels);
  if (!codec) ADD_FAILURE() << name_of(spec) << ": " << codec.error().message;
  return std::move(codec).value();
}

// Every third channel first, as many as the codec's mode wants.
inline std::vector<std::uint16_t> order_for(const HeadCodec& codec) {
  if (codec.outlier_channels() == 0) return {};
  std::vector<std::uint16_t> first(codec.outlier_channels());
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<std::uint16_t>(3 * i + 1);
  return make_channel_order(codec.head_dim(), first).value();
}

struct Packed {
  std::vector<std::byte> codes;
  std::vector<std::uint16_t> scales;

  // Filled with what must not stay.
  explicit Packed(const HeadCodec& codec)
      : codes(codec.code_bytes(), std::byte{0xee}),
        scales(codec.n_scale_rows() * kBlockTokens, 0xeeee) {}
  PackedHead head() const { return {codes, scales}; }
  bool operator==(const Packed&) const = default;
};

inline VectorRows rows_of(std::span<const float> x, std::size_t dim) {
  return {Dtype::kF32, std::as_bytes(x).data(), dim * sizeof(float)};
}

// Shapes: x [n_tokens, head_dim].
inline Packed encode(const HeadCodec& codec, std::span<const float> x, ChannelOrder order = {},
                     std::size_t n_skipped = 0, const Center& center = {}) {
  Packed packed(codec);
  const auto encoded =
      codec.encode(rows_of(x, codec.head_dim()), center, order, x.size() / codec.head_dim(),
                   n_skipped, packed.codes, packed.scales);
  if (!encoded) ADD_FAILURE() << encoded.error().message;
  return packed;
}

inline std::vector<float> decode(const HeadCodec& codec, const Packed& packed, std::size_t n_tokens,
                                 ChannelOrder order = {}) {
  std::vector<float> x(n_tokens * codec.head_dim());
  codec.decode(packed.head(), order, n_tokens, x);
  return x;
}

// Gaussian vectors with a few outlier channels, a bias, and some vectors of zeros among them.
inline std::vector<float> keys_of(std::size_t n_tokens, std::size_t head_dim, std::uint64_t seed,
                                  float bias = 0.25f) {
  std::vector<float> x = GaussianSource(seed).vector(n_tokens * head_dim);
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const auto vector = std::span(x).subspan(t * head_dim, head_dim);
    for (std::size_t i = 0; i < head_dim; ++i) {
      vector[i] = t % 40 == 39 ? 0.0f : vector[i] * (i % 16 == 5 ? 6.0f : 1.0f) + bias;
    }
    if (t % 40 == 39) std::fill(vector.begin(), vector.end(), 0.0f);
  }
  return x;
}

}  // namespace tqcache::codec::test
