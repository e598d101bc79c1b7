#include "cli/session_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "cli/text.h"
#include "report/info.h"
#include "tqcache/bytes.h"
#include "tqcache/decoder.h"

namespace tqcache::cli {
namespace {

std::string setting_text(const cache::TensorDesc& tensor) {
  return tensor.quant ? codec_text(*tensor.quant) : std::string(dtype_name(tensor.dtype));
}

// The quantization of the first layer that has keys and values in token blocks.
std::string settings_text(const std::vector<cache::LayerDesc>& layers) {
  for (const cache::LayerDesc& layer : layers) {
    if (!cache::is_in_token_blocks(layer)) continue;
    const cache::AttentionDesc& attention = *cache::attention_of(layer);
    const std::string keys = setting_text(attention.k);
    const std::string values = setting_text(attention.v);
    return keys == values ? keys : fmt::format("keys {}; values {}", keys, values);
  }
  return "windows";
}

void note_route(const Console& console, const session::Session& session) {
  if (const std::string reason = session.kernel_path().fallback; !reason.empty()) {
    note(console, "scoring quantized keys in float32: " + reason);
  }
}

Result<cache::Cache> load(const Console& console, const session::SessionOptions& options,
                          const model::Model& model, GrowingFile* growing) {
  format::ReadOptions read;
  read.n_threads = options.n_threads;
  read.accept = [&](const cache::CacheDesc& cache) { return model::check_fits(cache, model); };
  if (growing != nullptr) {
    if (options.map) note(console, "--map is ignored: the file will be appended to");
    return growing->read(console, read);
  }
  read.first_tokens = options.first_tokens;
  read.verify_digests = options.verify_digests;
  return options.map ? map_cache(console, options.cache, read)
                     : load_cache(console, options.cache, read);
}

}  // namespace

void add_session_flags(FlagSet& app, SessionFlags& flags) {
  add_sampling_flags(app, flags.sampling);
  add_codec_flags(app, flags.codec);
  add_prompt_store_flags(app, flags.store, StoreNames::kWithName);
  add_no_tokens_flag(app, flags.no_tokens);
  add_compression_flags(app, flags.compression, "zstd");
  add_resource_flags(app, flags.options.n_threads);
  add_scorer_flag(app, flags.options.scorer);
  add_activations_flag(app, flags.options.activations);
  add_map_flag(app, flags.options.map);
  add_verify_digest_flag(app, flags.options.verify_digests);
  add_force_flag(app, flags.force);
}

Result<void> finish_session_flags(const Console& console, SessionFlags& flags) {
  TQC_TRY(check_sampling(flags.sampling));
  if (flags.codec.given() && !flags.options.cache.empty()) {
    return usage_error("--bits and --config apply to a new cache and exclude --cache");
  }
  flags.options.sampling = flags.sampling.options;
  TQC_TRY_ASSIGN(flags.options.quantization, options_in_memory(console, flags.codec));
  return {};
}

Result<std::unique_ptr<session::Session>> open_session(const Console& console,
                                                       const SessionFlags& flags,
                                                       GrowingFile* growing) {
  const session::SessionOptions& options = flags.options;
  TQC_TRY_ASSIGN(std::unique_ptr<model::Model> model,
                 load_model(console, options.model, options.n_threads));
  std::optional<cache::Cache> cache;
  if (!options.cache.empty()) {
    TQC_TRY_ASSIGN(cache, load(console, options, *model, growing));
  }
  const bool has_cache = cache.has_value();
  auto started = session::Session::start(std::move(model), std::move(cache), options);
  if (!started && started.error().code == ErrorCode::kMismatch) {
    return in_file(display_name(options.cache, "standard input"), std::move(started));
  }
  if (started && has_cache) note_route(console, **started);
  return started;
}

void note_activations(const Console& console, const SessionFlags& flags) {
  if (flags.options.activations == model::ActivationBits::k16) return;
  note(console,
       "--activations 8: the keys and values of decoded tokens are kept as computed with 8 bits");
}

Result<std::unique_ptr<session::PromptStore>> open_prompt_store(const Console& console,
                                                                const SessionFlags& flags,
                                                                bool same_quantization) {
  std::string_view obstacle;
  if (!flags.options.cache.empty()) obstacle = "--cache and a store exclude each other";
  if (flags.no_tokens) obstacle = "a store keeps the tokens that --no-tokens hides";
  TQC_TRY_ASSIGN(const std::optional<PromptStoreChoice> choice,
                 choose_prompt_store(flags.store, obstacle));
  if (!choice) return std::unique_ptr<session::PromptStore>();
  session::PromptStoreOptions options;
  options.url = choice->url;
  options.salt = choice->salt;
  options.keys = console.access.keys;
  options.credentials = store::credentials_of_environment();
  options.memory = console.access.memory;
  options.now = [] { return std::int64_t{std::time(nullptr)}; };
  options.read_only = choice->read_only;
  options.name = choice->name;
  options.replace_name = flags.force;
  options.same_quantization = same_quantization;
  options.n_threads = flags.options.n_threads;
  options.verify_digests = flags.options.verify_digests;
  options.on_warning = [](const std::string& where, const std::string& message) {
    warn(where, message);
  };
  options.keep_going = [] { return !interrupted(); };
  return session::PromptStore::open(std::move(options));
}

Result<void> begin_from(const Console& console, session::PromptStore& store,
                        session::Session& session, std::vector<std::int32_t>& ids) {
  {
    ProgressBar bar(console, "from the store", Unit::kBlobs);
    if (Result<void> begun = session.begin_from(store, ids, bar.callback()); !begun) {
      Error error = std::move(begun).error();
      if (error.code == ErrorCode::kInvalidArgument) error.message += "; -f overwrites it";
      return error;
    }
  }
  ids.erase(ids.begin(), ids.begin() + session.cache().n_tokens());
  if (!store.gave_up()) {
    const std::vector<cache::LayerDesc>& layers = store.found_layers();
    note(console, fmt::format("{} of {} tokens of the prompt from the store{}",
                              grouped(static_cast<std::uint64_t>(store.reused_tokens())),
                              grouped(static_cast<std::uint64_t>(store.prompt_tokens())),
                              layers.empty() ? "" : fmt::format(" ({})", settings_text(layers))));
  }
  note_route(console, session);
  return {};
}

Result<void> feed(const Console& console, session::Session& session,
                  std::span<const std::int32_t> ids) {
  const std::int64_t n_all = session.model().config.context_length;
  const std::int64_t n_free = std::max<std::int64_t>(n_all - session.cache().n_tokens(), 0);
  if (std::ssize(ids) > n_free) {
    return invalid(
        fmt::format("the prompt has {}, and {} of the {} that the model's context holds "
                    "are free",
                    counted(std::ssize(ids), "token"), grouped(static_cast<std::uint64_t>(n_free)),
                    grouped(static_cast<std::uint64_t>(n_all))));
  }
  ProgressBar bar(console, "prefill", Unit::kTokens);
  return session.feed(ids, bar.callback());
}

Result<void> finish_store(const Console& console, session::PromptStore* store,
                          const cache::Cache& cache, bool hurry) {
  if (store == nullptr) return {};
  if (hurry && !store->name().empty()) {
    note(console, fmt::format("saving in the store as {}; another Ctrl-C ends this",
                              printable(store->name())));
  }
  ProgressBar bar(console, "to the store", Unit::kBlocks);
  const Result<void> finished = store->finish(cache, bar.callback(), hurry);
  bar.clear();
  if (const store::BackgroundPutReport& stored = store->stored(); stored.new_blocks > 0) {
    note(console, fmt::format("{} in the store ({})", counted(stored.new_blocks, "new token block"),
                              human_bytes(stored.new_bytes)));
  }
  if (store->named()) {
    note(console, fmt::format("saved in the store as {}: {}", store->name(),
                              counted(store->named()->n_tokens, "token")));
  }
  return finished;
}

Json store_json(const session::PromptStore& store) {
  Json json;
  json["url"] = store.url();
  json["reused_tokens"] = store.reused_tokens();
  json["read_bytes"] = store.read_bytes();
  json["stored_blocks"] = store.stored().new_blocks;
  json["stored_bytes"] = store.stored().new_bytes;
  json["trouble"] = store.warning().empty() ? Json() : Json(store.warning());
  return json;
}

session::TokenSink until_interrupted(session::TokenSink sink) {
  return [sink = std::move(sink)](std::int32_t id) -> Result<bool> {
    TQC_TRY_ASSIGN(const bool goes_on, sink(id));
    if (goes_on && interrupted()) return interrupted_error();
    return goes_on;
  };
}

}  // namespace tqcache::cli
