#include "cli/foreign_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/common_flags.h"
#include "cli/foreign_probe.h"
#include "cli/probe.h"
#include "cli/prompt.h"
#include "migrations/migrate_file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/mlx/mlx_lm.h"
#include "tqcache/interop/npz/npz_cache.h"
#include "tqcache/interop/turbomlx/turbomlx.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::cli {
namespace {

using interop::ForeignCache;
using interop::LlamaRotation;

// Whether the file begins like a safetensors file, with a JSON object.
Result<bool> looks_like_safetensors(const ByteSource& file) {
  std::array<std::byte, 9> begin{};
  if (file.size() < begin.size()) return false;
  TQC_TRY(file.read_at(0, begin));
  return begin.back() == std::byte{'{'};
}

// The safetensors file that this is, if it is one.
Result<std::optional<ForeignKind>> safetensors_kind(const ByteSource& file) {
  using Kind = std::optional<ForeignKind>;
  TQC_TRY_ASSIGN(const bool is_safetensors, looks_like_safetensors(file));
  if (!is_safetensors) return Kind();
  auto index = tensors::index_safetensors(file);
  if (!index) return in_context("safetensors", std::move(index).error());
  if (interop::is_hf(*index)) return Kind(ForeignKind::kHf);
  if (interop::is_mlx_lm(*index)) return Kind(ForeignKind::kMlxLm);
  return Error{ErrorCode::kUnsupported,
               "a safetensors file that is no cache of mlx-lm, and none of tools/tqcache_hf.py"};
}

// --- what is done to a cache whatever it was read from

Result<void> set_tokens(const std::vector<std::int32_t>& ids, ForeignCache& cache) {
  if (cache.tokens && *cache.tokens != ids) {
    return Error{ErrorCode::kMismatch, "--ids: not the tokens that the file has"};
  }
  if (std::ssize(ids) != cache.n_tokens) {
    return Error{ErrorCode::kMismatch,
                 fmt::format("--ids: {} tokens, and the file has {}", ids.size(), cache.n_tokens)};
  }
  cache.tokens = ids;
  return {};
}

Result<void> cut(std::int64_t first_tokens, ForeignCache& cache) {
  if (first_tokens >= cache.n_tokens) return {};
  const auto is_array = [](const auto& layer) {
    return !std::holds_alternative<interop::ForeignAttention>(layer);
  };
  if (std::ranges::any_of(cache.layers, is_array)) {
    return Error{ErrorCode::kInvalidArgument,
                 "--tokens: recurrent state and sliding windows cannot be cut"};
  }
  cache.n_tokens = first_tokens;
  if (cache.tokens) cache.tokens->resize(static_cast<std::size_t>(first_tokens));
  return {};
}

// The model's, but for where the values came from.
void set_identity(const cache::Identity& model, ForeignCache& cache) {
  std::string source = std::move(cache.identity.source_format);
  cache.identity = model;
  cache.identity.source_format = std::move(source);
}

using KnownIds = std::optional<std::vector<std::int32_t>>;

std::optional<std::int64_t> count_of(const KnownIds& ids) {
  if (!ids) return std::nullopt;
  return std::ssize(*ids);
}

Result<void> complete(const KnownIds& ids, const ModelFacts& model,
                      std::optional<std::int64_t> first_tokens, const std::string& name,
                      ForeignCache& cache) {
  if (ids) TQC_TRY(in_file(name, set_tokens(*ids, cache)));
  if (first_tokens) TQC_TRY(in_file(name, cut(*first_tokens, cache)));
  if (model.model) set_identity(model.model->identity, cache);
  return {};
}

// --- llama.cpp, whose files may be read in two ways

Result<interop::LlamaImported> import_llama(const std::shared_ptr<const ByteSource>& file,
                                            const ForeignFlags& flags, const ModelFacts& model,
                                            LlamaRotation rotation) {
  return interop::import_llama_state(file, *model.geometry,
                                     {.rotation = rotation, .turbo_layout = flags.turbo_layout});
}

std::string rotation_note(const RotationErrors& errors, LlamaRotation decided) {
  return fmt::format(
      "quantized rows {} Hadamard-rotated: {} tokens, computed again, differ by {:.2g} of their "
      "length if they are, and by {:.2g} if they are not",
      decided == LlamaRotation::kOn ? "are" : "are not", errors.n_tokens, errors.on, errors.off);
}

// Reads the file both ways, and takes the one whose first keys and values the model computes too.
Result<interop::LlamaImported> decide_rotation(const Console& console, const std::string& name,
                                               const std::shared_ptr<const ByteSource>& file,
                                               const ForeignFlags& flags, const ModelFacts& model,
                                               unsigned n_threads,
                                               std::vector<std::string>& notes) {
  const auto refuse = [&](std::string message) {
    return Error{ErrorCode::kMismatch, std::move(message), name};
  };
  TQC_TRY_ASSIGN(interop::LlamaImported off,
                 in_file(name, import_llama(file, flags, model, LlamaRotation::kOff)));
  if (!off.may_be_rotated || off.rotation_is_stated) return off;
  if (!model.model || !has_full_attention_alone(model.model->config)) {
    return refuse(
        "quantized rows, which may be Hadamard-rotated: the model cannot be run to find out "
        "(--llama-rotation on or off)");
  }
  TQC_TRY_ASSIGN(interop::LlamaImported on,
                 in_file(name, import_llama(file, flags, model, LlamaRotation::kOn)));
  TQC_TRY_ASSIGN(const RotationErrors errors,
                 in_file(name, compare_rotations(on.cache, off.cache, *model.model, n_threads)));
  const std::optional<bool> is_on = errors.decision();
  if (!is_on) {
    return refuse(fmt::format(
        "Hadamard rotation: cannot be told; {} tokens, computed again, differ by {:.2g} of their "
        "length with it, and by {:.2g} without (--llama-rotation on or off)",
        errors.n_tokens, errors.on, errors.off));
  }
  const LlamaRotation decided = *is_on ? LlamaRotation::kOn : LlamaRotation::kOff;
  notes.push_back(rotation_note(errors, decided));
  note(console, name + ": " + notes.back());
  return *is_on ? std::move(on) : std::move(off);
}

Result<ForeignCache> open_llama(const Console& console, const std::string& name,
                                const std::shared_ptr<const ByteSource>& file,
                                const ForeignFlags& flags, const ModelFacts& model,
                                unsigned n_threads, std::vector<std::string>& notes) {
  if (!model.geometry) {
    return Error{ErrorCode::kInvalidArgument,
                 "a state file of llama.cpp does not describe itself: --model M.gguf", name};
  }
  Result<interop::LlamaImported> imported =
      flags.rotation == "auto"
          ? decide_rotation(console, name, file, flags, model, n_threads, notes)
          : Result<interop::LlamaImported>(in_file(
                name,
                import_llama(file, flags, model,
                             flags.rotation == "on" ? LlamaRotation::kOn : LlamaRotation::kOff)));
  TQC_TRY_ASSIGN(interop::LlamaImported read, std::move(imported));
  if (read.next_token) {
    notes.push_back(fmt::format(
        "the file names one token more than it has state of, {}: it is the next to be given",
        *read.next_token));
  }
  return std::move(read.cache);
}

// Pickles of anything else are taken for TurboMLX's until they say what they would import.
Result<ForeignCache> import_turbomlx(const std::shared_ptr<const ByteSource>& file,
                                     const ForeignFlags& flags) {
  auto cache = interop::import_turbomlx(file, {.artifacts = flags.artifacts,
                                               .keep_key_codes = !flags.decode_keys,
                                               .keep_value_codes = !flags.decode_values});
  if (cache || cache.error().code != ErrorCode::kUnsupported) return cache;
  const std::optional<std::string> pickle = interop::name_of_pickle(*file);
  if (!pickle) return cache;
  return Error{ErrorCode::kUnsupported, fmt::format("{}; {}", cache.error().message, *pickle)};
}

Result<ForeignCache> import(const Console& console, const std::string& name,
                            const std::shared_ptr<const ByteSource>& file, ForeignKind kind,
                            const ForeignFlags& flags, const KnownIds& ids, const ModelFacts& model,
                            unsigned n_threads, std::vector<std::string>& notes) {
  switch (kind) {
    case ForeignKind::kMlxLm:
      return in_file(name,
                     interop::import_mlx_lm(file, {.row = flags.row, .n_tokens = count_of(ids)}));
    case ForeignKind::kHf:
      return in_file(name, interop::import_hf(file));
    case ForeignKind::kNpz:
      return in_file(name, interop::import_npz(file));
    case ForeignKind::kTurboMlx:
      return in_file(name, import_turbomlx(file, flags));
    case ForeignKind::kLlama:
      return open_llama(console, name, file, flags, model, n_threads, notes);
  }
  return Error{ErrorCode::kUnsupported, "another kind of file"};
}

}  // namespace

std::string_view name_of(ForeignKind kind) {
  switch (kind) {
    case ForeignKind::kMlxLm:
      return "mlx-lm prompt cache";
    case ForeignKind::kLlama:
      return "llama.cpp state file";
    case ForeignKind::kHf:
      return "Hugging Face cache (tqcache-hf-1)";
    case ForeignKind::kNpz:
      return "NumPy cache (tqcache-npz-1)";
    case ForeignKind::kTurboMlx:
      return "TurboMLX prompt cache";
  }
  return "unknown";
}

Result<std::optional<ForeignKind>> foreign_kind(const ByteSource& file) {
  using Kind = std::optional<ForeignKind>;
  if (migrations::is_cache_of_any_version(file)) return Kind();
  TQC_TRY_ASSIGN(const auto llama, interop::read_llama_envelope(file));
  if (llama) return Kind(ForeignKind::kLlama);
  TQC_TRY_ASSIGN(const auto turbomlx, interop::is_turbomlx(file));
  if (turbomlx) return Kind(ForeignKind::kTurboMlx);
  TQC_TRY_ASSIGN(const bool is_npz, interop::is_npz_cache(file));
  if (is_npz) return Kind(ForeignKind::kNpz);
  if (const auto pickle = interop::name_of_pickle(file)) {
    return Error{ErrorCode::kUnsupported, *pickle};
  }
  return safetensors_kind(file);
}

void add_reading_flags(FlagSet& app, ForeignFlags& flags) {
  app.add("--row", flags.row, "mlx-lm: which prompt of a batched cache to read")
      ->type_name("N")
      ->at_least(0);
  app.add("--llama-turbo-layout", flags.turbo_layout,
          "Layout of a file of llama.cpp's TurboQuant fork: turbo2, turbo3 or turbo4")
      ->type_name("NAME");
  app.add("--artifacts", flags.artifacts,
          "Folder with TurboMLX's codebooks and rotations; by default they are recomputed")
      ->type_name("DIR")
      ->folder();
}

void add_foreign_flags(FlagSet& app, ForeignFlags& flags) {
  add_model_flag(app, flags.model, false);
  app.add("--ids", flags.ids, "File with the token ids, a JSON array, for a cache that has none")
      ->type_name("FILE")
      ->file();
  app.add("--llama-rotation", flags.rotation,
          "Whether quantized rows of llama.cpp are Hadamard-rotated; auto decides by recomputing a "
          "few keys. When writing, auto means on")
      ->type_name("auto|on|off")
      ->one_of({"auto", "on", "off"})
      ->show_default();
  app.add("--probe", flags.n_probe,
          "With --model: number of tokens of a foreign cache to recompute as a check; 0 turns it "
          "off")
      ->type_name("N")
      ->at_least(0)
      ->show_default();
  add_reading_flags(app, flags);
}

Result<ForeignInput> open_foreign(const Console& console, const std::string& name,
                                  std::shared_ptr<const ByteSource> file, ForeignKind kind,
                                  const ForeignFlags& flags, const ModelFacts& model,
                                  std::optional<std::int64_t> first_tokens, unsigned n_threads) {
  ForeignInput input{name, kind, file->size(), {}, {}};
  KnownIds ids;
  if (!flags.ids.empty()) {
    TQC_TRY_ASSIGN(ids, read_ids(flags.ids));
  }
  TQC_TRY_ASSIGN(input.cache,
                 import(console, name, file, kind, flags, ids, model, n_threads, input.notes));
  if (input.cache.is_quantized && !input.cache.identity.source_format.ends_with(")")) {
    input.cache.identity.source_format += " (quantized)";
  }
  TQC_TRY(complete(ids, model, first_tokens, name, input.cache));
  TQC_TRY_ASSIGN(const std::optional<std::string> probed,
                 probe_foreign(console, name, input.cache, flags.n_probe, model, n_threads));
  if (probed) input.notes.push_back(*probed);
  return input;
}

}  // namespace tqcache::cli
