#include "tqcache/cuda/packed_attention.cuh"

namespace tqcache::cuda {

std::span<const Choice> choices_of_64() { return choices<64>(); }

}  // namespace tqcache::cuda
