#pragma once
// migrations/v1_metadata.h: the JSON texts of the layers and the metadata of the file in version 1.
// Safe for untrusted input.
//
// Spec: docs/reference/format.md, "Version 1".

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"

namespace tqcache::migrations {

// Two quantizers instead of one: outlier channels have their own.
struct MixedMeta {
  std::int64_t outlier_channels = 0;
  int outlier_high_bits = 0;
  int regular_bits = 0;
};

// The needed fields of the meta_state of a TurboQuantKVCache.
struct TurboMeta {
  bool is_prod = false;  // mode "prod"; otherwise "mse"
  int bits_mse = 0;      // of the codes; not used with mixed
  std::int64_t head_dim = 0;
  std::int64_t num_kv_heads = 0;
  bool is_wht = false;  // rotation_kind "wht"; otherwise "qr"
  std::uint64_t rotation_seed = 0;
  std::uint64_t qjl_seed = 0;
  bool has_affine_values = false;  // values_mode "affine"; otherwise "dense"
  int value_bits = 0;              // of affine values, and the next
  std::int64_t value_group_size = 0;
  std::optional<MixedMeta> mixed;
  std::int64_t offset = 0;  // tokens seen

  // The bits of the codes of a quantizer with `bits_total` bits.
  int code_bits(int bits_total) const { return is_prod ? bits_total - 1 : bits_total; }
};

// Errors: kCorrupt (not JSON, a field that is missing or has another type, fields that contradict
//         each other), kUnsupported (an unknown version, mode or number).
Result<TurboMeta> read_turbo_meta(std::string_view json);

// extra_meta of a TurboQuantKVCache.
struct CalibrationMeta {
  std::int64_t tokens_seen = 0;
  bool is_done = true;  // the outlier channels have been chosen
};

// An empty text means done. Errors: kCorrupt.
Result<CalibrationMeta> read_calibration_meta(std::string_view json);

// meta_state of the other classes: an empty text, or an array of whole numbers, each of which may
// be a text of decimal digits.
// Errors: kCorrupt.
Result<std::vector<std::int64_t>> read_numbers(std::string_view json);

// The metadata of the whole file: key-value pairs, called facts in the format. All are optional,
// and most files have none: the origin of such a cache is unknown.
struct V1Metadata {
  cache::Identity identity;  // has an architecture and both fingerprints, or none of the three
  bool is_origin_partial = false;  // only some of the three were there, and were dropped
  std::optional<std::vector<std::int32_t>> tokens;
};

// Unknown keys are ignored. Errors: kCorrupt, kUnsupported, kTooLarge, naming the key.
Result<V1Metadata> read_metadata(const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace tqcache::migrations
