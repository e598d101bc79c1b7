#pragma once
// tools/cli/prompt_store.h: the store that a session begins from, and that it gives what is new.
//
// Nothing that goes wrong with a store is an error of the session: there is less that was computed
// before, or nothing, and standard error says so once. Only --store-name is a promise: what cannot
// be kept under it is a failure, as with --save.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/outcome.h"
#include "cli/prompt_store_flags.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/manifest.h"
#include "tqcache/model/loading/model.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/library/background_put.h"
#include "tqcache/store/library/library.h"

namespace tqcache::cli {

struct PromptStoreOptions {
  PromptStoreChoice choice;
  // Takes only what has the form of the session's own cache, and not whatever is longest.
  bool own_form = false;
  bool replace_name = false;  // a record of that name that is there
  unsigned n_threads = 0;
};

class PromptStore {
 public:
  // Opens the store. Gives none, and says why, when it cannot be reached.
  // Errors: kInvalidArgument (a URL that is none, or of an engine that is not built in).
  static Outcome<std::unique_ptr<PromptStore>> open(const Console& console,
                                                    PromptStoreOptions options);

  // Puts the longest stored beginning of `prompt` in the place of `cache`, which is empty, and says
  // how much of the prompt that is.
  // Errors: kInterrupted; kInvalidArgument when the name is taken.
  Outcome<Done> begin(const model::Model& model, std::span<const std::int32_t> prompt,
                      cache::Cache& cache);

  // Shows it the cache as it grows (store/background_put.h).
  void watch(const cache::Cache& cache);
  void end_prompt(const cache::Cache& cache);

  // Waits, but not long, until what is new is put; keeps the whole under its name, if there is one.
  // Errors: those of putting it under its name.
  Outcome<Done> finish(const cache::Cache& cache);

  std::int64_t reused_tokens() const { return usage_.found_tokens; }
  Json json() const;

 private:
  PromptStore(const Console& console, PromptStoreOptions options,
              std::unique_ptr<store::Backend> backend);
  Outcome<Done> check_name();
  Outcome<Done> keep_name(const cache::Cache& cache);
  Result<std::optional<store::LoadedPrefix>> look_up(const model::Model& model,
                                                     std::span<const std::int32_t> prompt,
                                                     const cache::Cache& empty);
  void take(store::LoadedPrefix beginning, cache::Cache& cache);
  void finish_putting(const cache::Cache& cache);
  void note_usage();
  void give_up(const Error& error);
  void tell(const std::string& warning);

  const Console& console_;
  PromptStoreOptions options_;
  std::unique_ptr<store::Backend> backend_;
  std::vector<std::string> warnings_;  // that the library told of
  store::Library library_;
  std::optional<store::BackgroundPut> putting_;
  store::BackgroundPutReport put_;
  store::UsageNote usage_;
  bool began_ = false;
  bool gave_up_ = false;
  std::string told_;  // what went wrong first
};

}  // namespace tqcache::cli
