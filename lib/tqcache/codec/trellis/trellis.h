#pragma once
// codec/trellis/trellis.h: trellis codes of the archive tier: the nearest path through a trellis of
// uniform levels, and the symbols for the entropy coder.
//
// Every component of a vector becomes a level, an integer number of steps. The allowed levels of a
// component depend on the components before it: a machine of eight states decides whether the level
// is even or odd, and the level decides the next state. So only j >> 1 of a level j is stored, its
// symbol: one bit less. The error is hardly larger, because the search finds the nearest of all
// paths (Viterbi). Entropy coded, this is 0.5 dB from the theoretical limit.
//
//   state     0 before the first component; any state may be the last
//   level     j = 2 k + (state & 1), from -128 to 127
//   symbol    k + 64, a byte from 0 to 127: the stored value
//   next      (state >> 1) ^ (state & 1 ? 5 : 0) ^ (k & 1 ? 2 : 0)
//   code      j + 128, a byte: kept by a cache in memory. code = 2 symbol + (state & 1)
//
// Every sequence of symbols is a path, so all of them decode. Not every sequence of levels is a
// path: each component allows only half of the levels.
//
// Vectors are stored by rows, [n, dim]; symbols and levels by component, [dim, n]: components of
// similar variance are compressed together.
//
// Spec:    docs/reference/codec.md, "Trellis codes".
// Source:  Ungerboeck, "Channel coding with multilevel/phase signals", 1982 (h0 = 13, h1 = 04,
//          octal); Marcellin and Fischer, "Trellis coded quantization", 1990.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/error.h"

namespace tqcache::codec {

inline constexpr std::size_t kMaxTrellisDim = 1024;
inline constexpr int kTrellisSymbols = 128;      // a symbol is below this
inline constexpr int kTrellisZeroSymbol = 64;    // k = 0: the only symbol of a vector of zeros
inline constexpr int kTrellisSymbolOffset = 64;  // symbol = k + this
inline constexpr int kTrellisCodeOffset = 128;   // code = level + this

// Every function here requires is_legal().
struct TrellisShape {
  std::size_t dim = 0;
  std::size_t n_vectors = 0;

  constexpr bool is_legal() const {
    return dim >= 1 && dim <= kMaxTrellisDim && n_vectors >= 1 && n_vectors <= kBlockTokens;
  }
  constexpr std::size_t size() const { return dim * n_vectors; }
};

// The results of the search for each vector. Products and squares may be empty.
struct TrellisPaths {
  std::span<std::uint8_t> symbols;  // [dim, n_vectors]
  std::span<float> products;        // [n_vectors]: <y, j> as summed in docs/reference/codec.md §4
  std::span<float> squares;         // [n_vectors]: <j, j>, exact
};

// The path j nearest to each row of y: the path with the least sum of (y - j)^2, computed in f32.
// Among equally near paths the specification fixes the choice.
//
// Shapes: y [n_vectors, dim].
// Units:  y in steps, approximated by j. Levels range from -128 to 127.
// Errors: kCorrupt for a component that is NaN or infinite, with the vector in the message. The
//         paths are then unusable.
// Bytes:  identical on every CPU, also the sums.
Result<void> encode_trellis(const TrellisShape& shape, std::span<const float> y,
                            const TrellisPaths& paths, const Kernels& kernels = best_kernels());

// Symbols to levels.
//
// Shapes: symbols and levels [dim, n_vectors]; may not overlap.
// Errors: kCorrupt if a symbol is not below 128. The levels are then unusable.
Result<void> decode_trellis(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                            std::span<std::int8_t> levels);

// Symbols to packed codes of 8 bits, in the layout of block_layout.h: tokens are vectors. Tokens
// from n_vectors on and components from dim on get code 0.
//
// Shapes: symbols [dim, n_vectors]; block [BlockShape{dim, 8, order}.block_bytes()].
// Errors: as decode_trellis.
// Bytes:  identical on every CPU.
Result<void> decode_trellis_block(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                                  BlockOrder order, std::span<std::byte> block,
                                  const Kernels& kernels = best_kernels());

// Levels back to symbols.
//
// Shapes: levels and symbols [dim, n_vectors]; may not overlap.
// Errors: kCorrupt if the levels of a vector are not a path, with the first such vector in the
//         message. The symbols are then unusable.
Result<void> trellis_symbols(const TrellisShape& shape, std::span<const std::int8_t> levels,
                             std::span<std::uint8_t> symbols);

// Packed codes of 8 bits back to symbols; codes of tokens from n_vectors on are ignored. A vector
// of codes 0, as for tokens that are stored elsewhere, is a path too: all its symbols are 0.
//
// Shapes: as decode_trellis_block.
// Errors: as trellis_symbols.
Result<void> trellis_block_symbols(const TrellisShape& shape, std::span<const std::byte> block,
                                   BlockOrder order, std::span<std::uint8_t> symbols,
                                   const Kernels& kernels = best_kernels());

}  // namespace tqcache::codec
