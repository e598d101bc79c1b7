// tools/verbs/eval_cache.cpp: errors of one cache against another by head, and of attention over
// them.

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "tqcache/eval.h"
#include "tqcache/model.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {
namespace {

constexpr const char* kEvalCacheExamples =
    R"(Errors are relative to A. Both caches must hold the same tokens, as far as both go. With --model,
which must be the model of A, the last tokens are run again over A, and their queries are scored
against both caches: the result shows how far attention weights and outputs differ. This needs the
tokens of A; a cache made with --no-tokens is refused.

Examples:
  tqcache eval cache book.kv book.tqkv
  tqcache eval cache book.kv book.tqkv -m model.gguf --queries 64 --html errors.html
)";

struct CacheFlags {
  CachePairFlags pair;
  std::string model;
  std::int64_t n_queries = 32;
  EvalOutput output;
};

using AttentionErrors = std::vector<eval::LayerAttentionError>;

Json tensor_json(const cache::Difference& tensor) {
  return {{"relative_mse", tensor.relative_mse},
          {"cosine_mean", tensor.mean_cosine},
          {"cosine_min", tensor.min_cosine},
          {"max_abs", tensor.max_abs}};
}

Json layer_json(const cache::LayerDifference& layer) {
  Json json;
  json["layer"] = layer.layer;
  json["k"] = tensor_json(layer.k);
  json["v"] = tensor_json(layer.v);
  json["kv_heads"] = Json::array();
  for (std::size_t head = 0; head < layer.k_heads.size(); ++head) {
    json["kv_heads"].push_back(
        {{"k", tensor_json(layer.k_heads[head])}, {"v", tensor_json(layer.v_heads[head])}});
  }
  return json;
}

Json attention_json(const AttentionErrors& layers) {
  Json json = Json::array();
  for (const eval::LayerAttentionError& layer : layers) {
    Json row;
    row["layer"] = layer.layer;
    row["queries"] = layer.heads.empty() ? 0 : layer.heads.front().n_queries;
    row["heads"] = Json::array();
    for (const eval::AttentionError& head : layer.heads) {
      row["heads"].push_back(
          {{"weights_kl", head.weights_kl}, {"output_error", head.output_error}});
    }
    json.push_back(std::move(row));
  }
  return json;
}

Json cache_json(const CacheFlags& flags, const cache::CacheDifference& diff,
                const std::optional<AttentionErrors>& attention) {
  Json json;
  json["schema"] = 1;
  json["a"] = flags.pair.a;
  json["b"] = flags.pair.b;
  json["model"] = flags.model.empty() ? Json(nullptr) : Json(flags.model);
  json["n_tokens"] = diff.n_tokens;
  json["n_tokens_checked"] = diff.n_tokens_checked;
  json["k"] = tensor_json(diff.k);
  json["v"] = tensor_json(diff.v);
  json["arrays_equal"] = diff.arrays_equal;
  json["layers"] = Json::array();
  for (const cache::LayerDifference& layer : diff.layers)
    json["layers"].push_back(layer_json(layer));
  json["attention"] = attention ? attention_json(*attention) : Json(nullptr);
  return json;
}

Result<std::optional<AttentionErrors>> measure_attention(const Console& console,
                                                         const CacheFlags& flags,
                                                         const CachePair& pair) {
  if (flags.model.empty()) return std::optional<AttentionErrors>();
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(console, flags.model));
  ProgressBar bar(console, "attention", Unit::kLayers);
  TQC_TRY_ASSIGN(
      AttentionErrors errors,
      in_file(flags.pair.a, eval::attention_errors(*model, pair.a, pair.b, flags.n_queries,
                                                   flags.pair.n_threads, bar.callback())));
  return std::optional(std::move(errors));
}

Result<ExitCode> run(const Console& console, const CacheFlags& flags) {
  TQC_TRY(check_eval_output(flags.output));
  TQC_TRY_ASSIGN(const CachePair pair, load_cache_pair(console, flags.pair));
  TQC_TRY_ASSIGN(const std::optional<AttentionErrors> attention,
                 measure_attention(console, flags, pair));
  eval::Report report = eval::cache_report(pair.diff, attention);
  report.facts.insert(report.facts.begin(), {{"reference", flags.pair.a}, {"cache", flags.pair.b}});
  if (!flags.model.empty()) report.facts.emplace_back("model", flags.model);
  add_run_facts(flags.pair.n_threads, nullptr, report);
  TQC_TRY(give_report(console, flags.output, report, cache_json(flags, pair.diff, attention)));
  return ExitCode::kDone;
}

}  // namespace

Action define_eval_cache(FlagSet& app) {
  const auto flags = std::make_shared<CacheFlags>();
  add_cache_pair_flags(app, flags->pair);
  add_model_flag(app, flags->model, false);
  app.add("--queries", flags->n_queries, "Number of last tokens whose queries are scored")
      ->type_name("N")
      ->range(std::int64_t{2}, cache::kTokenBlock)
      ->show_default();
  add_eval_output_flags(app, flags->output);
  app.footer(kEvalCacheExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
