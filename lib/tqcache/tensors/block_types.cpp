#include "tqcache/tensors/block_types.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "tqcache/tensors/block_layouts.h"

namespace tqcache::tensors {
namespace {

using enum TensorType;

// Two types may have the same size (Q4_0 and IQ4_NL), so a size never identifies a type.
constexpr std::array kGgmlTypes = {
    GgmlType{0, "F32", 1, 4, kF32},
    GgmlType{1, "F16", 1, 2, kF16},
    GgmlType{2, "Q4_0", 32, 18, kQ4_0},
    GgmlType{3, "Q4_1", 32, 20, kQ4_1},
    GgmlType{6, "Q5_0", 32, 22, kQ5_0},
    GgmlType{7, "Q5_1", 32, 24, kQ5_1},
    GgmlType{8, "Q8_0", 32, 34, kQ8_0},
    GgmlType{9, "Q8_1", 32, 36, kOther},
    GgmlType{10, "Q2_K", 256, 84, kQ2_K},
    GgmlType{11, "Q3_K", 256, 110, kQ3_K},
    GgmlType{12, "Q4_K", 256, 144, kQ4_K},
    GgmlType{13, "Q5_K", 256, 176, kQ5_K},
    GgmlType{14, "Q6_K", 256, 210, kQ6_K},
    GgmlType{15, "Q8_K", 256, 292, kOther},
    GgmlType{16, "IQ2_XXS", 256, 66, kOther},
    GgmlType{17, "IQ2_XS", 256, 74, kOther},
    GgmlType{18, "IQ3_XXS", 256, 98, kOther},
    GgmlType{19, "IQ1_S", 256, 50, kOther},
    GgmlType{20, "IQ4_NL", 32, 18, kIQ4_NL},
    GgmlType{21, "IQ3_S", 256, 110, kOther},
    GgmlType{22, "IQ2_S", 256, 82, kOther},
    GgmlType{23, "IQ4_XS", 256, 136, kOther},
    GgmlType{24, "I8", 1, 1, kI8},
    GgmlType{25, "I16", 1, 2, kI16},
    GgmlType{26, "I32", 1, 4, kI32},
    GgmlType{27, "I64", 1, 8, kI64},
    GgmlType{28, "F64", 1, 8, kF64},
    GgmlType{29, "IQ1_M", 256, 56, kOther},
    GgmlType{30, "BF16", 1, 2, kBF16},
    GgmlType{34, "TQ1_0", 256, 54, kOther},
    GgmlType{35, "TQ2_0", 256, 66, kOther},
    GgmlType{39, "MXFP4", 32, 17, kMXFP4},
    GgmlType{40, "NVFP4", 64, 36, kOther},
    GgmlType{41, "Q1_0", 128, 18, kOther},
    // Forks write this id with other block sizes; their tensors then fail the offset check.
    GgmlType{42, "Q2_0", 64, 18, kOther},
};

template <class Layout>
void widen_group(const std::byte* block, std::size_t group,
                 const layouts::Scales<Layout::kValues / Layout::kRun>& scales, float* values) {
  std::uint8_t code[layouts::kGroup];
  Layout::codes(block, group, code);
  for (std::size_t first = 0; first < layouts::kGroup; first += Layout::kRun) {
    const std::size_t run = (group * layouts::kGroup + first) / Layout::kRun;
    for (std::size_t i = first; i < first + Layout::kRun; ++i) {
      values[i] = scales.scale[run] * static_cast<float>(int{code[i]} - Layout::kOffset);
      if constexpr (Layout::kHasMinimum) values[i] -= scales.minimum[run];
    }
  }
}

template <class Layout>
void widen(const std::byte* blocks, std::span<float> values) {
  assert(values.size() % Layout::kValues == 0);
  const std::byte* block = blocks;
  for (std::size_t i = 0; i < values.size(); i += Layout::kValues, block += Layout::kBytes) {
    const auto scales = Layout::scales(block);
    for (std::size_t group = 0; group < Layout::kValues / layouts::kGroup; ++group) {
      widen_group<Layout>(block, group, scales, values.data() + i + group * layouts::kGroup);
    }
  }
}

template <class... Layout>
constexpr auto make_types(layouts::List<Layout...>) {
  return std::array{BlockType{Layout::kType, Layout::kValues, Layout::kBytes, widen<Layout>}...};
}

constexpr auto kBlockTypes = make_types(layouts::All{});

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t id) {
  const auto found = std::ranges::find(kGgmlTypes, id, &GgmlType::id);
  return found == kGgmlTypes.end() ? nullptr : &*found;
}

std::span<const BlockType> block_types() { return kBlockTypes; }

const BlockType* find_block_type(TensorType type) {
  const auto found = std::ranges::find(kBlockTypes, type, &BlockType::type);
  return found == kBlockTypes.end() ? nullptr : &*found;
}

}  // namespace tqcache::tensors
