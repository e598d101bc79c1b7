#pragma once
// interop/mlx/mlx_lm_meta.h: the metadata of a prompt cache of mlx-lm: trees of Python values,
// flattened to keys like "0.3.1". Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::interop {

enum class MlxLayout : std::uint8_t {
  kNamedPairs,  // 2024: tensors "<layer>_keys" and "<layer>_values", no classes
  kMetaState,   // to 0.31: what is no array stands in the metadata
  kScalars,     // since 0.32.0: all state is tensors, also numbers
};

// What a tensor stands for that is no array.
enum class MlxScalar : std::uint8_t { kNumber, kText, kNone };

// Views into the index that it was read from.
struct MlxMeta {
  using Texts = std::map<std::string_view, std::string_view>;

  MlxLayout layout = MlxLayout::kScalars;
  std::vector<std::string_view> classes;          // of the layers; of kNamedPairs empty
  Texts user;                                     // what the program that saved it added
  Texts info;                                     // kMetaState: by the key behind "0."
  std::map<std::string_view, MlxScalar> scalars;  // kScalars: by the name of the tensor

  // The texts "<key>.0", "<key>.1", ... of a tuple; none where "<key>" is an empty text or missing.
  std::vector<std::string_view> info_list(const std::string& key) const;
};

// Nothing: not a prompt cache of mlx-lm.
std::optional<MlxLayout> mlx_layout(const tensors::SafetensorsIndex& index);

// Errors: kCorrupt (keys that are missing, or contradict the tensors), kTooLarge (layers),
//         kUnsupported (a scalar of a kind that is not known). Requires: mlx_layout(index).
Result<MlxMeta> read_mlx_meta(const tensors::SafetensorsIndex& index);

// "4": a number as Python prints one that is not negative. Errors: nullopt also beyond 53 bits.
std::optional<std::int64_t> mlx_number(std::string_view text);

// Text of the file, made fit for people: cut after `max_bytes`, and all but printable ASCII is '?'.
std::string mlx_text(std::string_view text, std::size_t max_bytes);

}  // namespace tqcache::interop
