#pragma once
// interop/turbomlx/turbomlx.h: prompt caches of TurboMLX: version 3 (a JSON header followed by a
// safetensors blob), and the pickles of versions 1 and 2. Safe for untrusted input: pickles are
// read by an interpreter of the few opcodes that such files need; no Python code is imported or
// run.
//
// A library configured with -DTQCACHE_TURBOMLX=OFF refuses these files by name.
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

// Checks the first bytes: "TQS3", or a pickle of protocol 2 or later, whatever it contains.
// nullopt: not a TurboMLX file.
// Errors: kIo.
Result<std::optional<TurboMlxFile>> is_turbomlx(const ByteSource& file);

struct TurboMlxImport {
  // Folder with the artifacts that TurboMLX stores (codebooks/, rotations/, qjl/*.npz). Artifacts
  // missing there are computed. Empty: all are computed.
  std::filesystem::path artifacts;
  // false: decode codes even if our codec can represent them.
  bool keep_key_codes = true;
  bool keep_value_codes = true;
};

// Keeps codes in quantized token blocks where our codec can represent them; otherwise decodes them
// on request as TurboMLX does, to f32.
//
// Memory: the contents of the file except its arrays, which stay in the file; codebooks and
//         transforms of the quantizers.
// Errors: kTruncated, kCorrupt, kTooLarge; kUnsupported (a pickle of another program, reported by
//         the name that it would import; unknown classes and settings); kNotFound (no such folder
//         of artifacts); those of the file.
Result<ForeignCache> import_turbomlx(std::shared_ptr<const ByteSource> file,
                                     const TurboMlxImport& options = {});

}  // namespace tqcache::interop
