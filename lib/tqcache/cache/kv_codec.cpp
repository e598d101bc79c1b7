#include "tqcache/kv_codec.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/kv_codec_state.h"
#include "tqcache/codec/kernels/row_transform.h"

namespace tqcache::cache {

struct KvTables::State {
  struct Spec {
    codec::CodecSpec spec;
    std::vector<codec::PartSpec> parts;
  };

  Rope rope;
  std::shared_ptr<const RopeTable> rope_table = {};  // made for the first codec that needs it
  std::vector<codec::HeadCodec> codecs = {};         // without duplicates
  std::vector<Spec> specs = {};

  Result<codec::HeadCodec> codec_of(const std::vector<codec::PartSpec>& parts, HeadShape shape,
                                    codec::BlockOrder order) {
    for (const codec::HeadCodec& known : codecs) {
      if (known.order() == order && known.head_dim() == to_size(shape.head_dim) &&
          same_bits(known.parts(), parts)) {
        return known;
      }
    }
    TQC_TRY_ASSIGN(codec::HeadCodec made,
                   codec::HeadCodec::make(static_cast<int>(shape.head_dim), parts, order));
    return codecs.emplace_back(std::move(made));
  }
};

namespace {

std::size_t row_bytes(HeadShape shape, Dtype dtype) {
  return to_size(shape.head_dim) * dtype_size(dtype);
}

// Of all kv heads, from that of one.
codec::PackedLayout make_layout(codec::PackedLayout layout, HeadShape shape, Dtype dtype,
                                std::int64_t n_sinks) {
  layout.n_heads = to_size(shape.n_kv_heads);
  layout.n_sinks = to_size(n_sinks);
  layout.sink_bytes = layout.n_sinks * row_bytes(shape, dtype);
  return layout;
}

Result<void> check_mean(const QuantSpec& quant, HeadShape shape, codec::BlockOrder order,
                        const Rope& rope) {
  if (quant.centering == Centering::kNone && !quant.mean.empty()) {
    return corrupt("a mean without centering");
  }
  if (!quant.mean.empty() && std::ssize(quant.mean) != shape.n_kv_heads * shape.head_dim) {
    return corrupt("a mean of " + std::to_string(quant.mean.size()) + " values");
  }
  if (!std::ranges::all_of(quant.mean, [](float x) { return std::isfinite(x); })) {
    return corrupt("a mean that is not finite");
  }
  const bool has_rope = order == codec::BlockOrder::kKeys && can_rotate(rope, shape.head_dim);
  if (quant.centering == Centering::kPreRope && !has_rope) {
    return corrupt("centering before RoPE where there is none");
  }
  return {};
}

// The center of a block, starting at its token `place`.
codec::Center center_from(codec::Center center, std::int64_t place) {
  if (center.n_pairs == 0) return center;
  center.cos += to_size(place) * center.n_pairs;
  center.sin += to_size(place) * center.n_pairs;
  return center;
}

// Encodes and decodes the head vectors of one kv head in one token block, including everything
// before the codes: centering, RoPE, factors or a transform.
//
// Spec: docs/reference/codec.md §8 and §10.
class HeadCoder {
 public:
  // Requires: mean, outlier channels and transforms are fixed. `state` must outlive this.
  HeadCoder(const KvCodec::State& state, std::int64_t block, std::int64_t kv_head)
      : state_(state),
        block_(block),
        kv_head_(kv_head),
        mean_(state.mean, state.shape, block, kv_head) {}

  // Encodes the block's tokens first, first + 1, ... as HeadCodec::encode does tokens 0, 1, ...,
  // with the same errors and bytes. The first n_skipped tokens get code 0 and scale 0.
  Result<void> encode(codec::VectorRows x, std::int64_t first, std::size_t n_tokens,
                      std::size_t n_skipped, std::span<std::byte> codes,
                      std::span<std::uint16_t> scales) const {
    const codec::HeadCodec& codec = state_.codec;
    const codec::Center center = center_from(mean_.center(kv_head_), first);
    const codec::ChannelOrder order = state_.outliers.order(kv_head_);
    if (state_.factors.is_there()) {
      codec::RowBuffer scaled(n_tokens, codec.head_dim());
      codec.kernels().center_rows(x, n_tokens, codec.head_dim(), center, /*first_token=*/0,
                                  scaled.data());
      scale_rows(state_.factors.of_head(state_.shape, kv_head_), scaled.all());
      const auto bytes = std::as_bytes(scaled.all());
      return codec.encode({Dtype::kF32, bytes.data(), codec.head_dim() * sizeof(float)}, {}, order,
                          n_tokens, n_skipped, codes, scales);
    }
    if (!state_.transforms.is_there()) {
      return codec.encode(x, center, order, n_tokens, n_skipped, codes, scales);
    }
    const std::size_t dim = codec.head_dim();
    codec::RowBuffer centered(n_tokens, dim), transformed(n_tokens, dim);
    AlignedFloats rotated;
    codec.kernels().center_rows(x, n_tokens, dim, center, /*first_token=*/0, centered.data());
    if (state_.is_transformed_before_rope()) {
      rotate_rows_back(*state_.mean.rope, first, dim, centered.all());
    }
    codec::multiply_rows(centered.all(), columns(rotated), dim, transformed.all(), codec.kernels());
    const auto bytes = std::as_bytes(transformed.all());
    return codec.encode({Dtype::kF32, bytes.data(), dim * sizeof(float)}, {}, order, n_tokens,
                        n_skipped, codes, scales);
  }

  // Decodes, adds the mean, and rounds to the dtype of `out`.
  void decode(const codec::PackedHead& head, std::int64_t first, std::size_t n_tokens,
              codec::MutableVectorRows out) const {
    const codec::HeadCodec& codec = state_.codec;
    const std::size_t dim = codec.head_dim();
    const codec::Center center = mean_.center(kv_head_);
    codec::RowBuffer decoded(n_tokens, dim);
    codec.decode(head, state_.outliers.order(kv_head_), n_tokens, decoded.all());
    if (state_.factors.is_there()) {
      scale_rows(state_.factors.inverse_of_head(state_.shape, kv_head_), decoded.all());
    }
    if (!state_.transforms.is_there()) {
      return codec.kernels().restore_rows({decoded.data(), n_tokens, dim, /*turns=*/false}, center,
                                          to_size(first), out);
    }
    codec::RowBuffer restored(n_tokens, dim);
    AlignedFloats rotated;
    codec::multiply_rows(decoded.all(), rows(rotated), dim, restored.all(), codec.kernels());
    codec.kernels().restore_rows(
        {restored.data(), n_tokens, dim, state_.is_transformed_before_rope()}, center,
        to_size(first), out);
  }

  // The same in f32. Shapes: out [n, head_dim].
  void decode(const codec::PackedHead& head, std::int64_t first, std::span<float> out) const {
    const std::size_t dim = state_.codec.head_dim();
    decode(head, first, out.size() / dim,
           {Dtype::kF32, std::as_writable_bytes(out).data(), dim * sizeof(float)});
  }

 private:
  // The transform as applied in this block; `rotated` is memory for a rotated one.
  // M R_p^T = M R_f^T R_j^T at position p = f + j: the block's part R_f^T goes into the transform.
  std::span<const float> columns(AlignedFloats& rotated) const {
    const auto transform = state_.transforms.columns_of(state_.shape, kv_head_);
    if (!state_.is_transformed_before_rope()) return transform;
    rotated.assign(transform.begin(), transform.end());
    state_.mean.rope->rotate_columns_to(block_ * kTokenBlock, state_.shape.head_dim, rotated);
    return rotated;
  }

  std::span<const float> rows(AlignedFloats& rotated) const {
    const auto transform = state_.transforms.rows_of(state_.shape, kv_head_);
    if (!state_.is_transformed_before_rope()) return transform;
    rotated.assign(transform.begin(), transform.end());
    state_.mean.rope->rotate_to(block_ * kTokenBlock, state_.shape.head_dim, rotated);
    return rotated;
  }

  const KvCodec::State& state_;
  std::int64_t block_;
  std::int64_t kv_head_;
  BlockMean mean_;
};

// Copies the first vectors of a head to the rows of its sink tokens.
Result<void> keep_sinks(const FullBlock& block, ByteView rows, std::byte* sinks) {
  const std::size_t size = row_bytes(block.shape, block.dtype);
  std::vector<float> values(to_size(block.shape.head_dim));
  for (std::size_t at = 0; at < rows.size(); at += size) {
    load_f32(block.dtype, rows.data() + at, values);
    const auto bad = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
    if (bad == values.end()) continue;
    return corrupt("token " + std::to_string(at / size) + ": component " +
                   std::to_string(bad - values.begin()) + ": not finite");
  }
  if (!rows.empty()) std::memcpy(sinks, rows.data(), rows.size());
  return {};
}

Result<void> encode_head(const KvCodec::State& state, const FullBlock& block, std::size_t kv_head,
                         std::span<std::byte> packed) {
  const codec::PackedLayout& layout = state.layout_of(block.index);
  const auto head = static_cast<std::int64_t>(kv_head);
  const ByteView rows = block.head(head);
  TQC_TRY(
      keep_sinks(block, rows.first(layout.sink_bytes), packed.data() + layout.sinks_at(kv_head)));
  auto* const scales = reinterpret_cast<std::uint16_t*>(packed.data() + layout.scales_at(kv_head));
  return HeadCoder(state, block.index, head)
      .encode({block.dtype, rows.data(), row_bytes(block.shape, block.dtype)}, 0,
              to_size(kTokenBlock), to_size(uncoded_tokens(block, state.n_sinks)),
              packed.subspan(layout.codes_at(kv_head), layout.code_bytes),
              {scales, layout.n_scale_rows * to_size(kTokenBlock)});
}

// Rows [n, n_kv_heads, head_dim] of tokens in one block, from `position` on.
Result<void> quantize_head(const KvCodec::State& state, std::int64_t position,
                           std::span<float> rows, std::int64_t kv_head) {
  const codec::HeadCodec& codec = state.codec;
  const std::size_t dim = codec.head_dim();
  const std::size_t stride = to_size(state.shape.n_kv_heads) * dim;
  const std::size_t n = rows.size() / stride;
  const std::size_t n_sinks =
      to_size(std::clamp<std::int64_t>(state.n_sinks - position, 0, static_cast<std::int64_t>(n)));
  const std::int64_t place = position % kTokenBlock;
  const HeadCoder coder(state, position / kTokenBlock, kv_head);

  AlignedBytes codes(codec.code_bytes());
  std::vector<std::uint16_t> scales(codec.n_scale_rows() * to_size(kTokenBlock));
  float* const head = rows.data() + to_size(kv_head) * dim;
  const auto* const bytes = reinterpret_cast<const std::byte*>(head);
  TQC_TRY(
      coder.encode({Dtype::kF32, bytes, stride * sizeof(float)}, place, n, n_sinks, codes, scales));
  AlignedFloats decoded(n * dim);
  coder.decode({codes, scales}, place, decoded);
  for (std::size_t token = n_sinks; token < n; ++token) {
    std::copy_n(decoded.data() + token * dim, dim, head + token * stride);
  }
  return {};
}

}  // namespace

codec::PackedLayout packed_layout(const TensorDesc& tensor, HeadShape shape,
                                  codec::BlockOrder order, std::int64_t block) {
  return make_layout(codec::head_layout(tensor.quant->parts, order), shape, tensor.dtype,
                     sinks_in_block(tensor.quant->n_sinks, block));
}

KvTables::KvTables(const Rope& rope) : state_(std::make_shared<State>(State{rope})) {}

const Rope& KvTables::rope() const { return state_->rope; }

Result<std::vector<codec::PartSpec>> KvTables::parts(const codec::CodecSpec& spec) {
  const auto known = std::ranges::find(state_->specs, spec, &State::Spec::spec);
  if (known != state_->specs.end()) return known->parts;
  TQC_TRY_ASSIGN(std::vector<codec::PartSpec> parts, codec::make_parts(spec));
  state_->specs.push_back({spec, parts});
  return parts;
}

codec::PackedHead KvCodec::State::head(ByteView packed, std::int64_t block,
                                       std::int64_t kv_head) const {
  const codec::PackedLayout& at = layout_of(block);
  const auto* const scales = packed.data() + at.scales_at(to_size(kv_head));
  return {packed.subspan(at.codes_at(to_size(kv_head)), at.code_bytes),
          {reinterpret_cast<const std::uint16_t*>(scales), at.n_scale_rows * to_size(kTokenBlock)}};
}

KvCodec::KvCodec(State state) {
  state.layout = make_layout(state.codec.layout(), state.shape, state.dtype, 0);
  state.first_layout = make_layout(state.codec.layout(), state.shape, state.dtype, state.n_sinks);
  state_ = std::make_shared<const State>(std::move(state));
}

Result<KvCodec> KvCodec::make(const TensorDesc& tensor, HeadShape shape, codec::BlockOrder order,
                              KvTables tables, bool fit_transforms) {
  const QuantSpec& quant = *tensor.quant;
  KvTables::State& shared = *tables.state_;
  TQC_TRY_ASSIGN(codec::HeadCodec codec, shared.codec_of(quant.parts, shape, order));
  TQC_TRY(check_mean(quant, shape, order, shared.rope));
  if (quant.n_sinks < 0 || quant.n_sinks > kTokenBlock) {
    return corrupt(std::to_string(quant.n_sinks) + " sink tokens");
  }
  // Outlier channels that are not fixed yet have only a count.
  Outliers outliers{codec.outlier_channels(), codec.head_dim(), {}};
  if (!quant.outliers.empty()) {
    TQC_TRY_ASSIGN(outliers, make_outliers(shape, outliers.n_channels, quant.outliers));
  }
  HeadTransforms transforms{.are_wanted = fit_transforms};
  if (!quant.transforms.empty()) {
    TQC_TRY_ASSIGN(transforms, make_head_transforms(shape, quant.transforms));
  }
  if (!quant.factors.empty()) {
    if (order != codec::BlockOrder::kKeys || !may_have_factors(codec.mode()) ||
        quant.centering == Centering::kNone) {
      return corrupt("factors of a codec that has none");
    }
    TQC_TRY(check_factor_values(quant.factors, shape));
  }
  Mean mean{quant.centering, {quant.mean.begin(), quant.mean.end()}, {}};
  if (quant.centering == Centering::kPreRope) {
    if (shared.rope_table == nullptr) {
      shared.rope_table = std::make_shared<const RopeTable>(shared.rope);
    }
    mean.rope = shared.rope_table;
  }
  return KvCodec(State{shape, tensor.dtype, std::move(codec), std::move(mean), std::move(outliers),
                       quant.n_sinks, std::move(transforms), make_key_factors(quant.factors)});
}

TensorDesc KvCodec::describe() const {
  return {state_->dtype, QuantSpec{mode(),
                                   parts(),
                                   state_->mean.kind,
                                   {state_->mean.values.begin(), state_->mean.values.end()},
                                   state_->outliers.channels(),
                                   state_->n_sinks,
                                   state_->transforms.entries,
                                   state_->factors.eighths}};
}

HeadShape KvCodec::shape() const { return state_->shape; }
codec::BlockOrder KvCodec::order() const { return state_->codec.order(); }
Dtype KvCodec::dtype() const { return state_->dtype; }
codec::Mode KvCodec::mode() const { return state_->codec.mode(); }
const std::vector<codec::PartSpec>& KvCodec::parts() const { return state_->codec.parts(); }
Centering KvCodec::centering() const { return state_->mean.kind; }
std::span<const float> KvCodec::mean() const { return state_->mean.values; }
std::int64_t KvCodec::n_sinks() const { return state_->n_sinks; }

std::uint64_t KvCodec::bytes() const {
  return state_->mean.values.size() * sizeof(float) +
         state_->outliers.orders.size() * sizeof(std::uint16_t) +
         state_->factors.eighths.size() * (1 + 2 * sizeof(float)) +
         state_->transforms.entries.size() + 2 * state_->transforms.rows.size() * sizeof(float);
}

bool KvCodec::is_fixed() const {
  return state_->mean.is_fixed() && state_->outliers.is_fixed() && state_->transforms.is_fixed();
}

bool KvCodec::must_keep_decoded() const { return state_->is_transformed_before_rope(); }

void KvCodec::fit(std::span<const FullBlock> blocks, unsigned n_threads) {
  if (is_fixed()) return;
  State next = *state_;
  assert(!blocks.empty() && (next.n_sinks == 0 || blocks.front().index == 0));
  if (!next.mean.is_fixed()) {
    next.mean.values = compute_mean(blocks, next.n_sinks, next.mean.rope.get(), n_threads);
  }
  if (!next.transforms.is_fixed()) {
    next.transforms = fit_head_transforms(blocks, next.n_sinks, next.mean, n_threads);
  }
  if (!next.outliers.is_fixed()) {
    next.outliers = choose_outliers(blocks.front(), next.n_sinks, next.mean,
                                    next.outliers.n_channels, n_threads, next.factors.values);
  }
  *this = KvCodec(std::move(next));
}

const codec::PackedLayout& KvCodec::layout(std::int64_t block) const {
  return state_->layout_of(block);
}

Result<SharedBytes> KvCodec::encode(const FullBlock& block, unsigned n_threads) const {
  const State& state = *state_;
  assert(is_fixed() && block.shape == state.shape && block.dtype == state.dtype);
  assert(block.values.size() ==
         to_size(state.shape.n_kv_heads * kTokenBlock) * row_bytes(state.shape, state.dtype));
  AlignedBytes packed(packed_bytes(block.index));
  TQC_TRY(parallel_try(to_size(state.shape.n_kv_heads), n_threads,
                       [&](std::size_t head) -> Result<void> {
                         auto done = encode_head(state, block, head, packed);
                         if (done) return {};
                         return Error{done.error().code,
                                      "head " + std::to_string(head) + " " + done.error().message};
                       }));
  return SharedBytes(std::move(packed));
}

void KvCodec::decode(ByteView packed, std::int64_t block, std::int64_t kv_head,
                     std::span<float> out) const {
  const State& state = *state_;
  const std::size_t dim = to_size(state.shape.head_dim);
  HeadCoder(state, block, kv_head).decode(state.head(packed, block, kv_head), 0, out);
  const std::size_t n_sinks = std::min(out.size() / dim, layout(block).n_sinks);
  if (n_sinks == 0) return;
  load_f32(state.dtype, sink_rows(packed, kv_head).data(), out.first(n_sinks * dim));
}

AlignedBytes KvCodec::decode_block(ByteView packed, std::int64_t block,
                                   std::int64_t n_tokens) const {
  const State& state = *state_;
  const std::size_t row = row_bytes(state.shape, state.dtype);
  const std::size_t head_bytes = to_size(n_tokens) * row;
  const std::size_t sink_bytes = std::min(head_bytes, layout(block).sink_bytes);
  AlignedBytes out(to_size(state.shape.n_kv_heads) * head_bytes);
  // Whole blocks are decoded in any case, so that a token has the same bits wherever a block is
  // cut.
  AlignedBytes whole(n_tokens == kTokenBlock ? 0 : to_size(kTokenBlock) * row);
  for (std::int64_t head = 0; head < state.shape.n_kv_heads; ++head) {
    std::byte* const to = out.data() + to_size(head) * head_bytes;
    std::byte* const decoded = whole.empty() ? to : whole.data();
    HeadCoder(state, block, head)
        .decode(state.head(packed, block, head), 0, to_size(kTokenBlock),
                {state.dtype, decoded, row});
    if (decoded != to) std::memcpy(to, decoded, head_bytes);
    if (sink_bytes > 0) std::memcpy(to, sink_rows(packed, head).data(), sink_bytes);
  }
  return out;
}

ByteView KvCodec::sink_rows(ByteView packed, std::int64_t kv_head) const {
  const codec::PackedLayout& first = state_->first_layout;
  return packed.subspan(first.sinks_at(to_size(kv_head)), first.sink_bytes);
}

Result<void> KvCodec::quantize_rows(std::int64_t position, std::span<float> rows) const {
  for (std::int64_t head = 0; head < state_->shape.n_kv_heads; ++head) {
    if (auto done = quantize_head(*state_, position, rows, head); !done) {
      return in_context(
          "head " + std::to_string(head) + ", from token " + std::to_string(position) + " on",
          std::move(done).error());
    }
  }
  return {};
}

void KvCodec::subtract_mean(std::int64_t position, std::int64_t kv_head,
                            std::span<float> rows) const {
  const BlockMean mean(state_->mean, state_->shape, position / kTokenBlock, kv_head);
  mean.subtract_from(kv_head, position % kTokenBlock, rows);
}

Result<std::vector<LayerCodecs>> make_codecs(std::span<const LayerDesc> layers, const Rope& rope) {
  const KvTables tables(rope);
  std::vector<LayerCodecs> codecs(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const AttentionDesc* const layer = attention_of(layers[i]);
    if (layer == nullptr) continue;
    const auto make = [&](const TensorDesc& tensor, HeadShape shape, codec::BlockOrder order,
                          const char* name, std::optional<KvCodec>& codec) -> Result<void> {
      if (!tensor.quant) return {};
      auto made = KvCodec::make(tensor, shape, order, tables);
      if (!made) {
        return in_context("layer " + std::to_string(i) + name, std::move(made).error());
      }
      codec = std::move(made).value();
      return {};
    };
    TQC_TRY(make(layer->k, layer->shape, codec::BlockOrder::kKeys, " k", codecs[i].k));
    TQC_TRY(make(layer->v, layer->value_shape(), codec::BlockOrder::kValues, " v", codecs[i].v));
  }
  return codecs;
}

}  // namespace tqcache::cache
