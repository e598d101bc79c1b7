#pragma once
// cache/kv_codec_state.h: the inside of a KvCodec, for kernels of attention and for tests.

#include <cstdint>
#include <span>

#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/cache/centering.h"
#include "tqcache/cache/head_transforms.h"
#include "tqcache/cache/kv_codec.h"
#include "tqcache/cache/outliers.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/head_codec.h"

namespace tqcache::cache {

struct KvCodec::State {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
  codec::HeadCodec codec;
  Mean mean = {};
  Outliers outliers = {};
  std::int64_t n_sinks = 0;
  HeadTransforms transforms = {};
  // Of token block 0 and of all others. KvCodec's constructor sets both.
  PackedLayout first_layout = {};
  PackedLayout layout = {};

  const PackedLayout& layout_of(std::int64_t block) const {
    return block == 0 ? first_layout : layout;
  }
  bool is_transformed_before_rope() const {
    return transforms.is_there() && mean.kind == Centering::kPreRope;
  }

  // The codes of one kv head as kernels take them. Those of sink tokens are 0, and so are their
  // scales: they add nothing to sums, and the scores they get have to be replaced.
  codec::PackedHead head(ByteView packed, std::int64_t block, std::int64_t kv_head) const;

  // The dense rows of the sink tokens of one kv head: [n_sinks, head_dim] of dtype.
  // Requires: `packed` is token block 0.
  ByteView sink_rows(ByteView packed, std::int64_t kv_head) const;
};

}  // namespace tqcache::cache
