#pragma once
// predict/predictor.h: a profile that is ready for use, and the coder of token blocks.
//
// Spec: docs/reference/codec.md §11.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/predict.h"
#include "tqcache/predict/integer_matrix.h"
#include "tqcache/predict/symbol_path.h"

namespace tqcache::predict {

class Predictor {
 public:
  // `memory` is for what encoding needs. Requires: `profile` came from parse_profile().
  Predictor(Profile profile, const Sha256& digest, const MemoryBudget& memory = {});

  const Profile& profile() const { return profile_; }
  const Sha256& digest() const { return digest_; }

  struct Tensor {
    IntegerMatrix weights;
    IntegerMatrix map;
    std::vector<float> per_unit;  // 1 / unit
  };
  const Tensor& tensor(std::size_t index) const { return tensors_[index]; }

  // The inverses of the maps, which only encoding needs: [D, D] each, row for channel.
  // Errors:  kCorrupt for a map without inverse; kTooLarge.
  // Threads: any.
  Result<void> prepare_encoding(unsigned n_threads) const;
  std::span<const float> inverse(std::size_t tensor) const { return inverses_[tensor]; }

 private:
  Profile profile_;
  Sha256 digest_;
  MemoryBudget memory_;
  std::vector<Tensor> tensors_;
  mutable std::mutex mutex_;
  mutable std::vector<AlignedFloats> inverses_;
};

// The profiles of version 2 in a folder that belong to these weights, in the order of their names.
// Errors: those of the folder, and of its profiles of version 2 or later.
Result<std::vector<std::shared_ptr<const Predictor>>> profiles_of_model(
    const std::filesystem::path& folder, const Sha256& weights_fingerprint,
    const MemoryBudget& memory = {});

// Codes the tensors of one token block one after another: keys and values of layer 0, of layer 1,
// ... Vectors are all kv heads of a token side by side, keys before RoPE.
//
// Bytes: decoded values are the same on every CPU.
class BlockCoder {
 public:
  // `tokens` are those of the block; the first `n_sinks` are neither coded nor predicted.
  // Requires: `predictor` outlives the coder; the tokens have features; step > 0.
  BlockCoder(const Predictor& predictor, float step, std::span<const std::int32_t> tokens,
             std::size_t n_sinks, const codec::Kernels& kernels = codec::best_kernels());

  std::size_t next_tensor() const { return tensor_; }

  // Decodes the next tensor. Shapes: out [n, D]; rows of sinks become 0. Errors: kCorrupt.
  Result<void> decode(ByteView coded, std::span<float> out);

  // Encodes the next tensor, appends its bytes to `coded`, and returns what decode() will.
  // Requires: predictor.prepare_encoding(). Shapes: x, out [n, D].
  // Errors:   kCorrupt for values that are not finite.
  Result<void> encode(std::span<const float> x, Bytes& coded, std::span<float> out);

 private:
  void predict();
  void finish(std::span<float> out);

  const Predictor& predictor_;
  const codec::Kernels& kernels_;
  float step_;
  std::size_t n_;  // tokens
  std::size_t n_sinks_;
  std::size_t dim_;
  std::size_t tensor_ = 0;
  SymbolModels models_;
  PathSearch search_;
  Int16Rows features_;                    // [n, n_features]
  std::deque<Int16Rows> neighbors_;       // tensors before, the newest last: [n, D] each
  std::vector<std::uint8_t> activities_;  // [n] classes
  std::vector<std::uint32_t> sums_;       // [n] activities of the tensor
  std::vector<std::uint8_t> classes_;     // [D] of the components of the tensor
  AlignedFloats predicted_;               // [n, D]
  AlignedFloats residual_, components_;   // [n, D], of encoding
  Int16Rows inputs_;
  Int16Rows levels_;  // [n, D] in rows of the map's input
  Int32Rows products_;
};

// RoPE at the positions of a token block: row t of vectors of D channels, heads of head_dim.
class BlockRope {
 public:
  BlockRope(const cache::Rope& rope, cache::HeadShape shape, std::int64_t first, std::size_t n);
  // Row t has positions[t].
  BlockRope(const cache::Rope& rope, cache::HeadShape shape,
            std::span<const std::int64_t> positions);

  void rotate(std::span<float> rows) const { apply(rows, 1); }
  void rotate_back(std::span<float> rows) const { apply(rows, -1); }

 private:
  void apply(std::span<float> rows, float sign) const;

  cache::HeadShape shape_;
  std::size_t n_pairs_ = 0;
  AlignedFloats cos_;  // [n, n_pairs]
  AlignedFloats sin_;
};

// Values of a token block as a file holds them, [n_kv_heads, n, head_dim], to rows [n, D], and
// back.
void rows_of_values(cache::HeadShape shape, Dtype dtype, ByteView values, std::span<float> rows);
// Some tokens of the block alone. Shapes: rows [tokens.size(), D].
void rows_of_tokens(cache::HeadShape shape, Dtype dtype, ByteView values,
                    std::span<const std::size_t> tokens, std::span<float> rows);
void values_of_rows(cache::HeadShape shape, Dtype dtype, std::span<const float> rows,
                    std::span<std::byte> values);

}  // namespace tqcache::predict
