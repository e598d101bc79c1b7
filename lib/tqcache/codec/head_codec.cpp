#include "tqcache/codec/head_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "tqcache/base/half.h"
#include "tqcache/codec/kernels/row_transform.h"
#include "tqcache/codec/trellis/trellis_rows.h"

namespace tqcache::codec {

namespace {

constexpr std::uint16_t kF16Magnitude = 0x7fff;

// The channels from `first` on of rows of `dim` values.
VectorRows rows_from(const float* rows, std::size_t dim, std::size_t first) {
  return {Dtype::kF32, reinterpret_cast<const std::byte*>(rows + first), dim * sizeof(float)};
}
MutableVectorRows rows_from(float* rows, std::size_t dim, std::size_t first) {
  return {Dtype::kF32, reinterpret_cast<std::byte*>(rows + first), dim * sizeof(float)};
}

std::string token_word(std::size_t token) { return "token " + std::to_string(token); }

// Adding one to an exponent of all ones carries into the sign. Compilers vectorize this, but not a
// search.
bool is_finite(std::span<const float> x) {
  constexpr std::uint32_t kExponent = 0x7f800000, kOne = 0x00800000, kSign = 0x80000000;
  std::uint32_t carries = 0;
  for (const float value : x) carries |= (std::bit_cast<std::uint32_t>(value) & kExponent) + kOne;
  return (carries & kSign) == 0;
}

// Reported here and not by the parts, which do not know the caller's order of channels.
Result<void> check_finite(RowBuffer& rows, std::size_t n_skipped) {
  for (std::size_t t = n_skipped; t < rows.size(); ++t) {
    const std::span<const float> x = rows[t];
    if (is_finite(x)) continue;
    const auto bad = std::find_if(x.begin(), x.end(), [](float v) { return !std::isfinite(v); });
    return Error{ErrorCode::kCorrupt,
                 token_word(t) + ": component " + std::to_string(bad - x.begin()) + ": not finite"};
  }
  return {};
}

// The value of a row that is subtracted before quantization: the midpoint for centroids on both
// sides of 0, and the minimum for centroids of other programs, which go up from 0 in steps.
enum class Origin { kMiddle, kSmallest };

// The origin of a row, as f16. A zero has no sign, so the order in which zeros are compared does
// not matter.
std::uint16_t origin_of(std::span<const float> x, Origin origin) {
  const auto [least, most] = std::minmax_element(x.begin(), x.end());
  const float value = origin == Origin::kMiddle ? (*most + *least) * 0.5f : *least;
  const std::uint16_t bias = f32_to_f16(value);
  return (bias & kF16Magnitude) == 0 ? std::uint16_t{0} : bias;
}

// Subtracts each row's origin from `dim` channels, starting at `first`, and stores it.
Result<void> take_biases(RowBuffer& rows, std::size_t first, std::size_t dim, Origin origin,
                         std::span<std::uint16_t> biases) {
  std::fill(biases.begin(), biases.end(), std::uint16_t{0});
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const std::span x = rows[t].subspan(first, dim);
    biases[t] = origin_of(x, origin);
    if ((biases[t] & kF16Magnitude) >= kF16Infinity) {
      return Error{ErrorCode::kUnsupported, token_word(t) + ": bias beyond f16"};
    }
    const float bias = f16_to_f32(biases[t]);
    for (float& value : x) value -= bias;
  }
  return {};
}

std::size_t padded(std::size_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

struct Part {
  BlockCodec codec;
  std::size_t first = 0;         // channel, in the codec's order
  std::size_t code_offset = 0;   // byte in the kv head's block
  std::size_t coded_offset = 0;  // component in sums
  std::size_t bias_row = 0;      // if has_bias
  bool of_residual = false;
  bool has_bias = false;
  Origin origin = Origin::kMiddle;  // if has_bias

  std::size_t dim() const { return codec.shape().dim(); }
};

}  // namespace

struct HeadCodec::State {
  std::size_t head_dim = 0;
  Mode mode = Mode::kMse;
  BlockOrder order = BlockOrder::kKeys;
  std::vector<PartSpec> specs;
  std::vector<Part> parts;
  PackedLayout layout;
  std::size_t coded_dim = 0;

  void add(const PartSpec& spec, BlockCodec codec);
  bool is_one_block() const {
    return parts.size() == 1 && !parts[0].has_bias && mode != Mode::kTrellis;
  }

  template <class Byte>
  std::span<Byte> codes_of(std::size_t part, std::span<Byte> codes) const {
    return codes.subspan(parts[part].code_offset, parts[part].codec.shape().block_bytes());
  }
  template <class Scale>
  static std::span<Scale> row(std::size_t i, std::span<Scale> scales) {
    return scales.subspan(i * kBlockTokens, kBlockTokens);
  }

  // Encodes the parts in order. Rows are in the codec's order of channels and are overwritten with
  // residuals.
  Result<void> encode(RowBuffer& rows, std::span<std::byte> codes,
                      std::span<std::uint16_t> scales) const;
  RowBuffer decoded(std::size_t part, const PackedHead& head, std::size_t n_tokens) const;
  void subtract_decoded(std::size_t part, const PackedHead& head, RowBuffer& rows) const;
  void decode_part(std::size_t part, const PackedHead& head, std::size_t n_tokens,
                   std::span<float> out) const;
};

void HeadCodec::State::add(const PartSpec& spec, BlockCodec codec) {
  const PackedLayout::Part& place = layout.parts[parts.size()];
  parts.push_back({.codec = std::move(codec),
                   .first = static_cast<std::size_t>(spec.first),
                   .code_offset = place.code_offset,
                   .coded_offset = coded_dim,
                   .bias_row = place.bias_row,
                   .of_residual = spec.of_residual,
                   .has_bias = spec.has_bias,
                   .origin = spec.centroids.front() < 0 ? Origin::kMiddle : Origin::kSmallest});
  coded_dim += padded(place.shape.dim());
}

Result<void> HeadCodec::State::encode(RowBuffer& rows, std::span<std::byte> codes,
                                      std::span<std::uint16_t> scales) const {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    if (p.of_residual) subtract_decoded(i - 1, {codes, scales}, rows);
    if (p.has_bias) {
      TQC_TRY(take_biases(rows, p.first, p.dim(), p.origin, row(p.bias_row, scales)));
    }
    TQC_TRY(p.codec.encode(rows_from(std::as_const(rows).data(), head_dim, p.first), Center{},
                           rows.size(), codes_of(i, codes), row(i, scales)));
  }
  return {};
}

RowBuffer HeadCodec::State::decoded(std::size_t part, const PackedHead& head,
                                    std::size_t n_tokens) const {
  const std::size_t dim = parts[part].dim();
  RowBuffer rows(n_tokens, dim);
  parts[part].codec.decode(codes_of(part, head.codes), row(part, head.scales), n_tokens,
                           rows_from(rows.data(), dim, 0));
  return rows;
}

void HeadCodec::State::subtract_decoded(std::size_t part, const PackedHead& head,
                                        RowBuffer& rows) const {
  const Part& p = parts[part];
  RowBuffer known = decoded(part, head, rows.size());
  for (std::size_t t = 0; t < rows.size(); ++t) {
    const std::span<float> x = rows[t].subspan(p.first, p.dim());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= known[t][i];
  }
}

void HeadCodec::State::decode_part(std::size_t part, const PackedHead& head, std::size_t n_tokens,
                                   std::span<float> out) const {
  const Part& p = parts[part];
  if (p.of_residual) {
    RowBuffer residual = decoded(part, head, n_tokens);
    for (std::size_t t = 0; t < n_tokens; ++t) {
      float* const sum = out.data() + t * head_dim + p.first;
      for (std::size_t i = 0; i < p.dim(); ++i) sum[i] += residual[t][i];
    }
  } else {
    p.codec.decode(codes_of(part, head.codes), row(part, head.scales), n_tokens,
                   rows_from(out.data(), head_dim, p.first));
  }
  if (!p.has_bias) return;
  const auto biases = row(p.bias_row, head.scales);
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const float bias = f16_to_f32(biases[t]);
    float* const sum = out.data() + t * head_dim + p.first;
    for (std::size_t i = 0; i < p.dim(); ++i) sum[i] += bias;
  }
}

HeadCodec::HeadCodec(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Result<HeadCodec> HeadCodec::make(int head_dim, std::vector<PartSpec> parts, BlockOrder order,
                                  const Kernels& kernels) {
  TQC_TRY_ASSIGN(const Mode mode, mode_of(head_dim, parts));
  auto state = std::make_shared<State>();
  state->head_dim = static_cast<std::size_t>(head_dim);
  state->mode = mode;
  state->order = order;
  state->layout = head_layout(parts, order);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PartSpec& part = parts[i];
    // All groups of mode affine are equal and share their tables.
    PartSpec before = parts[i > 0 ? i - 1 : 0];
    before.first = part.first;
    if (i > 0 && part == before) {
      state->add(part, state->parts.back().codec);
      continue;
    }
    auto quantizer = Quantizer::make(part, part.centroids);
    if (!quantizer) {
      return in_context("part " + std::to_string(i), std::move(quantizer).error());
    }
    state->add(part, BlockCodec(*quantizer, order, kernels));
  }
  state->specs = std::move(parts);
  return HeadCodec(std::move(state));
}

Result<HeadCodec> HeadCodec::make(const CodecSpec& spec, BlockOrder order, const Kernels& kernels) {
  TQC_TRY_ASSIGN(std::vector<PartSpec> parts, make_parts(spec));
  return make(spec.head_dim, std::move(parts), order, kernels);
}

std::size_t HeadCodec::head_dim() const { return state_->head_dim; }
Mode HeadCodec::mode() const { return state_->mode; }
BlockOrder HeadCodec::order() const { return state_->order; }
const std::vector<PartSpec>& HeadCodec::parts() const { return state_->specs; }
const BlockCodec& HeadCodec::part(std::size_t i) const { return state_->parts[i].codec; }
std::size_t HeadCodec::first_channel(std::size_t i) const { return state_->parts[i].first; }
const PackedLayout& HeadCodec::layout() const { return state_->layout; }
std::size_t HeadCodec::code_bytes() const { return state_->layout.code_bytes; }
std::size_t HeadCodec::n_scale_rows() const { return state_->layout.n_scale_rows; }
std::size_t HeadCodec::coded_dim() const { return state_->coded_dim; }
std::size_t HeadCodec::coded_offset(std::size_t i) const { return state_->parts[i].coded_offset; }
const Kernels& HeadCodec::kernels() const { return state_->parts[0].codec.kernels(); }

std::size_t HeadCodec::outlier_channels() const {
  return mode() == Mode::kMixed ? state_->parts[0].dim() : 0;
}

Result<void> HeadCodec::encode(VectorRows x, const Center& center, ChannelOrder order,
                               std::size_t n_tokens, std::size_t n_skipped,
                               std::span<std::byte> codes, std::span<std::uint16_t> scales) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens && n_skipped <= n_tokens);
  assert(codes.size() == code_bytes() && scales.size() == n_scale_rows() * kBlockTokens);
  if (state_->is_one_block() && order.empty() && n_skipped == 0) {
    return part(0).encode(x, center, n_tokens, codes, scales);
  }
  RowBuffer rows(n_tokens, head_dim());
  kernels().center_rows(x, n_tokens, head_dim(), center, /*first_token=*/0, rows.data());
  TQC_TRY(check_finite(rows, n_skipped));
  std::fill_n(rows.data(), n_skipped * head_dim(), 0.0f);  // zeros get code, scale and bias 0
  if (!order.empty()) {
    std::array<float, kMaxHeadDim> buffer;
    const auto copy = std::span(buffer).first(head_dim());
    for (std::size_t t = n_skipped; t < n_tokens; ++t) {
      std::copy_n(rows[t].data(), head_dim(), copy.data());
      take_channels(order, copy, rows[t]);
    }
  }
  if (mode() == Mode::kTrellis) {
    return encode_trellis_rows(part(0).rotation_tables(), rows.all(), this->order(), kernels(),
                               codes, scales);
  }
  return state_->encode(rows, codes, scales);
}

void HeadCodec::decode(const PackedHead& head, ChannelOrder order, std::size_t n_tokens,
                       std::span<float> out) const {
  assert(n_tokens > 0 && n_tokens <= kBlockTokens && out.size() == n_tokens * head_dim());
  assert(head.codes.size() == code_bytes());
  assert(head.scales.size() == n_scale_rows() * kBlockTokens);
  for (std::size_t i = 0; i < n_parts(); ++i) state_->decode_part(i, head, n_tokens, out);
  if (order.empty()) return;
  std::array<float, kMaxHeadDim> buffer;
  const auto copy = std::span(buffer).first(head_dim());
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const std::span vector = out.subspan(t * head_dim(), head_dim());
    std::copy(vector.begin(), vector.end(), copy.begin());
    put_channels(order, copy, vector);
  }
}

PackedBlock HeadCodec::view(const PackedHead& head, std::size_t part, std::size_t n_tokens) const {
  return state_->parts[part].codec.view(state_->codes_of(part, head.codes),
                                        State::row(part, head.scales), n_tokens);
}

std::span<const std::uint16_t> HeadCodec::biases(const PackedHead& head, std::size_t part) const {
  assert(state_->parts[part].has_bias);
  return State::row(state_->parts[part].bias_row, head.scales);
}

void HeadCodec::rotate_back(std::span<float> coded, ChannelOrder order,
                            std::span<float> out) const {
  assert(coded.size() == coded_dim() && out.size() == head_dim());
  std::array<float, kMaxHeadDim> buffer;
  const std::span ordered = order.empty() ? out : std::span(buffer).first(head_dim());
  for (const Part& p : state_->parts) {
    const Rotation& rotation = p.codec.quantizer().rotation();
    const std::span values = coded.subspan(p.coded_offset, p.dim());
    const std::span channels = ordered.subspan(p.first, p.dim());
    if (!p.of_residual) {
      rotation.unrotate(values, channels);
      continue;
    }
    rotation.unrotate(values, values);
    for (std::size_t i = 0; i < values.size(); ++i) channels[i] += values[i];
  }
  if (!order.empty()) put_channels(order, ordered, out);
}

namespace {

Result<void> check_first(std::size_t head_dim, std::span<const std::uint16_t> first) {
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] >= head_dim) {
      return Error{ErrorCode::kCorrupt, "channel " + std::to_string(first[i]) + ": not one of " +
                                            std::to_string(head_dim)};
    }
    if (i > 0 && first[i] <= first[i - 1]) {
      return Error{ErrorCode::kCorrupt,
                   "channel " + std::to_string(first[i]) + ": not above the one before"};
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::uint16_t>> make_channel_order(std::size_t head_dim,
                                                      std::span<const std::uint16_t> first) {
  assert(head_dim <= std::size_t{1} << 16);
  TQC_TRY(check_first(head_dim, first));
  std::vector<std::uint16_t> order(first.begin(), first.end());
  order.reserve(head_dim);
  std::size_t next = 0;  // the first of `first` that is at least `channel`
  for (std::size_t channel = 0; channel < head_dim; ++channel) {
    if (next < first.size() && first[next] == channel) {
      ++next;
    } else {
      order.push_back(static_cast<std::uint16_t>(channel));
    }
  }
  return order;
}

void take_channels(ChannelOrder order, std::span<const float> in, std::span<float> out) {
  assert(in.size() == out.size() && (order.empty() || order.size() == in.size()));
  if (order.empty()) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < order.size(); ++i) out[i] = in[order[i]];
}

void put_channels(ChannelOrder order, std::span<const float> in, std::span<float> out) {
  assert(in.size() == out.size() && (order.empty() || order.size() == in.size()));
  if (order.empty()) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  for (std::size_t i = 0; i < order.size(); ++i) out[order[i]] = in[i];
}

}  // namespace tqcache::codec
