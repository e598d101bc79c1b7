// tools/verbs/cmd_diff.cpp: the difference between two caches of one prompt.

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/text.h"
#include "cli/verb.h"
#include "tqcache/cache.h"

namespace tqcache::cli {
namespace {

constexpr const char* kDiffExamples =
    R"(Errors are relative to A. The exit code is 0 whether the caches are equal or not, and 22 if they
hold different prompts or shapes.

Examples:
  tqcache diff book.kv book.tqkv
  tqcache diff book.kv book.tqkv --tokens 1000
  tqcache diff book.kv book.tqkv --json
)";

Json difference_json(const cache::Difference& difference) {
  Json json;
  json["relative_mse"] = difference.relative_mse;
  json["cosine"] = difference.cosine;
  json["max_abs"] = difference.max_abs;
  json["n_values"] = difference.n_values;
  return json;
}

Json diff_json(const CachePairFlags& flags, const cache::CacheDifference& diff) {
  Json json;
  json["schema"] = 1;
  json["a"] = flags.a;
  json["b"] = flags.b;
  json["n_tokens"] = diff.n_tokens;
  json["n_tokens_checked"] = diff.n_tokens_checked;
  json["k"] = difference_json(diff.k);
  json["v"] = difference_json(diff.v);
  json["arrays_equal"] = diff.arrays_equal;
  json["layers"] = Json::array();
  for (const cache::LayerDifference& layer : diff.layers) {
    Json row;
    row["layer"] = layer.layer;
    row["k"] = difference_json(layer.k);
    row["v"] = difference_json(layer.v);
    json["layers"].push_back(std::move(row));
  }
  return json;
}

std::string row(std::string_view label, const cache::Difference& k, const cache::Difference& v) {
  return fmt::format("{:>5}  {:>10.3e}  {:>9.6f}  {:>10.3e}  {:>10.3e}  {:>9.6f}  {:>10.3e}\n",
                     label, k.relative_mse, k.cosine, k.max_abs, v.relative_mse, v.cosine,
                     v.max_abs);
}

std::string diff_text(const cache::CacheDifference& diff) {
  std::string text =
      fmt::format("{} tokens compared\n", grouped(static_cast<std::uint64_t>(diff.n_tokens)));
  if (diff.n_tokens_checked < diff.n_tokens) {
    text += fmt::format("only {} of them are known to be the same tokens in both caches\n",
                        grouped(static_cast<std::uint64_t>(diff.n_tokens_checked)));
  }
  text += fmt::format("{:>5}  {:>10}  {:>9}  {:>10}  {:>10}  {:>9}  {:>10}\n", "layer",
                      "k rel. mse", "k cosine", "k max", "v rel. mse", "v cosine", "v max");
  for (const cache::LayerDifference& layer : diff.layers) {
    text += row(std::to_string(layer.layer), layer.k, layer.v);
  }
  text += row("all", diff.k, diff.v);
  if (!diff.arrays_equal) text += "the state of layers without full attention differs\n";
  return text;
}

Result<ExitCode> run(const Console& console, const CachePairFlags& flags) {
  TQC_TRY_ASSIGN(const CachePair pair, load_cache_pair(console, flags));
  TQC_TRY(console.json ? print_json(diff_json(flags, pair.diff)) : print(diff_text(pair.diff)));
  return ExitCode::kDone;
}

}  // namespace

Action define_diff(FlagSet& app) {
  const auto flags = std::make_shared<CachePairFlags>();
  add_cache_pair_flags(app, *flags);
  app.footer(kDiffExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
