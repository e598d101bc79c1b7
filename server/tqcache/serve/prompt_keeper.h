#pragma once
// server/tqcache/serve/prompt_keeper.h: prompts of llama-server in a store: slot files into the
// store, and stored prefixes back into slot files.

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/error.h"
#include "tqcache/interop.h"
#include "tqcache/quantize.h"
#include "tqcache/serve/hit_scores.h"
#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/store.h"

namespace tqcache::serve {

struct KeeperOptions {
  std::string salt = {};  // of the store's tenant; with keys: secret_salt()
  // "lossless", "turbo" (4 bits), "archive" (about 3 bits, for disk), or a configuration
  // (tqcache/quantize.h).
  std::string config = "lossless";
  // The model file of the upstream server. Empty: the path that it reports.
  std::filesystem::path model = {};
  // Tenants with different API keys use the same prompts.
  bool share_tenants = false;
  std::optional<std::uint64_t> max_bytes = {};  // of the store
  std::filesystem::path scores = {};  // file of HitScores; empty: they end with this object
  unsigned n_threads = 1;
  MemoryBudget memory = {};
};

// What the slot files of a server look like. It only reads files like those that it writes.
struct SlotFileFormat {
  std::uint32_t version = 0;
  std::string k_type, v_type;  // ggml's names: "f16", "q8_0"
  bool flash_attention = true;
  bool is_rotated = true;
  bool server_tokens = false;
  std::uint32_t n_streams = 1;
};
// Errors: those of reading; kUnsupported (layers with different types; types of forks).
Result<SlotFileFormat> read_slot_file_format(const ByteSource& file,
                                             const interop::LlamaGeometry& model);

// The salt of a client: that of the store's tenant, what the values depend on besides the model,
// and a digest of the client's API key.
std::string client_salt(const std::string& salt, const std::string& binding,
                        const std::string& api_key);

// What stored values depend on besides the model, as text: quantized types of keys and values,
// adapters, a context that is longer than the model's. Empty for a plain server: then the prompts
// are those that `tqcache generate` with the same model finds, too.
std::string binding_of(const SlotFileFormat& format, const ServerProps& props,
                       std::int64_t trained_context);

// Every binding that differs in types alone: none, and each pair of types of keys and values.
std::vector<std::string> bindings_by_types();

// Threads: any number; puts take turns.
class PromptKeeper {
 public:
  // `backend`, `metrics` and `log` must outlive it. Errors: kInvalidArgument (the configuration).
  static Result<std::unique_ptr<PromptKeeper>> open(store::Backend& backend, KeeperOptions options,
                                                    Metrics& metrics, Log& log);
  ~PromptKeeper();

  // The model whose prompts are kept, and what the slot files of its server look like.
  struct Bound {
    interop::LlamaGeometry geometry = {};
    cache::Identity identity = {};
    std::int64_t trained_context = 0;
    SlotFileFormat format = {};
    std::string binding = {};                     // binding_of()
    std::vector<cache::LayerDesc> settings = {};  // of stored prompts

    // Whether a prompt can be cut anywhere: all layers have full attention.
    bool can_cut() const;
  };
  using BoundModel = std::shared_ptr<const Bound>;

  // Reads the model file: its shapes and its identity.
  // Errors: those of reading; kUnsupported (layers that cannot be kept).
  Result<Bound> read_model(const ServerProps& props) const;
  // Learns from a slot file, of at least one token, what the server's slot files look like. From
  // then on prompts are kept.
  Result<BoundModel> bind(Bound model, const ServerProps& props,
                          std::shared_ptr<const ByteSource> slot_file);
  // Reads a slot file and writes it again, as a restored one is written.
  static Result<void> rewrite(const Bound& model, std::shared_ptr<const ByteSource> from,
                              const std::filesystem::path& to);
  void unbind();
  // Null: nothing is kept now. What was found, or saved, with a model belongs to that one.
  BoundModel bound() const;
  std::string model_name() const;

  struct Found {
    BoundModel model;
    store::Prefix prefix;
    std::string salt;
    std::int64_t n_tokens() const { return prefix.n_common; }
  };
  // The longest stored prefix of the tokens, for a client with this key: it may end within a stored
  // block or tail. Only what was stored in the configured form counts.
  // Errors: those of the store.
  Result<Found> find(std::span<const std::int32_t> tokens, const std::string& api_key);
  // Writes a slot file with what was found. Returns its number of tokens, which may be smaller than
  // promised if blobs are damaged. Errors: those of the store and of the file; kNotFound: nothing
  // is left; kCorrupt: the tokens are others than those that were asked for.
  Result<std::int64_t> write_slot_file(Found& found, std::span<const std::int32_t> tokens,
                                       const std::filesystem::path& path);

  struct Kept {
    std::int64_t n_tokens = 0;              // of the slot
    std::int64_t n_stored = 0;              // of these, in the store now
    std::uint64_t new_bytes = 0;            // in the store
    std::uint64_t file_bytes = 0;           // of the slot file
    std::vector<std::int32_t> tokens = {};  // in the store now
  };
  // Puts the prompt of a slot file into the store, if its tokens are the expected ones. Another
  // prompt finds the tokens that both have in common. `scratch`: a file that does not exist, for a
  // moment.
  //
  // With a quantizing configuration, the codecs of a prompt in the store that begins with the same
  // token block are used again. So a slot that was restored adds what is new, and no second copy.
  //
  // Errors: those of reading and of the store; kMismatch (other tokens).
  Result<Kept> keep(const BoundModel& model, std::shared_ptr<const ByteSource> slot_file,
                    const std::filesystem::path& scratch, const std::string& api_key,
                    const std::function<bool(std::span<const std::int32_t>)>& is_expected);

  // Notes for `tqcache store stats` that so much of a prompt was found, and the bytes that were
  // read and stored since the last note.
  void note_usage(std::int64_t n_wanted, std::int64_t n_found);
  // Notes the bytes that no prompt has noted, if there are any.
  void note_rest();

  // Writes KeeperOptions::scores if there were hits.
  Result<void> save_scores();

 private:
  PromptKeeper(store::Backend& backend, KeeperOptions options, Metrics& metrics, Log& log)
      : backend_(backend), options_(std::move(options)), metrics_(metrics), log_(log) {}

  store::Library library(const std::string& salt, unsigned n_threads) const;
  std::string salt_of(const Bound& model, const std::string& api_key) const;
  static Result<interop::OpenedCache> open_slot_file(const Bound& model,
                                                     std::shared_ptr<const ByteSource> file);
  static interop::LlamaExport export_options(const Bound& model);
  Result<void> measure_rounding(const Bound& model, const cache::CacheReader& slot,
                                const std::filesystem::path& scratch);
  void collect_if_needed(std::uint64_t new_bytes);

  store::Backend& backend_;
  KeeperOptions options_;
  Metrics& metrics_;
  Log& log_;
  std::optional<cache::ConvertOptions> form_;  // absent: as the values are

  mutable std::mutex bound_mutex_;
  BoundModel bound_;

  HitScores scores_;
  bool rounding_is_known_ = false;  // of the server that was bound last
  std::atomic<std::uint64_t> read_bytes_ = 0, stored_bytes_ = 0;  // of blobs, not noted yet
  std::mutex put_mutex_;
  std::uint64_t bytes_since_collect_ = 0;
};

}  // namespace tqcache::serve
