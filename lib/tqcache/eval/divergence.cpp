#include "tqcache/eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::eval {

Softmax softmax_of(std::span<const float> logits, std::vector<float>& scratch) {
  const model::Kernels& kernels = model::best_kernels();
  Softmax softmax;
  softmax.max = kernels.max_value(logits.data(), logits.size());
  scratch.assign(logits.begin(), logits.end());
  const float sum = kernels.exp_sum(softmax.max, scratch.size(), scratch.data());
  softmax.log_sum = static_cast<double>(softmax.max) + std::log(static_cast<double>(sum));
  return softmax;
}

double negative_log_likelihood(std::span<const float> logits, const Softmax& softmax,
                               std::int32_t token) {
  return softmax.log_sum - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

double divergence(std::span<const float> reference, const Softmax& of_reference,
                  std::span<const float> other, const Softmax& of_other,
                  std::vector<float>& scratch) {
  const model::Kernels& kernels = model::best_kernels();
  const std::size_t n = reference.size();
  scratch.resize(2 * n);
  float* const p = scratch.data();  // not yet divided by their sum
  std::copy_n(reference.data(), n, p);
  const auto sum = static_cast<double>(kernels.exp_sum(of_reference.max, n, p));
  // Subtract first: the difference of separate sums of p times each row would lose digits.
  float* const difference = p + n;
  for (std::size_t i = 0; i < n; ++i) difference[i] = reference[i] - other[i];
  const float* const bytes = difference;
  const float weighted = kernels.dot_f32(reinterpret_cast<const std::byte*>(bytes), p, n);
  const double kld =
      static_cast<double>(weighted) / sum + (of_other.log_sum - of_reference.log_sum);
  return std::max(kld, 0.0);
}

std::size_t most_probable(std::span<const float> logits, const Softmax& softmax) {
  return static_cast<std::size_t>(std::ranges::find(logits, softmax.max) - logits.begin());
}

}  // namespace tqcache::eval
