#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <utility>
#include <variant>

#include "tqcache/decoder.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/session.h"
#include "tqcache/store.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/library/background_put.h"

namespace tqcache::session {
namespace {

// Short, because a user waits for the first token, or for the shell.
constexpr std::chrono::seconds kIdleTimeout{5};
constexpr std::chrono::milliseconds kPutTimeout{10'000};
constexpr std::chrono::milliseconds kHurriedPutTimeout{300};

// Checks that the model can resume the cache, and converts recurrent state to the layout of the
// model.
Result<void> adopt(cache::Cache& cache, const model::Model& model) {
  TQC_TRY(cache::check_identity(cache, model.identity));
  TQC_TRY(model::check_layers(cache, model.config));
  for (cache::Layer& layer : cache.layers) {
    auto* const state = std::get_if<cache::StateLayer>(&layer);
    if (state != nullptr && model.config.delta_net.kernel > 0) {
      TQC_TRY(model::adopt_delta_state(model.config, *state));
    }
  }
  cache.identity = model.identity;  // with the names that this model has here
  return {};
}

// The deadline of puts at the end of a session. Without it, a server that is slow but does not stop
// would be waited for.
class PutLimit {
 public:
  void set(std::chrono::milliseconds from_now) { end_ = Clock::now() + from_now; }
  void clear() { end_ = Clock::time_point::max(); }
  bool is_over() const { return Clock::now() >= end_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> end_ = Clock::time_point::max();
};

}  // namespace

struct PromptStore::State {
  State(PromptStoreOptions options_in, std::unique_ptr<store::Backend> backend_in,
        std::shared_ptr<PutLimit> put_limit_in)
      : options(std::move(options_in)),
        put_limit(std::move(put_limit_in)),
        backend(std::move(backend_in)),
        library(*backend,
                {.salt = options.salt,
                 .n_threads = options.n_threads,
                 .memory = options.memory,
                 .on_warning =
                     [this](const std::string& message) { library_warnings.push_back(message); },
                 .remove_damaged = !options.read_only,
                 .verify_digests = options.verify_digests}) {}

  // Later warnings usually follow from the first one, so they are dropped.
  void warn(const std::string& message) {
    if (!warning.empty()) return;
    warning = message;
    if (options.on_warning) options.on_warning("store " + backend->name(), message);
  }

  void give_up(const Error& error) {
    gave_up = true;
    warn(error.message + "; continuing without it");
  }

  // The prefix does not count as found.
  void reject(const Error& error) {
    usage.found_tokens = 0;
    found_layers.clear();
    putting.reset();
    give_up(error);
  }

  // Checked early, so that hours of work do not end with a name that is taken.
  Result<void> check_name() {
    if (options.name.empty() || options.replace_name) return {};
    const auto record = library.record(options.name);
    if (!record || !*record) return {};  // a failing store is reported when it is needed
    return invalid("another prompt in the store has the name " + options.name);
  }

  Result<std::optional<store::LoadedPrefix>> look_up(const model::Model& model,
                                                     std::span<const std::int32_t> prompt,
                                                     const cache::Cache& empty,
                                                     const Progress& progress) {
    const std::vector<cache::LayerDesc> settings = cache::describe(empty).layers;
    store::FindOptions find;
    if (options.same_quantization) find.settings = &settings;
    find.accept = [&](const std::vector<cache::LayerDesc>& layers) {
      return model::check_layers(layers, model.config);
    };
    TQC_TRY_ASSIGN(
        std::optional<store::LoadedPrefix> found,
        store::load_prefix(library, model.identity, prompt, find, options.n_threads, progress));
    if (found) TQC_TRY(adopt(found->cache, model));
    return found;
  }

  // As look_up(); a store that needs more memory than there is does not end the run.
  Result<std::optional<store::LoadedPrefix>> look_up_in_memory(const model::Model& model,
                                                               std::span<const std::int32_t> prompt,
                                                               const cache::Cache& empty,
                                                               const Progress& progress) {
    try {
      return look_up(model, prompt, empty, progress);
    } catch (const std::bad_alloc&) {
      return too_large("out of memory");
    }
  }

  Result<void> begin(const model::Model& model, std::span<const std::int32_t> prompt,
                     cache::Cache& cache, const Progress& progress) {
    TQC_TRY(check_name());
    began = true;
    usage.wanted_tokens = std::ssize(prompt);
    if (cache.identity.standing != cache::Standing::kNone) {
      // Library::put() has the rules for a name.
      warn("tokens are not shared: the cache that they follow is " +
           std::string(cache.identity.standing == cache::Standing::kShifted
                           ? "context-shifted"
                           : "of a model that was stated and not checked"));
    } else if (!options.read_only) {
      putting.emplace(*backend, store::BackgroundPutOptions{.salt = options.salt});
    }
    auto found = look_up_in_memory(model, prompt, cache, progress);
    if (!found && found.error().code == ErrorCode::kInterrupted) return std::move(found).error();
    if (!found) give_up(found.error());
    if (found && !*found) TQC_TRY(check_key());
    if (found && *found) {
      store::LoadedPrefix& prefix = **found;
      usage.found_tokens = prefix.cache.n_tokens();
      usage.read_bytes = prefix.read_bytes;
      found_layers = prefix.parameters.layers;
      found_blobs = std::move(prefix.blobs);
      if (putting) putting->begin(prefix);
      cache = std::move(prefix.cache);
    }
    if (!library_warnings.empty()) {
      const std::size_t n_more = library_warnings.size() - 1;
      warn(
          fmt::format("{}{}; missing tokens are computed", library_warnings.front(),
                      n_more > 0 ? fmt::format(" (and {} more problems)", n_more) : std::string()));
    }
    return {};
  }

  // With another key, prompts have other names: nothing is found, and what is put hides from those
  // who have the key.
  Result<void> check_key() {
    const Result<void> checked =
        store::check_store_key(*backend, putting ? store::BeforePut::kYes : store::BeforePut::kNo);
    if (checked || checked.error().code != ErrorCode::kNoKey) return {};
    if (!options.name.empty()) return in_file("store " + backend->name(), checked.error());
    putting.reset();
    give_up(checked.error());
    return {};
  }

  // A store for which there is no memory does not end the session.
  template <class Work>
  void put_in_memory(const Work& work) {
    if (!putting || gave_up) return;
    try {
      work();
    } catch (const std::bad_alloc&) {
      give_up(too_large("out of memory"));
    }
  }

  void watch(const cache::Cache& cache) {
    put_in_memory([&] { putting->watch(cache); });
  }

  void end_prompt(const cache::Cache& cache) {
    put_in_memory([&] { putting->end_prompt(cache); });
  }

  void finish_putting(const cache::Cache& cache, bool hurry) {
    put_in_memory([&] {
      const std::chrono::milliseconds limit = hurry ? kHurriedPutTimeout : kPutTimeout;
      put_limit->set(limit);
      stored = putting->finish(cache, limit, options.keep_going);
      const bool is_cut = stored.error && stored.error->code == ErrorCode::kInterrupted;
      if (is_cut) gave_up = true;
      if (stored.error && !is_cut) {
        give_up(*stored.error);
      } else if (stored.left_blocks > 0) {
        warn(fmt::format("slow: {} token blocks were not stored in time", stored.left_blocks));
      }
    });
    putting.reset();
    put_limit->clear();
  }

  Result<void> save_name(const cache::Cache& cache, const Progress& progress) {
    if (options.name.empty() || cache.n_tokens() == 0) return {};
    TQC_TRY_ASSIGN(named,
                   in_file("store " + backend->name(),
                           library.put_cache(cache, options.name, progress,
                                             {.replace = options.replace_name, .created = now()})));
    return {};
  }

  std::int64_t now() const { return options.now ? options.now() : 0; }

  // Writes the hit statistics of the store. A read-only session leaves no trace.
  void note_usage() {
    if (gave_up || options.read_only || !options.keep_going()) return;
    usage.created = now();
    usage.stored_bytes = stored.new_bytes;
    const Result<void> noted = library.note_usage(usage);
    if (!noted && noted.error().code != ErrorCode::kInterrupted) give_up(noted.error());
  }

  Result<void> finish(const cache::Cache& cache, const Progress& progress, bool hurry) {
    if (!began) return {};
    finish_putting(cache, hurry);
    TQC_TRY(save_name(cache, progress));
    if (hurry) put_limit->set(kHurriedPutTimeout);
    note_usage();
    put_limit->clear();
    return {};
  }

  PromptStoreOptions options;
  std::shared_ptr<PutLimit> put_limit;
  std::unique_ptr<store::Backend> backend;
  std::vector<std::string> library_warnings;
  store::Library library;
  std::optional<store::BackgroundPut> putting;
  store::BackgroundPutReport stored;
  std::optional<store::PutReport> named;
  std::vector<cache::LayerDesc> found_layers;
  std::vector<std::string> found_blobs;
  store::UsageNote usage;
  bool began = false;
  bool gave_up = false;
  std::string warning;
};

PromptStore::PromptStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
PromptStore::~PromptStore() {
  state_->put_limit->set({});  // otherwise it would wait for a put in progress
}

Result<std::unique_ptr<PromptStore>> PromptStore::open(PromptStoreOptions options) {
  store::BackendOptions backend_options;
  backend_options.idle_timeout = kIdleTimeout;
  backend_options.create = !options.read_only;
  backend_options.keys = options.keys;
  backend_options.credentials = options.credentials;
  options.salt = store::secret_salt(options.keys, options.salt);
  const auto put_limit = std::make_shared<PutLimit>();
  backend_options.interrupted = [goes_on = options.keep_going, put_limit] {
    return !goes_on() || put_limit->is_over();
  };
  auto backend = store::open_backend(options.url, backend_options);
  if (backend) {
    return std::unique_ptr<PromptStore>(new PromptStore(
        std::make_unique<State>(std::move(options), std::move(backend).value(), put_limit)));
  }
  const Error& error = backend.error();
  if (error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kUnsupported) {
    return invalid("store: " + error.message);
  }
  if (!options.name.empty()) return in_context("store", error);
  if (options.on_warning) options.on_warning("store", error.message + "; continuing without it");
  return std::unique_ptr<PromptStore>();
}

Result<void> PromptStore::begin(const model::Model& model, std::span<const std::int32_t> prompt,
                                cache::Cache& cache, const Progress& progress) {
  return state_->begin(model, prompt, cache, progress);
}
void PromptStore::watch(const cache::Cache& cache) { state_->watch(cache); }
void PromptStore::end_prompt(const cache::Cache& cache) { state_->end_prompt(cache); }
void PromptStore::reject(const Error& error) { state_->reject(error); }
void PromptStore::stop_adding(const cache::Cache& cache) { state_->finish_putting(cache, true); }
Result<void> PromptStore::finish(const cache::Cache& cache, const Progress& progress, bool hurry) {
  return state_->finish(cache, progress, hurry);
}

const std::string& PromptStore::url() const { return state_->backend->name(); }
const std::string& PromptStore::name() const { return state_->options.name; }
bool PromptStore::gave_up() const { return state_->gave_up; }
std::int64_t PromptStore::reused_tokens() const { return state_->usage.found_tokens; }
std::int64_t PromptStore::prompt_tokens() const { return state_->usage.wanted_tokens; }
std::uint64_t PromptStore::read_bytes() const { return state_->usage.read_bytes; }
const std::vector<cache::LayerDesc>& PromptStore::found_layers() const {
  return state_->found_layers;
}

const std::vector<std::string>& PromptStore::found_blobs() const { return state_->found_blobs; }
const store::BackgroundPutReport& PromptStore::stored() const { return state_->stored; }
store::BackgroundPutReport PromptStore::stored_so_far() const {
  return state_->putting ? state_->putting->report() : state_->stored;
}
const std::optional<store::PutReport>& PromptStore::named() const { return state_->named; }
const std::string& PromptStore::warning() const { return state_->warning; }

}  // namespace tqcache::session
