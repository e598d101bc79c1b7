#pragma once
// tqcache/kv_codec.h: the codec of K or V of one layer: quantizes and restores token blocks, and
// holds no data.
//
//   TQC_TRY_ASSIGN(auto codec,
//                  KvCodec::make(layer.k, layer.shape, codec::BlockOrder::kKeys, rope));
//   codec.fit(blocks, n_threads);  // new caches only
//   TQC_TRY_ASSIGN(const auto packed, codec.encode(block, n_threads));
//   const AlignedBytes values = codec.decode_block(packed.view(), block.index, kTokenBlock);
//
// A codec is made from a description (description.h): of a file, a store, another program, or a
// plan for a new cache. A codec for a new cache does not know its mean, outlier channels and
// transforms yet: fit() computes them from the first token blocks, and they stay fixed afterwards.
//
// Spec: docs/reference/codec.md §5, §6 and §8; docs/reference/format.md §6.2.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec_spec.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::codec {
struct OutputRows;  // codec/kernels/kernels.h
struct WeightRows;
}  // namespace tqcache::codec

namespace tqcache::cache {

class KeyQueries;  // cache/kv_attention.h

// The layout of token block `block` of a tensor: sink tokens are in the first.
//
// Requires: the tensor is quantized, with parts that codec::mode_of() accepts;
//           validate_shape(shape).
codec::PackedLayout packed_layout(const TensorDesc& tensor, HeadShape shape,
                                  codec::BlockOrder order, std::int64_t block);

// Tables that the codecs of one cache share: transforms, codebooks and RoPE angles. Layers with
// equal descriptions share one set.
//
// Copies share the same tables. Threads: one at a time.
class KvTables {
 public:
  KvTables(const Rope& rope);  // not explicit: a codec that shares no tables is made from a Rope

  const Rope& rope() const;

  // codec::make_parts(), computed once per spec. Errors: as there.
  Result<std::vector<codec::PartSpec>> parts(const codec::CodecSpec& spec);

 private:
  friend class KvCodec;
  struct State;
  std::shared_ptr<State> state_;
};

// A value: copies share one immutable state; fit() gives its object a new state.
// Threads: any number may use one codec at once.
class KvCodec {
 public:
  struct State;  // of this module alone

  // The codec that `tensor` describes. With fit_transforms, fit() computes transforms as well.
  //
  // Requires: validate_shape(shape); the tensor is quantized.
  // Errors:   kUnsupported, kCorrupt: as codec::mode_of() and for codebooks and transforms;
  //           kCorrupt if mean, outlier channels, transforms or sink tokens do not fit the shape,
  //           the order or the RoPE.
  static Result<KvCodec> make(const TensorDesc& tensor, HeadShape shape, codec::BlockOrder order,
                              KvTables tables, bool fit_transforms = false);

  TensorDesc describe() const;  // make() turns it into the same codec
  HeadShape shape() const;
  codec::BlockOrder order() const;  // keys or values
  Dtype dtype() const;              // of values that stay dense
  codec::Mode mode() const;
  const std::vector<codec::PartSpec>& parts() const;  // with centroids
  Centering centering() const;
  std::span<const float> mean() const;  // as QuantSpec::mean; valid until fit()
  std::int64_t n_sinks() const;  // first tokens that stay dense, 0 to kTokenBlock; not centered
  std::uint64_t bytes() const;   // memory of mean, outlier channels and transforms

  // Whether mean, outlier channels and transforms are known, as encode() and decode() require. A
  // codec without any of them is fixed from the start.
  bool is_fixed() const;

  // Whether codes cannot be scored directly (keys transformed before RoPE), so that a cache in
  // memory keeps decoded values as well.
  bool must_keep_decoded() const;

  // Computes those of mean, outlier channels and transforms that are not fixed yet: the mean and
  // the transforms from all blocks, outlier channels from the first one.
  //
  // Requires: full blocks in ascending order, at least one; the first token block is among them if
  //           there are sink tokens.
  // Bytes:    identical on every CPU and for any number of threads.
  void fit(std::span<const FullBlock> blocks, unsigned n_threads);

  // The layout of token block `block`. Valid while this codec or a copy of it exists.
  const codec::PackedLayout& layout(std::int64_t block) const;
  std::size_t packed_bytes(std::int64_t block) const { return layout(block).bytes(); }

  // Packs a block, with its sink tokens. The result begins at a multiple of 64 bytes.
  //
  // Requires: is_fixed(); block.shape and block.dtype are those of the codec.
  // Errors:   kCorrupt for a value that is not finite, kUnsupported for a scale or bias beyond f16;
  //           the message names the head and the token in the block.
  // Bytes:    identical on every CPU and for any number of threads.
  Result<SharedBytes> encode(const FullBlock& block, unsigned n_threads) const;

  // Decodes the first tokens of one kv head, with the mean added; sink tokens exactly as stored.
  //
  // Shapes:   packed [packed_bytes(block)]; out [n, head_dim], n from 1 to kTokenBlock.
  // Requires: is_fixed(); `packed` begins at a multiple of 64.
  // Errors:   none. Any bytes decode.
  void decode(ByteView packed, std::int64_t block, std::int64_t kv_head,
              std::span<float> out) const;

  // The same for all kv heads: [n_kv_heads, n_tokens, head_dim] of dtype().
  AlignedBytes decode_block(ByteView packed, std::int64_t block, std::int64_t n_tokens) const;

  // The dense rows of the sink tokens of one kv head: [n_sinks(), head_dim] of dtype().
  // Requires: `packed` is token block 0.
  ByteView sink_rows(ByteView packed, std::int64_t kv_head) const;

  // Replaces head vectors by their quantized and decoded values; sink tokens stay.
  //
  // Shapes:   rows [n, n_kv_heads, head_dim]: tokens at `position`, `position` + 1, ..., all in one
  //           token block.
  // Requires: is_fixed(). Errors: as encode(); tokens are counted from `position`.
  Result<void> quantize_rows(std::int64_t position, std::span<float> rows) const;

  // Subtracts the mean from head vectors of one kv head, as encode() does.
  //
  // Shapes:   rows [n, head_dim]: tokens as in quantize_rows().
  // Requires: is_fixed().
  void subtract_mean(std::int64_t position, std::int64_t kv_head, std::span<float> rows) const;

  // --- Attention on the codes of packed blocks, which are not decoded
  //
  // Requires: is_fixed(); `packed` begins at a multiple of 64. Any bytes can be scored and summed.

  // Why Precision::kFast computes in f32, as kExact does; empty if it multiplies integers.
  std::string why_not_integers() const;

  // scores[q][t] = <query q, decoded key t>. Those of sink tokens have no meaning: sink_rows().
  //
  // Shapes:   scores [n, kTokenBlock], rows `stride` apart.
  // Requires: `queries` were set for this codec.
  void score(const KeyQueries& queries, ByteView packed, std::int64_t block,
             codec::Precision precision, codec::OutputRows scores) const;

  // sums[q][i] += sum over tokens t of weights[q][t] * coded component i of value t. Components are
  // still transformed; there are coded_dim(). Sink tokens add 0.
  //
  // Shapes:   weights [n, kTokenBlock] and sums [n, coded_dim()], rows `stride` apart.
  void accumulate(ByteView packed, std::int64_t block, std::int64_t kv_head,
                  codec::Precision precision, const codec::WeightRows& weights,
                  codec::OutputRows sums) const;
  std::size_t coded_dim() const;

  // out += the weighted sum of decoded values, from a row of sums and the sum of its weights.
  //
  // Shapes:   coded [coded_dim()] and scratch [head_dim] are overwritten; out [head_dim].
  void add_decoded_sum(std::int64_t kv_head, float weight, std::span<float> coded,
                       std::span<float> scratch, std::span<float> out) const;

  // For lib/tqcache/cache, and for tests.
  const State& state() const { return *state_; }
  explicit KvCodec(State state);

 private:
  std::shared_ptr<const State> state_;
};

// The codecs of a layer; nullopt for a dense tensor.
struct LayerCodecs {
  std::optional<KvCodec> k;
  std::optional<KvCodec> v;
};

// The codecs of all layers, with shared tables: [n_layers]. Errors: as KvCodec::make(), with layer
// and K or V.
Result<std::vector<LayerCodecs>> make_codecs(std::span<const LayerDesc> layers, const Rope& rope);

}  // namespace tqcache::cache
