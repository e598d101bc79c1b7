#include "tqcache/cuda/packed_attention.cuh"

namespace tqcache::cuda {

std::span<const Choice> choices_of_256() { return choices<256>(); }
std::span<const Choice> dense_choices_of_256() { return dense_choices<256>(); }

}  // namespace tqcache::cuda
