#include "migrations/v1_kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/coded_block.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::migrations {
namespace {

using cache::HeadShape;
using cache::kTokenBlock;

std::string vector_name(std::int64_t head, std::int64_t token) {
  return "head " + std::to_string(head) + " token " + std::to_string(token);
}

Result<void> check_finite(std::span<const float> x, std::int64_t head, std::int64_t token) {
  if (std::ranges::all_of(x, [](float value) { return std::isfinite(value); })) return {};
  return corrupt(vector_name(head, token) + ": not finite");
}

// Zero-filled dense blocks for `n_tokens` tokens.
Result<cache::DenseTensor> make_dense(HeadShape shape, Dtype dtype, std::int64_t n_tokens,
                                      MigrationContext& context) {
  const auto block_bytes =
      to_size(shape.n_kv_heads * kTokenBlock * shape.head_dim) * dtype_size(dtype);
  const std::size_t n_blocks = to_size(cache::block_count(n_tokens));
  TQC_TRY(context.take(n_blocks * block_bytes));
  return cache::DenseTensor{dtype, std::vector<AlignedBytes>(n_blocks, AlignedBytes(block_bytes))};
}

// The address of a head vector in a dense tensor.
std::byte* dense_row(cache::DenseTensor& tensor, HeadShape shape, std::int64_t head,
                     std::int64_t token) {
  AlignedBytes& block = tensor.blocks[to_size(token / kTokenBlock)];
  const auto row = to_size((head * kTokenBlock + token % kTokenBlock) * shape.head_dim);
  return block.data() + row * dtype_size(tensor.dtype);
}

// --- decoding, as in docs/reference/codec.md §4, one head vector at a time

class RowDecoder {
 public:
  static Result<RowDecoder> make(const QuantizedTensor& tensor, CodecPool& pool) {
    RowDecoder decoder(tensor);
    for (const QuantizedPart& part : tensor.parts) {
      // The identity needs no object; a group may be smaller than any part of version 2.
      if (part.spec.rotation == codec::TransformKind::kNone) {
        decoder.transforms_.emplace_back();
        continue;
      }
      TQC_TRY_ASSIGN(auto transform, pool.rotation(part.spec));
      decoder.transforms_.emplace_back(std::move(transform));
    }
    if (!tensor.outliers.empty()) {
      TQC_TRY_ASSIGN(decoder.order_,
                     codec::make_channel_order(to_size(tensor.shape.head_dim), tensor.outliers));
    }
    return decoder;
  }

  // Shapes: x [head_dim].
  void decode(std::int64_t head, std::int64_t token, std::span<float> x) {
    const std::size_t row = to_size(head * tensor_.n_tokens + token);
    for (std::size_t i = 0; i < tensor_.rows.size(); ++i) unpack(tensor_.rows[i], row, codes_[i]);
    for (std::size_t i = 0; i < tensor_.parts.size(); ++i) decode_part(i, row);
    if (order_.empty()) {
      std::ranges::copy(ordered_, x.begin());
    } else {
      codec::put_channels(order_, ordered_, x);
    }
  }

 private:
  explicit RowDecoder(const QuantizedTensor& tensor)
      : tensor_(tensor), ordered_(to_size(tensor.shape.head_dim)), part_(ordered_.size()) {
    for (const CodeRows& rows : tensor.rows) codes_.emplace_back(rows.n_codes);
  }

  static void unpack(const CodeRows& rows, std::size_t row, std::vector<std::uint8_t>& codes) {
    const std::size_t bytes = codec::packed_size(rows.n_codes, rows.bits);
    codec::unpack_codes(rows.bytes.subspan(row * bytes, bytes), rows.bits, codes);
  }

  void decode_part(std::size_t i, std::size_t row) {
    const QuantizedPart& part = tensor_.parts[i];
    const auto x = std::span(part_).first(to_size(part.spec.head_dim));
    const std::uint8_t* codes = codes_[part.rows].data() + part.first_code;
    const float scale = part.scales[row];
    for (std::size_t c = 0; c < x.size(); ++c) {
      x[c] = scale * (part.factor * part.spec.centroids[codes[c]]);
    }
    if (transforms_[i]) transforms_[i]->unrotate(x, x);
    const auto out = std::span(ordered_).subspan(to_size(part.spec.first), x.size());
    const float bias = part.biases.empty() ? 0.0f : part.biases[row];
    for (std::size_t c = 0; c < x.size(); ++c) {
      if (part.spec.of_residual) {
        out[c] = out[c] + x[c];
      } else {
        out[c] = part.biases.empty() ? x[c] : x[c] + bias;
      }
    }
  }

  const QuantizedTensor& tensor_;
  std::vector<std::optional<codec::Rotation>> transforms_;
  std::vector<std::uint16_t> order_;
  std::vector<std::vector<std::uint8_t>> codes_;  // of one head vector, as side_.rows
  std::vector<float> ordered_;                    // [head_dim], in the codec's order of channels
  std::vector<float> part_;
};

// The decoded tokens from `first` on, which is the first token of a block.
Result<cache::DenseTensor> decoded_from(const QuantizedTensor& in, std::int64_t first,
                                        MigrationContext& context) {
  TQC_TRY_ASSIGN(cache::DenseTensor tensor,
                 make_dense(in.shape, Dtype::kF32, in.n_tokens - first, context));
  if (tensor.blocks.empty()) return tensor;
  TQC_TRY_ASSIGN(RowDecoder decoder, RowDecoder::make(in, context.codecs));
  std::vector<float> x(to_size(in.shape.head_dim));
  for (std::int64_t head = 0; head < in.shape.n_kv_heads; ++head) {
    for (std::int64_t token = first; token < in.n_tokens; ++token) {
      decoder.decode(head, token, x);
      TQC_TRY(check_finite(x, head, token));
      store_f32(tensor.dtype, x, dense_row(tensor, in.shape, head, token - first));
    }
  }
  return tensor;
}

// --- packing

std::vector<codec::PartSpec> specs_of(const QuantizedTensor& in) {
  std::vector<codec::PartSpec> specs;
  for (const QuantizedPart& part : in.parts) specs.push_back(part.spec);
  return specs;
}

bool fits_f16(float value) {
  return std::isfinite(value) && f16_to_f32(f32_to_f16(value)) == value;
}

// Whether f16 represents the values of all tokens in full blocks.
bool scales_fit(const QuantizedTensor& in, const std::vector<float>& values, float factor) {
  const std::int64_t packed = in.n_tokens / kTokenBlock * kTokenBlock;
  for (std::int64_t head = 0; head < in.shape.n_kv_heads; ++head) {
    const auto first = values.begin() + head * in.n_tokens;
    const auto fits = [&](float value) { return fits_f16(value * factor); };
    if (!std::all_of(first, first + packed, fits)) return false;
  }
  return true;
}

// The reason why version 2 cannot hold the codes unchanged; nullopt if it can.
std::optional<std::string> why_not_packed(const QuantizedTensor& in) {
  if (auto reason = why_no_codec(in.shape.head_dim, specs_of(in))) return reason;
  for (const QuantizedPart& part : in.parts) {
    if (!scales_fit(in, part.scales, part.factor)) return "a scale that f16 does not hold";
    if (!part.biases.empty() && !scales_fit(in, part.biases, 1)) {
      return "a bias that f16 does not hold";
    }
  }
  return std::nullopt;
}

// Packs token blocks of the old file in the layout of TurboBlock.
class BlockPacker {
 public:
  BlockPacker(const QuantizedTensor& in, codec::BlockOrder order)
      : in_(in), layout_(in.shape, specs_of(in), order) {}

  std::size_t bytes() const { return layout_.bytes(); }

  AlignedBytes pack(std::int64_t block) const {
    AlignedBytes bytes(layout_.bytes());
    for (std::size_t head = 0; head < to_size(in_.shape.n_kv_heads); ++head) {
      const std::size_t first_row = head * to_size(in_.n_tokens) + to_size(block * kTokenBlock);
      pack_codes(head, first_row, bytes);
      pack_scales(head, first_row, bytes);
    }
    return bytes;
  }

 private:
  void pack_codes(std::size_t head, std::size_t first_row, std::span<std::byte> out) const {
    std::vector<std::vector<std::uint8_t>> rows;
    for (const CodeRows& each : in_.rows) rows.push_back(unpacked(each, first_row));
    for (std::size_t i = 0; i < in_.parts.size(); ++i) {
      const QuantizedPart& part = in_.parts[i];
      layout_.put_codes(head, i, {rows[part.rows], in_.rows[part.rows].n_codes, part.first_code},
                        out);
    }
  }

  // [256, n_codes], one byte per code.
  static std::vector<std::uint8_t> unpacked(const CodeRows& rows, std::size_t first_row) {
    const std::size_t row_bytes = codec::packed_size(rows.n_codes, rows.bits);
    std::vector<std::uint8_t> codes(to_size(kTokenBlock) * rows.n_codes);
    for (std::size_t token = 0; token < to_size(kTokenBlock); ++token) {
      codec::unpack_codes(rows.bytes.subspan((first_row + token) * row_bytes, row_bytes), rows.bits,
                          std::span(codes).subspan(token * rows.n_codes, rows.n_codes));
    }
    return codes;
  }

  void pack_scales(std::size_t head, std::size_t first_row, std::span<std::byte> out) const {
    for (std::size_t i = 0; i < in_.parts.size(); ++i) {
      const QuantizedPart& part = in_.parts[i];
      layout_.put_scales(head, i, halves(part.scales, first_row, part.factor), out);
      if (part.spec.has_bias) {
        layout_.put_biases(head, i, halves(part.biases, first_row, 1), out);
      }
    }
  }

  static std::vector<std::uint16_t> halves(const std::vector<float>& values, std::size_t first_row,
                                           float factor) {
    std::vector<std::uint16_t> row(to_size(kTokenBlock));
    for (std::size_t token = 0; token < row.size(); ++token) {
      row[token] = f32_to_f16(values[first_row + token] * factor);
    }
    return row;
  }

  const QuantizedTensor& in_;
  cache::CodedBlock layout_;
};

Result<cache::TurboTensor> packed_tensor(const QuantizedTensor& in, codec::BlockOrder order,
                                         MigrationContext& context) {
  cache::QuantSpec quant{.parts = specs_of(in)};
  for (std::int64_t head = 0; head < in.shape.n_kv_heads; ++head) {
    quant.outliers.insert(quant.outliers.end(), in.outliers.begin(), in.outliers.end());
  }
  TQC_TRY_ASSIGN(cache::KvCodec codec,
                 context.codecs.codec({Dtype::kF32, std::move(quant)}, in.shape, order));
  const std::int64_t n_packed = in.n_tokens / kTokenBlock;
  TQC_TRY_ASSIGN(cache::DenseTensor tail, decoded_from(in, n_packed * kTokenBlock, context));
  cache::TurboTensor tensor{std::move(codec), {}, std::move(tail)};
  const BlockPacker packer(in, order);
  for (std::int64_t block = 0; block < n_packed; ++block) {
    TQC_TRY(context.take(packer.bytes()));
    tensor.packed.push_back({SharedBytes(packer.pack(block))});
  }
  return tensor;
}

template <class Kind>
Result<cache::Tensor> as_tensor(Result<Kind> tensor) {
  if (!tensor) return std::move(tensor).error();
  return cache::Tensor(std::move(tensor).value());
}

}  // namespace

std::optional<std::string> why_no_codec(std::int64_t head_dim,
                                        const std::vector<codec::PartSpec>& parts) {
  if (parts.size() > 2 && parts[1].of_residual) return "mixed precision with signs of residuals";
  const auto mode = codec::mode_of(static_cast<int>(head_dim), parts);
  if (mode) return std::nullopt;
  return mode.error().message;
}

Result<cache::Tensor> quantized_tensor(const QuantizedTensor& in, codec::BlockOrder order,
                                       std::string_view place, MigrationContext& context) {
  const std::optional<std::string> reason = why_not_packed(in);
  if (!reason) return as_tensor(packed_tensor(in, order, context));
  context.notes.push_back(std::string(place).append(": ").append(*reason).append("; kept dense"));
  return as_tensor(decoded_from(in, 0, context));
}

Result<cache::DenseTensor> dense_tensor(const V1Tensor& from, cache::HeadShape shape,
                                        std::int64_t n_tokens, MigrationContext& context) {
  TQC_TRY_ASSIGN(const Dtype dtype, dense_dtype(from));
  TQC_TRY_ASSIGN(cache::DenseTensor tensor, make_dense(shape, dtype, n_tokens, context));
  std::vector<float> x(to_size(shape.head_dim));
  const std::size_t row_bytes = x.size() * dtype_size(dtype);
  const std::byte* row = from.data.data();
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t token = 0; token < n_tokens; ++token, row += row_bytes) {
      load_f32(dtype, row, x);
      TQC_TRY(check_finite(x, head, token));
      std::memcpy(dense_row(tensor, shape, head, token), row, row_bytes);
    }
  }
  return tensor;
}

}  // namespace tqcache::migrations
