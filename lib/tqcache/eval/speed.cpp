#include "tqcache/eval/speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>
#include <variant>

#include "tqcache/cache.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/eval/random_choice.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace {

std::int64_t packed_blocks(const cache::Cache& cache) {
  std::int64_t n = 0;
  for (const cache::Layer& any : cache.layers) {
    const cache::AttentionLayer* layer = cache::attention_of(any);
    if (layer == nullptr) continue;
    n += cache::packed_block_count(layer->k) + cache::packed_block_count(layer->v);
  }
  return n;
}

Error nothing_quantized(const std::string& name, std::int64_t n_tokens) {
  return invalid(fmt::format(
      "{}: nothing was quantized: {} tokens fill no token block, which takes {} and one "
      "more, or K and V both stay dense",
      name, n_tokens, cache::kTokenBlock));
}

class SpeedMeasurement {
 public:
  // Requires: all arguments outlive this.
  SpeedMeasurement(const model::Model& model, std::span<const std::int32_t> prompt,
                   std::span<const std::int32_t> continuation, const SpeedOptions& options,
                   const SecondsClock& now)
      : model_(model),
        prompt_(prompt),
        continuation_(continuation),
        options_(options),
        now_(now),
        decoder_(model, options.n_threads, options.scorer, options.activations) {}

  std::size_t n_tokens() const { return prompt_.size() + continuation_.size(); }

  // Fills in the fields of `speed` that are the same in every run, and returns the times.
  Result<SpeedRun> run(const SpeedCase& one, const TotalProgress& work, Speed& speed) {
    TQC_TRY_ASSIGN(cache::Cache cache, make_empty(one));
    SpeedRun times;
    const double start = now_();
    TQC_TRY(decoder_.prefill(cache, prompt_,
                             [&](std::uint64_t done, std::uint64_t) { return work.report(done); }));
    const double between = now_();
    TQC_TRY(step_through(cache, work));
    times = {between - start, now_() - between};
    speed.packed_blocks = packed_blocks(cache);
    if (one.must_pack && speed.packed_blocks == 0)
      return nothing_quantized(one.name, cache.n_tokens());
    speed.cache_bytes = cache::byte_count(cache);
    speed.route = model::kernel_path(cache, options_.scorer);
    speed.scratch_bytes = decoder_.scratch_bytes();
    return times;
  }

 private:
  Result<cache::Cache> make_empty(const SpeedCase& one) const {
    TQC_TRY_ASSIGN(cache::Cache dense, model::make_cache(model_, Dtype::kF16));
    auto made = cache::convert(std::move(dense), one.options);
    if (!made) return in_context(one.name, std::move(made).error());
    return made;
  }

  Result<void> step_through(cache::Cache& cache, const TotalProgress& work) {
    std::uint64_t done = prompt_.size();
    for (const std::int32_t id : continuation_) {
      TQC_TRY(decoder_.decode_step(cache, id));
      if (!work.report(++done)) return interrupted_error();
    }
    return {};
  }

  const model::Model& model_;
  std::span<const std::int32_t> prompt_, continuation_;
  const SpeedOptions& options_;
  const SecondsClock& now_;
  model::Decoder decoder_;
};

}  // namespace

SecondsClock steady_clock() {
  return [] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  };
}

Result<std::vector<Speed>> measure_speed(const model::Model& model,
                                         std::span<const SpeedCase> cases,
                                         std::span<const std::int32_t> prompt,
                                         std::span<const std::int32_t> continuation,
                                         const SpeedOptions& options, const Progress& progress,
                                         const SecondsClock& now) {
  assert(!prompt.empty() && !continuation.empty() && options.n_repeats >= 1);
  SpeedMeasurement measurement(model, prompt, continuation, options, now);
  const auto n_turns = static_cast<std::size_t>(options.n_warmups + options.n_repeats);
  TotalProgress work(progress, n_turns * cases.size() * measurement.n_tokens());
  std::vector<Speed> speeds(cases.size());
  for (std::size_t turn = 0; turn < n_turns; ++turn) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      TQC_TRY_ASSIGN(const SpeedRun run, measurement.run(cases[i], work, speeds[i]));
      work.finish_run(measurement.n_tokens());
      if (turn >= static_cast<std::size_t>(options.n_warmups)) speeds[i].runs.push_back(run);
    }
  }
  return speeds;
}

double median(std::vector<double> values) {
  assert(!values.empty());
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

SpeedRun median_run(const Speed& speed) {
  const auto median_of = [&](double SpeedRun::*seconds) {
    std::vector<double> values;
    for (const SpeedRun& run : speed.runs) values.push_back(run.*seconds);
    return median(std::move(values));
  };
  return {median_of(&SpeedRun::prompt_seconds), median_of(&SpeedRun::generation_seconds)};
}

std::vector<std::int32_t> random_ids(std::int64_t n, std::int64_t vocab_size, std::uint64_t seed) {
  Draw draw(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(draw.below(static_cast<std::uint64_t>(vocab_size)));
  }
  return ids;
}

}  // namespace tqcache::eval
