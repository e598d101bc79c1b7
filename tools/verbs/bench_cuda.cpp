#include "verbs/bench_cuda.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cli/common_flags.h"
#include "cli/cuda_library.h"
#include "cli/model_facts.h"
#include "cli/text.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {
namespace {

using eval::Number;

struct Shape {
  std::int64_t head_dim = 128, n_kv_heads = 8, n_query_heads = 32;
};

// Rotations other than Hadamard's, and what comes with a model's own tables, have no fast kernel.
Result<tqcache_cuda_codec_spec> spec_of(const cache::TensorPlan& tensor, const Shape& shape,
                                        const char* which) {
  const codec::CodecSpec& from = tensor.codec;
  if (tensor.dense || from.mode != codec::Mode::kMse ||
      from.rotation != codec::TransformKind::kHadamard) {
    return unsupported(fmt::format(
        "--config: {} are not in mode mse with a Hadamard rotation, which is what is measured",
        which));
  }
  tqcache_cuda_codec_spec spec = {};
  spec.head_dim = static_cast<int>(shape.head_dim);
  spec.bits = from.bits;
  spec.is_values = which[0] == 'v' ? 1 : 0;
  spec.seed = from.seed;
  spec.rounds = from.rounds;
  spec.scale = static_cast<int>(from.scale);
  return spec;
}

struct Step {
  const char* name;
  double seconds;
  double bytes;  // read and written
};

}  // namespace

Result<ExitCode> bench_cuda(const Console& console, const CudaBench& bench,
                            const EvalOutput& output) {
  TQC_TRY(check_eval_output(output));
  if (bench.n_tokens % cache::kTokenBlock != 0 || bench.n_tokens > 1 << 24) {
    return usage_error(
        fmt::format("--prompt-tokens: {}; with --device cuda a multiple of {}, at most {}",
                    bench.n_tokens, cache::kTokenBlock, 1 << 24));
  }
  auto configuration = cache::parse_configuration(bench.configuration);
  if (!configuration) return in_context("--config", std::move(configuration).error());
  Shape shape;
  std::unique_ptr<model::Model> model;
  if (!bench.model.empty()) {
    TQC_TRY_ASSIGN(model, load_model(console, bench.model));
    shape = {model->config.head_dim, model->config.n_kv_heads, model->config.n_heads};
  }
  TQC_TRY_ASSIGN(const auto keys, spec_of(configuration->options.keys, shape, "keys"));
  TQC_TRY_ASSIGN(const auto values, spec_of(configuration->options.values, shape, "values"));
  TQC_TRY_ASSIGN(const CudaLibrary library, load_cuda_library());
  tqcache_cuda_device_info gpu = {};
  TQC_TRY(library.check(library.device(&gpu)));
  const tqcache_cuda_workload work = {bench.n_tokens, 1, static_cast<int>(shape.n_kv_heads),
                                      static_cast<int>(shape.n_query_heads), bench.n_runs};
  tqcache_cuda_rates rates = {};
  TQC_TRY(library.check(library.measure(&keys, &values, &work, &rates)));

  const auto dense = static_cast<double>(rates.dense_bytes);
  const auto packed = static_cast<double>(rates.packed_bytes);
  const double copy_rate = 2 * dense / rates.copy_seconds;
  std::vector<Step> steps = {{"copy", rates.copy_seconds, 2 * dense},
                             {"encode", rates.encode_seconds, dense + packed},
                             {"decode", rates.decode_seconds, dense + packed}};
  if (rates.attend_seconds > 0) steps.push_back({"attend", rates.attend_seconds, packed});

  eval::Report report;
  report.title = "Kernels of a GPU";
  report.facts = {
      {"GPU", gpu.name},
      {"code", fmt::format("for compute capability {}.{}", gpu.code / 10, gpu.code % 10)},
      {"layer", fmt::format("{} of {}, {} query heads", counted(shape.n_kv_heads, "kv head"),
                            shape.head_dim, shape.n_query_heads)},
      {"tokens", grouped(static_cast<std::uint64_t>(bench.n_tokens))},
      {"configuration", bench.configuration},
      {"bytes", fmt::format("{} dense in f16, {} packed", grouped(rates.dense_bytes),
                            grouped(rates.packed_bytes))}};
  eval::Table table{"Medians of keys and values together", {"step", "us", "GB/s", "% of copy"}, {}};
  Json rows = Json::array();
  for (const Step& step : steps) {
    const double rate = step.bytes / step.seconds;
    table.rows.push_back({std::string(step.name), Number{step.seconds * 1e6, 1},
                          Number{rate * 1e-9, 0}, Number{100 * rate / copy_rate, 1}});
    rows.push_back({{"step", step.name},
                    {"seconds", step.seconds},
                    {"bytes", step.bytes},
                    {"of_copy", rate / copy_rate}});
  }
  report.figures = {table};
  report.notes = {"Bytes of GB/s: read and written; of attend, the packed codes that it reads."};
  if (rates.attend_seconds == 0) {
    report.notes.push_back("attend: there is no kernel for this configuration or head_dim.");
  }
  add_run_facts(1, model.get(), report);
  const Json json = {{"schema", 1},
                     {"device", "cuda"},
                     {"gpu", gpu.name},
                     {"model", bench.model.empty() ? Json(nullptr) : Json(bench.model)},
                     {"configuration", bench.configuration},
                     {"tokens", bench.n_tokens},
                     {"head_dim", shape.head_dim},
                     {"kv_heads", shape.n_kv_heads},
                     {"query_heads", shape.n_query_heads},
                     {"repeats", bench.n_runs},
                     {"dense_bytes", rates.dense_bytes},
                     {"packed_bytes", rates.packed_bytes},
                     {"steps", rows}};
  TQC_TRY(give_report(console, output, report, json));
  return ExitCode::kDone;
}

}  // namespace tqcache::cli
