#include "cli/foreign_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/probe.h"
#include "cli/terminal.h"
#include "tqcache/decoder.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {
namespace {

// Unrelated values differ by 1.4 of their length.
constexpr double kNear = 0.35;
constexpr double kFar = 0.8;

constexpr std::int64_t kTokensToCompare = 16;

// The first tokens of a cache, with the identity of this model.
Result<cache::Cache> load(const cache::CacheReader& reader, const model::Model& model,
                          std::int64_t n_tokens, const MemoryBudget& memory = {}) {
  cache::Identity identity = model.identity;
  identity.source_format = reader.description().identity.source_format;
  const auto of_model = cache::with_identity(cache::borrow(reader), std::move(identity));
  TQC_TRY_ASSIGN(const auto first, cache::first_tokens(of_model, n_tokens));
  return cache::load(*first, {.memory = memory});
}

// Uses only the first tokens, so that little is read.
Result<double> error_of_first(const cache::CacheReader& reader, std::int64_t n_tokens,
                              const model::Model& model, unsigned n_threads) {
  TQC_TRY_ASSIGN(cache::Cache loaded, load(reader, model, n_tokens));
  TQC_TRY_ASSIGN(const ProbeReport report,
                 probe(std::move(loaded), model, n_tokens, kForeignLimit, n_threads, {}));
  return largest_error(report);
}

// Checks what needs no values: the shape of the layers, and token ids. Windows and recurrent state
// where the model has full attention are left to the decoder: a program may keep only a window.
Result<void> check_of_model(const cache::CacheDesc& cache, const model::ModelConfig& config) {
  auto same = model::check_layers(cache.layers, config);
  if (!same && same.error().code == ErrorCode::kMismatch) return same;
  return check_token_ids(cache, config);
}

void warn_if_beyond_context(const std::string& name, std::int64_t n_tokens,
                            const model::ModelConfig& config) {
  if (n_tokens <= config.context_length) return;
  warn(name, fmt::format("{} tokens; the model was made for {}, and tqcache does not go on behind "
                         "them",
                         n_tokens, config.context_length));
}

}  // namespace

std::optional<bool> RotationErrors::decision() const {
  if (on <= kNear && off >= kFar) return true;
  if (off <= kNear && on >= kFar) return false;
  return std::nullopt;
}

Result<RotationErrors> compare_rotations(const cache::CacheReader& on,
                                         const cache::CacheReader& off, const model::Model& model,
                                         unsigned n_threads) {
  if (on.description().hidden_tokens || on.n_tokens() == 0) {
    return Error{ErrorCode::kUnsupported, "no tokens by which to tell how its rows are stored"};
  }
  RotationErrors errors;
  errors.n_tokens = std::min(on.n_tokens(), kTokensToCompare);
  TQC_TRY_ASSIGN(errors.on, error_of_first(on, errors.n_tokens, model, n_threads));
  TQC_TRY_ASSIGN(errors.off, error_of_first(off, errors.n_tokens, model, n_threads));
  return errors;
}

Result<ForeignFindings> probe_foreign(const Console& console, const std::string& name,
                                      const cache::CacheReader& cache, std::int64_t n_probe,
                                      const ModelFacts& model, unsigned n_threads) {
  using enum cache::Standing;
  if (!model.model) return ForeignFindings();
  TQC_TRY(in_file(name, check_of_model(cache.description(), model.model->config)));
  const std::string& source = cache.description().identity.source_format;
  if (source.starts_with("transformers") || source.find("mlx") != std::string::npos) {
    TQC_TRY(in_file(name, interop::check_key_order(model.model->config.architecture)));
  }
  warn_if_beyond_context(name, cache.n_tokens(), model.model->config);
  if (cache.n_tokens() == 0) return ForeignFindings();
  if (n_probe == 0) {
    return ForeignFindings{"nothing was compared (--probe 0); its identity is stated, not checked",
                           kUnchecked};
  }
  if (cache.description().hidden_tokens) {
    return ForeignFindings{
        "its tokens are not known (--ids-file), so nothing says that it is of this model; its "
        "identity is stated, not checked",
        kUnchecked};
  }
  TQC_TRY_ASSIGN(cache::Cache loaded,
                 in_file(name, load(cache, *model.model, cache.n_tokens(), console.access.memory)));
  // Of a cache that cannot be cut shorter, the tokens behind its last context checkpoint.
  std::optional<cache::Cache> earlier;
  const bool can_be_cut = can_probe(loaded);
  if (const auto n = can_be_cut ? std::nullopt : tokens_of_earlier_state(cache)) {
    TQC_TRY_ASSIGN(earlier, in_file(name, load(cache, *model.model, *n, console.access.memory)));
  }
  // The reader of the other program's file has set the source format.
  const bool is_quantized = source.ends_with(")");
  const double limit = foreign_limit(*model.model, is_quantized);
  ProgressBar bar(console, "probing", Unit::kTokens);
  // Only llama.cpp shifts, and quantized values differ too much to tell.
  const bool may_be_shifted = source.starts_with("llama.cpp") && !is_quantized;
  double of_beginning = 0;
  if (may_be_shifted && can_be_cut) {
    TQC_TRY_ASSIGN(of_beginning,
                   in_file(name, error_of_beginning(loaded, *model.model, n_threads)));
  }
  const auto made =
      earlier ? probe_behind(*std::move(earlier), std::move(loaded), *model.model, n_probe, limit,
                             n_threads, bar.callback())
      : can_be_cut
          ? probe(std::move(loaded), *model.model, n_probe, limit, n_threads, bar.callback())
          : probe_alone(std::move(loaded), *model.model, n_probe, limit, n_threads, bar.callback());
  TQC_TRY_ASSIGN(const ProbeReport report, in_file(name, made));
  const double largest = largest_error(report);
  if (may_be_shifted && report.scope == ProbeScope::kWhole) of_beginning = largest;
  // Layer 0 of a shifted cache is that of its tokens. Values that have nothing to do with one
  // another differ by 1.4.
  const bool is_shifted = of_beginning > std::max(kShiftedLimit, limit) && largest < kFar &&
                          !report.wrong_token && report.layers[0].k_error <= limit &&
                          report.layers[0].v_error <= limit;
  if (is_shifted) {
    return ForeignFindings{
        fmt::format("its context was shifted: its values differ by {:.2g} from those that the "
                    "model computes from these tokens alone; a model can go on from it, but it is "
                    "not the beginning of other prompts",
                    of_beginning),
        kShifted};
  }
  if (const std::optional<std::string> complaint = report.complaint()) {
    return Error{ErrorCode::kMismatch,
                 *complaint + "; the file is of another model, or was not read correctly", name};
  }
  switch (report.scope) {
    case ProbeScope::kLastTokens:
      return ForeignFindings{
          fmt::format("its last {} tokens, computed again, differ by {:.2g} of their length",
                      report.n_tokens, largest),
          kNone};
    case ProbeScope::kWhole:
      return ForeignFindings{
          fmt::format("its last {} tokens, computed again with all tokens before them, differ by "
                      "{:.2g} of their length",
                      report.n_tokens, largest),
          kNone};
    case ProbeScope::kFirstLayer:
      return ForeignFindings{
          fmt::format("layer 0 fits its last {} tokens; the other layers depend on tokens that are "
                      "gone, and were not compared",
                      report.n_tokens),
          kNone};
    case ProbeScope::kNothing:
      break;
  }
  return ForeignFindings{
      "its state cannot be cut shorter, no context checkpoint is near its end, and nothing in "
      "layer 0 depends on the last tokens alone, so nothing says that it is of this model; its "
      "identity is stated, not checked",
      kUnchecked};
}

}  // namespace tqcache::cli
