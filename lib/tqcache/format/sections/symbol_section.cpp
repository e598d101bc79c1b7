#include "tqcache/format/sections/symbol_section.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/bytes.h"
#include "tqcache/codec/trellis/trellis.h"
#include "tqcache/codec/trellis/trellis_rows.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/symbol_classes.h"
#include "tqcache/format/sections/symbol_density.h"

namespace tqcache::format {
namespace {

constexpr std::size_t kTokens = codec::kBlockTokens;
constexpr std::uint16_t kUnusedBits = (1u << codec::kStepScaleShift) - 1;

codec::TrellisShape trellis_shape(const SymbolShape& shape) { return {shape.head_dim, kTokens}; }

// Number of symbols of a class, for all heads.
std::size_t class_size(const SymbolShape& shape, std::size_t index) {
  const std::size_t first = index * kClassComponents;
  return std::min(kClassComponents, shape.head_dim - first) * shape.n_heads * kTokens;
}

// The symbols of a section: [head_dim, n_heads, 256], so that a class is contiguous.
class Symbols {
 public:
  explicit Symbols(const SymbolShape& shape)
      : shape_(shape),
        all_(shape.head_dim * shape.n_heads * kTokens),
        head_(shape.head_dim * kTokens) {}

  std::span<std::uint8_t> of_class(std::size_t index) {
    return std::span(all_).subspan(index * kClassComponents * shape_.n_heads * kTokens,
                                   class_size(shape_, index));
  }

  // A buffer for one head: [head_dim, 256]; fill it and call put(), or read it after take().
  std::span<std::uint8_t> head() { return head_; }
  void put(std::size_t head) {
    each_row(head, [](std::uint8_t* all, std::uint8_t* one) { std::memcpy(all, one, kTokens); });
  }
  void take(std::size_t head) {
    each_row(head, [](std::uint8_t* all, std::uint8_t* one) { std::memcpy(one, all, kTokens); });
  }

  // Sets one head's symbols of all tokens with scale 0.
  void set_silent(std::span<const std::uint16_t> scales, std::uint8_t symbol) {
    for (std::size_t t = 0; t < kTokens; ++t) {
      if (scales[t] != 0) continue;
      for (std::size_t i = t; i < head_.size(); i += kTokens) head_[i] = symbol;
    }
  }

 private:
  template <class Move>
  void each_row(std::size_t head, Move move) {
    for (std::size_t i = 0; i < shape_.head_dim; ++i) {
      move(all_.data() + (i * shape_.n_heads + head) * kTokens, head_.data() + i * kTokens);
    }
  }

  const SymbolShape& shape_;
  std::vector<std::uint8_t> all_;
  std::vector<std::uint8_t> head_;
};

std::span<const std::uint16_t> scales_of(const SymbolShape& shape, ByteView raw, std::size_t head) {
  const auto* const all =
      reinterpret_cast<const std::uint16_t*>(raw.data() + shape.layout.scales_at(0));
  return {all + head * kTokens, kTokens};
}

std::span<std::uint8_t> as_u8(std::span<std::byte> bytes) {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

// The densities of the classes, and the sizes of the pieces in the frame.
struct Contents {
  std::vector<unsigned> densities;
  std::vector<std::size_t> pieces;  // one per class, the scales, the sinks

  std::size_t size() const {
    std::size_t sum = 0;
    for (const std::size_t piece : pieces) sum += piece;
    return sum;
  }
};

Contents contents_of(const SymbolShape& shape, std::vector<unsigned> densities) {
  Contents contents{std::move(densities), {}};
  for (std::size_t i = 0; i < contents.densities.size(); ++i) {
    contents.pieces.push_back(class_size(shape, i) / contents.densities[i]);
  }
  contents.pieces.push_back(shape.n_heads * kTokens);
  contents.pieces.push_back(shape.sink_bytes());
  return contents;
}

// Returns false for a block that is not a path, or a scale that is invalid in this mode.
bool load(const SymbolShape& shape, ByteView raw, Symbols& symbols) {
  for (std::size_t head = 0; head < shape.n_heads; ++head) {
    const auto scales = scales_of(shape, raw, head);
    const auto is_step = [](std::uint16_t scale) {
      return (scale & kUnusedBits) == 0 && scale < kF16Infinity;
    };
    if (!std::ranges::all_of(scales, is_step)) return false;
    const ByteView block = raw.subspan(shape.layout.codes_at(head), shape.layout.code_bytes);
    auto found =
        codec::trellis_block_symbols(trellis_shape(shape), block, shape.order, symbols.head());
    if (!found) return false;
    symbols.set_silent(scales, codec::kTrellisZeroSymbol);
    symbols.put(head);
  }
  return true;
}

// Whether codes of tokens with scale 0 are all 0: symbols would lose any others.
bool is_silent_where_scales_are(const SymbolShape& shape, ByteView raw) {
  std::vector<std::uint8_t> codes(kTokens * shape.head_dim);
  const codec::BlockShape block{static_cast<int>(shape.head_dim), codec::kMaxBits, shape.order};
  for (std::size_t head = 0; head < shape.n_heads; ++head) {
    const auto scales = scales_of(shape, raw, head);
    if (std::ranges::find(scales, 0) == scales.end()) continue;
    codec::unpack_block(block, raw.subspan(shape.layout.codes_at(head), shape.layout.code_bytes),
                        codes);
    for (std::size_t t = 0; t < kTokens; ++t) {
      if (scales[t] != 0) continue;
      const auto of_token = std::span(codes).subspan(t * shape.head_dim, shape.head_dim);
      if (std::ranges::any_of(of_token, [](std::uint8_t code) { return code != 0; })) return false;
    }
  }
  return true;
}

AlignedBytes fill_pieces(const SymbolShape& shape, ByteView raw, Symbols& symbols,
                         const Contents& contents) {
  AlignedBytes bytes(contents.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < contents.densities.size(); ++i) {
    pack_symbols(contents.densities[i], symbols.of_class(i),
                 as_u8(std::span(bytes)).subspan(at, contents.pieces[i]));
    at += contents.pieces[i];
  }
  for (std::size_t head = 0; head < shape.n_heads; ++head) {
    for (const std::uint16_t scale : scales_of(shape, raw, head)) {
      bytes[at++] = static_cast<std::byte>(scale >> codec::kStepScaleShift);
    }
  }
  std::ranges::copy(raw.subspan(shape.layout.sinks_at(0)),
                    bytes.begin() + static_cast<std::ptrdiff_t>(at));
  return bytes;
}

// Pieces of the content that get their own entropy table: two adjacent classes if densities match.
std::vector<std::size_t> tables_of(const Contents& contents) {
  std::vector<std::size_t> pieces;
  const std::size_t n_classes = contents.densities.size();
  for (std::size_t i = 0; i < contents.pieces.size(); ++i) {
    const bool joins =
        i % 2 == 1 && i < n_classes && contents.densities[i] == contents.densities[i - 1];
    if (joins) {
      pieces.back() += contents.pieces[i];
    } else {
      pieces.push_back(contents.pieces[i]);
    }
  }
  return pieces;
}

// Reads the bytes before the frame.
Result<Contents> read_contents(ByteView stored, const SymbolShape& shape) {
  const std::size_t n_classes = class_count(shape.head_dim);
  if (stored.size() <= n_classes) return corrupt("no room for the classes of symbols");
  std::vector<unsigned> densities;
  for (std::size_t i = 0; i < n_classes; ++i) {
    densities.push_back(std::to_integer<unsigned>(stored[i]));
    if (is_density(densities.back())) continue;
    return corrupt("class " + std::to_string(i) + ": " + std::to_string(densities.back()) +
                   " symbols a byte");
  }
  return contents_of(shape, std::move(densities));
}

Result<void> place_scales(const SymbolShape& shape, ByteView bytes, std::span<std::byte> raw) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto scale =
        static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[i]) << codec::kStepScaleShift);
    if (scale >= kF16Infinity) return corrupt("a scale that is not finite");
    std::memcpy(raw.data() + shape.layout.scales_at(0) + i * sizeof(scale), &scale, sizeof(scale));
  }
  return {};
}

// Requires: the scales are already in `raw`.
Result<void> place_codes(const SymbolShape& shape, Symbols& symbols, std::span<std::byte> raw) {
  for (std::size_t head = 0; head < shape.n_heads; ++head) {
    symbols.take(head);
    symbols.set_silent(scales_of(shape, raw, head), 0);
    auto placed = codec::decode_trellis_block(
        trellis_shape(shape), symbols.head(), shape.order,
        raw.subspan(shape.layout.codes_at(head), shape.layout.code_bytes));
    if (!placed) return in_context("head " + std::to_string(head), std::move(placed).error());
  }
  return {};
}

}  // namespace

bool has_symbols(const cache::TensorDesc& tensor) {
  if (!tensor.quant) return false;
  const std::vector<codec::PartSpec>& parts = tensor.quant->parts;
  return parts.size() == 1 && parts[0].scale == codec::ScaleRule::kStep;
}

SymbolShape symbol_shape(const cache::LayerDesc& layer, const SectionInfo& section) {
  const cache::HeadShape shape = shape_of(layer, section.tensor);
  return {static_cast<std::size_t>(shape.n_kv_heads), static_cast<std::size_t>(shape.head_dim),
          order_of(section.tensor),
          cache::packed_layout(tensor_of(layer, section.tensor), shape, order_of(section.tensor),
                               section.block)};
}

bool compress_symbols(const Compressor& compressor, const SymbolShape& shape, ByteView raw,
                      Bytes& stored) {
  stored.clear();
  Symbols symbols(shape);
  if (!is_silent_where_scales_are(shape, raw) || !load(shape, raw, symbols)) return false;
  std::vector<unsigned> densities;
  for (std::size_t i = 0; i < class_count(shape.head_dim); ++i) {
    densities.push_back(best_density(symbols.of_class(i)));
  }
  const Contents contents = contents_of(shape, std::move(densities));
  const AlignedBytes bytes = fill_pieces(shape, raw, symbols, contents);

  const std::size_t n_classes = contents.densities.size();
  stored.resize(raw.size() - 1);
  for (std::size_t i = 0; i < n_classes; ++i)
    stored[i] = static_cast<std::byte>(contents.densities[i]);
  const std::size_t size =
      compressor.compress_pieces(bytes, tables_of(contents), std::span(stored).subspan(n_classes));
  stored.resize(size == 0 ? 0 : n_classes + size);
  return size != 0;
}

Result<void> check_symbols(ByteView stored, const SymbolShape& shape) {
  TQC_TRY_ASSIGN(const Contents contents, read_contents(stored, shape));
  return Decompressor::check_frame(stored.subspan(contents.densities.size()), contents.size());
}

Result<void> decompress_symbols(const Decompressor& decompressor, ByteView stored,
                                const SymbolShape& shape, std::span<std::byte> raw) {
  assert(raw.size() == shape.layout.bytes());
  TQC_TRY_ASSIGN(const Contents contents, read_contents(stored, shape));
  AlignedBytes bytes(contents.size());
  TQC_TRY(decompressor.decompress(stored.subspan(contents.densities.size()), bytes));

  Symbols symbols(shape);
  std::size_t at = 0;
  for (std::size_t i = 0; i < contents.densities.size(); ++i) {
    unpack_symbols(contents.densities[i], as_u8(std::span(bytes)).subspan(at, contents.pieces[i]),
                   symbols.of_class(i));
    at += contents.pieces[i];
  }
  const ByteView scales = ByteView(bytes).subspan(at, shape.n_heads * kTokens);
  TQC_TRY(place_scales(shape, scales, raw));
  std::ranges::copy(ByteView(bytes).subspan(at + scales.size()),
                    raw.begin() + static_cast<std::ptrdiff_t>(shape.layout.sinks_at(0)));
  return place_codes(shape, symbols, raw);
}

}  // namespace tqcache::format
