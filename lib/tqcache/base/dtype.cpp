#include <algorithm>
#include <array>
#include <cstring>

#include "tqcache/base/half.h"
#include "tqcache/bytes.h"

namespace tqcache {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"f32", "f16", "bf16"};

// Values are copied in chunks to aligned memory, because `packed` may have any alignment.
constexpr std::size_t kChunk = 64;

template <class Widen>
void load_halves(const std::byte* packed, std::span<float> values, Widen widen) {
  std::array<std::uint16_t, kChunk> halves;
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - begin);
    std::memcpy(halves.data(), packed + 2 * begin, 2 * count);
    for (std::size_t i = 0; i < count; ++i) values[begin + i] = widen(halves[i]);
  }
}

template <class Round>
void store_halves(std::span<const float> values, std::byte* packed, Round round) {
  std::array<std::uint16_t, kChunk> halves;
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - begin);
    for (std::size_t i = 0; i < count; ++i) halves[i] = round(values[begin + i]);
    std::memcpy(packed + 2 * begin, halves.data(), 2 * count);
  }
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

void load_f32(Dtype dtype, const std::byte* packed, std::span<float> values) {
  switch (dtype) {
    case Dtype::kF32:
      if (!values.empty()) std::memcpy(values.data(), packed, values.size_bytes());
      return;
    case Dtype::kF16:
      return load_halves(packed, values, f16_to_f32);
    case Dtype::kBF16:
      return load_halves(packed, values, bf16_to_f32);
  }
}

void store_f32(Dtype dtype, std::span<const float> values, std::byte* packed) {
  switch (dtype) {
    case Dtype::kF32:
      if (!values.empty()) std::memcpy(packed, values.data(), values.size_bytes());
      return;
    case Dtype::kF16:
      return store_halves(values, packed, f32_to_f16);
    case Dtype::kBF16:
      return store_halves(values, packed, f32_to_bf16);
  }
}

}  // namespace tqcache
