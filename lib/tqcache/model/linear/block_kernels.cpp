#include "tqcache/model/linear/block_kernels.h"

#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {
namespace {

// The sum of four values of a lane, from the first or the second half of a group.
template <class Form>
std::int32_t add_four(const std::uint8_t* code, const QuantizedView& x, std::size_t group,
                      std::size_t half, std::size_t lane) {
  const std::int16_t* const even = x.codes + loops::code_place(group, 2 * half) + 2 * lane;
  const std::int16_t* const odd = x.codes + loops::code_place(group, 2 * half + 1) + 2 * lane;
  code += half * kGroup / 2 + 4 * lane;
  const std::int32_t sum =
      code[0] * even[0] + code[1] * odd[0] + code[2] * even[1] + code[3] * odd[1];
  return sum + Form::kOffset * x.minus_sums[loops::sum_place(group, half) + lane];
}

// Adds the product of group `group` of x and group `in_block` of a GGML block. Shapes: lanes [4].
template <class Form>
void add_group(const std::byte* block, std::size_t in_block,
               const tensors::forms::Scales<Form::kValues / Form::kRun>& scales,
               const QuantizedView& x, std::size_t group, float* lanes) {
  constexpr std::size_t kRuns = kGroup / Form::kRun;
  std::uint8_t code[kGroup];
  Form::codes(block, in_block, code);
  for (std::size_t run = 0; run < kRuns; ++run) {
    const float scale = scales.scale[in_block * kRuns + run] * x.scales[group];
    const float minimum = scales.minimum[in_block * kRuns + run] * x.scales[group];
    for (std::size_t l = 0; l < kGroupLanes; ++l) {
      std::int32_t sum = add_four<Form>(code, x, group, run, l);
      if (kRuns == 1) sum += add_four<Form>(code, x, group, 1, l);
      lanes[l] += static_cast<float>(sum) * scale;
      if constexpr (!Form::kHasMinimum) continue;
      const std::size_t kind = kRuns == 1 ? 2 : run;
      lanes[l] += static_cast<float>(x.minus_sums[loops::sum_place(group, kind) + l]) * minimum;
    }
  }
}

template <class Form>
float dot(const std::byte* row, const QuantizedView& x, std::size_t n_groups) {
  constexpr std::size_t kGroups = Form::kValues / kGroup;
  float lanes[kLanes] = {};
  for (std::size_t group = 0; group < n_groups; group += kGroups, row += Form::kBytes) {
    const auto scales = Form::scales(row);
    for (std::size_t i = 0; i < kGroups; ++i) {
      add_group<Form>(row, i, scales, x, group + i,
                      lanes + (group + i) % kRoundGroups * kGroupLanes);
    }
  }
  return loops::fold(lanes);
}

struct Scalar {
  template <class Form>
  static constexpr BlockKernels::Dot* dot() {
    return model::dot<Form>;
  }
};

void quantize(const float* x, std::size_t n_groups, std::int16_t* codes, std::int32_t* minus_sums,
              float* scales) {
  loops::quantize(x, n_groups, codes, minus_sums, scales);
}

}  // namespace

constexpr BlockKernels kScalarBlocks = {quantize, make_dots<Scalar>(tensors::forms::All{})};

}  // namespace tqcache::model
