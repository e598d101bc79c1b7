#pragma once
// cache/centering_score.h: what the mean of a side's keys adds to the scores of its packed tokens.
//
// Codes of centered keys score q . (k - m); the score of the key is that plus q . m. Of a mean
// taken out before RoPE, m = R_p mean, and q . R_p mean is a sum of one cosine and one sine a
// frequency pair: A cos(p w) + B sin(p w), with A and B the same for all tokens. It needs no memory
// traffic: inside a token block the sinusoids are a constant table, and from block to block only A
// and B turn. Pairs that move little within a block are joined: their sum is one smooth function of
// the place, so seven even and seven odd Chebyshev polynomials do for all of them.
//
// Exact, the result differs from q . R_p mean by less than 1e-6 |q| |mean|, at any position.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/kernels/sinusoid_table.h"

namespace tqcache::cache {

// What all layers, heads and queries of a model share.
// Threads: any number may read at once; extend() must be alone.
class CenteringTable {
 public:
  // Requires: can_turn().
  explicit CenteringTable(const Rope& rope);

  // Makes the phasors of the first n_blocks token blocks, as far as they are not there yet.
  void extend(std::int64_t n_blocks);

  std::size_t n_pairs() const { return frequencies_.size(); }
  const codec::SinusoidTable& sinusoids() const { return sinusoids_; }

  // cos(p w) and sin(p w) of each pair, with p in the middle of the block.
  // Shapes: [sinusoids().n_padded(), 2].
  const float* block_phasors(std::int64_t block) const;

  std::uint64_t bytes() const;

 private:
  std::vector<double> frequencies_;  // full turns a token
  codec::SinusoidTable sinusoids_;
  AlignedFloats phasors_;  // [n_blocks, n_padded, 2]
};

// The queries that share a kv head, held against the mean of its keys.
// Threads: set() must be alone; after that any number may add.
class CenteringScore {
 public:
  // Shapes:   queries [n, head_dim], after RoPE; mean [head_dim], the kv head's part of
  // Mean::values. Requires: `table` outlives this; null for a mean that does not turn
  // (Centering::kPostRope).
  void set(const CenteringTable* table, std::span<const float> mean,
           std::span<const float> queries);

  // scores[q][t] += query q . (the mean as it stands in token t of the block).
  //
  // Units:    kExact is within 1e-6 |query| |mean| at any position; kFast within 2e-4 of that (root
  //           mean square).
  // Shapes:   scores [n, 256], rows `stride` apart.
  // Requires: the table holds the block.
  void add_to(std::int64_t block, const codec::Kernels& kernels, codec::Precision precision,
              float* scores, std::size_t stride) const;

 private:
  const CenteringTable* table_ = nullptr;
  AlignedFloats amplitudes_;      // [n, n_padded, 2]: A, B
  std::vector<float> constants_;  // [n]: of components that do not turn
};

}  // namespace tqcache::cache
