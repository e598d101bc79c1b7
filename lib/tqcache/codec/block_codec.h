#pragma once
// codec/block_codec.h: encoder and decoder for the token block of one kv head.
//
// Does the work of Quantizer for 256 head vectors at once, with the kernels of this CPU, in the
// layout that the attention kernels read.
//
// Spec: docs/reference/codec.md, "Packed codes".

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tqcache/codec/block_layout.h"
#include "tqcache/codec/kernels/code_tables.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/quantizer.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// A value: copies share the same immutable tables.
// Threads: any number may use one BlockCodec, or copies of it, at once.
class BlockCodec {
 public:
  BlockCodec(const Quantizer& quantizer, BlockOrder order, const Kernels& kernels = best_kernels());

  const BlockShape& shape() const;
  const Quantizer& quantizer() const;
  // What scores and sums are computed with. The first call makes them, which takes milliseconds.
  const CodeTables& tables() const;
  const RotationTables& rotation_tables() const;
  const Kernels& kernels() const;

  // Encodes the first n_tokens tokens after subtracting the center; the others get code 0 and scale
  // 0.
  //
  // Shapes: x [n_tokens, head_dim], rows x.stride bytes apart; block [shape().block_bytes()];
  //         scales [256], f16 bits. n_tokens 1 to 256.
  // Errors: as Quantizer::encode of the first vector that it rejects; the message begins with the
  //         token's number in the block. Block and scales are then unusable.
  // Bytes:  the codes and scales of Quantizer::encode, with any kernels.
  Result<void> encode(VectorRows x, const Center& center, std::size_t n_tokens,
                      std::span<std::byte> block, std::span<std::uint16_t> scales) const;

  // Shapes: as encode. Bytes: the values of Quantizer::decode, rounded to x.dtype.
  // Errors: none. Any bytes decode; to finite f32 if the scales are finite.
  void decode(std::span<const std::byte> block, std::span<const std::uint16_t> scales,
              std::size_t n_tokens, MutableVectorRows x) const;

  // The block in the form that the attention kernels take. Shapes: as encode.
  PackedBlock view(std::span<const std::byte> block, std::span<const std::uint16_t> scales,
                   std::size_t n_tokens) const;

 private:
  struct State;
  Error refusal(const VectorRows& x, const Center& center, std::size_t token) const;

  std::shared_ptr<const State> state_;
};

}  // namespace tqcache::codec
