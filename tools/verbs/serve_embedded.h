#pragma once
// tools/verbs/serve_embedded.h: the part of `tqcache serve` that answers from a model of its own.

#include <cstdint>
#include <string>

#include "cli/flags.h"
#include "cli/template_flags.h"
#include "tqcache/decoder.h"

namespace tqcache::cli {

struct EmbeddedFlags {
  std::string model_id;
  TemplateFlags templates;
  unsigned n_threads = 0;
  model::Scorer scorer = model::Scorer::kFast;
  model::ActivationBits activations = model::ActivationBits::k16;
  std::int64_t max_waiting = 16;
  bool verify_digests = false;
  bool shows_text = false;
};

// All except --model, --threads and --max-memory.
void add_embedded_flags(FlagSet& app, EmbeddedFlags& flags);

}  // namespace tqcache::cli

#ifdef TQCACHE_SERVE

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "cli/console.h"
#include "tqcache/serve/embedded/engine_api.h"

namespace tqcache::cli {

// What the engine shares with the proxy.
struct EmbeddedStore {
  std::string url;                              // empty: no store
  std::string config = "lossless";              // quantization settings of new caches
  bool config_is_given = false;                 // only prefixes with these settings are taken
  std::optional<std::uint64_t> max_bytes = {};  // of the store
};

// Loads the model. Errors: kInvalidArgument, naming the flag; those of Engine::open().
Result<std::unique_ptr<serve::Engine>> open_engine(const Console& console,
                                                   const EmbeddedFlags& flags,
                                                   const std::string& model,
                                                   const EmbeddedStore& store, serve::Log& log,
                                                   serve::PromptLedger& ledger,
                                                   serve::HitScores& scores);

// The largest body of a request that is read unless --max-body says otherwise.
std::uint64_t default_max_body(const serve::Engine& engine);

// Keeps the store below a limit, on a thread of its own, while the engine adds to it.
class StoreUpkeep {
 public:
  // Does nothing without a limit. What has the lowest scores goes first. All must outlive this.
  StoreUpkeep(const Console& console, const EmbeddedStore& store, serve::Engine& engine,
              const serve::HitScores& scores, serve::Log& log);
  ~StoreUpkeep();
  StoreUpkeep(const StoreUpkeep&) = delete;
  StoreUpkeep& operator=(const StoreUpkeep&) = delete;

 private:
  void work();
  Result<void> collect();

  const Console& console_;
  const EmbeddedStore& store_;
  serve::Engine& engine_;
  const serve::HitScores& scores_;
  serve::Log& log_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace tqcache::cli

#endif
