#include "cli/export_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "cli/common_flags.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/npz/npz_cache.h"

namespace tqcache::cli {
namespace {

struct TargetName {
  Target target;
  std::string_view word;       // value of --to
  std::string_view extension;  // that selects this target; empty: no extension does
  std::string_view name;
};

constexpr std::array kTargets = {
    TargetName{Target::kTqkv, "tqkv", ".tqkv", "tqcache file"},
    TargetName{Target::kMlxLm, "mlx-lm", "", "mlx-lm prompt cache"},
    TargetName{Target::kLlamaSession, "llama-session", ".ggsn", "llama.cpp session file"},
    TargetName{Target::kLlamaSequence, "llama-seq", ".ggsq", "llama.cpp sequence file"},
    TargetName{Target::kHf, "hf", "", "Hugging Face cache (tqcache-hf-1)"},
    TargetName{Target::kNpz, "npz", ".npz", "NumPy cache (tqcache-npz-1)"},
};

// Since October 2026. llama.cpp reads only the version that it writes.
constexpr std::uint32_t kNewestSession = 11;
constexpr std::uint32_t kNewestSequence = 4;

std::vector<std::string> target_words() {
  std::vector<std::string> words;
  for (const TargetName& each : kTargets) words.emplace_back(each.word);
  return words;
}

// "0.32" or "0.31.3"; only the first two numbers count.
Result<std::pair<int, int>> parse_version(const std::string& text) {
  std::pair<int, int> version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec == std::errc() && major.ptr != end && *major.ptr == '.') {
    const auto minor = std::from_chars(major.ptr + 1, end, version.second);
    if (minor.ec == std::errc() && (minor.ptr == end || *minor.ptr == '.')) return version;
  }
  return Error{ErrorCode::kInvalidArgument,
               "--mlx-lm-version " + text + ": not a version such as 0.32"};
}

Result<void> write_mlx_lm(const cache::CacheReader& cache, const std::string& output,
                          const ExportFlags& flags, Overwrite overwrite, const Progress& progress) {
  TQC_TRY_ASSIGN(const auto version, parse_version(flags.mlx_lm_version));
  interop::MlxLmExport options;
  options.version_major = version.first;
  options.version_minor = version.second;
  options.kv_bits = flags.kv_bits;
  options.group_size = flags.kv_group_size;
  options.overwrite = overwrite;
  return interop::export_mlx_lm(cache, output, options, progress);
}

Result<void> write_llama(interop::LlamaFile kind, const cache::CacheReader& cache,
                         const std::string& output, const ExportFlags& flags,
                         const std::string& rotation, const ModelFacts& model, Overwrite overwrite,
                         const Progress& progress) {
  if (!model.geometry) {
    return Error{ErrorCode::kInvalidArgument, "a llama.cpp state file needs --model M.gguf"};
  }
  interop::LlamaExport options;
  options.kind = kind;
  const bool is_session = kind == interop::LlamaFile::kSession;
  options.version = flags.llama_version.value_or(is_session ? kNewestSession : kNewestSequence);
  options.k_type = flags.llama_k_type;
  options.v_type = flags.llama_v_type;
  options.rotation = rotation == "off" ? interop::LlamaRotation::kOff : interop::LlamaRotation::kOn;
  options.flash_attention = flags.llama_flash_attention == "on";
  options.server_tokens = flags.llama_server_tokens;
  options.n_streams = flags.llama_streams.value_or(cache.description().identity.llama_streams);
  options.overwrite = overwrite;
  return interop::export_llama_state(cache, *model.geometry, output, options, progress);
}

}  // namespace

void add_export_flags(FlagSet& app, ExportFlags& flags) {
  app.add("--to", flags.to, "Format to write; by default the extension of OUT decides")
      ->type_name("KIND")
      ->one_of(target_words());
  app.add("--mlx-lm-version", flags.mlx_lm_version,
          "With --to mlx-lm: version that will read the file; 0.32 and earlier ones do not load "
          "each "
          "other's files")
      ->type_name("X.Y")
      ->show_default();
  app.add("--kv-bits", flags.kv_bits, "With --to mlx-lm: quantize to 2, 4 or 8 bits")
      ->type_name("N")
      ->one_of({"2", "4", "8"});
  app.add("--kv-group-size", flags.kv_group_size, "With --kv-bits: group size")
      ->type_name("N")
      ->one_of({"32", "64", "128"})
      ->show_default();
  app.add("--llama-version", flags.llama_version,
          "With --to llama-session: version 9 to 11; with llama-seq: 2 to 4. Default: the newest")
      ->type_name("N");
  app.add("--llama-k-type", flags.llama_k_type,
          "With --to llama-*: type of keys: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl")
      ->type_name("TYPE")
      ->show_default();
  app.add("--llama-v-type", flags.llama_v_type, "With --to llama-*: type of values")
      ->type_name("TYPE")
      ->show_default();
  app.add("--llama-flash-attention", flags.llama_flash_attention,
          "With --to llama-*: off writes transposed values, as llama.cpp keeps them without flash "
          "attention")
      ->type_name("on|off")
      ->one_of({"on", "off"})
      ->show_default();
  app.add("--llama-server-tokens", flags.llama_server_tokens,
          "With --to llama-*: add the token list that llama-server keeps per slot");
  app.add("--llama-streams", flags.llama_streams,
          "With --to llama-*: streams of the context that will read the file. 1: one slot, or a "
          "unified cache; otherwise the number of slots (-np). Default: as in the llama.cpp file "
          "that the cache came from, or 1")
      ->type_name("N")
      ->range(1, cache::kMaxLlamaStreams);
}

Result<Target> target_of(const ExportFlags& flags, const std::string& output) {
  if (!flags.to.empty()) return std::ranges::find(kTargets, flags.to, &TargetName::word)->target;
  const std::string extension = std::filesystem::path(output).extension().string();
  if (extension == ".safetensors") {
    return Error{ErrorCode::kInvalidArgument, output +
                                                  ": .safetensors is ambiguous; use --to mlx-lm or "
                                                  "--to hf"};
  }
  // Other programs' files, which a .tqkv file under such a name would be taken for.
  if (extension == ".bin" || extension == ".gguf" || extension == ".pt" || extension == ".pth") {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: {} files are of other programs; name the format: --to tqkv, or "
                             "--to llama-seq for a slot of llama-server",
                             output, extension)};
  }
  const auto found = std::ranges::find(kTargets, extension, &TargetName::extension);
  return extension.empty() || found == kTargets.end() ? Target::kTqkv : found->target;
}

std::string_view name_of(Target target) {
  return std::ranges::find(kTargets, target, &TargetName::target)->name;
}

namespace {

bool has_place_for_checkpoints(Target target, const ExportFlags& flags) {
  const std::uint32_t version = flags.llama_version.value_or(kNewestSequence);
  return target == Target::kTqkv ||
         (target == Target::kLlamaSequence && version >= kNewestSequence);
}

// A sentence, or empty.
std::string llama_note(Target target, const ExportFlags& flags, const cache::CacheDesc& cache,
                       std::size_t n_checkpoints) {
  const bool is_llama = target == Target::kLlamaSession || target == Target::kLlamaSequence;
  if (!is_llama || cache::checkpoint_layers(cache.layers).empty()) return {};
  if (n_checkpoints > 0 && has_place_for_checkpoints(target, flags)) return {};
  const bool has_windows = std::ranges::any_of(cache.layers, [](const cache::LayerDesc& layer) {
    return std::holds_alternative<cache::WindowDesc>(layer);
  });
  if (!has_windows) {
    return "the file has no context checkpoints: llama-server resumes prompts that extend this "
           "one, and computes any other prompt anew";
  }
  if (flags.llama_server_tokens && has_place_for_checkpoints(target, flags)) {
    return "the cache has no context checkpoints; one was written at its end, from where "
           "llama-server resumes prompts that extend this one";
  }
  return "the file has no context checkpoints: llama-server resumes from it only with --swa-full; "
         "--llama-server-tokens adds one at the end";
}

void add_dropped(Target target, const ExportFlags& flags, const cache::CacheDesc& cache,
                 std::size_t n_checkpoints, std::vector<std::string>& dropped) {
  if (n_checkpoints > 0 && !has_place_for_checkpoints(target, flags)) {
    dropped.emplace_back(
        "context checkpoints are dropped: only .tqkv files and llama-seq files of "
        "version 4 have them");
  }
  if (target == Target::kTqkv) return;
  const auto is_packed = [](const cache::LayerDesc& layer) {
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    return attention != nullptr && cache::is_quantized(*attention);
  };
  if (std::ranges::any_of(cache.layers, is_packed)) {
    dropped.emplace_back("quantized keys and values are written decoded");
  }
  dropped.emplace_back("checksums and the fingerprints of model and tokenizer are dropped");
  const bool has_tokens = target == Target::kLlamaSession || target == Target::kLlamaSequence ||
                          target == Target::kHf || target == Target::kNpz;
  if (!has_tokens) dropped.emplace_back("token ids are dropped: the format has no place for them");
}

}  // namespace

void describe_export(Target target, const ExportFlags& flags, const cache::CacheReader& cache,
                     std::vector<std::string>& dropped, std::vector<std::string>& notes) {
  const std::size_t n_checkpoints = cache.checkpoints().size();
  add_dropped(target, flags, cache.description(), n_checkpoints, dropped);
  std::string note = llama_note(target, flags, cache.description(), n_checkpoints);
  if (!note.empty()) notes.push_back(std::move(note));
}

Result<void> write_target(Target target, const cache::CacheReader& cache, const std::string& output,
                          const ExportFlags& flags, const std::string& rotation,
                          const ModelFacts& model, Overwrite overwrite, const Progress& progress) {
  switch (target) {
    case Target::kMlxLm:
      return write_mlx_lm(cache, output, flags, overwrite, progress);
    case Target::kLlamaSession:
      return write_llama(interop::LlamaFile::kSession, cache, output, flags, rotation, model,
                         overwrite, progress);
    case Target::kLlamaSequence:
      return write_llama(interop::LlamaFile::kSequence, cache, output, flags, rotation, model,
                         overwrite, progress);
    case Target::kHf:
      return interop::export_hf(cache, output, overwrite, progress);
    case Target::kNpz:
      return interop::export_npz(cache, output, overwrite, progress);
    case Target::kTqkv:
      break;
  }
  return Error{ErrorCode::kInvalidArgument, "not the format of another program"};
}

}  // namespace tqcache::cli
