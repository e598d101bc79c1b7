#pragma once
// store/generating.h: a session of a small model that begins from a store, as generate has it.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/fixture_model.h"
#include "support/cache_builder.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/decoder.h"
#include "tqcache/quantize.h"
#include "tqcache/store.h"
#include "tqcache/store/library/background_put.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

using Ids = std::vector<std::int32_t>;

// A small model that belongs to somebody, with room for several token blocks.
struct StoreModel : FixtureModel {
  explicit StoreModel(const std::string& name) : FixtureModel(name) {
    config.context_length = 4096;
  }

  cache::Identity identity() const {
    cache::Identity identity;
    identity.architecture = "fixture";
    identity.rope = config.rope;
    identity.weights_fingerprint.fill(std::byte{7});
    identity.tokenizer_fingerprint.fill(std::byte{9});
    return identity;
  }
  cache::Cache empty(const cache::ConvertOptions* settings = nullptr) const {
    cache::Cache cache = must(model::make_cache(config, identity(), Dtype::kF16));
    return settings == nullptr ? std::move(cache)
                               : must(cache::convert(std::move(cache), *settings));
  }
};

struct StoreRun {
  std::int64_t reused = 0;
  Ids ids;                    // that were chosen
  std::vector<float> logits;  // of all of them
  Bytes file;                 // the cache in the end
  store::BackgroundPutReport put;
  std::vector<std::string> warnings;
  bool looked_up = true;  // and the store answered
};

struct StoreRunOptions {
  std::int64_t n_new = 4;
  const cache::ConvertOptions* settings = nullptr;
  bool any_form = false;
  std::string salt = {};
  std::uint64_t queue_bytes = std::uint64_t{64} << 20;
  std::int64_t checkpoint_tokens = 4096;
  std::chrono::milliseconds limit{60000};
  std::function<bool()> goes_on = [] { return true; };
};

namespace store_run {

inline std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// `watch` is shown the cache whenever it has grown.
template <class Watch>
void work(const StoreModel& model, cache::Cache& cache, std::span<const std::int32_t> ids,
          std::int64_t n_new, StoreRun& run, const Watch& watch, const Watch& end_prompt) {
  model::Decoder decoder = model.decoder();
  auto logits = must(decoder.prefill(cache, ids, [&](std::uint64_t, std::uint64_t) {
    watch();
    return true;
  }));
  end_prompt();
  for (std::int64_t i = 0; i < n_new; ++i) {
    run.logits.insert(run.logits.end(), logits.begin(), logits.end());
    run.ids.push_back(best(logits));
    logits = must(decoder.decode_step(cache, run.ids.back()));
    watch();
  }
  run.file = must(format::write_cache_bytes(cache, {}));
}

}  // namespace store_run

// Reads the whole prompt, and writes on.
inline StoreRun run_alone(const StoreModel& model, const Ids& prompt,
                          const StoreRunOptions& options = {}) {
  StoreRun run;
  cache::Cache cache = model.empty(options.settings);
  const std::function<void()> nothing = [] {};
  store_run::work(model, cache, prompt, options.n_new, run, nothing, nothing);
  return run;
}

// The same from a store.
inline StoreRun run_from(store::Backend& backend, const StoreModel& model, const Ids& prompt,
                         const StoreRunOptions& options = {}) {
  StoreRun run;
  cache::Cache cache = model.empty(options.settings);
  const std::vector<cache::LayerDesc> settings = cache::describe(cache).layers;
  store::Library library(
      backend, {.salt = options.salt, .n_threads = 1, .on_warning = [&](const std::string& text) {
                  run.warnings.push_back(text);
                }});
  store::BackgroundPut put(backend, {.salt = options.salt,
                                     .queue_bytes = options.queue_bytes,
                                     .checkpoint_tokens = options.checkpoint_tokens});
  auto found = store::load_prefix(library, model.identity(), prompt,
                                  {.settings = options.any_form ? nullptr : &settings}, 1);
  run.looked_up = found.ok();
  if (found && *found) {
    put.begin(**found);
    cache = std::move((*found)->cache);
  }
  run.reused = cache.n_tokens();
  const std::function<void()> watch = [&] { put.watch(cache); };
  const std::function<void()> end_prompt = [&] { put.end_prompt(cache); };
  store_run::work(model, cache, std::span(prompt).subspan(static_cast<std::size_t>(run.reused)),
                  options.n_new, run, watch, end_prompt);
  run.put = put.finish(cache, options.limit, options.goes_on);
  return run;
}

}  // namespace tqcache::test
