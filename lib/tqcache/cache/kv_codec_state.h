#pragma once
// cache/kv_codec_state.h: the state of a KvCodec, for this module and for tests.

#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/cache/centering.h"
#include "tqcache/cache/head_transforms.h"
#include "tqcache/cache/key_factors.h"
#include "tqcache/cache/outliers.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/description.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {

struct KvCodec::State {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
  codec::HeadCodec codec;
  Mean mean = {};
  Outliers outliers = {};
  std::int64_t n_sinks = 0;
  HeadTransforms transforms = {};
  KeyFactors factors = {};
  // For token block 0 and for all others. KvCodec's constructor sets both.
  codec::PackedLayout first_layout = {};
  codec::PackedLayout layout = {};

  const codec::PackedLayout& layout_of(std::int64_t block) const {
    return block == 0 ? first_layout : layout;
  }
  bool is_transformed_before_rope() const {
    return transforms.is_there() && mean.kind == Centering::kPreRope;
  }

  // The codes of one kv head in the form that kernels take. Codes and scales of sink tokens are 0:
  // they add nothing to sums, and their scores must be replaced.
  codec::PackedHead head(ByteView packed, std::int64_t block, std::int64_t kv_head) const;
};

}  // namespace tqcache::cache
