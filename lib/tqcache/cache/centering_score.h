#pragma once
// cache/centering_score.h: the contribution of the mean of keys to the scores of quantized tokens.
//
// Codes of centered keys score q . (k - m); the score of the key is that plus q . m. For a mean
// removed before RoPE, m = R_p mean, and q . R_p mean is a sum of one cosine and one sine per
// frequency pair: A cos(p w) + B sin(p w), with A and B the same for all tokens. It needs no memory
// traffic: inside a token block the sinusoids are a constant table, and from block to block only A
// and B are rotated. Pairs that change slowly within a block are joined: their sum is one smooth
// function of the offset, so seven even and seven odd Chebyshev polynomials cover all of them.
//
// With Precision::kExact, the result differs from q . R_p mean by less than 1e-6 |q| |mean|, at any
// position.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/kernels/sinusoid_table.h"
#include "tqcache/description.h"

namespace tqcache::cache {

// Tables shared by all layers, heads and queries of a model.
// Threads: any number may read at once; extend() must be alone.
class CenteringTable {
 public:
  // Requires: can_rotate().
  explicit CenteringTable(const Rope& rope);

  // Computes the phasors of the first n_blocks token blocks that do not exist yet.
  void extend(std::int64_t n_blocks);

  std::size_t n_pairs() const { return frequencies_.size(); }
  const codec::SinusoidTable& sinusoids() const { return sinusoids_; }

  // cos(p w) and sin(p w) of each pair, with p in the middle of the block.
  // Shapes: [sinusoids().n_padded(), 2].
  const float* block_phasors(std::int64_t block) const;

  std::uint64_t bytes() const;

 private:
  std::vector<double> frequencies_;  // cycles per token
  codec::SinusoidTable sinusoids_;
  AlignedFloats phasors_;  // [n_blocks, n_padded, 2]
};

// Queries that share a kv head, combined with the mean of its keys.
// Threads: set() must be alone; after that any number may add.
class CenteringScore {
 public:
  // Shapes:   queries [n, head_dim], after RoPE; mean [head_dim], the kv head's part of
  // Mean::values. Requires: `table` outlives this; null for a mean without RoPE
  // (Centering::kPostRope).
  void set(const CenteringTable* table, std::span<const float> mean,
           std::span<const float> queries);

  // scores[q][t] += query q . (the mean at token t of the block).
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
  std::vector<float> constants_;  // [n]: from components that RoPE leaves unchanged
};

}  // namespace tqcache::cache
