#pragma once
// tools/cli/session.h: a model at work on a cache, for generate and chat.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/growing_file.h"
#include "cli/outcome.h"
#include "cli/prompt_store.h"
#include "cli/sampling_flags.h"
#include "tqcache/cache/convert.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/loading/model.h"
#include "tqcache/model/sampler.h"

namespace tqcache::cli {

struct SessionOptions {
  std::string model;
  std::string cache;                               // empty: start with an empty cache
  std::optional<cache::ConvertOptions> form = {};  // of an empty cache; absent: dense
  SamplingFlags sampling;
  unsigned n_threads = 0;
  model::Scorer scorer = model::Scorer::kFast;
  bool map = false;  // score what stands in the file uncompressed where it is
  std::optional<std::int64_t> first_tokens;  // of the cache; absent: all
};

enum class StopReason { kEndToken, kStopString, kLength, kContextFull, kInterrupted, kFailed };
std::string_view stop_word(StopReason reason);

struct Generation {
  std::vector<std::int32_t> ids;  // an end token included
  double seconds = 0;             // from the first token to the last one
  StopReason stop = StopReason::kFailed;
  std::optional<Failure> failure;  // with kInterrupted and kFailed
};

// Takes each token that is not an end token, as soon as it is chosen. False: the text ends with it,
// as a stop string wants.
using TokenSink = std::function<Outcome<bool>(std::int32_t id)>;

class Session {
 public:
  // Loads the model, and the cache if one is named, and checks that they belong together. A file
  // that is to grow with the session is `growing`: options.cache names it, too.
  // Requires: check_sampling(options.sampling).
  static Outcome<std::unique_ptr<Session>> open(const Console& console,
                                                const SessionOptions& options,
                                                GrowingFile* growing = nullptr);

  const model::Model& model() const { return *model_; }
  const cache::Cache& cache() const { return cache_; }
  cache::Cache& cache() { return cache_; }
  model::KernelPath kernel_path() const { return model::kernel_path(cache_, scorer_); }

  // Begins with what a store has of the prompt, and shows it the cache as it grows.
  // Requires: the cache is empty; `store` outlives this.
  // Errors:   as PromptStore::begin().
  Outcome<Done> begin_from(PromptStore& store, std::span<const std::int32_t> prompt);

  // Appends tokens to the cache. Requires: ids not empty.
  Outcome<Done> feed(std::span<const std::int32_t> ids);

  // Makes the last token of a loaded cache the one to go on from.
  Outcome<Done> go_on();

  // Chooses up to `n` tokens, appending each to the cache before the next is chosen. The last one
  // is appended too if `append_last`: a cache that is saved must hold all of the text.
  //
  // Requires: feed() or go_on() came before.
  Generation generate(std::int64_t n, bool append_last, const TokenSink& sink);

  // Bytes of memory that decoding works on: weights, cache, scratch.
  std::uint64_t working_set_bytes() const;

 private:
  Session(const Console& console, std::unique_ptr<model::Model> model, cache::Cache cache,
          const SessionOptions& options);

  void tell_route() const;
  bool is_end_token(std::int32_t id) const;
  Outcome<Done> append(std::int32_t id);
  std::optional<StopReason> choose(std::int64_t n, const TokenSink& sink, Generation& generation);

  const Console& console_;
  std::unique_ptr<model::Model> model_;
  cache::Cache cache_;
  PromptStore* store_ = nullptr;
  model::Scorer scorer_;
  model::Decoder decoder_;
  model::Sampler sampler_;
  std::vector<std::int32_t> end_tokens_;
  std::span<const float> logits_;  // of the cache's last token, in the decoder's memory
};

}  // namespace tqcache::cli
