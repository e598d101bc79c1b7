#include "fuzz/kernel_inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "support/gaussian.h"
#include "tqcache/base/half.h"
#include "tqcache/bytes.h"

namespace tqcache::fuzz {
namespace {

using codec::BlockOrder;
using codec::HeadCodec;
using codec::kBlockTokens;
using codec::Kernels;

codec::CodecSpec spec_of(const CodecChoice& choice) {
  constexpr int kHeadDims[] = {32, 40, 64, 128};
  codec::CodecSpec spec;
  spec.head_dim = kHeadDims[choice.head_dim];
  spec.mode = static_cast<codec::Mode>(choice.mode);
  spec.bits = choice.bits + 1;
  if (choice.rotation == 2) spec.rotation = codec::TransformKind::kDenseQr;
  if (choice.rotation == 1) spec.rounds = 2;
  spec.scale = static_cast<codec::ScaleRule>(choice.scale);
  if (choice.extra == 1) spec.residual = codec::TransformKind::kDenseQr;
  spec.outlier_channels = choice.extra == 1 ? 8 : spec.head_dim / 4;
  spec.outlier_bits = std::min(8, spec.bits + 1);
  spec.group_size = choice.extra == 1 ? 64 : 32;
  return spec;
}

// A file may have any centroids that ascend.
void disturb(std::vector<float>& centroids) {
  test::SplitMix64 random(centroids.size());
  for (float& c : centroids) c = static_cast<float>(1.6 * random.uniform() - 0.8);
  std::ranges::sort(centroids);
}

std::optional<HeadCodec> make_codec(const CodecChoice& choice, const Kernels& kernels) {
  auto parts = codec::make_parts(spec_of(choice));
  if (!parts) return {};
  if (choice.centroids == 1) {
    for (codec::PartSpec& part : *parts) disturb(part.centroids);
  }
  const BlockOrder order = choice.keys ? BlockOrder::kKeys : BlockOrder::kValues;
  auto made = HeadCodec::make(spec_of(choice).head_dim, *parts, order, kernels);
  if (!made) return {};
  return std::move(made).value();
}

const std::optional<HeadCodec>& codec_of(const CodecChoice& choice, std::size_t table) {
  static std::map<std::pair<CodecChoice, std::size_t>, std::optional<HeadCodec>> made;
  const auto found = made.find({choice, table});
  if (found != made.end()) return found->second;
  return made.emplace(std::pair(choice, table), make_codec(choice, *codec::all_kernels()[table]))
      .first->second;
}

void fill(Input& input, std::span<float> values, std::size_t row) {
  const std::size_t kind = input.below(8);
  const auto seed = input.take<std::uint16_t>();
  test::SplitMix64 random(seed);
  const auto bell = [&] {
    const std::uint64_t bits = random.next();
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int>(bits >> (16 * i) & 0xffff);
    return static_cast<float>(sum - 2 * 0xffff) * 0x1p-15f;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (kind) {
      case 0:
        values[i] = static_cast<float>(input.take<std::int8_t>()) / 16.0f;
        break;
      case 1:
        values[i] = f16_to_f32(input.take<std::uint16_t>());
        break;
      case 2:
        values[i] = std::bit_cast<float>(input.take<std::uint32_t>());
        break;
      case 3:
        values[i] = bell() + static_cast<float>(i % row % 3) * 5.0f;
        break;
      case 4:
        values[i] = bell() * std::exp2(static_cast<float>((i / row + seed) % 25) - 12.0f);
        break;
      case 5:
        values[i] = i % row == seed % row ? 1000.0f * bell() : bell();
        break;
      default:
        values[i] = bell();
    }
  }
}

}  // namespace

CodecChoice choose_codec(Input& input) {
  const auto choice = [&](std::size_t bound) {
    return static_cast<std::uint8_t>(input.below(bound));
  };
  CodecChoice chosen{.head_dim = choice(4), .mode = choice(4), .bits = choice(8)};
  chosen.rotation = choice(8) == 0 ? 2 : choice(2);
  chosen.scale = choice(3);
  chosen.extra = choice(2);
  chosen.centroids = choice(4) == 0 ? 1 : 0;
  chosen.keys = input.flag();
  // A matrix takes the square of head_dim: small ones say as much. And large ones take their time.
  if (chosen.mode == 1 || chosen.rotation == 2) chosen.head_dim = chosen.head_dim % 2;
  if (chosen.head_dim == 3 && choice(4) != 0) chosen.head_dim = 0;
  return chosen;
}

Codecs codecs_of(const CodecChoice& choice, std::size_t table) {
  Codecs codecs;
  const std::optional<HeadCodec>& scalar = codec_of(choice, 0);
  if (scalar) codecs.push_back(*scalar);
  if (scalar && table > 0) codecs.push_back(codec_of(choice, table).value());
  return codecs;
}

std::vector<float> make_values(Input& input, std::size_t n, std::size_t row) {
  std::vector<float> values(n * row);
  fill(input, values, row);
  return values;
}

Vectors make_vectors(Input& input, std::size_t head_dim) {
  Vectors vectors;
  // Groups are of 16 tokens: into the third one will do, and leaves time for more inputs.
  vectors.n_tokens = 1 + input.below(input.below(64) == 0 ? 40 : 18);
  vectors.n_skipped = input.below(8) == 0 ? input.below(vectors.n_tokens) : 0;
  const auto dtype = static_cast<Dtype>(input.below(3));
  const std::vector<float> values = make_values(input, vectors.n_tokens, head_dim);
  vectors.bytes.resize(values.size() * dtype_size(dtype));
  store_f32(dtype, values, vectors.bytes.data());
  vectors.rows = {dtype, vectors.bytes.data(), head_dim * dtype_size(dtype)};
  return vectors;
}

Block any_block(const HeadCodec& codec, Input& input) {
  Block block{std::vector<std::byte>(codec.code_bytes()),
              std::vector<std::uint16_t>(codec.n_scale_rows() * kBlockTokens)};
  test::SplitMix64 random(input.take<std::uint16_t>());
  for (std::byte& byte : block.codes) byte = static_cast<std::byte>(random.next());
  const bool any_scale = input.flag();
  for (std::uint16_t& scale : block.scales) {
    const auto bits = static_cast<std::uint16_t>(random.next());
    scale = any_scale ? bits : static_cast<std::uint16_t>(bits & 0xbfff);  // below 2
  }
  return block;
}

CenterTables make_center(Input& input, std::size_t head_dim) {
  CenterTables tables;
  const std::size_t kind = input.below(4);
  if (kind < 2) return tables;
  tables.mean = make_values(input, 1, head_dim);
  for (float& x : tables.mean) x = std::isfinite(x) ? std::clamp(x, -100.0f, 100.0f) : 0.0f;
  tables.center.mean = tables.mean.data();
  if (kind == 2) return tables;
  const std::size_t n_pairs = head_dim / 4;
  for (std::size_t i = 0; i < kBlockTokens * n_pairs; ++i) {
    const auto angle = static_cast<float>(i % 61) * 0.1f;
    tables.cos.push_back(std::cos(angle));
    tables.sin.push_back(std::sin(angle));
  }
  tables.center = {tables.mean.data(), n_pairs, tables.cos.data(), tables.sin.data()};
  return tables;
}

}  // namespace tqcache::fuzz
