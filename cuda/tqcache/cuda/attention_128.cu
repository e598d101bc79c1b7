#include "tqcache/cuda/packed_attention.cuh"

namespace tqcache::cuda {

std::span<const Choice> choices_of_128() { return choices<128>(); }
std::span<const Choice> dense_choices_of_128() { return dense_choices<128>(); }

}  // namespace tqcache::cuda
