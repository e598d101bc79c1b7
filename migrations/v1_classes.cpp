#include "migrations/v1_classes.h"

#include <algorithm>
#include <array>
#include <span>

#include "migrations/v1_to_v2.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::migrations {
namespace {

// Where each class was defined at one time or another; kPaths and kClasses go together.
// mlx-lm kept its caches in models/base.py, and that of Mamba beside the model, until October 2024.
constexpr std::array<std::string_view, 9> kPaths = {
    "turbomlx.mlx_runtime.cache.TurboQuantKVCache",
    "mlx_lm.models.cache.KVCache",
    "mlx_lm.models.base.KVCache",
    "mlx_lm.models.cache.QuantizedKVCache",
    "mlx_lm.models.cache.RotatingKVCache",
    "mlx_lm.models.base.RotatingKVCache",
    "mlx_lm.models.cache.ArraysCache",
    "mlx_lm.models.cache.MambaCache",
    "mlx_lm.models.mamba.MambaCache",
};
constexpr std::array<V1Class, kPaths.size()> kClasses = {
    V1Class::kTurbo,    V1Class::kDense,  V1Class::kDense,  V1Class::kQuantized, V1Class::kRotating,
    V1Class::kRotating, V1Class::kArrays, V1Class::kArrays, V1Class::kArrays,
};

}  // namespace

std::span<const std::string_view> known_class_paths() { return kPaths; }

Result<V1Class> class_of(std::string_view class_path) {
  const auto found = std::ranges::find(kPaths, class_path);
  if (found != kPaths.end()) return kClasses[static_cast<std::size_t>(found - kPaths.begin())];
  return Error{ErrorCode::kUnsupported,
               "class " + tensors::printable_name(class_path) + ": not known"};
}

}  // namespace tqcache::migrations
