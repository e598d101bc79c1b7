#include "tqcache/interop/turbomlx/turbomlx_packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/coded_block.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec_spec.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {
namespace {

// Reads one number per token for a token block of one kv head, before rounding to f16: [256].
// Errors: those of the file.
using ReadNumbers = std::function<Result<std::vector<float>>(const ByteSource& file,
                                                             std::size_t head, std::int64_t block)>;

// Codes in rows of bits, one row per head vector.
struct TurboMlxCodeRows {
  TurboMlxRows rows;
  int bits = 0;
  std::size_t n_codes = 0;
};

// A part of our codec, and the location of its codes and scales in the file.
struct TurboMlxCodedPart {
  codec::PartSpec spec;
  std::size_t rows = 0;        // index into TurboMlxCodedSide::rows
  std::size_t first_code = 0;  // within such a row
  ReadNumbers scales, biases;  // biases: only with spec.has_bias
};

struct TurboMlxCodedTensor {
  cache::HeadShape shape;
  codec::BlockOrder order = codec::BlockOrder::kKeys;
  std::vector<TurboMlxCodeRows> rows;
  std::vector<TurboMlxCodedPart> parts;
  std::vector<std::uint16_t> outliers;  // as in cache::QuantSpec

  std::vector<codec::PartSpec> specs() const;
};

using cache::kTokenBlock;

constexpr std::uint16_t kInfinity = 0x7c00;
constexpr std::uint16_t kMagnitude = 0x7fff;

Result<std::vector<std::uint16_t>> halves(const ReadNumbers& read, const ByteSource& file,
                                          std::size_t head, std::int64_t block) {
  TQC_TRY_ASSIGN(const std::vector<float> numbers, read(file, head, block));
  std::vector<std::uint16_t> result;
  for (const float number : numbers) {
    result.push_back(f32_to_f16(number));
    if ((result.back() & kMagnitude) < kInfinity) continue;
    return corrupt(fmt::format("head {}: a scale or bias beyond f16", head));
  }
  return result;
}

// [256, n_codes], one code per byte.
Result<std::vector<std::uint8_t>> unpacked(const TurboMlxCodeRows& rows, const ByteSource& file,
                                           std::size_t head, std::int64_t block) {
  TQC_TRY_ASSIGN(const Bytes packed,
                 turbomlx_row_bytes(file, rows.rows, head, block * kTokenBlock, kTokenBlock));
  std::vector<std::uint8_t> codes(to_size(kTokenBlock) * rows.n_codes);
  for (std::size_t t = 0; t < to_size(kTokenBlock); ++t) {
    codec::unpack_codes(ByteView(packed).subspan(t * rows.rows.row_bytes, rows.rows.row_bytes),
                        rows.bits, std::span(codes).subspan(t * rows.n_codes, rows.n_codes));
  }
  return codes;
}

// Reads token blocks of K or V in our packed layout.
class BlockReader {
 public:
  BlockReader(TurboMlxSource file, TurboMlxCodedTensor tensor)
      : file_(std::move(file)),
        tensor_(std::move(tensor)),
        layout_(tensor_.shape, tensor_.specs(), tensor_.order) {}

  Result<void> read(std::int64_t block, std::span<std::byte> out) const {
    for (std::size_t head = 0; head < to_size(tensor_.shape.n_kv_heads); ++head) {
      TQC_TRY(read_codes(head, block, out));
      TQC_TRY(read_scales(head, block, out));
    }
    return {};
  }

 private:
  Result<void> read_codes(std::size_t head, std::int64_t block, std::span<std::byte> out) const {
    std::vector<std::vector<std::uint8_t>> codes;
    for (const TurboMlxCodeRows& rows : tensor_.rows) {
      TQC_TRY_ASSIGN(auto own, unpacked(rows, *file_, head, block));
      codes.push_back(std::move(own));
    }
    for (std::size_t i = 0; i < tensor_.parts.size(); ++i) {
      const TurboMlxCodedPart& part = tensor_.parts[i];
      layout_.put_codes(head, i,
                        {codes[part.rows], tensor_.rows[part.rows].n_codes, part.first_code}, out);
    }
    return {};
  }

  Result<void> read_scales(std::size_t head, std::int64_t block, std::span<std::byte> out) const {
    for (std::size_t i = 0; i < tensor_.parts.size(); ++i) {
      const TurboMlxCodedPart& part = tensor_.parts[i];
      TQC_TRY_ASSIGN(const auto scales, halves(part.scales, *file_, head, block));
      layout_.put_scales(head, i, scales, out);
      if (!part.spec.has_bias) continue;
      TQC_TRY_ASSIGN(const auto biases, halves(part.biases, *file_, head, block));
      layout_.put_biases(head, i, biases, out);
    }
    return {};
  }

  TurboMlxSource file_;
  TurboMlxCodedTensor tensor_;
  cache::CodedBlock layout_;
};

std::vector<codec::PartSpec> TurboMlxCodedTensor::specs() const {
  std::vector<codec::PartSpec> specs;
  for (const TurboMlxCodedPart& part : parts) specs.push_back(part.spec);
  return specs;
}

// Requires: parts that codec::mode_of() accepts.
// Errors when read: those of the file; kCorrupt (a number beyond f16).
ReadBlock turbomlx_blocks(TurboMlxSource file, TurboMlxCodedTensor tensor) {
  const auto reader = std::make_shared<const BlockReader>(std::move(file), std::move(tensor));
  return
      [reader](std::int64_t block, std::span<std::byte> out) { return reader->read(block, out); };
}

constexpr std::uint16_t kLeastNormal = 0x0400;

// --- numbers in the file

using Floats = std::vector<float>;
using CodedPart = TurboMlxCodedPart;
using CodedTensor = TurboMlxCodedTensor;

ReadNumbers numbers_of(const TurboMlxRows& rows) {
  return [rows](const ByteSource& file, std::size_t head, std::int64_t block) {
    return turbomlx_row_floats(file, rows, Dtype::kF32, head, block * kTokenBlock, kTokenBlock);
  };
}

// The length of a residual is relative to the unit vector.
ReadNumbers products_of(const TurboMlxRows& a, const TurboMlxRows& b) {
  return [a = numbers_of(a), b = numbers_of(b)](const ByteSource& file, std::size_t head,
                                                std::int64_t block) -> Result<Floats> {
    TQC_TRY_ASSIGN(Floats products, a(file, head, block));
    TQC_TRY_ASSIGN(const Floats factors, b(file, head, block));
    for (std::size_t i = 0; i < products.size(); ++i) products[i] *= factors[i];
    return products;
  };
}

// Every n_groups-th number, times a factor.
ReadNumbers group_numbers(const TurboMlxRows& rows, Dtype dtype, std::size_t group,
                          std::size_t n_groups, float factor) {
  return [=](const ByteSource& file, std::size_t head, std::int64_t block) -> Result<Floats> {
    TQC_TRY_ASSIGN(const Floats all,
                   turbomlx_row_floats(file, rows, dtype, head, block * kTokenBlock, kTokenBlock));
    Floats own;
    for (std::size_t i = group; i < all.size(); i += n_groups) own.push_back(all[i] * factor);
    return own;
  };
}

// --- loss of rounding to f16

enum class Fit { kExact, kRounded, kNone };

Fit worse(Fit a, Fit b) { return std::max(a, b); }

// Accepts 0 and normal f16 values. NaN and negative values fail the comparison.
Fit fit_of_length(float length) {
  if (length == 0) return Fit::kExact;
  const std::uint16_t half = f32_to_f16(length);
  if (!(length > 0 && half >= kLeastNormal && half < kInfinity)) return Fit::kNone;
  return f16_to_f32(half) == length ? Fit::kExact : Fit::kRounded;
}

// The scale is ours: 2^bits times the quantization step.
Fit fit_of_group(float scale, float bias, int bits) {
  const float halved_scale = f16_to_f32(f32_to_f16(scale));
  const float halved_bias = f16_to_f32(f32_to_f16(bias));
  if (!std::isfinite(halved_scale) || !std::isfinite(halved_bias)) return Fit::kNone;
  if (halved_scale == scale && halved_bias == bias) return Fit::kExact;
  const double n_codes = std::ldexp(1.0, bits);
  const double step = std::abs(double{scale}) / n_codes;
  const double error = std::abs(double{halved_bias} - double{bias}) +
                       std::abs(double{halved_scale} - double{scale}) * (n_codes - 1) / n_codes;
  const double allowed = step / 16 + 0x1p-24;  // the smallest f16
  return error <= allowed ? Fit::kRounded : Fit::kNone;
}

Result<Fit> fit_of_part(const CodedPart& part, const ByteSource& file, std::size_t head,
                        std::int64_t block) {
  TQC_TRY_ASSIGN(const Floats scales, part.scales(file, head, block));
  Fit fit = Fit::kExact;
  if (!part.spec.has_bias) {
    for (const float scale : scales) fit = worse(fit, fit_of_length(scale));
    return fit;
  }
  TQC_TRY_ASSIGN(const Floats biases, part.biases(file, head, block));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    fit = worse(fit, fit_of_group(scales[i], biases[i], part.spec.bits));
  }
  return fit;
}

// Checks all full token blocks.
Result<Fit> fit_of(const CodedTensor& tensor, const ByteSource& file, std::int64_t n_tokens) {
  Fit fit = Fit::kExact;
  for (std::int64_t block = 0; block < n_tokens / kTokenBlock; ++block) {
    for (std::size_t head = 0; head < to_size(tensor.shape.n_kv_heads); ++head) {
      for (const CodedPart& part : tensor.parts) {
        TQC_TRY_ASSIGN(const Fit own, fit_of_part(part, file, head, block));
        fit = worse(fit, own);
        if (fit == Fit::kNone) return fit;
      }
    }
  }
  return fit;
}

TurboMlxPacking misfit(std::string reason) { return {std::nullopt, {}, std::move(reason), false}; }

Result<TurboMlxPacking> packing_of(const TurboMlxSource& file, CodedTensor tensor,
                                   std::int64_t n_tokens) {
  std::vector<codec::PartSpec> specs = tensor.specs();
  const auto codec =
      codec::HeadCodec::make(static_cast<int>(tensor.shape.head_dim), specs, tensor.order);
  if (!codec) return misfit(codec.error().message);
  TQC_TRY_ASSIGN(const Fit fit, fit_of(tensor, *file, n_tokens));
  if (fit == Fit::kNone) return misfit("f16 does not hold their scales");
  cache::QuantSpec quant;
  TQC_TRY_ASSIGN(quant.mode, codec::mode_of(static_cast<int>(tensor.shape.head_dim), specs));
  quant.parts = std::move(specs);
  quant.outliers = tensor.outliers;
  return TurboMlxPacking{
      std::move(quant), turbomlx_blocks(file, std::move(tensor)), {}, fit == Fit::kRounded};
}

// --- keys

codec::PartSpec spec_of(int dim, int bits, const codec::TransformMatrix& matrix) {
  codec::PartSpec spec;
  spec.head_dim = dim;
  spec.bits = bits;
  spec.seed = 0;  // no random numbers are drawn
  spec.rotation = codec::TransformKind::kMatrix;
  spec.scale = codec::ScaleRule::kRaw;
  spec.matrix = matrix;
  return spec;
}

CodedPart base_part(const TurboMlxPart& part, int first) {
  CodedPart base;
  base.spec = spec_of(static_cast<int>(part.channels.size()), part.bits, *part.rotation->map);
  base.spec.first = first;
  base.spec.centroids = *part.codebook;
  base.scales = numbers_of(part.lengths);
  return base;
}

CodedPart residual_part(const TurboMlxPart& part, int first) {
  const double factor = std::sqrt(std::numbers::pi / 2) / static_cast<double>(part.channels.size());
  const auto centroid = static_cast<float>(factor);
  CodedPart residual;
  residual.spec = spec_of(static_cast<int>(part.channels.size()), 1, *part.sketch->map);
  residual.spec.first = first;
  residual.spec.of_residual = true;
  residual.spec.centroids = {-centroid, centroid};
  residual.scales = products_of(*part.residuals, part.lengths);
  return residual;
}

void add(CodedPart part, const TurboMlxRows& codes, CodedTensor& tensor) {
  part.rows = tensor.rows.size();
  tensor.rows.push_back({codes, part.spec.bits, static_cast<std::size_t>(part.spec.head_dim)});
  tensor.parts.push_back(std::move(part));
}

bool has_maps(const TurboMlxPart& part) {
  return part.rotation->map && (!part.signs || part.sketch->map);
}

// The same outlier channels for every kv head.
std::vector<std::uint16_t> for_each_head(const std::vector<std::uint16_t>& channels,
                                         std::int64_t n_kv_heads) {
  std::vector<std::uint16_t> all;
  for (std::int64_t head = 0; head < n_kv_heads; ++head) {
    all.insert(all.end(), channels.begin(), channels.end());
  }
  return all;
}

// --- groups

// Centroids code / 2^bits: with scales 2^bits times as large, they represent the codes themselves.
// (Centroids lie within -1 and 1, and a power of two changes no digits.)
std::vector<float> code_centroids(int bits) {
  std::vector<float> centroids;
  for (int code = 0; code < 1 << bits; ++code) {
    centroids.push_back(std::ldexp(static_cast<float>(code), -bits));
  }
  return centroids;
}

CodedPart group_part(const TurboMlxGroups& groups, std::size_t group, std::size_t n_groups) {
  CodedPart part;
  part.first_code = group * groups.group_size;
  part.spec.first = static_cast<int>(part.first_code);
  part.spec.head_dim = static_cast<int>(groups.group_size);
  part.spec.bits = groups.bits;
  part.spec.seed = 0;
  part.spec.rotation = codec::TransformKind::kNone;
  part.spec.scale = codec::ScaleRule::kPeak;
  part.spec.has_bias = true;
  part.spec.centroids = code_centroids(groups.bits);
  const auto factor = static_cast<float>(1 << groups.bits);
  part.scales = group_numbers(groups.scales, groups.dtype, group, n_groups, factor);
  part.biases = group_numbers(groups.biases, groups.dtype, group, n_groups, 1);
  return part;
}

}  // namespace

Result<TurboMlxPacking> pack_turbomlx_keys(const TurboMlxSource& file, cache::HeadShape shape,
                                           std::int64_t n_tokens,
                                           const std::vector<TurboMlxPart>& parts) {
  if (!std::ranges::all_of(parts, has_maps)) return misfit("a matrix with values beyond 16");
  if (parts.size() > 1 && parts[0].signs) {
    return misfit("mixed precision with signs of residuals");
  }
  CodedTensor tensor;
  tensor.shape = shape;
  if (parts.size() > 1) tensor.outliers = for_each_head(parts.back().channels, shape.n_kv_heads);
  int first = 0;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {  // outlier channels come first
    add(base_part(*part, first), part->codes, tensor);
    if (part->signs) add(residual_part(*part, first), *part->signs, tensor);
    first += static_cast<int>(part->channels.size());
  }
  return packing_of(file, std::move(tensor), n_tokens);
}

Result<TurboMlxPacking> pack_turbomlx_groups(const TurboMlxSource& file, cache::HeadShape shape,
                                             std::int64_t n_tokens, const TurboMlxGroups& groups,
                                             codec::BlockOrder order) {
  const auto head_dim = to_size(shape.head_dim);
  CodedTensor tensor;
  tensor.shape = shape;
  tensor.order = order;
  tensor.rows.push_back({groups.codes, groups.bits, head_dim});
  const std::size_t n_groups = head_dim / groups.group_size;
  if (n_groups > codec::kMaxParts) return misfit(fmt::format("{} groups", n_groups));
  for (std::size_t group = 0; group < n_groups; ++group) {
    tensor.parts.push_back(group_part(groups, group, n_groups));
  }
  return packing_of(file, std::move(tensor), n_tokens);
}

}  // namespace tqcache::interop
