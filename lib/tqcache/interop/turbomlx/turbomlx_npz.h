#pragma once
// interop/turbomlx/turbomlx_npz.h: codebooks and maps as TurboMLX keeps them, in a folder of .npz files.
// Safe for untrusted input.
//
// Source: src/turbomlx/core_ref/{codebooks,rotation,qjl}.py.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::interop {

// The f32 values of an array "NAME.npy" of this shape in an .npz file. Nothing: no such file.
//
// Errors: kCorrupt (no such array, one of another shape or type, values that are not finite),
//         kTruncated, kTooLarge, kUnsupported, kIo.
Result<std::optional<std::vector<float>>> read_npz_floats(const std::filesystem::path& path,
                                                          std::string_view name,
                                                          const std::vector<std::uint64_t>& shape);

}  // namespace tqcache::interop
