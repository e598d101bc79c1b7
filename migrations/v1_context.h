#pragma once
// migrations/v1_context.h: what goes through the migration of one file from layer to layer.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec/rotation.h"

namespace tqcache::migrations {

// Layers are coded alike as a rule, and a dense map takes up to a second to make: each is made
// once.
class CodecPool {
 public:
  // Errors: as HeadCodec::make; kTooLarge when a file asks for more different ones than version 2
  //         allows.
  Result<codec::HeadCodec> codec(int head_dim, const std::vector<codec::PartSpec>& parts,
                                 codec::BlockOrder order);

  // Requires: validate(spec).
  Result<codec::Rotation> rotation(const codec::QuantizerSpec& spec);

 private:
  using Map = std::pair<codec::QuantizerSpec, codec::Rotation>;
  const codec::Rotation* find(const codec::QuantizerSpec& spec) const;
  Result<void> count(const codec::QuantizerSpec& spec);

  std::vector<codec::HeadCodec> codecs_;
  std::vector<Map> maps_;  // those of codecs_, too
  std::uint64_t matrix_values_ = 0;
  std::uint64_t n_parts_ = 0;
};

struct Context {
  CodecPool codecs;
  std::vector<std::string> notes;
  std::uint64_t bytes_left;  // of memory for the new cache

  // To be called before the memory is taken. Errors: kTooLarge.
  Result<void> take(std::uint64_t bytes);
};

}  // namespace tqcache::migrations
