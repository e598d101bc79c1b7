#pragma once
// base/dtype.h: the number formats of dense keys and values.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tqcache {

enum class Dtype : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2 };

constexpr std::size_t dtype_size(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// "f32", "f16", "bf16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

// Widens or rounds (to nearest, ties to even) a run of values.
//
// Shapes:   `packed` holds values.size() values of `dtype`, at any alignment.
// Bytes:    identical on every CPU.
void load_f32(Dtype dtype, const std::byte* packed, std::span<float> values);
void store_f32(Dtype dtype, std::span<const float> values, std::byte* packed);

}  // namespace tqcache
