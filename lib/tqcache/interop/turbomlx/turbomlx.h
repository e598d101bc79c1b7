#pragma once
// interop/turbomlx/turbomlx.h: prompt caches of TurboMLX: version 3 (a safetensors blob behind a
// JSON header), and the pickles of versions 1 and 2. Safe for untrusted input: pickles are read by
// an interpreter of the few opcodes that such files need; nothing is imported and nothing is run.
//
// A library that was configured with -DTQCACHE_TURBOMLX=OFF refuses these files by name.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: alicankiraz1/Qwen3.5-TurboQuant-MLX-LM, src/turbomlx/prompt_cache.py; numpy/random
//         (PCG64, ziggurat); docs/reference/codec.md.

#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

enum class TurboMlxFile : std::uint8_t { kPickle, kV3 };

inline constexpr std::string_view kTurboMlxV3Magic = "TQS3";

// By the first bytes: "TQS3", or a pickle of protocol 2 or later, whatever is in it. nullopt: not a
// file of TurboMLX.
// Errors: kIo.
Result<std::optional<TurboMlxFile>> is_turbomlx(const ByteSource& file);

struct TurboMlxImport {
  // Folder with the artifacts that TurboMLX keeps (codebooks/, rotations/, qjl/*.npz): what is
  // there is taken, and all else is computed again. Empty: all is.
  std::filesystem::path artifacts;
  // Otherwise codes are decoded, even where our codec has them.
  bool keep_key_codes = true;
  bool keep_value_codes = true;
};

// Codes are kept, in packed token blocks of ours, where our codec has such; otherwise they are
// decoded as TurboMLX decodes them, to f32, when they are asked for.
//
// Memory: what the file says beside its arrays, which stay in it; codebooks and maps of the
//         quantizers.
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (a pickle of anything else, by what it
//         wants to import; classes and settings that are not known); kNotFound (no such folder of
//         artifacts); those of the file.
Result<ForeignCache> import_turbomlx(std::shared_ptr<const ByteSource> file,
                                     const TurboMlxImport& options = {});

}  // namespace tqcache::interop
