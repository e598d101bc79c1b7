#pragma once
// session/session.h: A model at work on a cache: resumes it, reads prompts, generates text.
//
//   TQC_TRY_ASSIGN(auto session, session::Session::open({.model = "m.gguf", .cache =
//   "book.tqkv"})); TQC_TRY_ASSIGN(const auto ids, session->model().tokenizer.encode(" Then", {}));
//   TQC_TRY(session->feed(ids));
//   std::vector<std::int32_t> text;
//   session->generate(50, true, [&](std::int32_t id) { return text.push_back(id), Result(true); });
//   TQC_TRY(format::write_cache_file(session->cache(), "more.tqkv", {}, {}));
//
// Nothing is printed: what a user may want to know is returned. Threads: one at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/quantize.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/loading/model.h"
#include "tqcache/model/sampler.h"
#include "tqcache/session/prompt_store.h"

namespace tqcache::session {

struct SessionOptions {
  std::string model = {};  // GGUF file, or Hugging Face folder
  std::string cache = {};  // .tqkv file; empty: start with an empty cache
  std::optional<cache::ConvertOptions> quantization = {};  // of an empty cache; absent: dense f16
  model::SamplerOptions sampling = {};
  unsigned n_threads = 0;  // 0: all processors
  model::Scorer scorer = model::Scorer::kFast;
  bool map = false;  // map uncompressed sections of the file into memory instead of reading them
  std::optional<std::int64_t> first_tokens = {};  // of the cache; absent: all
};

enum class StopReason { kEndToken, kStopString, kLength, kContextFull, kInterrupted, kFailed };

// "end_token", "stop_string", ...
std::string_view stop_word(StopReason reason);

struct Generation {
  std::vector<std::int32_t> ids;  // with the end token
  double seconds = 0;             // from the first token to the last one
  StopReason stop = StopReason::kFailed;
  std::optional<Error> failure;  // with kInterrupted and kFailed
};

// Called with each token but end tokens, as soon as it is chosen. False: stop behind it, as for a
// stop string. An error ends the generation too.
using TokenSink = std::function<Result<bool>(std::int32_t id)>;

// What became of a cache whose tokens were compared with a prompt.
struct PrefixReuse {
  std::int64_t n_before = 0;  // tokens that the cache had
  std::int64_t n_kept = 0;    // tokens that it has now
  std::int64_t n_common = 0;  // tokens that both begin with
  std::string obstacle;       // why the cache could not be truncated there; empty: it could
};

class Session {
 public:
  // Loads the model and, if one is named, the cache, and checks that they belong together.
  // Errors: those of loading and reading, with the file to blame; kMismatch; kInvalidArgument (a
  //         logit bias for a token that the model lacks).
  static Result<std::unique_ptr<Session>> open(const SessionOptions& options,
                                               const Progress& reading = {});

  // With a model that is loaded and a cache that was read elsewhere; without a cache, an empty one.
  // `options.model`, `cache`, `map` and `first_tokens` are not used.
  // Errors: kMismatch, kInvalidArgument, as above.
  static Result<std::unique_ptr<Session>> start(std::unique_ptr<model::Model> model,
                                                std::optional<cache::Cache> cache,
                                                const SessionOptions& options);

  const model::Model& model() const { return *model_; }
  const cache::Cache& cache() const { return cache_; }
  cache::Cache& cache() { return cache_; }
  model::KernelPath kernel_path() const { return model::kernel_path(cache_, scorer_); }

  // Loads the longest prefix of the prompt that the store has, and adds new blocks to the store as
  // the cache grows.
  // Requires: the cache is empty; `store` outlives this.
  // Errors:   as PromptStore::begin().
  Result<void> begin_from(PromptStore& store, std::span<const std::int32_t> prompt,
                          const Progress& progress = {});

  // Truncates the cache to the tokens that the prompt begins with. A cache that cannot be truncated
  // there, because of a recurrent state or a sliding window, is replaced by an empty dense one.
  // Requires: the tokens of the cache are known.
  Result<PrefixReuse> keep_common_prefix(std::span<const std::int32_t> prompt);

  // Appends tokens to the cache. Requires: ids not empty.
  Result<void> feed(std::span<const std::int32_t> ids, const Progress& progress = {});

  // Computes the logits of the last token of a cache, to generate from there without a prompt.
  Result<void> resume();

  // Chooses up to `n` tokens, and appends each to the cache before choosing the next. Appends the
  // last one too if `append_last`: a cache that is saved must hold all of the text.
  //
  // Requires: feed() or resume() came before.
  Generation generate(std::int64_t n, bool append_last, const TokenSink& sink);

  // Bytes of memory that decoding works on: weights, cache, scratch.
  std::uint64_t working_set_bytes() const;

 private:
  Session(std::unique_ptr<model::Model> model, cache::Cache cache, const SessionOptions& options);

  bool is_end_token(std::int32_t id) const;
  Result<void> append(std::int32_t id);
  std::optional<StopReason> choose(std::int64_t n, const TokenSink& sink, Generation& generation);

  std::unique_ptr<model::Model> model_;
  cache::Cache cache_;
  PromptStore* store_ = nullptr;
  model::Scorer scorer_;
  model::Decoder decoder_;
  model::Sampler sampler_;
  std::vector<std::int32_t> end_tokens_;
  std::span<const float> logits_;  // of the cache's last token, in the decoder's memory
};

// Number of tokens that both begin with.
std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// Bytes of memory that decoding works on: weights, cache, scratch.
std::uint64_t working_set_bytes(const model::Model& model, const cache::ByteCount& cache,
                                std::uint64_t scratch_bytes);

}  // namespace tqcache::session
