#include "tqcache/model/linear/chunk_kernels.h"

#include <cassert>

#include "tqcache/model/linear/chunk_loops.h"

namespace tqcache::model {
namespace {

template <class Layout>
void pack_panel(const std::byte* rows, std::size_t n_rows, std::size_t n_groups, std::int8_t* codes,
                float* scales, float* minima) {
  loops::pack<Layout>(rows, n_rows, n_groups, codes, scales, minima, loops::widen_panel);
}

// The sum of the products of one run: quads [first, first + n) of a group. Shapes: sums [16].
void add_run(const std::int8_t* of_group, std::size_t first, std::size_t n, const std::int16_t* x,
             std::size_t group, std::int32_t* sums) {
  for (std::size_t q = first; q < first + n; ++q) {
    const std::int16_t* const even = x + loops::quads_place(group, q / 4) + q % 4 * 2;
    const std::int16_t* const odd = even + loops::kOddCodes;
    const std::int8_t* const quad = of_group + q * kPanelRows * kQuad;
    for (std::size_t row = 0; row < kPanelRows; ++row) {
      const std::int8_t* const w = quad + row * kQuad;
      sums[row] += w[0] * even[0] + w[1] * odd[0] + w[2] * even[1] + w[3] * odd[1];
    }
  }
}

void multiply_panel(const PanelView& panel, const ChunkView& x, float* y, std::size_t stride) {
  const std::size_t n_in_group = kGroup / panel.run;
  for (std::size_t i = 0; i < x.n; ++i) {
    const std::int16_t* const codes = x.codes + i * x.row_codes;
    const float* const scales = x.scales + i * x.row_groups;
    const float* const minus_sums = x.minus_sums + i * x.row_groups * 3;
    float lanes[kPanelRows] = {};
    for (std::size_t run = 0; run < panel.n_groups * n_in_group; ++run) {
      const std::size_t group = run / n_in_group, in_group = run % n_in_group;
      std::int32_t sums[kPanelRows] = {};
      add_run(panel.codes + group * kGroup * kPanelRows, in_group * panel.run / kQuad,
              panel.run / kQuad, codes, group, sums);
      const float minus_sum = minus_sums[group * 3 + (n_in_group == 1 ? 2 : in_group)];
      for (std::size_t row = 0; row < kPanelRows; ++row) {
        float term = static_cast<float>(sums[row]) * panel.scales[run * kPanelRows + row];
        if (panel.minima != nullptr) term += minus_sum * panel.minima[run * kPanelRows + row];
        lanes[row] += term * scales[group];
      }
    }
    std::copy_n(lanes, panel.n_rows, y + i * stride);
  }
}

struct ScalarChunks {
  template <class Layout>
  static constexpr auto pack() {
    return pack_panel<Layout>;
  }
};

template <class... Layout>
constexpr auto list_run_shapes(tensors::layouts::List<Layout...>) {
  return std::array<RunShape, sizeof...(Layout)>{RunShape{Layout::kRun, Layout::kHasMinimum}...};
}

constexpr auto kRunShapes = list_run_shapes(tensors::layouts::All{});

}  // namespace

constexpr ChunkKernels kScalarChunks = {make_packs<ScalarChunks>(tensors::layouts::All{}),
                                        multiply_panel};

const std::array<RunShape, tensors::layouts::All::kSize>& run_shapes() { return kRunShapes; }

QuantizedChunk::QuantizedChunk(std::size_t n, std::size_t n_cols)
    : n_(n),
      n_groups_(n_cols / kGroup),
      n_steps_((n_groups_ + kRoundGroups - 1) / kRoundGroups * (kRoundGroups / kStepGroups)) {
  assert(n_cols % kGroup == 0);
  codes_.resize(n * n_steps_ * kStepGroups * kGroup);
  scales_.resize(n * n_steps_ * kStepGroups);
  minus_sums_.resize(n * n_steps_ * kStepGroups * 3);
}

void QuantizedChunk::set(std::size_t i, const float* x, const AllBlockKernels& kernels) {
  const std::size_t row_groups = n_steps_ * kStepGroups;
  std::vector<std::int32_t> lanes(n_steps_ * kStepSums * kStepLanes);
  kernels.words.quantize(x, n_groups_, codes_.data() + i * row_groups * kGroup, lanes.data(),
                         scales_.data() + i * row_groups);
  float* const sums = minus_sums_.data() + i * row_groups * 3;
  for (std::size_t group = 0; group < n_groups_; ++group) {
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const std::int32_t* const four = lanes.data() + loops::sum_place(group, kind);
      sums[group * 3 + kind] = static_cast<float>(four[0] + four[1] + four[2] + four[3]);
    }
  }
}

ChunkView QuantizedChunk::view() const {
  const std::size_t row_groups = n_steps_ * kStepGroups;
  return {codes_.data(), row_groups * kGroup, scales_.data(), row_groups, minus_sums_.data(), n_};
}

}  // namespace tqcache::model
