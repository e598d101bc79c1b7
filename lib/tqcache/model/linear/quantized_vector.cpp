#include "tqcache/model/linear/quantized_vector.h"

#include <cassert>

namespace tqcache::model {

template <class Code>
QuantizedVector<Code>::QuantizedVector(std::span<const float> x, const AllBlockKernels& kernels) {
  assert(x.size() % kGroup == 0);
  const std::size_t n_groups = x.size() / kGroup;
  const std::size_t n_rounds = (n_groups + kRoundGroups - 1) / kRoundGroups;
  const std::size_t n_steps = n_rounds * kRoundGroups / kStepGroups;
  codes_.resize(n_steps * kStepParts<Code> * kPartCodes<Code>);
  minus_sums_.resize(n_steps * kStepSums * kStepLanes);
  scales_.resize(n_steps * kStepGroups);
  kernels.of<Code>().quantize(x.data(), n_groups, codes_.data(), minus_sums_.data(),
                              scales_.data());
}

template class QuantizedVector<std::int16_t>;
template class QuantizedVector<std::int8_t>;

}  // namespace tqcache::model
