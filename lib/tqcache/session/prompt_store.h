#pragma once
// session/prompt_store.h: The store that a session takes prefixes from and adds new blocks to.
//
// Trouble with a store is no error of the session: it computes what the store lacks, and warns
// once. Only saving under a name is a promise: if that fails, finish() returns the error.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/model/loading/model.h"
#include "tqcache/store/library/background_put.h"
#include "tqcache/store/library/library.h"

namespace tqcache::session {

struct PromptStoreOptions {
  std::string url;            // "dir:PATH", "redis://HOST", "s3://BUCKET"
  std::string salt = {};      // of the tenant; empty: the tenant of all who have no salt
  bool read_only = false;     // add nothing
  std::string name = {};      // finish() saves the whole cache under this name; empty: does not
  bool replace_name = false;  // overwrite the name if another prompt has it
  // Take only a prefix with the quantization of the session's own cache, and not the longest one.
  bool same_quantization = false;
  unsigned n_threads = 0;
  // Called at most once, with "store dir:prompts" and the message.
  std::function<void(const std::string& where, const std::string& message)> on_warning = {};
  // False: the user wants to stop. finish() then leaves undone what takes time.
  std::function<bool()> keep_going = [] { return true; };
};

class PromptStore {
 public:
  // Opens the store. Returns null, after a warning, if it cannot be reached and no name is asked
  // for. Errors: kInvalidArgument (a bad URL, or a backend that is not built in); with a name,
  // those of
  //         opening.
  static Result<std::unique_ptr<PromptStore>> open(PromptStoreOptions options);

  // Replaces `cache`, which is empty, by the longest stored prefix of `prompt`.
  // Errors: kInterrupted; kInvalidArgument when the name is taken.
  Result<void> begin(const model::Model& model, std::span<const std::int32_t> prompt,
                     cache::Cache& cache, const Progress& progress = {});

  // Looks at the cache as it grows (store/library/background_put.h).
  void watch(const cache::Cache& cache);
  void end_prompt(const cache::Cache& cache);

  // Waits a few seconds until new blocks are stored, then saves the cache under its name, if any.
  // Errors: those of saving under the name.
  Result<void> finish(const cache::Cache& cache, const Progress& progress = {});

  ~PromptStore();

  const std::string& url() const;
  const std::string& name() const;
  bool gave_up() const;  // the store failed and is no longer used
  std::int64_t reused_tokens() const;
  std::int64_t prompt_tokens() const;
  std::uint64_t read_bytes() const;
  // Layers of the prefix that begin() found; empty: none.
  const std::vector<cache::LayerDesc>& found_layers() const;
  const store::BackgroundPutReport& stored() const;
  // What finish() saved under the name.
  const std::optional<store::PutReport>& named() const;
  const std::string& warning() const;  // empty: none

 private:
  struct State;
  explicit PromptStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::session
