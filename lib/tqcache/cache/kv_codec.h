#pragma once
// cache/kv_codec.h: the codec of K or V of one layer: everything that quantizes token blocks and
// restores them, and no data.
//
// A codec is made from a description (cache/description.h): of a file, a store, another program, or
// a plan for a new cache. One for a new cache does not know its mean, outlier channels and
// transforms yet: fit() takes them from the first token blocks, and they stay fixed afterwards.
//
//   auto codec = KvCodec::make(layer.k, layer.shape, codec::BlockOrder::kKeys, rope);
//   codec->fit(blocks, OutlierPolicy::kCalibrationVariance, n_threads);  // of a new cache
//   auto packed = codec->encode(block, n_threads);
//   AlignedBytes values = codec->decode_block(packed->view(), block.index, kTokenBlock);
//
// Spec: docs/reference/codec.md §5, §6 and §8; docs/reference/format.md §6.2.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/description.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::cache {

// The parts of a packed token block, in memory, in files and in stores:
//
//   codes    [n_kv_heads, head.code_bytes]
//   scales   [n_kv_heads, head.n_scale_rows, kTokenBlock] f16
//   sinks    [n_kv_heads, n_sinks, head_dim] of the dtype of values that stay dense
//
// All three begin at a multiple of 64 bytes.
struct PackedLayout {
  codec::HeadLayout head;  // codes and scales of one kv head
  std::size_t n_heads = 0;
  std::size_t n_sinks = 0;     // sink tokens of one kv head: none behind token block 0
  std::size_t sink_bytes = 0;  // of one kv head

  // Offsets in bytes.
  std::size_t codes_at(std::size_t kv_head) const { return kv_head * head.code_bytes; }
  std::size_t scales_at(std::size_t kv_head) const {
    return n_heads * head.code_bytes + kv_head * head.scale_bytes();
  }
  std::size_t sinks_at(std::size_t kv_head) const {
    return n_heads * (head.code_bytes + head.scale_bytes()) + kv_head * sink_bytes;
  }
  std::size_t bytes() const { return sinks_at(n_heads); }
};

// Requires: the tensor is quantized, with parts that codec::mode_of() takes; validate_shape(shape).
PackedLayout packed_layout(const TensorDesc& tensor, HeadShape shape, codec::BlockOrder order,
                           std::int64_t block);

// The token blocks that choose outlier channels. A cache that grows from nothing has one block when
// it is first quantized, so both mean the same there.
enum class OutlierPolicy : std::uint8_t {
  kCalibrationVariance,  // the first token block
  kRollingVariance       // those that the mean is taken over: mean_blocks()
};

// Tables that the codecs of one cache share: transforms, codebooks and RoPE angles. Layers of one
// description need them once.
//
// Copies are the same tables. Threads: one at a time.
class KvTables {
 public:
  KvTables(const Rope& rope);  // not explicit: a codec that shares nothing is made from a Rope

  const Rope& rope() const;

  // codec::make_parts(), computed once for each spec. Errors: as there.
  Result<std::vector<codec::PartSpec>> parts(const codec::CodecSpec& spec);

 private:
  friend class KvCodec;
  struct State;
  std::shared_ptr<State> state_;
};

// A value: copies share one immutable state, and fit() gives its object a state of its own.
// Threads: any number may use one codec at once.
class KvCodec {
 public:
  struct State;  // cache/kv_codec_state.h, not for users of the library

  // The codec that `tensor` describes. With fit_transforms, fit() finds transforms as well.
  //
  // Requires: validate_shape(shape); the tensor is quantized.
  // Errors:   kUnsupported, kCorrupt: as codec::mode_of() and for codebooks and transforms;
  //           kCorrupt when mean, outlier channels, transforms or sink tokens do not belong to the
  //           shape, the order or the RoPE.
  static Result<KvCodec> make(const TensorDesc& tensor, HeadShape shape, codec::BlockOrder order,
                              KvTables tables, bool fit_transforms = false);

  TensorDesc describe() const;  // make() gives the same codec again
  HeadShape shape() const;
  codec::BlockOrder order() const;  // keys or values
  Dtype dtype() const;              // of values that stay dense
  codec::Mode mode() const;
  const std::vector<codec::PartSpec>& parts() const;  // with centroids
  Centering centering() const;
  std::int64_t n_sinks() const;  // first tokens that stay dense, 0 to kTokenBlock; not centered
  std::uint64_t bytes() const;   // memory of mean, outlier channels and transforms

  // Whether mean, outlier channels and transforms are known, as encode() and decode() require. A
  // codec without any of them is fixed from the start.
  bool is_fixed() const;

  // Whether codes cannot be scored as they are (keys that are transformed before RoPE), so that a
  // cache in memory keeps decoded values beside them.
  bool must_keep_decoded() const;

  // Takes mean, outlier channels and transforms from token blocks, as far as they are not fixed:
  // the mean and the transforms from all of them, outlier channels as the policy says.
  //
  // Requires: full blocks in ascending order, at least one; the first token block is among them if
  //           there are sink tokens.
  // Bytes:    identical on every CPU and for any number of threads.
  void fit(std::span<const FullBlock> blocks, OutlierPolicy policy, unsigned n_threads);

  // The full token blocks that fit() needs of a cache of `n_tokens`, ascending: those that the mean
  // is taken over (mean_blocks()), the first of them, or none. `begin`: the first token in a
  // window.
  std::vector<std::int64_t> blocks_to_fit(OutlierPolicy policy, std::int64_t n_tokens,
                                          std::int64_t begin = 0) const;

  // The layout of token block `block`. Valid as long as this codec and its copies.
  const PackedLayout& layout(std::int64_t block) const;
  std::size_t packed_bytes(std::int64_t block) const { return layout(block).bytes(); }

  // Packs a block, with its sink tokens. The result begins at a multiple of 64 bytes.
  //
  // Requires: is_fixed(); block.shape and block.dtype are those of the codec.
  // Errors:   kCorrupt for a value that is not finite, kUnsupported for a scale or bias beyond f16;
  //           the message names the head and the token in the block.
  // Bytes:    identical on every CPU and for any number of threads.
  Result<SharedBytes> encode(const FullBlock& block, unsigned n_threads) const;

  // The first tokens of one kv head, mean included; sink tokens exactly as they were.
  //
  // Shapes:   packed [packed_bytes(block)]; out [n, head_dim], n from 1 to kTokenBlock.
  // Requires: is_fixed(); `packed` begins at a multiple of 64.
  // Errors:   none. Any bytes decode.
  void decode(ByteView packed, std::int64_t block, std::int64_t kv_head,
              std::span<float> out) const;

  // The same of all kv heads: [n_kv_heads, n_tokens, head_dim] of dtype().
  AlignedBytes decode_block(ByteView packed, std::int64_t block, std::int64_t n_tokens) const;

  // Replaces head vectors by what their codes decode to; sink tokens stay.
  //
  // Shapes:   rows [n, n_kv_heads, head_dim]: tokens at `position`, `position` + 1, ..., all in one
  //           token block.
  // Requires: is_fixed(). Errors: as encode(); tokens are counted from `position`.
  Result<void> quantize_rows(std::int64_t position, std::span<float> rows) const;

  const State& state() const { return *state_; }
  explicit KvCodec(State state);  // for the library and its tests

 private:
  std::shared_ptr<const State> state_;
};

// The codecs of a layer; absent for what is dense.
struct LayerCodecs {
  std::optional<KvCodec> k;
  std::optional<KvCodec> v;
};

// The codecs of all layers, which share tables: [n_layers]. Errors: as KvCodec::make(), with layer
// and K or V.
Result<std::vector<LayerCodecs>> make_codecs(std::span<const LayerDesc> layers, const Rope& rope);

}  // namespace tqcache::cache
