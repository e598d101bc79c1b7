#include "tqcache/model/linear/quantized_vector.h"

#include <cassert>

namespace tqcache::model {

QuantizedVector::QuantizedVector(std::span<const float> x, const BlockKernels& kernels) {
  assert(x.size() % kGroup == 0);
  const std::size_t n_groups = x.size() / kGroup;
  const std::size_t n_rounds = (n_groups + kRoundGroups - 1) / kRoundGroups;
  const std::size_t n_steps = n_rounds * kRoundGroups / kStepGroups;
  codes_.resize(n_steps * kStepParts * kPartCodes);
  minus_sums_.resize(n_steps * kStepSums * kStepLanes);
  scales_.resize(n_steps * kStepGroups);
  kernels.quantize(x.data(), n_groups, codes_.data(), minus_sums_.data(), scales_.data());
}

}  // namespace tqcache::model
