#include "cli/export_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "cli/cli.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/npz/npz_cache.h"

namespace tqcache::cli {
namespace {

struct TargetName {
  Target target;
  std::string_view word;       // of --to
  std::string_view extension;  // that says so by itself; empty: none does
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

// Since October 2026. llama.cpp reads the version that it writes, and no other.
constexpr std::uint32_t kNewestSession = 11;
constexpr std::uint32_t kNewestSequence = 4;

std::vector<std::string> target_words() {
  std::vector<std::string> words;
  for (const TargetName& each : kTargets) words.emplace_back(each.word);
  return words;
}

// "0.32" or "0.31.3", of which the first two numbers count.
Result<std::pair<int, int>> parse_version(const std::string& text) {
  std::pair<int, int> version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec == std::errc() && major.ptr != end && *major.ptr == '.') {
    const auto minor = std::from_chars(major.ptr + 1, end, version.second);
    if (minor.ec == std::errc() && (minor.ptr == end || *minor.ptr == '.')) return version;
  }
  return Error{ErrorCode::kInvalidArgument, "--mlx-lm-version " + text + ": not as 0.32"};
}

Result<void> write_mlx_lm(const format::SectionSource& cache, const std::string& output,
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

Result<void> write_llama(interop::LlamaFile kind, const format::SectionSource& cache,
                         const std::string& output, const ExportFlags& flags,
                         const std::string& rotation, const ModelFacts& model, Overwrite overwrite,
                         const Progress& progress) {
  if (!model.geometry) {
    return Error{ErrorCode::kInvalidArgument,
                 "a state file of llama.cpp is written for a model: --model M.gguf"};
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
  options.overwrite = overwrite;
  return interop::export_llama_state(cache, *model.geometry, output, options, progress);
}

}  // namespace

void add_export_flags(CLI::App& app, ExportFlags& flags) {
  app.add_option("--to", flags.to, "Write a file of this kind; default: as the extension says")
      ->type_name("KIND")
      ->check(CLI::IsMember(target_words()));
  app.add_option("--mlx-lm-version", flags.mlx_lm_version, "--to mlx-lm: which one shall read it")
      ->type_name("X.Y")
      ->capture_default_str();
  app.add_option("--kv-bits", flags.kv_bits, "--to mlx-lm: quantized, to 2, 4 or 8 bits")
      ->type_name("N")
      ->check(CLI::IsMember({2, 4, 8}));
  app.add_option("--kv-group-size", flags.kv_group_size, "... in groups of this size")
      ->type_name("N")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  app.add_option("--llama-version", flags.llama_version,
                 "--to llama-session: 9 to 11; llama-seq: 2 to 4; default: the newest")
      ->type_name("N");
  app.add_option("--llama-k-type", flags.llama_k_type,
                 "... type of keys: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--llama-v-type", flags.llama_v_type, "... and of values")
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--llama-flash-attention", flags.llama_flash_attention,
                 "... off: values transposed, as llama.cpp keeps them without it")
      ->type_name("on|off")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_flag("--llama-server-tokens", flags.llama_server_tokens,
               "... with the token list of llama-server's slots");
}

Result<Target> target_of(const ExportFlags& flags, const std::string& output) {
  if (!flags.to.empty()) return std::ranges::find(kTargets, flags.to, &TargetName::word)->target;
  const std::string extension = std::filesystem::path(output).extension().string();
  if (extension == ".safetensors") {
    return Error{ErrorCode::kInvalidArgument,
                 output +
                     ": mlx-lm and Hugging Face both have .safetensors files: --to mlx-lm or "
                     "--to hf"};
  }
  const auto found = std::ranges::find(kTargets, extension, &TargetName::extension);
  return extension.empty() || found == kTargets.end() ? Target::kTqkv : found->target;
}

std::string_view name_of(Target target) {
  return std::ranges::find(kTargets, target, &TargetName::target)->name;
}

std::vector<std::string> losses_of(Target target, const format::Manifest& cache) {
  std::vector<std::string> losses;
  if (target == Target::kTqkv) return losses;
  const auto is_packed = [](const cache::LayerDesc& layer) {
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    return attention != nullptr && cache::is_quantized(*attention);
  };
  if (std::ranges::any_of(cache.layers, is_packed)) {
    losses.emplace_back("packed keys and values are written as what they decode to");
  }
  losses.emplace_back("checksums and the fingerprints of model and tokenizer are not written");
  const bool has_tokens = target == Target::kLlamaSession || target == Target::kLlamaSequence ||
                          target == Target::kHf || target == Target::kNpz;
  if (!has_tokens) losses.emplace_back("token ids are not written: such files have none");
  return losses;
}

Result<void> write_target(Target target, const format::SectionSource& cache,
                          const std::string& output, const ExportFlags& flags,
                          const std::string& rotation, const ModelFacts& model, Overwrite overwrite,
                          const Progress& progress) {
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
  return Error{ErrorCode::kInvalidArgument, "not a file of another program"};
}

}  // namespace tqcache::cli
