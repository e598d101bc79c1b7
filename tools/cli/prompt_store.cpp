#include "cli/prompt_store.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <variant>

#include "cli/interrupt.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "report/codec_text.h"
#include "tqcache/format/describe.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/decoder.h"

namespace tqcache::cli {
namespace {

// Somebody waits for the first token, or for the prompt of the shell.
constexpr std::chrono::seconds kIdleTimeout{5};
constexpr std::chrono::seconds kPutTimeout{10};

// Seconds since 1970.
std::int64_t now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

std::string tensor_text(const cache::TensorDesc& tensor) {
  return tensor.quant ? codec_text(*tensor.quant) : std::string(dtype_name(tensor.dtype));
}

// In which form the first layer is that has one.
std::string form_text(const std::vector<cache::LayerDesc>& layers) {
  for (const cache::LayerDesc& layer : layers) {
    if (!cache::is_in_token_blocks(layer)) continue;
    const cache::AttentionDesc& attention = *cache::attention_of(layer);
    const std::string keys = tensor_text(attention.k);
    const std::string values = tensor_text(attention.v);
    return keys == values ? keys : fmt::format("keys {}; values {}", keys, values);
  }
  return "windows";
}

std::string of_tokens(std::int64_t n, std::int64_t all) {
  return fmt::format("{} of {} tokens", grouped(static_cast<std::uint64_t>(n)),
                     grouped(static_cast<std::uint64_t>(all)));
}

// Whether the model can go on from it. State of linear attention is brought into the model's form.
Result<void> adopt(cache::Cache& cache, const model::Model& model) {
  TQC_TRY(cache::check_identity(cache, model.identity));
  TQC_TRY(model::check_layers(cache, model.config));
  for (cache::Layer& layer : cache.layers) {
    if (auto* state = std::get_if<cache::StateLayer>(&layer)) {
      TQC_TRY(model::adopt_delta_state(model.config, *state));
    }
  }
  cache.identity = model.identity;  // as people call it here
  return {};
}

}  // namespace

PromptStore::PromptStore(const Console& console, PromptStoreOptions options,
                         std::unique_ptr<store::Backend> backend)
    : console_(console),
      options_(std::move(options)),
      backend_(std::move(backend)),
      library_(*backend_, {.salt = options_.choice.salt,
                           .n_threads = options_.n_threads,
                           .on_trouble = [this](const std::string& message) {
                             troubles_.push_back(message);
                           }}) {}

Outcome<std::unique_ptr<PromptStore>> PromptStore::open(const Console& console,
                                                        PromptStoreOptions options) {
  store::BackendOptions backend_options;
  backend_options.idle_timeout = kIdleTimeout;
  backend_options.create = !options.choice.read_only;
  auto backend = store::open_backend(options.choice.url, backend_options);
  if (backend) {
    return std::unique_ptr<PromptStore>(
        new PromptStore(console, std::move(options), std::move(backend).value()));
  }
  const ErrorCode code = backend.error().code;
  if (code == ErrorCode::kInvalidArgument || code == ErrorCode::kUnsupported) {
    return usage_error("store: " + backend.error().message);
  }
  if (!options.choice.name.empty()) return in_context("store", std::move(backend).error());
  warn("store", backend.error().message + "; going on without it");
  return std::unique_ptr<PromptStore>();
}

// One line a run: what comes behind it mostly follows from it.
void PromptStore::tell(const std::string& trouble) {
  if (!told_.empty()) return;
  told_ = trouble;
  warn("store " + backend_->name(), trouble);
}

void PromptStore::give_up(const Error& error) {
  gave_up_ = true;
  tell(error.message + "; going on without it");
}

// Hours of work shall not end with a name that is taken.
Outcome<Done> PromptStore::check_name() {
  const std::string& name = options_.choice.name;
  if (name.empty() || options_.replace_name) return Done{};
  const auto record = library_.record(name);
  if (!record || !*record) return Done{};  // an engine that is gone is told of when it is needed
  return usage_error("--store-name: the store has a prompt of this name (-f replaces it)");
}

Result<std::optional<store::Beginning>> PromptStore::look_up(const model::Model& model,
                                                             std::span<const std::int32_t> prompt,
                                                             const cache::Cache& empty) {
  const std::vector<cache::LayerDesc> form = cache::describe(empty).layers;
  store::FindOptions find;
  if (options_.own_form) find.form = &form;
  ProgressBar bar(console_, "from the store", Unit::kBlobs);
  TQC_TRY_ASSIGN(std::optional<store::Beginning> found,
                 store::load_beginning(library_, model.identity, prompt, find, options_.n_threads,
                                       bar.callback()));
  if (found) TQC_TRY(adopt(found->cache, model));
  return found;
}

void PromptStore::take(store::Beginning beginning, cache::Cache& cache) {
  usage_.found_tokens = beginning.cache.n_tokens();
  usage_.read_bytes = beginning.read_bytes;
  if (putting_) putting_->begin(beginning);
  cache = std::move(beginning.cache);
}

Outcome<Done> PromptStore::begin(const model::Model& model, std::span<const std::int32_t> prompt,
                                 cache::Cache& cache) {
  TQC_TRY(check_name());
  began_ = true;
  usage_.wanted_tokens = std::ssize(prompt);
  if (!options_.choice.read_only) {
    putting_.emplace(*backend_, store::BackgroundPutOptions{.salt = options_.choice.salt});
  }
  auto found = look_up(model, prompt, cache);
  if (!found && found.error().code == ErrorCode::kInterrupted) return std::move(found).error();
  if (!found) give_up(found.error());
  std::string form;
  if (found && *found) {
    form = fmt::format(" ({})", form_text((*found)->parameters.layers));
    take(std::move(**found), cache);
  }
  if (!troubles_.empty()) {
    tell(fmt::format("{}{}; what is missing of the prompt is read", troubles_.front(),
                     troubles_.size() > 1 ? fmt::format(" (and {} more)", troubles_.size() - 1)
                                          : std::string()));
  }
  if (!gave_up_) {
    note(console_, fmt::format("{} of the prompt from the store{}",
                               of_tokens(usage_.found_tokens, usage_.wanted_tokens), form));
  }
  return Done{};
}

void PromptStore::watch(const cache::Cache& cache) {
  if (putting_ && !gave_up_) putting_->watch(cache);
}

void PromptStore::end_prompt(const cache::Cache& cache) {
  if (putting_ && !gave_up_) putting_->end_prompt(cache);
}

void PromptStore::finish_putting(const cache::Cache& cache) {
  if (!putting_ || gave_up_) return;
  put_ = putting_->finish(cache, kPutTimeout, [] { return !interrupted(); });
  putting_.reset();
  if (put_.error) return give_up(*put_.error);
  if (put_.left_blocks > 0) {
    tell(fmt::format("slow: {} token blocks were not put in time", put_.left_blocks));
  }
  if (put_.new_blocks == 0) return;
  note(console_, fmt::format("{} new token blocks in the store ({})", put_.new_blocks,
                             human_bytes(put_.new_bytes)));
}

Outcome<Done> PromptStore::keep_name(const cache::Cache& cache) {
  const std::string& name = options_.choice.name;
  if (name.empty() || cache.n_tokens() == 0) return Done{};
  ProgressBar bar(console_, "to the store", Unit::kBlocks);
  TQC_TRY_ASSIGN(const store::PutReport report,
                 in_file("store " + backend_->name(),
                         library_.put_cache(cache, name, bar.callback(),
                                            {.replace = options_.replace_name, .created = now()})));
  bar.clear();
  note(console_, fmt::format("kept in the store as {}: {} tokens", name, report.n_tokens));
  return Done{};
}

// What the statistics of a store are made of. Whoever only reads leaves no trace.
void PromptStore::note_usage() {
  if (gave_up_ || options_.choice.read_only || interrupted()) return;
  usage_.created = now();
  usage_.stored_bytes = put_.new_bytes;
  if (const auto noted = library_.note_usage(usage_); !noted) give_up(noted.error());
}

Outcome<Done> PromptStore::finish(const cache::Cache& cache) {
  if (!began_) return Done{};
  finish_putting(cache);
  putting_.reset();
  TQC_TRY(keep_name(cache));
  note_usage();
  return Done{};
}

Json PromptStore::json() const {
  Json json;
  json["url"] = backend_->name();
  json["reused_tokens"] = usage_.found_tokens;
  json["read_bytes"] = usage_.read_bytes;
  json["stored_blocks"] = put_.new_blocks;
  json["stored_bytes"] = put_.new_bytes;
  json["trouble"] = told_.empty() ? Json() : Json(told_);
  return json;
}

}  // namespace tqcache::cli
