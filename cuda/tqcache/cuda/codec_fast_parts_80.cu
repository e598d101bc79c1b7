// Sizes of heads that are five and seven parts of a power of two.
#include "tqcache/cuda/codec_fast.cuh"

namespace tqcache::cuda {

std::span<const FastCodec> fast_codecs_parts_80() {
  static constexpr auto all = fast_codecs<80, 112, 160>();
  return all;
}

}  // namespace tqcache::cuda
