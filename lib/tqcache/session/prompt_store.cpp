#include "tqcache/session/prompt_store.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <variant>

#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/decoder.h"

namespace tqcache::session {
namespace {

// A user waits for the first token, or for the shell.
constexpr std::chrono::seconds kIdleTimeout{5};
constexpr std::chrono::seconds kPutTimeout{10};

// Seconds since 1970.
std::int64_t now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

// Checks that the model can resume the cache, and converts recurrent state to the form of the
// model.
Result<void> adopt(cache::Cache& cache, const model::Model& model) {
  TQC_TRY(cache::check_identity(cache, model.identity));
  TQC_TRY(model::check_layers(cache, model.config));
  for (cache::Layer& layer : cache.layers) {
    if (auto* state = std::get_if<cache::StateLayer>(&layer)) {
      TQC_TRY(model::adopt_delta_state(model.config, *state));
    }
  }
  cache.identity = model.identity;  // with the names that this model has here
  return {};
}

}  // namespace

PromptStore::PromptStore(PromptStoreOptions options, std::unique_ptr<store::Backend> backend)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      library_(*backend_, {.salt = options_.salt,
                           .n_threads = options_.n_threads,
                           .on_warning = [this](const std::string& message) {
                             library_warnings_.push_back(message);
                           }}) {}

Result<std::unique_ptr<PromptStore>> PromptStore::open(PromptStoreOptions options) {
  store::BackendOptions backend_options;
  backend_options.idle_timeout = kIdleTimeout;
  backend_options.create = !options.read_only;
  auto backend = store::open_backend(options.url, backend_options);
  if (backend) {
    return std::unique_ptr<PromptStore>(
        new PromptStore(std::move(options), std::move(backend).value()));
  }
  const Error& error = backend.error();
  if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported) {
    return invalid("store: " + error.message);
  }
  if (!options.name.empty()) return in_context("store", error);
  if (options.on_warning) options.on_warning("store", error.message + "; continuing without it");
  return std::unique_ptr<PromptStore>();
}

// Later warnings mostly follow from the first one.
void PromptStore::warn(const std::string& message) {
  if (!warning_.empty()) return;
  warning_ = message;
  if (options_.on_warning) options_.on_warning("store " + backend_->name(), message);
}

void PromptStore::give_up(const Error& error) {
  gave_up_ = true;
  warn(error.message + "; continuing without it");
}

// Hours of work must not end with a name that is taken.
Result<void> PromptStore::check_name() {
  if (options_.name.empty() || options_.replace_name) return {};
  const auto record = library_.record(options_.name);
  if (!record || !*record) return {};  // a store that fails is reported when it is needed
  return invalid("another prompt in the store has the name " + options_.name);
}

Result<std::optional<store::LoadedPrefix>> PromptStore::look_up(
    const model::Model& model, std::span<const std::int32_t> prompt, const cache::Cache& empty,
    const Progress& progress) {
  const std::vector<cache::LayerDesc> settings = cache::describe(empty).layers;
  store::FindOptions find;
  if (options_.same_quantization) find.settings = &settings;
  TQC_TRY_ASSIGN(
      std::optional<store::LoadedPrefix> found,
      store::load_prefix(library_, model.identity, prompt, find, options_.n_threads, progress));
  if (found) TQC_TRY(adopt(found->cache, model));
  return found;
}

Result<void> PromptStore::begin(const model::Model& model, std::span<const std::int32_t> prompt,
                                cache::Cache& cache, const Progress& progress) {
  TQC_TRY(check_name());
  began_ = true;
  usage_.wanted_tokens = std::ssize(prompt);
  if (!options_.read_only) {
    putting_.emplace(*backend_, store::BackgroundPutOptions{.salt = options_.salt});
  }
  auto found = look_up(model, prompt, cache, progress);
  if (!found && found.error().code == ErrorCode::kInterrupted) return std::move(found).error();
  if (!found) give_up(found.error());
  if (found && *found) {
    store::LoadedPrefix& prefix = **found;
    usage_.found_tokens = prefix.cache.n_tokens();
    usage_.read_bytes = prefix.read_bytes;
    found_layers_ = prefix.parameters.layers;
    if (putting_) putting_->begin(prefix);
    cache = std::move(prefix.cache);
  }
  if (!library_warnings_.empty()) {
    const std::size_t n_more = library_warnings_.size() - 1;
    warn(fmt::format("{}{}; missing tokens are computed", library_warnings_.front(),
                     n_more > 0 ? fmt::format(" (and {} more problems)", n_more) : std::string()));
  }
  return {};
}

void PromptStore::watch(const cache::Cache& cache) {
  if (putting_ && !gave_up_) putting_->watch(cache);
}

void PromptStore::end_prompt(const cache::Cache& cache) {
  if (putting_ && !gave_up_) putting_->end_prompt(cache);
}

void PromptStore::finish_putting(const cache::Cache& cache) {
  if (putting_ && !gave_up_) {
    stored_ = putting_->finish(cache, kPutTimeout, options_.keep_going);
    if (stored_.error) {
      give_up(*stored_.error);
    } else if (stored_.left_blocks > 0) {
      warn(fmt::format("slow: {} token blocks were not stored in time", stored_.left_blocks));
    }
  }
  putting_.reset();
}

Result<void> PromptStore::save_name(const cache::Cache& cache, const Progress& progress) {
  if (options_.name.empty() || cache.n_tokens() == 0) return {};
  TQC_TRY_ASSIGN(named_,
                 in_file("store " + backend_->name(),
                         library_.put_cache(cache, options_.name, progress,
                                            {.replace = options_.replace_name, .created = now()})));
  return {};
}

// The hit statistics of the store. A read-only session leaves no trace.
void PromptStore::note_usage() {
  if (gave_up_ || options_.read_only || !options_.keep_going()) return;
  usage_.created = now();
  usage_.stored_bytes = stored_.new_bytes;
  if (const auto noted = library_.note_usage(usage_); !noted) give_up(noted.error());
}

Result<void> PromptStore::finish(const cache::Cache& cache, const Progress& progress) {
  if (!began_) return {};
  finish_putting(cache);
  TQC_TRY(save_name(cache, progress));
  note_usage();
  return {};
}

}  // namespace tqcache::session
