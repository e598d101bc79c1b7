#pragma once
// interop/npz/npz_schema.h: the names of the schema "tqcache-npz-1" (docs/reference/interop.md,
// "NumPy").

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/tensors/npy.h"

namespace tqcache::interop {

inline constexpr std::string_view kNpzFormat = "tqcache-npz-1";
inline constexpr std::string_view kNpzFormatPrefix = "tqcache-npz-";

// The array with the JSON text that describes the others.
inline constexpr std::string_view kNpzDescription = "tqcache";
inline constexpr std::string_view kNpzTokens = "tokens";

// Layer kinds.
inline constexpr std::string_view kNpzAttention = "attention";
inline constexpr std::string_view kNpzWindow = "window";
inline constexpr std::string_view kNpzArrays = "arrays";

inline constexpr std::string_view kNpzKey = "key";
inline constexpr std::string_view kNpzValue = "value";

// "layer_3_key", "layer_3_array_conv".
std::string npz_tensor_name(std::size_t layer, std::string_view tensor);
std::string npz_array_name(std::size_t layer, std::string_view array);

// Returns whether the name of an array can be part of a member name: 1 to 64 letters, digits, '_',
// '.' and '-'.
bool fits_npz_name(std::string_view name);

// The JSON description, stored as an array "<U", "|S" (a single text) or "|u1".
// Errors: kCorrupt, kTooLarge, kUnsupported (another type), and those of reading.
Result<nlohmann::json> read_npz_description(const tensors::Npz& npz);

// The .npy array of an ASCII text.
Bytes make_npz_text(std::string_view text);

}  // namespace tqcache::interop
