// Groups of mlx-lm: bias + scale * code, codes in words of 32 bits. QuantizedKVCache, and affine
// values of TurboQuantKVCache.

#include <string>
#include <utility>

#include "migrations/v1_layers.h"
#include "migrations/v1_meta.h"
#include "migrations/v1_side.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::migrations {
namespace {

constexpr std::int64_t kWordBits = 32;

// code / 2^bits: with scales 2^bits times as large, the codes themselves. (Centroids lie within -1
// and 1, and a power of two leaves all digits as they are.)
std::vector<float> code_centroids(int bits) {
  const int count = 1 << bits;
  std::vector<float> centroids;
  for (int code = 0; code < count; ++code) {
    centroids.push_back(static_cast<float>(code) / static_cast<float>(count));
  }
  return centroids;
}

// Every n_groups-th value: [n_kv_heads, n_tokens] of one group.
std::vector<float> of_group(const std::vector<float>& values, std::size_t group,
                            std::size_t n_groups) {
  std::vector<float> result;
  result.reserve(values.size() / n_groups);
  for (std::size_t i = group; i < values.size(); i += n_groups) result.push_back(values[i]);
  return result;
}

CodedPart group_part(std::int64_t group, AffineForm form) {
  const int bits = static_cast<int>(form.bits);
  const int size = static_cast<int>(form.group_size);
  const int first = static_cast<int>(group * form.group_size);
  return {.spec = {.first = first,
                   .quantizer = {.head_dim = size,
                                 .bits = bits,
                                 .seed = 0,  // nothing is drawn
                                 .rotation = codec::TransformKind::kNone,
                                 .scale = codec::ScaleRule::kPeak},
                   .has_bias = true,
                   .centroids = code_centroids(bits)},
          .rows = 0,
          .first_code = static_cast<std::size_t>(first),
          .factor = static_cast<float>(1 << bits),
          .scales = {},
          .biases = {}};
}

Result<void> check_form(AffineForm form, std::int64_t head_dim) {
  if (form.bits != 1 && form.bits != 2 && form.bits != 4 && form.bits != 8) {
    return Error{ErrorCode::kUnsupported, "groups of " + std::to_string(form.bits) + " bits"};
  }
  if (form.group_size < 1 || head_dim % form.group_size != 0) {
    return corrupt("head_dim " + std::to_string(head_dim) + " in groups of " +
                   std::to_string(form.group_size));
  }
  if (head_dim * form.bits % kWordBits == 0) return {};
  return corrupt("head_dim " + std::to_string(head_dim) + ": no whole words of codes");
}

}  // namespace

Result<cache::Side> affine_side(const State& state, std::string_view name, AffineForm form,
                                cache::HeadShape shape, std::int64_t n_tokens,
                                codec::BlockOrder order, std::string_view place, Context& context) {
  TQC_TRY(check_form(form, shape.head_dim));
  const std::string prefix(name);
  const std::int64_t n_groups = shape.head_dim / form.group_size;
  CodedSide side{.shape = shape, .n_tokens = n_tokens, .rows = {}, .parts = {}, .loud = {}};
  ByteView packed;
  std::vector<float> scales, biases;
  if (n_tokens > 0) {
    const Grid words{shape.n_kv_heads, n_tokens, shape.head_dim * form.bits / kWordBits};
    const Grid groups{shape.n_kv_heads, n_tokens, n_groups};
    TQC_TRY_ASSIGN(packed, state.bytes(prefix + ".packed", V1Dtype::kU32, words));
    TQC_TRY_ASSIGN(scales, state.floats(prefix + ".scales", groups));
    TQC_TRY_ASSIGN(biases, state.floats(prefix + ".biases", groups));
  }
  // Little-endian words one after another are one stream of bits.
  side.rows.push_back(
      {packed, static_cast<std::size_t>(shape.head_dim), static_cast<int>(form.bits)});
  for (std::int64_t group = 0; group < n_groups; ++group) {
    CodedPart part = group_part(group, form);
    part.scales =
        of_group(scales, static_cast<std::size_t>(group), static_cast<std::size_t>(n_groups));
    part.biases =
        of_group(biases, static_cast<std::size_t>(group), static_cast<std::size_t>(n_groups));
    side.parts.push_back(std::move(part));
  }
  return coded_side(side, order, place, context);
}

Result<MigratedLayer> quantized_layer(const V1Entry& entry, std::string_view place,
                                      Context& context) {
  const State state(entry.state);
  TQC_TRY(state.require_only({"keys.packed", "keys.scales", "keys.biases", "values.packed",
                              "values.scales", "values.biases"}));
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 3) return corrupt("meta_state: not offset, group_size and bits");
  const std::int64_t offset = numbers[0];
  const AffineForm form{.bits = numbers[2], .group_size = numbers[1]};
  TQC_TRY_ASSIGN(const V1Tensor* scales, state.named("keys.scales"));
  TQC_TRY_ASSIGN(const Grid groups, grid_of(*scales));
  const cache::HeadShape shape{groups.n_kv_heads, groups.width * form.group_size};
  if (shape.n_kv_heads < 1 || shape.head_dim < 1)
    return corrupt(describe(*scales) + ": a size of 0");
  if (groups.n_tokens != offset) {
    return corrupt(describe(*scales) + ": where offset is " + std::to_string(offset));
  }
  const auto side = [&](const char* name, const char* word, codec::BlockOrder order) {
    const std::string side_place = std::string(place).append(" ").append(word);
    auto made = affine_side(state, name, form, shape, offset, order, side_place, context);
    return made ? std::move(made) : Result<cache::Side>(in_context(word, std::move(made).error()));
  };
  if (shape.head_dim > cache::kMaxHeadDim) {
    return Error{ErrorCode::kTooLarge, "head_dim " + std::to_string(shape.head_dim)};
  }
  TQC_TRY_ASSIGN(cache::Side k, side("keys", "k", codec::BlockOrder::kKeys));
  TQC_TRY_ASSIGN(cache::Side v, side("values", "v", codec::BlockOrder::kValues));
  return MigratedLayer{cache::AttentionLayer{shape, std::move(k), std::move(v)}, offset};
}

}  // namespace tqcache::migrations
