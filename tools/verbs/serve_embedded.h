#pragma once
// tools/verbs/serve_embedded.h: the part of `tqcache serve` that answers from a model of its own.

#include <cstdint>
#include <string>

#include "cli/flags.h"
#include "tqcache/decoder.h"

namespace tqcache::cli {

struct EmbeddedFlags {
  std::string model;  // empty: requests go to an upstream server
  std::string model_id;
  std::string chat_template;
  unsigned n_threads = 0;
  model::Scorer scorer = model::Scorer::kFast;
  std::int64_t max_waiting = 16;
  bool verify_digests = false;
  bool shows_text = false;
};

// All except --threads and --max-memory.
void add_embedded_flags(FlagSet& app, EmbeddedFlags& flags);

}  // namespace tqcache::cli

#ifdef TQCACHE_SERVE

#include <functional>
#include <memory>

#include "cli/console.h"
#include "tqcache/serve/embedded/engine_api.h"

namespace tqcache::cli {

// What the engine shares with the proxy.
struct EmbeddedStore {
  std::string url;                  // empty: no store
  std::string config = "lossless";  // quantization settings of new caches
  bool config_is_given = false;     // only prefixes with these settings are taken
  bool read_only = false;
};

// Loads the model. Errors: kInvalidArgument, naming the flag; those of Engine::open().
Result<std::unique_ptr<serve::Engine>> open_engine(const Console& console,
                                                   const EmbeddedFlags& flags,
                                                   const EmbeddedStore& store, serve::Log& log);

}  // namespace tqcache::cli

#endif
