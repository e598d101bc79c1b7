#include "cli/foreign_input.h"

#include <fmt/format.h>

#include <utility>

#include "cli/common_flags.h"
#include "cli/foreign_probe.h"
#include "cli/probe.h"
#include "cli/prompt.h"
#include "tqcache/reader.h"

namespace tqcache::cli {
namespace {

using cache::CacheReader;
using interop::LlamaRotation;

// Chooses the interpretation whose first keys and values match those that the model computes.
Result<LlamaRotation> decide_rotation(const CacheReader& rotated, const CacheReader& not_rotated,
                                      const ModelFacts& model, unsigned n_threads,
                                      std::string& found) {
  if (!model.model || !has_full_attention_alone(model.model->config)) {
    return mismatch(
        "quantized rows, which may be Hadamard-rotated: the model cannot be run to find out "
        "(--llama-rotation on or off)");
  }
  TQC_TRY_ASSIGN(const RotationErrors errors,
                 compare_rotations(rotated, not_rotated, *model.model, n_threads));
  const std::optional<bool> is_on = errors.decision();
  if (!is_on) {
    return mismatch(fmt::format(
        "Hadamard rotation: not decided; {} recomputed tokens differ by {:.2g} of their length "
        "with it, and by {:.2g} without (--llama-rotation on or off)",
        errors.n_tokens, errors.on, errors.off));
  }
  found = fmt::format(
      "quantized rows {} Hadamard-rotated: {} recomputed tokens differ by {:.2g} of their length "
      "if they are, and by {:.2g} if they are not",
      *is_on ? "are" : "are not", errors.n_tokens, errors.on, errors.off);
  return *is_on ? LlamaRotation::kOn : LlamaRotation::kOff;
}

Result<interop::OpenHints> hints_of(const ForeignFlags& flags, const ModelFacts& model,
                                    std::optional<std::int64_t> first_tokens) {
  interop::OpenHints hints;
  if (model.model) hints.identity = model.model->identity;
  if (!flags.ids.empty()) {
    TQC_TRY_ASSIGN(hints.tokens, read_ids(flags.ids));
  }
  hints.first_tokens = first_tokens;
  hints.row = flags.row;
  hints.geometry = model.geometry;
  hints.turbo_layout = flags.turbo_layout;
  if (flags.rotation == "on") hints.rotation = LlamaRotation::kOn;
  if (flags.rotation == "off") hints.rotation = LlamaRotation::kOff;
  hints.artifacts = flags.artifacts;
  hints.keep_key_codes = !flags.decode_keys;
  hints.keep_value_codes = !flags.decode_values;
  return hints;
}

}  // namespace

void add_reading_flags(FlagSet& app, ForeignFlags& flags) {
  app.add("--row", flags.row, "mlx-lm: which prompt of a batched cache to read")
      ->type_name("N")
      ->at_least(0);
  app.add("--llama-turbo-layout", flags.turbo_layout,
          "Layout of a file of llama.cpp's TurboQuant fork: turbo2, turbo3, turbo4, or turbo4-66 "
          "(its turbo4 since b9914)")
      ->type_name("NAME");
  app.add("--artifacts", flags.artifacts,
          "Folder with TurboMLX's codebooks and rotations; by default they are recomputed")
      ->type_name("DIR")
      ->folder();
}

void add_foreign_flags(FlagSet& app, ForeignFlags& flags) {
  add_model_flag(app, flags.model, false);
  app.add("--ids-file,--ids", flags.ids,
          "File with the token ids, a JSON array, for a cache that has none")
      ->formerly("--ids")
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
                                  std::shared_ptr<const ByteSource> file, FileKind kind,
                                  const ForeignFlags& flags, const ModelFacts& model,
                                  std::optional<std::int64_t> first_tokens, unsigned n_threads) {
  ForeignInput input{name, kind, file->size(), {}};
  if (kind == FileKind::kLlama && !model.geometry) {
    return Error{ErrorCode::kInvalidArgument,
                 "a state file of llama.cpp does not describe its layers: --model M.gguf", name};
  }
  TQC_TRY_ASSIGN(interop::OpenHints hints, hints_of(flags, model, first_tokens));
  hints.access = console.access;
  std::string rotation;  // the findings, in words
  hints.decide_rotation = [&](const CacheReader& rotated, const CacheReader& not_rotated) {
    return decide_rotation(rotated, not_rotated, model, n_threads, rotation);
  };
  TQC_TRY_ASSIGN(input.opened, in_file(name, interop::open_any(std::move(file), hints)));
  std::vector<std::string>& notes = input.opened.notes;
  if (!rotation.empty()) {
    note(console, name + ": " + rotation);
    notes.insert(notes.begin(), rotation);
  }
  TQC_TRY_ASSIGN(const ForeignFindings probed, probe_foreign(console, name, *input.opened.cache,
                                                             flags.n_probe, model, n_threads));
  if (probed.words) notes.push_back(*probed.words);
  if (probed.standing != cache::Standing::kNone) {
    cache::Identity identity = input.opened.cache->description().identity;
    identity.standing = probed.standing;
    input.opened.cache = cache::with_identity(input.opened.cache, std::move(identity));
  }
  return input;
}

}  // namespace tqcache::cli
