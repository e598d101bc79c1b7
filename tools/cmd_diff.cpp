// tools/cmd_diff.cpp: how far apart two caches of the same prompt are.

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cache_io.h"
#include "cli.h"
#include "text.h"
#include "tqcache/cache/diff.h"

namespace tqcache::cli {
namespace {

constexpr const char* kExamples =
    R"(Errors are relative to A. The exit code is 0 whether the caches are equal or
not; 22 when they are of different prompts or shapes.

Examples:
  tqcache diff book.kv book.tqkv
  tqcache diff book.kv book.tqkv --tokens 1000
  tqcache diff book.kv book.tqkv --json
)";

struct DiffFlags {
  std::string a;
  std::string b;
  std::optional<std::int64_t> first_tokens;
  unsigned n_threads = 0;
};

Json difference_json(const cache::Difference& difference) {
  Json json;
  json["relative_mse"] = difference.relative_mse;
  json["cosine"] = difference.cosine;
  json["max_abs"] = difference.max_abs;
  json["n_values"] = difference.n_values;
  return json;
}

Json diff_json(const DiffFlags& flags, const cache::CacheDifference& diff) {
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
    text += fmt::format("only of {} is it known that both caches hold the same tokens\n",
                        grouped(static_cast<std::uint64_t>(diff.n_tokens_checked)));
  }
  text += fmt::format("{:>5}  {:>10}  {:>9}  {:>10}  {:>10}  {:>9}  {:>10}\n", "layer",
                      "k rel. mse", "k cosine", "k max", "v rel. mse", "v cosine", "v max");
  for (const cache::LayerDifference& layer : diff.layers) {
    text += row(std::to_string(layer.layer), layer.k, layer.v);
  }
  text += row("all", diff.k, diff.v);
  if (!diff.arrays_equal) text += "state of layers without full attention differs\n";
  return text;
}

Outcome<ExitCode> run(const Console& console, const DiffFlags& flags) {
  if (flags.a == "-" && flags.b == "-") return usage_error("only one of the two can be -");
  format::ReadOptions read;
  read.n_threads = flags.n_threads;
  read.first_tokens = flags.first_tokens;
  TQC_TRY_ASSIGN(const cache::Cache a, load_cache(console, flags.a, read));
  TQC_TRY_ASSIGN(const cache::Cache b, load_cache(console, flags.b, read));
  TQC_TRY_ASSIGN(const cache::CacheDifference diff,
                 in_file(flags.b, cache::diff(a, b, flags.n_threads)));
  TQC_TRY(console.json ? print_json(diff_json(flags, diff)) : print(diff_text(diff)));
  return ExitCode::kDone;
}

}  // namespace

Action define_diff(CLI::App& app) {
  const auto flags = std::make_shared<DiffFlags>();
  app.add_option("a", flags->a, "The reference")->type_name("")->check(file_name())->required();
  app.add_option("b", flags->b, "The cache to compare with it")
      ->type_name("")
      ->check(file_name())
      ->required();
  add_first_tokens_flag(app, flags->first_tokens);
  add_threads_flag(app, flags->n_threads);
  app.footer(kExamples);
  return [flags](const Console& console) { return run(console, *flags); };
}

}  // namespace tqcache::cli
