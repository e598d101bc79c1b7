#include "tqcache/cuda/packed_attention.cuh"

namespace tqcache::cuda {

std::span<const Choice> choices_of_96() { return choices<96>(); }

}  // namespace tqcache::cuda
