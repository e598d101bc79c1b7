#include "tqcache/model/linear/block_kernels.h"

#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {
namespace {

// The sum of four values of a lane, from the first or the second half of a group.
template <class Layout, class Code>
std::int32_t add_four(const std::uint8_t* code, const QuantizedView<Code>& x, std::size_t group,
                      std::size_t half, std::size_t lane) {
  const Code* const of_x = x.codes + loops::code_place<Code>(group, 0);
  const std::size_t first = half * kGroup / 2 + 4 * lane;
  std::int32_t sum = 0;
  for (std::size_t i = first; i < first + 4; ++i) {
    sum += code[i] * of_x[loops::place_in_group<Code>(i)];
  }
  return sum + Layout::kOffset * x.minus_sums[loops::sum_place(group, half) + lane];
}

// Adds the product of group `group` of x and group `in_block` of a GGML block. Shapes: lanes [4].
template <class Layout, class Code>
void add_group(const std::byte* block, std::size_t in_block,
               const tensors::layouts::Scales<Layout::kValues / Layout::kRun>& scales,
               const QuantizedView<Code>& x, std::size_t group, float* lanes) {
  constexpr std::size_t kRuns = kGroup / Layout::kRun;
  std::uint8_t code[kGroup];
  Layout::codes(block, in_block, code);
  for (std::size_t run = 0; run < kRuns; ++run) {
    const float scale = scales.scale[in_block * kRuns + run] * x.scales[group];
    const float minimum = scales.minimum[in_block * kRuns + run] * x.scales[group];
    for (std::size_t l = 0; l < kGroupLanes; ++l) {
      std::int32_t sum = add_four<Layout>(code, x, group, run, l);
      if (kRuns == 1) sum += add_four<Layout>(code, x, group, 1, l);
      lanes[l] += static_cast<float>(sum) * scale;
      if constexpr (!Layout::kHasMinimum) continue;
      const std::size_t kind = kRuns == 1 ? 2 : run;
      lanes[l] += static_cast<float>(x.minus_sums[loops::sum_place(group, kind) + l]) * minimum;
    }
  }
}

template <class Layout, class Code>
float dot(const std::byte* row, const QuantizedView<Code>& x, std::size_t n_groups) {
  constexpr std::size_t kGroups = Layout::kValues / kGroup;
  float lanes[kLanes] = {};
  for (std::size_t group = 0; group < n_groups; group += kGroups, row += Layout::kBytes) {
    const auto scales = Layout::scales(row);
    for (std::size_t i = 0; i < kGroups; ++i) {
      add_group<Layout>(row, i, scales, x, group + i,
                        lanes + (group + i) % kRoundGroups * kGroupLanes);
    }
  }
  return loops::fold(lanes);
}

template <class Layout, class Code>
void multiply(const std::byte* rows, std::size_t n_rows, const QuantizedView<Code>& x,
              std::size_t n_groups, float* y) {
  const std::size_t row_bytes = bytes_of_groups<Layout>(n_groups);
  for (std::size_t i = 0; i < n_rows; ++i, rows += row_bytes) y[i] = dot<Layout>(rows, x, n_groups);
}

template <class Code>
void quantize(const float* x, std::size_t n_groups, Code* codes, std::int32_t* minus_sums,
              float* scales) {
  loops::quantize(x, n_groups, codes, minus_sums, scales);
}

struct Scalar {
  template <class Code>
  static constexpr auto quantize() {
    return model::quantize<Code>;
  }
  template <class Layout, class Code>
  static constexpr auto multiply() {
    return model::multiply<Layout, Code>;
  }
};

}  // namespace

constexpr AllBlockKernels kScalarBlocks = make_all_kernels<Scalar>();

}  // namespace tqcache::model
