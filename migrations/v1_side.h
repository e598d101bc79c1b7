#pragma once
// migrations/v1_side.h: sides of a cache from the rows that a file of version 1 has of them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_context.h"
#include "migrations/v1_state.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/side.h"
#include "tqcache/codec/codec_spec.h"

namespace tqcache::migrations {

// Codes as version 1 packs them: a stream of bits for every head vector, least significant first,
// which ends with a whole byte.
struct CodeRows {
  ByteView bytes;           // [n_kv_heads, n_tokens, packed_size(n_codes, bits)]
  std::size_t n_codes = 0;  // of a head vector
  int bits = 0;
};

// One quantizer of version 1, or one column of groups: a part of version 2, if that has it.
// A head vector's channels are R^T (scale * factor * c[codes]) + bias.
struct CodedPart {
  codec::PartSpec spec;
  std::size_t rows = 0;        // which of CodedSide::rows
  std::size_t first_code = 0;  // in a row of these
  float factor = 1;            // a power of two: what a scale of version 2 is in those of version 1
  std::vector<float> scales;   // [n_kv_heads, n_tokens]
  std::vector<float> biases;   // likewise; empty without spec.has_bias
};

// Keys or values that a file of version 1 has as codes.
struct CodedSide {
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
  std::vector<CodeRows> rows;
  std::vector<CodedPart> parts;     // as version 2 would have them
  std::vector<std::uint16_t> loud;  // channels that come first in every head, ascending
};

// Why version 2 has no codec of these parts, if it has none.
std::optional<std::string> parts_misfit(std::int64_t head_dim,
                                        const std::vector<codec::PartSpec>& parts);

// Carries the codes over: full token blocks become packed blocks of the same codes and scales, and
// the tokens after them are decoded into the tail, of f32. Where version 2 has no such parts, or
// f16 does not hold a scale, all tokens are decoded into a dense side of f32, and a note says so.
//
// Errors: kCorrupt (a value that is not finite), kTooLarge.
Result<cache::Side> coded_side(const CodedSide& in, codec::BlockOrder order, std::string_view place,
                               Context& context);

// The rows of a dense tensor, bit for bit.
// Errors: kCorrupt (not numbers, or one that is not finite), kTooLarge. Requires: grid_of(tensor)
//         is {n_kv_heads, n_tokens, head_dim}.
Result<cache::DenseSide> dense_side(const V1Tensor& tensor, cache::HeadShape shape,
                                    std::int64_t n_tokens, Context& context);

}  // namespace tqcache::migrations
