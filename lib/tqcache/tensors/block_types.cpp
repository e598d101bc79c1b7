#include "tqcache/tensors/block_types.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "tqcache/tensors/block_forms.h"

namespace tqcache::tensors {
namespace {

template <class Form>
void widen_group(const std::byte* block, std::size_t group,
                 const forms::Scales<Form::kValues / Form::kRun>& scales, float* values) {
  std::uint8_t code[forms::kGroup];
  Form::codes(block, group, code);
  for (std::size_t first = 0; first < forms::kGroup; first += Form::kRun) {
    const std::size_t run = (group * forms::kGroup + first) / Form::kRun;
    for (std::size_t i = first; i < first + Form::kRun; ++i) {
      values[i] = scales.scale[run] * static_cast<float>(int{code[i]} - Form::kOffset);
      if constexpr (Form::kHasMinimum) values[i] -= scales.minimum[run];
    }
  }
}

template <class Form>
void widen(const std::byte* blocks, std::span<float> values) {
  assert(values.size() % Form::kValues == 0);
  const std::byte* block = blocks;
  for (std::size_t i = 0; i < values.size(); i += Form::kValues, block += Form::kBytes) {
    const auto scales = Form::scales(block);
    for (std::size_t group = 0; group < Form::kValues / forms::kGroup; ++group) {
      widen_group<Form>(block, group, scales, values.data() + i + group * forms::kGroup);
    }
  }
}

template <class... Form>
constexpr auto make_types(forms::List<Form...>) {
  return std::array{BlockType{Form::kType, Form::kValues, Form::kBytes, widen<Form>}...};
}

constexpr auto kBlockTypes = make_types(forms::All{});

}  // namespace

std::span<const BlockType> block_types() { return kBlockTypes; }

const BlockType* find_block_type(TensorType type) {
  const auto found = std::ranges::find(kBlockTypes, type, &BlockType::type);
  return found == kBlockTypes.end() ? nullptr : &*found;
}

}  // namespace tqcache::tensors
