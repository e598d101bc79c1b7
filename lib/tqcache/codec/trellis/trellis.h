#pragma once
// codec/trellis/trellis.h: the codes of the archive tier: the nearest path through a trellis of
// uniform levels, and the symbols that an entropy coder gets of it.
//
// Every component of a vector becomes a level, a whole number of steps. Which levels a component
// may take depends on those before it: a machine of eight states says whether the level is even or
// odd, and the level says which state comes next. So what is stored of a level j is only j >> 1,
// its symbol: one bit less, for an error hardly larger, because of all the paths the nearest is
// taken (Viterbi). Entropy coded, this is 0.5 dB from what any code could do.
//
//   state     0 before the first component; the last one is free
//   level     j = 2 k + (state & 1), from -128 to 127
//   symbol    k + 64, a byte from 0 to 127: what is stored
//   next      (state >> 1) ^ (state & 1 ? 5 : 0) ^ (k & 1 ? 2 : 0)
//   code      j + 128, a byte: what a cache in memory keeps. code = 2 symbol + (state & 1)
//
// Any symbols are a path, and so all of them decode. Not every row of levels is one: half of them
// are missing at each component.
//
// Vectors come by rows, [n, dim]. Symbols and levels stand component by component, [dim, n]:
// components of like variance are compressed together.
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
inline constexpr int kTrellisZeroSymbol = 64;    // k = 0: a vector of zeros has no other
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

// What the search finds for each vector. Sums may be left out (empty).
struct TrellisPaths {
  std::span<std::uint8_t> symbols;  // [dim, n_vectors]
  std::span<float> products;        // [n_vectors]: <y, j> as docs/reference/codec.md §4 adds it
  std::span<float> squares;         // [n_vectors]: <j, j>, exact
};

// The path j nearest to each row of y: the one with the least sum of (y - j)^2, as far as sums of
// f32 tell it. Of equally near ones, one is chosen in a way that the document fixes.
//
// Shapes: y [n_vectors, dim].
// Units:  y in steps: what stands for y is j. Beyond -128 and 127 the levels end.
// Errors: kCorrupt for a component that is NaN or infinite, naming the vector. The paths then hold
//         nothing of use.
// Bytes:  identical on every CPU, the sums too.
Result<void> encode_trellis(const TrellisShape& shape, std::span<const float> y,
                            const TrellisPaths& paths, const Kernels& kernels = best_kernels());

// Symbols to levels.
//
// Shapes: symbols and levels [dim, n_vectors]; may not overlap.
// Errors: kCorrupt if a symbol is not below 128. The levels then hold nothing of use.
Result<void> decode_trellis(const TrellisShape& shape, std::span<const std::uint8_t> symbols,
                            std::span<std::int8_t> levels);

// Symbols to packed codes of 8 bits, as block_layout.h has them: tokens are vectors. Tokens from
// n_vectors on and components beyond dim get code 0.
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
// Errors: kCorrupt if the levels of a vector are no path, naming the first such vector. The
//         symbols then hold nothing of use.
Result<void> trellis_symbols(const TrellisShape& shape, std::span<const std::int8_t> levels,
                             std::span<std::uint8_t> symbols);

// Packed codes of 8 bits back to symbols; those of tokens from n_vectors on are not looked at.
// Code 0 throughout, as tokens have that are kept elsewhere, is a path too: symbol 0 throughout.
//
// Shapes: as decode_trellis_block.
// Errors: as trellis_symbols.
Result<void> trellis_block_symbols(const TrellisShape& shape, std::span<const std::byte> block,
                                   BlockOrder order, std::span<std::uint8_t> symbols,
                                   const Kernels& kernels = best_kernels());

}  // namespace tqcache::codec
