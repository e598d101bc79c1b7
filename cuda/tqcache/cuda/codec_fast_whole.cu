// Sizes of heads that are powers of two.
#include "tqcache/cuda/codec_fast.cuh"

namespace tqcache::cuda {

std::span<const FastCodec> fast_codecs_whole() {
  static constexpr auto all = fast_codecs<64, 128, 256>();
  return all;
}

}  // namespace tqcache::cuda
