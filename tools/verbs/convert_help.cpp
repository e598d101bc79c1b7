// tools/verbs/convert_help.cpp: the prose and the examples of tqcache convert --help-all.

#include "verbs/convert_help.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tqcache/quantize.h"

namespace tqcache::cli {
namespace {

constexpr const char* kConvertNotes =
    R"(Only full blocks of 256 tokens are quantized; the tokens after them stay dense until their block is
full. Conversion works block by block, so memory does not grow with the cache.
--bits 16 makes a dense file of a quantized one. It keeps the errors of quantization, which verify -m
then takes for those of another model (--probe 0 compares only the fingerprints).

The format of IN is detected from its content: a .tqkv file, or a cache of mlx-lm, llama.cpp,
transformers (tools/tqcache_hf.py), NumPy or TurboMLX. Files of other programs do not identify their
model: pass --model, which also recomputes a few tokens to check it (--probe; exit code 22 if they
differ). --ids-file supplies token ids that a file lacks; without them generation cannot resume.
docs/reference/interop.md lists what each format loses. Quantized values of TurboMLX are kept
unless --bits or --config is given; --bits 16 decodes them.

)";

constexpr const char* kConvertExamples =
    R"(Examples:
  tqcache convert book.kv book.tqkv                    4 bits
  tqcache convert book.kv book.tqkv --bits 3
  tqcache convert book.kv book.tqkv --bits 4,3         keys 4 bits, values 3
  tqcache convert book.kv book.tqkv --bits 16,4        keys stay dense
  tqcache convert book.tqkv dense.kv --bits 16         dense again
  tqcache convert book.kv book.tqkv --config high      or small, k8v4, ...
  tqcache convert book.kv book.tqkv --config boundary=2,sink=8
  tqcache convert book.kv book.tqkv --config k=mixed:3:32:4,v=mse:4
  tqcache convert book.kv book.tqkv --profile m.tqprofile   less error at the same size
  tqcache convert book.kv book.tqkv --config lossless
  tqcache convert book.kv book.tqkv --config archive --bits 2.8
  tqcache convert book.kv book.tqkv --config archive --profile m.tqprofile --target-kld 0.05
  tqcache convert book.kv chapter.tqkv --tokens 4096
  tqcache convert - - < book.kv > book.tqkv
  tqcache convert mlx.safetensors book.tqkv -m hf-folder --ids-file book.json
  tqcache convert slot.bin book.tqkv -m model.gguf --bits 16
  tqcache convert book.tqkv book.safetensors --to mlx-lm
  tqcache convert book.tqkv book.ggsn --to llama-session -m model.gguf
)";

// What --config takes: names, then items that change them.
constexpr const char* kConfigItems =
    R"(  NAME,ITEM,...   turbo3,sink=0   changes the settings of a name; without a name those of turbo4
  k=, v=          mse:4, affine:4:32 (group of 32), mixed:3:32:4 (32 channels of 4 bits), prod:3,
                  trellis:0.25, dense: mode and bits of keys or values
  boundary=N:B    B bits, by default 8, for the first and the last N layers
  windows=WORD    sliding windows: keep (dense), turbo, or turbo:center (models with one RoPE)
  fit=WORD        means of the first 256 tokens (first), or of up to 8,192 of the prompt (prompt)
  sink=N          first tokens that stay dense, 0 to 256; 4 unless given
  center=WORD     the mean that is subtracted: pre-rope, post-rope, none
  scale=, rotation=, rounds=, seed=, residual=    docs/reference/codec.md
  k.ITEM, v.ITEM  an item for keys or values alone: k.center=none
  profile=FILE    as --profile

)";

}  // namespace

std::string convert_help() {
  std::string text = std::string(kConvertNotes) + "Configurations (--config):\n";
  const auto add = [&text](std::string_view name, std::string_view description) {
    text += fmt::format("  {:<9} {}\n", name, description);
  };
  for (const auto& names : {cache::goal_names(), cache::preset_names()}) {
    for (const std::string_view name : names) add(name, cache::preset_description(name));
  }
  add(cache::kLosslessName, "values unchanged, only compressed (--compress planes)");
  add(cache::kDenseName, "dense, as --bits 16");
  return text + kConfigItems + kConvertExamples;
}

}  // namespace tqcache::cli
