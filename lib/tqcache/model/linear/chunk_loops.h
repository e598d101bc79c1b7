#pragma once
// model/linear/chunk_loops.h: the reference loops of products with panels of quantized weights.
//
// Forced inline, as in model/linear/kernel_loops.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model::loops {

template <class Form>
TQC_INLINE void pack(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                     std::int8_t* codes, float* scales, float* minima) {
  constexpr std::size_t kGroups = Form::kValues / kGroup, kRuns = Form::kValues / Form::kRun;
  const std::size_t row_bytes = bytes_of_groups<Form>(n_groups);
  const std::size_t n_blocks = n_groups / kGroups;
  if (n_rows < kPanelRows) {
    std::memset(codes, 0, n_groups * kGroup * kPanelRows);
    std::fill_n(scales, n_blocks * kRuns * kPanelRows, 0.0f);
    if (Form::kHasMinimum) std::fill_n(minima, n_blocks * kRuns * kPanelRows, 0.0f);
  }
  for (std::size_t b = 0; b < n_blocks; ++b) {
    for (std::size_t row = 0; row < n_rows; ++row) {
      const std::byte* const block = rows + row * row_bytes + b * Form::kBytes;
      const auto of_block = Form::scales(block);
      for (std::size_t run = 0; run < kRuns; ++run) {
        scales[(b * kRuns + run) * kPanelRows + row] = of_block.scale[run];
        if (!Form::kHasMinimum) continue;
        minima[(b * kRuns + run) * kPanelRows + row] = of_block.minimum[run];
      }
      for (std::size_t g = 0; g < kGroups; ++g) {
        std::uint8_t code[kGroup];
        Form::codes(block, g, code);
        for (std::uint8_t& each : code) each = static_cast<std::uint8_t>(each - Form::kOffset);
        std::int8_t* const to = codes + ((b * kGroups + g) * kGroup * kPanelRows + row * kQuad);
        for (std::size_t q = 0; q < kGroupQuads; ++q) {
          std::memcpy(to + q * kPanelRows * kQuad, code + q * kQuad, kQuad);
        }
      }
    }
  }
}

// Where the codes of x that multiply quad 0 of half a group are: values 0 and 2, and, a part
// further, values 1 and 3. Those of the next quad follow.
TQC_INLINE std::size_t quads_place(std::size_t group, std::size_t half) {
  return code_place<std::int16_t>(group, 2 * half);
}
inline constexpr std::size_t kOddCodes = kPartCodes<std::int16_t>;

}  // namespace tqcache::model::loops
