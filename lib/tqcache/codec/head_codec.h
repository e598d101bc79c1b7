#pragma once
// codec/head_codec.h: encoder and decoder for a token block of one kv head, in any mode.
//
// Combines the parts of codec_spec.h; PackedLayout there defines where codes and scales are.
//
// Spec: docs/reference/codec.md §5 and §6.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/codec/block_codec.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec_spec.h"
#include "tqcache/error.h"

namespace tqcache::codec {

// The order in which a codec reads the channels of a head vector: entry i is the channel at
// position i. Empty: the natural order.
//
// Mode mixed gives outlier channels more bits. They depend on the vectors of a kv head, so they
// belong to the data and not to the codec: each kv head has its own list. The codec reads the
// outlier channels first and then the others, both in ascending order.
using ChannelOrder = std::span<const std::uint16_t>;

// The complete order, given the channels that come first.
// Errors: kCorrupt if they are not strictly ascending and below head_dim.
Result<std::vector<std::uint16_t>> make_channel_order(std::size_t head_dim,
                                                      std::span<const std::uint16_t> first);

// out[i] = in[order[i]], and the inverse. Shapes: in, out [head_dim]; not the same memory.
void take_channels(ChannelOrder order, std::span<const float> in, std::span<float> out);
void put_channels(ChannelOrder order, std::span<const float> in, std::span<float> out);

// The packed block of one kv head.
struct PackedHead {
  std::span<const std::byte> codes;       // [HeadCodec::code_bytes()]
  std::span<const std::uint16_t> scales;  // [HeadCodec::n_scale_rows(), 256]
};

// A value: copies share the same immutable tables.
// Threads: any number may use one HeadCodec, or copies of it, at once.
class HeadCodec {
 public:
  // Errors: kUnsupported, kCorrupt: as mode_of() and Quantizer::make().
  static Result<HeadCodec> make(int head_dim, std::vector<PartSpec> parts, BlockOrder order,
                                const Kernels& kernels = best_kernels());
  static Result<HeadCodec> make(const CodecSpec& spec, BlockOrder order,
                                const Kernels& kernels = best_kernels());

  std::size_t head_dim() const;
  Mode mode() const;
  BlockOrder order() const;
  const std::vector<PartSpec>& parts() const;  // with centroids
  std::size_t n_parts() const { return parts().size(); }
  const BlockCodec& part(std::size_t i) const;
  std::size_t first_channel(std::size_t i) const;  // of part i, in channel order
  std::size_t outlier_channels() const;            // mode mixed: the first ones; else 0

  const PackedLayout& layout() const;
  std::size_t code_bytes() const;    // of one kv head's block; a multiple of 64
  std::size_t n_scale_rows() const;  // rows of 256 f16

  // The number of components after the transforms of all parts, each part padded to a multiple of
  // 16. Sums over quantized values have this size until they are transformed back.
  std::size_t coded_dim() const;
  std::size_t coded_offset(std::size_t i) const;  // of part i

  const Kernels& kernels() const;

  // Encodes the first n_tokens tokens after subtracting the center; the others get code 0 and scale
  // 0. So do the first n_skipped, which are stored elsewhere.
  //
  // Shapes: x [n_tokens, head_dim], rows x.stride bytes apart; codes [code_bytes()]; scales
  //         [n_scale_rows(), 256]; order [head_dim] or empty.
  // Errors: kCorrupt if a value is not finite, kUnsupported if a scale or a bias is beyond f16; the
  //         message begins with the token's number in the block. Codes and scales are then
  //         unusable.
  // Bytes:  identical on every CPU.
  Result<void> encode(VectorRows x, const Center& center, ChannelOrder order, std::size_t n_tokens,
                      std::size_t n_skipped, std::span<std::byte> codes,
                      std::span<std::uint16_t> scales) const;

  // Decodes n_tokens tokens, without adding the center back.
  // Shapes: out [n_tokens, head_dim].
  // Errors: none. Any bytes decode; to finite f32 if the scales are finite and of moderate size.
  void decode(const PackedHead& head, ChannelOrder order, std::size_t n_tokens,
              std::span<float> out) const;

  // One part of a block in the form that the attention kernels take.
  PackedBlock view(const PackedHead& head, std::size_t part, std::size_t n_tokens) const;
  // [256] f16 bits. Requires: the part has a bias.
  std::span<const std::uint16_t> biases(const PackedHead& head, std::size_t part) const;

  // The sum of decoded vectors, computed from the sum of their quantized components.
  // Shapes: coded [coded_dim()], which is overwritten; out [head_dim].
  void rotate_back(std::span<float> coded, ChannelOrder order, std::span<float> out) const;

 private:
  struct State;
  explicit HeadCodec(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace tqcache::codec
