#pragma once
// interop/turbomlx/turbomlx_file.h: a TurboMLX prompt cache of any version as a tree of values
// (version 3 is a JSON header and a safetensors blob, older ones are pickles), and the metadata of
// its layers. Safe for untrusted input.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: src/turbomlx/prompt_cache.py, _write_safetensors_payload();
//         src/turbomlx/mlx_runtime/cache.py, _serialize_meta_state() and from_state().

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/turbomlx/turbomlx.h"
#include "tqcache/interop/turbomlx/value_tree.h"

namespace tqcache::interop {

// Reads the header and resolves its JSON representations of arrays and tuples. The arrays stay in
// the file.
//
// Errors: kTruncated, kCorrupt, kTooLarge, kUnsupported; those of the file.
Result<ValueTree> read_turbomlx_v3(const ByteSource& file);

// Two quantizers instead of one: outlier channels have their own.
struct TurboMlxMixed {
  std::int64_t outlier_channels = 0;
  int outlier_high_bits = 0;  // in total, as regular_bits
  int regular_bits = 0;
};

struct TurboMlxMeta {
  bool is_prod = false;  // mode "prod"; otherwise "mse"
  int bits_total = 0;
  cache::HeadShape shape;
  bool is_wht = false;  // rotation_kind "wht"; otherwise "qr"
  std::uint64_t rotation_seed = 0;
  std::uint64_t qjl_seed = 0;
  bool has_affine_values = false;  // values_mode "affine"; otherwise "dense"
  int value_bits = 0;              // for affine values, as the next one
  std::int64_t value_group_size = 0;
  std::optional<TurboMlxMixed> mixed;
  std::string mixed_profile;       // "calibration_variance:outliers=32,hi=3,lo=2", or "disabled"
  bool has_native_scorer = false;  // scorer_mode "native_mlx"; otherwise "oracle_preview"
  std::int64_t offset = 0;         // tokens seen

  // Bits of a code out of `total`: mode "prod" spends one on the sign.
  int code_bits(int total) const { return is_prod ? total - 1 : total; }
};

// "v1-lloyd-max-beta-d128-b4"
std::string turbomlx_codebook_id(std::int64_t head_dim, int bits);

// Errors: kCorrupt (not JSON, fields that are missing, have another type or contradict each other),
//         kUnsupported (unknown versions, modes or numbers), kTooLarge.
Result<TurboMlxMeta> parse_turbomlx_meta(std::string_view json);

// The JSON text of a meta_state: the value itself, or the first item of a tuple. Errors: kCorrupt.
Result<std::string> turbomlx_meta_text(const ValueTree& tree, const Value& meta_state);

// The cache of one layer.
struct TurboMlxEntry {
  // The class without its module: "TurboQuantKVCache", "KVCache". Taken from cache_type_id if
  // TurboMLX knows that id, otherwise from class_path.
  std::string class_name;
  ValueId state = 0;
  ValueId meta_state = 0;
  ValueId extra_state = 0;  // a dict; other values count as an empty one
};

struct TurboMlxContents {
  TurboMlxFile kind = TurboMlxFile::kPickle;
  int schema_version = 0;
  int pickle_protocol = 0;  // for pickles
  ValueTree tree;
  std::vector<TurboMlxEntry> entries;
};

// Errors: kTruncated, kCorrupt (also for files of neither kind), kTooLarge; kUnsupported (versions;
//         classes that are neither TurboMLX's nor mlx-lm's, named by their path); those of the
//         file.
Result<TurboMlxContents> read_turbomlx(const ByteSource& file);

}  // namespace tqcache::interop
