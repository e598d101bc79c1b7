#include "tqcache/cuda/packed_attention.cuh"

namespace tqcache::cuda {

std::span<const Choice> choices_of_64() { return choices<64>(); }
std::span<const Choice> dense_choices_of_64() { return dense_choices<64>(); }

}  // namespace tqcache::cuda
