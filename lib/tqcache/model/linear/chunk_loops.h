#pragma once
// model/linear/chunk_loops.h: the reference loops of products with panels of quantized weights.
//
// Forced inline, as in model/linear/kernel_loops.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model::loops {

// One f16 of each row, widened. Shapes: halves, values [16].
TQC_INLINE void widen_panel(const std::uint16_t* halves, float* values) {
  for (std::size_t row = 0; row < kPanelRows; ++row) values[row] = f16_to_f32(halves[row]);
}

// The numbers of f16 at byte `at` of the blocks of a panel's rows, widened by `widen`.
template <class Widen>
TQC_INLINE void load_panel_halves(const std::byte* blocks, std::size_t row_bytes,
                                  std::size_t n_rows, std::size_t at, Widen widen, float* values) {
  std::uint16_t halves[kPanelRows] = {};
  for (std::size_t row = 0; row < n_rows; ++row) {
    halves[row] = tensors::layouts::load<std::uint16_t>(blocks + row * row_bytes + at);
  }
  widen(halves, values);
}

// Scales and minima of one GGML block of every row: as Layout::scales(). Shapes: [runs, 16].
template <class Layout, class Widen>
TQC_INLINE void pack_scales(const std::byte* blocks, std::size_t row_bytes, std::size_t n_rows,
                            Widen widen, float* scales, float* minima) {
  constexpr std::size_t kRuns = Layout::kValues / Layout::kRun;
  if constexpr (Layout::kType == tensors::TensorType::kMXFP4) {
    std::fill_n(scales, kPanelRows, 0.0f);
    for (std::size_t row = 0; row < n_rows; ++row) {
      scales[row] = Layout::scale(blocks + row * row_bytes);
    }
  } else if constexpr (kRuns == 1) {
    load_panel_halves(blocks, row_bytes, n_rows, 0, widen, scales);
    if constexpr (!Layout::kHasMinimum) return;
    load_panel_halves(blocks, row_bytes, n_rows, 2, widen, minima);
    for (std::size_t row = 0; row < kPanelRows; ++row) minima[row] = -minima[row];
  } else {
    float scale[kPanelRows], minimum[kPanelRows] = {};
    load_panel_halves(blocks, row_bytes, n_rows, Layout::kScaleAt, widen, scale);
    if constexpr (Layout::kHasMinimum) {
      load_panel_halves(blocks, row_bytes, n_rows, Layout::kMinimumAt, widen, minimum);
    }
    for (std::size_t row = 0; row < n_rows; ++row) {
      const auto steps = Layout::steps(blocks + row * row_bytes);
      for (std::size_t run = 0; run < kRuns; ++run) {
        const std::size_t at = run * kPanelRows + row;
        scales[at] = scale[row] * tensors::layouts::step_at(steps.scale, run);
        if constexpr (!Layout::kHasMinimum) continue;
        minima[at] = minimum[row] * tensors::layouts::step_at(steps.minimum, run);
      }
    }
    for (std::size_t run = 0; run < kRuns; ++run) {  // rows that are absent
      const std::size_t at = run * kPanelRows + n_rows;
      std::fill_n(scales + at, kPanelRows - n_rows, 0.0f);
      if (Layout::kHasMinimum) std::fill_n(minima + at, kPanelRows - n_rows, 0.0f);
    }
  }
}

// `widen` has the results of widen_panel().
template <class Layout, class Widen>
TQC_INLINE void pack(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                     std::int8_t* codes, float* scales, float* minima, Widen widen) {
  constexpr std::size_t kGroups = Layout::kValues / kGroup, kRuns = Layout::kValues / Layout::kRun;
  const std::size_t row_bytes = bytes_of_groups<Layout>(n_groups);
  if (n_rows < kPanelRows) std::memset(codes, 0, n_groups * kGroup * kPanelRows);
  for (std::size_t b = 0; b < n_groups / kGroups; ++b) {
    const std::byte* const blocks = rows + b * Layout::kBytes;
    const std::size_t first_scale = b * kRuns * kPanelRows;
    pack_scales<Layout>(blocks, row_bytes, n_rows, widen, scales + first_scale,
                        Layout::kHasMinimum ? minima + first_scale : nullptr);
    for (std::size_t row = 0; row < n_rows; ++row) {
      for (std::size_t g = 0; g < kGroups; ++g) {
        std::uint8_t code[kGroup];
        Layout::codes(blocks + row * row_bytes, g, code);
        for (std::uint8_t& each : code) each = static_cast<std::uint8_t>(each - Layout::kOffset);
        std::int8_t* const to = codes + ((b * kGroups + g) * kGroup * kPanelRows + row * kQuad);
        for (std::size_t q = 0; q < kGroupQuads; ++q) {
          std::memcpy(to + q * kPanelRows * kQuad, code + q * kQuad, kQuad);
        }
      }
    }
  }
}

// Calls `call` with how the weights of a panel share scales as its template arguments: the values
// of a run, and whether it has a minimum.
template <class Call>
TQC_INLINE void by_run_shape(const PanelView& panel, const Call& call) {
  const bool has_minimum = panel.minima != nullptr;
  if (panel.run == kGroup) {
    return has_minimum ? call.template operator()<kGroup, true>()
                       : call.template operator()<kGroup, false>();
  }
  return has_minimum ? call.template operator()<kGroup / 2, true>()
                     : call.template operator()<kGroup / 2, false>();
}

// Where the codes of x that multiply quad 0 of half a group are: values 0 and 2, and, a part
// further, values 1 and 3. Those of the next quad follow.
TQC_INLINE std::size_t quads_place(std::size_t group, std::size_t half) {
  return code_place<std::int16_t>(group, 2 * half);
}
inline constexpr std::size_t kOddCodes = kPartCodes<std::int16_t>;

}  // namespace tqcache::model::loops
