#include "tqcache/codec/trellis/trellis.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>

#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {

namespace {

constexpr std::uint8_t kLevels = 0x80;  // code ^ kLevels is the byte of the level

}  // namespace

Result<void> encode_trellis(const TrellisShape& shape, std::span<const float> y,
                            const TrellisPaths& paths, const Kernels& kernels) {
  assert(shape.is_legal() && y.size() == shape.size() && paths.symbols.size() == shape.size());
  assert(paths.products.empty() || paths.products.size() == shape.n_vectors);
  assert(paths.squares.empty() || paths.squares.size() == shape.n_vectors);
  const std::size_t bad =
      kernels.trellis.search({.rows = y.data(),
                              .shape = shape,
                              .symbols = paths.symbols.data(),
                              .products = paths.products.empty() ? nullptr : paths.products.data(),
                              .squares = paths.squares.empty() ? nullptr : paths.squares.data()});
  if (bad == shape.n_vectors) return {};
  return Error{ErrorCode::kCorrupt,
               "vector " + std::to_string(bad) + ": a component is not finite"};
}

Result<void> decode_trellis(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                            std::span<std::int8_t> levels) {
  assert(shape.is_legal() && symbols.size() == shape.size() && levels.size() == shape.size());
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(levels.data());
  TrellisWalk walk(shape.n_vectors, best_kernels());
  for (std::size_t at = 0; at < shape.size(); at += shape.n_vectors) {
    walk.to_codes(symbols.data() + at, kLevels, bytes + at);
  }
  return walk.verdict("a symbol above 127");
}

Result<void> trellis_symbols(const TrellisShape& shape, std::span<const std::int8_t> levels,
                             std::span<std::uint8_t> symbols) {
  assert(shape.is_legal() && symbols.size() == shape.size() && levels.size() == shape.size());
  const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(levels.data());
  TrellisWalk walk(shape.n_vectors, best_kernels());
  for (std::size_t at = 0; at < shape.size(); at += shape.n_vectors) {
    walk.to_symbols(bytes + at, kLevels, symbols.data() + at);
  }
  return walk.verdict("its levels are no path");
}

TrellisWalk::TrellisWalk(std::size_t n_vectors, const Kernels& kernels)
    : n_(n_vectors), kernels_(kernels.trellis) {
  assert(n_vectors >= 1 && n_vectors <= kBlockTokens);
}

void TrellisWalk::to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes) {
  kernels_.to_codes({symbols, codes, n_, flip, states_.data(), bad_.data()});
}

void TrellisWalk::to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols) {
  kernels_.to_symbols({codes, symbols, n_, flip, states_.data(), bad_.data()});
}

Result<void> TrellisWalk::verdict(const char* fact) const {
  for (std::size_t vector = 0; vector < n_; ++vector) {
    if (bad_[vector] == 0) continue;
    return Error{ErrorCode::kCorrupt, "vector " + std::to_string(vector) + ": " + fact};
  }
  return {};
}

// Conversion between symbols of trellis codes and packed codes of 8 bits (codec/trellis/trellis.h).
//
// Works on sixteen components at a time: first their codes, one row per component; then lines of
// bytes in the order of values, in which four tokens of a component are adjacent, as in a row. For
// keys, transpose_lines then converts these lines.

namespace {

constexpr std::size_t kBlockLines = kBlockTokens / kLaneCodes;  // for sixteen components
constexpr std::size_t kTransposedBytes = 4 * kLineBytes;        // for sixteen tokens of them

// Codes of sixteen components, one row each.
struct Strip {
  alignas(64) std::uint8_t rows[kLanes][kBlockTokens] = {};
};

// Lines of bytes of sixteen components of a block, in the order of values.
struct Lines {
  alignas(64) std::uint8_t bytes[kBlockLines * kLineBytes];
};

// Four rows of sixteen bytes, `stride` bytes apart.
template <class Byte>
struct CodeSquare {
  Byte* first;
  std::size_t stride;
};

// Transposes a matrix of four by four groups of four bytes.
void transpose_square(CodeSquare<const std::uint8_t> from, CodeSquare<std::uint8_t> to) {
  typedef std::uint32_t Quads __attribute__((vector_size(16)));
  static_assert(kLaneCodes == sizeof(std::uint32_t));
  Quads r[4];
  for (std::size_t k = 0; k < 4; ++k) std::memcpy(&r[k], from.first + k * from.stride, 16);
  const Quads a = __builtin_shufflevector(r[0], r[2], 0, 4, 1, 5);
  const Quads b = __builtin_shufflevector(r[0], r[2], 2, 6, 3, 7);
  const Quads c = __builtin_shufflevector(r[1], r[3], 0, 4, 1, 5);
  const Quads d = __builtin_shufflevector(r[1], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 4, 1, 5);
  r[1] = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  r[2] = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  r[3] = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  for (std::size_t k = 0; k < 4; ++k) std::memcpy(to.first + k * to.stride, &r[k], 16);
}

void rows_to_lines(const Strip& strip, std::uint8_t* lines) {
  for (std::size_t lane = 0; lane < kLanes; lane += 4) {
    for (std::size_t line = 0; line < kBlockLines; line += 4) {
      transpose_square({&strip.rows[lane][line * kLaneCodes], kBlockTokens},
                       {lines + line * kLineBytes + lane * kLaneCodes, kLineBytes});
    }
  }
}

void lines_to_rows(const std::uint8_t* lines, Strip& strip) {
  for (std::size_t lane = 0; lane < kLanes; lane += 4) {
    for (std::size_t line = 0; line < kBlockLines; line += 4) {
      transpose_square({lines + line * kLineBytes + lane * kLaneCodes, kLineBytes},
                       {&strip.rows[lane][line * kLaneCodes], kBlockTokens});
    }
  }
}

// The offset in a group of keys, in bytes, of the lines of components first to first + 15, and the
// size of these lines.
struct KeyLines {
  std::size_t begin;
  std::size_t size;
};

KeyLines key_lines(const BlockShape& shape, std::size_t first) {
  const std::size_t left = std::min(kLanes, shape.dim() - first);
  return {first / kLaneCodes * kLineBytes, (left + kLaneCodes - 1) / kLaneCodes * kLineBytes};
}

void put_keys(const BlockShape& shape, const Lines& lines, std::size_t first,
              const Kernels& kernels, std::uint8_t* block) {
  const KeyLines place = key_lines(shape, first);
  for (std::size_t group = 0; group < kBlockTokens / kLanes; ++group) {
    alignas(64) std::uint8_t transposed[kTransposedBytes];
    kernels.transpose_lines(lines.bytes + group * kTransposedBytes, transposed);
    std::memcpy(block + group * shape.group_bytes() + place.begin, transposed, place.size);
  }
}

void take_keys(const BlockShape& shape, const std::uint8_t* block, std::size_t first,
               const Kernels& kernels, Lines& lines) {
  const KeyLines place = key_lines(shape, first);
  for (std::size_t group = 0; group < kBlockTokens / kLanes; ++group) {
    alignas(64) std::uint8_t transposed[kTransposedBytes] = {};
    std::memcpy(transposed, block + group * shape.group_bytes() + place.begin, place.size);
    kernels.transpose_lines(transposed, lines.bytes + group * kTransposedBytes);
  }
}

void put_strip(const BlockShape& shape, const Strip& strip, std::size_t first,
               const Kernels& kernels, std::uint8_t* block) {
  if (shape.order == BlockOrder::kValues) {
    return rows_to_lines(strip, block + first / kLanes * shape.group_bytes());
  }
  Lines lines;
  rows_to_lines(strip, lines.bytes);
  put_keys(shape, lines, first, kernels, block);
}

void take_strip(const BlockShape& shape, const std::uint8_t* block, std::size_t first,
                const Kernels& kernels, Strip& strip) {
  if (shape.order == BlockOrder::kValues) {
    return lines_to_rows(block + first / kLanes * shape.group_bytes(), strip);
  }
  Lines lines;
  take_keys(shape, block, first, kernels, lines);
  lines_to_rows(lines.bytes, strip);
}

BlockShape block_shape(const TrellisShape& shape, BlockOrder order) {
  return {.head_dim = static_cast<int>(shape.dim), .bits = 8, .order = order};
}

}  // namespace

Result<void> decode_trellis_block(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                                  BlockOrder order, std::span<std::byte> block,
                                  const Kernels& kernels) {
  const BlockShape packed = block_shape(shape, order);
  assert(shape.is_legal() && symbols.size() == shape.size() &&
         block.size() == packed.block_bytes());
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(block.data());
  TrellisWalk walk(shape.n_vectors, kernels);
  for (std::size_t first = 0; first < shape.dim; first += kLanes) {
    Strip strip;
    for (std::size_t i = 0; i < std::min(kLanes, shape.dim - first); ++i) {
      walk.to_codes(symbols.data() + (first + i) * shape.n_vectors, 0, strip.rows[i]);
    }
    put_strip(packed, strip, first, kernels, bytes);
  }
  return walk.verdict("a symbol above 127");
}

Result<void> trellis_block_symbols(const TrellisShape& shape, std::span<const std::byte> block,
                                   BlockOrder order, std::span<std::uint8_t> symbols,
                                   const Kernels& kernels) {
  const BlockShape packed = block_shape(shape, order);
  assert(shape.is_legal() && symbols.size() == shape.size() &&
         block.size() == packed.block_bytes());
  const std::uint8_t* const bytes = reinterpret_cast<const std::uint8_t*>(block.data());
  TrellisWalk walk(shape.n_vectors, kernels);
  for (std::size_t first = 0; first < shape.dim; first += kLanes) {
    Strip strip;
    take_strip(packed, bytes, first, kernels, strip);
    for (std::size_t i = 0; i < std::min(kLanes, shape.dim - first); ++i) {
      walk.to_symbols(strip.rows[i], 0, symbols.data() + (first + i) * shape.n_vectors);
    }
  }
  return walk.verdict("its levels are no path");
}

}  // namespace tqcache::codec
