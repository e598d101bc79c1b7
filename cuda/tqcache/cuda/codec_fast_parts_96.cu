// Sizes of heads that are three parts of a power of two.
#include "tqcache/cuda/codec_fast.cuh"

namespace tqcache::cuda {

std::span<const FastCodec> fast_codecs_parts_96() {
  static constexpr auto all = fast_codecs<96, 192>();
  return all;
}

}  // namespace tqcache::cuda
