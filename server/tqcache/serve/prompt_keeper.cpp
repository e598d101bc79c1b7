#include "tqcache/serve/prompt_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "tqcache/interop/llama/llama_parse.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/model.h"
#include "tqcache/serve/slot_folder.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::serve {
namespace {

constexpr std::int64_t kBlock = cache::kTokenBlock;

constexpr unsigned kRestoreThreads = 4;

ByteView bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string digest_text(std::string_view text) { return to_hex(sha256(bytes_of(text))); }

// The identity of a model that tqcache itself cannot run: a sample of its file.
Result<cache::Identity> sampled_identity(const std::filesystem::path& path,
                                         const interop::LlamaGeometry& geometry) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> file, open_file(path));
  constexpr std::uint64_t kHead = std::uint64_t{4} << 20;
  constexpr std::uint64_t kPiece = 4096;
  constexpr std::uint64_t kPieces = 256;
  const std::uint64_t size = file->size();
  Bytes head(static_cast<std::size_t>(std::min(size, kHead)));
  TQC_TRY(file->read_at(0, head));
  Sha256Hasher weights, tokenizer;
  weights.update(bytes_of(fmt::format("tqcache serve file 1 {}", size)));
  weights.update(head);
  tokenizer.update(bytes_of("tqcache serve tokenizer 1"));
  tokenizer.update(head);
  if (size > kHead + kPiece) {
    Bytes piece(kPiece);
    for (std::uint64_t i = 0; i < kPieces; ++i) {
      TQC_TRY(file->read_at(kHead + (size - kHead - kPiece) / (kPieces - 1) * i, piece));
      weights.update(piece);
    }
  }
  cache::Identity identity;
  identity.architecture = geometry.architecture;
  identity.rope.style = cache::RopeStyle::kNone;
  identity.weights_fingerprint = weights.finish();
  identity.tokenizer_fingerprint = tokenizer.finish();
  return identity;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool is_dense_type(const std::string& type) {
  return type == "f32" || type == "f16" || type == "bf16";
}

}  // namespace

Result<SlotFileFormat> read_slot_file_format(const ByteSource& file,
                                             const interop::LlamaGeometry& model) {
  TQC_TRY_ASSIGN(const auto envelope, interop::read_llama_envelope(file));
  if (!envelope || envelope->kind != interop::LlamaFile::kSequence) {
    return corrupt("not a slot file of llama-server");
  }
  TQC_TRY_ASSIGN(const interop::LlamaTokens tokens, interop::read_llama_tokens(file, *envelope));
  const interop::LlamaImport options;
  const interop::LlamaParse parse{file, tokens.end, envelope->kind, model, options};
  TQC_TRY_ASSIGN(const interop::LlamaBody body, find_llama_body(parse, envelope->version));
  SlotFileFormat format;
  format.version = envelope->version;
  format.server_tokens = tokens.is_wrapped;
  if (body.profile.has_streams && !body.attention.empty()) {
    std::array<std::byte, 4> bytes{};
    TQC_TRY(file.read_at(tokens.end, bytes));
    std::memcpy(&format.n_streams, bytes.data(), bytes.size());
    if (format.n_streams < 1 || format.n_streams > 1024) return corrupt("the number of streams");
  }
  for (const interop::LlamaAttentionSection& section : body.attention) {
    for (std::size_t i = 0; i < section.k.size(); ++i) {
      // The values of latent attention are a part of the rows of keys, which are not rotated.
      const bool is_latent = model.layers[section.layers[i]].is_latent;
      const auto &k = section.k[i], &v = is_latent ? k : section.v[i];
      if (k.format.plain == nullptr || v.format.plain == nullptr) {
        return unsupported("keys or values have a type of a fork of llama.cpp");
      }
      const std::string k_type(k.format.name()), v_type(v.format.name());
      if (format.k_type.empty()) {
        format.k_type = k_type;
        format.v_type = v_type;
        format.flash_attention = !section.v[i].is_transposed;
      } else if (format.k_type != k_type || format.v_type != v_type) {
        return unsupported("the layers have keys or values of different types");
      }
      const bool is_quantized = !is_dense_type(k_type) || !is_dense_type(v_type);
      if (is_quantized && !is_latent && k.rotation.value_or(1) == 0 &&
          v.rotation.value_or(1) == 0) {
        format.is_rotated = false;
      }
    }
  }
  return format;
}

std::string client_salt(const std::string& salt, const std::string& binding,
                        const std::string& api_key) {
  std::string all = salt;
  if (!binding.empty()) all += std::string("\0serve values\0", 14) + digest_text(binding);
  if (!api_key.empty()) all += std::string("\0serve client\0", 14) + digest_text(api_key);
  return all;
}

std::vector<std::string> bindings_by_types() {
  std::vector<std::string> bindings{""};
  for (const interop::LlamaRowType& k : interop::row_types()) {
    for (const interop::LlamaRowType& v : interop::row_types()) {
      SlotFileFormat format;
      format.k_type = k.name;
      format.v_type = v.name;
      std::string binding = binding_of(format, {}, 0);
      if (!binding.empty()) bindings.push_back(std::move(binding));
    }
  }
  return bindings;
}

std::string binding_of(const SlotFileFormat& format, const ServerProps& props,
                       std::int64_t trained_context) {
  std::string binding;
  if (!is_dense_type(format.k_type) || !is_dense_type(format.v_type)) {
    binding += fmt::format("types {} {}\n", format.k_type, format.v_type);
  }
  if (!props.adapters.empty()) binding += fmt::format("adapters {}\n", props.adapters);
  // Then llama-server may scale RoPE.
  if (trained_context > 0 && props.n_ctx > trained_context) {
    binding += fmt::format("context {}\n", props.n_ctx);
  }
  return binding;
}

Result<std::unique_ptr<PromptKeeper>> PromptKeeper::open(store::Backend& backend,
                                                         KeeperOptions options, Metrics& metrics,
                                                         Log& log) {
  using Type = Metrics::Type;
  metrics.define("tqcache_store_bytes_read_total", Type::kCounter, "Bytes of blobs read.");
  metrics.define("tqcache_store_bytes_written_total", Type::kCounter,
                 "Bytes of new blobs in the store.");
  metrics.define("tqcache_store_failures_total", Type::kCounter,
                 "Failed lookups, restores and saves.", false);
  metrics.define("tqcache_rounding_error", Type::kGauge,
                 "Relative error of values that were stored and restored, measured once.", false);
  metrics.define("tqcache_store_evicted_bytes_total", Type::kCounter,
                 "Bytes removed for --max-bytes.");
  std::unique_ptr<PromptKeeper> keeper(new PromptKeeper(backend, std::move(options), metrics, log));
  if (!keeper->options_.scores.empty()) {
    if (const auto loaded = load_scores(keeper->options_.scores.string(), keeper->scores_);
        !loaded) {
      log.warning("scores", {{"message", loaded.error().message}});
    }
  }
  TQC_TRY_ASSIGN(const cache::Configuration parsed,
                 cache::parse_configuration(keeper->options_.config));
  if (parsed.options.keep_all) return keeper;
  if (parsed.options.fit == cache::Fit::kPrompt) {
    return invalid("fit=prompt: prompts that were fitted to themselves share nothing");
  }
  if (parsed.is_dense()) return keeper;
  keeper->form_ = parsed.options;
  keeper->form_->memory = keeper->options_.memory;
  return keeper;
}

PromptKeeper::~PromptKeeper() = default;

store::Library PromptKeeper::library(const std::string& salt, unsigned n_threads) const {
  store::LibraryOptions options;
  options.salt = salt;
  options.n_threads = n_threads;
  options.memory = options_.memory;
  options.remove_damaged = true;
  options.on_warning = [this](const std::string& message) {
    metrics_.add("tqcache_store_failures_total", 1, {{"what", "blob"}});
    log_.warning("store", {{"message", message}});
  };
  return {backend_, options};
}

std::string PromptKeeper::salt_of(const Bound& model, const std::string& api_key) const {
  return client_salt(options_.salt, model.binding, options_.share_tenants ? "" : api_key);
}

Result<PromptKeeper::Bound> PromptKeeper::read_model(const ServerProps& props) const {
  const std::filesystem::path path =
      options_.model.empty() ? std::filesystem::path(props.model_path) : options_.model;
  if (path.empty()) return invalid("the upstream server does not say which model it runs: --model");
  Bound read;
  TQC_TRY_ASSIGN(read.geometry, in_file(path.string(), interop::read_llama_geometry(path)));
  auto model = model::load_model(path, 1, options_.memory);
  if (model) {
    read.identity = (*model)->identity;
    read.trained_context = (*model)->config.context_length;
  } else {
    TQC_TRY_ASSIGN(read.identity, in_file(path.string(), sampled_identity(path, read.geometry)));
  }
  read.identity.model_name = path.stem().string();
  return read;
}

Result<PromptKeeper::BoundModel> PromptKeeper::bind(Bound model, const ServerProps& props,
                                                    std::shared_ptr<const ByteSource> slot_file) {
  TQC_TRY_ASSIGN(model.format, read_slot_file_format(*slot_file, model.geometry));
  TQC_TRY_ASSIGN(const interop::OpenedCache opened, open_slot_file(model, slot_file));
  std::shared_ptr<const cache::CacheReader> reader = opened.cache;
  if (form_) {
    TQC_TRY_ASSIGN(reader, cache::quantize(reader, *form_));
  }
  model.settings = reader->description().layers;
  model.binding = binding_of(model.format, props, model.trained_context);
  const std::lock_guard lock(bound_mutex_);
  // f16 and its like are stored exactly.
  rounding_is_known_ =
      !form_ && is_dense_type(model.format.k_type) && is_dense_type(model.format.v_type);
  bound_ = std::make_shared<const Bound>(std::move(model));
  return bound_;
}

PromptKeeper::BoundModel PromptKeeper::bound() const {
  const std::lock_guard lock(bound_mutex_);
  return bound_;
}

std::string PromptKeeper::model_name() const {
  const BoundModel model = bound();
  return model ? model->identity.model_name : std::string();
}

void PromptKeeper::unbind() {
  const std::lock_guard lock(bound_mutex_);
  bound_.reset();
}

bool PromptKeeper::Bound::can_cut() const {
  return std::all_of(geometry.layers.begin(), geometry.layers.end(),
                     [](const interop::LlamaLayer& layer) {
                       return layer.kind == interop::LlamaLayerKind::kAttention;
                     });
}

Result<interop::OpenedCache> PromptKeeper::open_slot_file(const Bound& model,
                                                          std::shared_ptr<const ByteSource> file) {
  interop::OpenHints hints;
  hints.identity = model.identity;
  hints.geometry = model.geometry;
  hints.decide_rotation = [](const cache::CacheReader&, const cache::CacheReader&) {
    return Result<interop::LlamaRotation>(interop::LlamaRotation::kOn);
  };
  return interop::open_any(std::move(file), hints);
}

interop::LlamaExport PromptKeeper::export_options(const Bound& model) {
  const SlotFileFormat& format = model.format;
  interop::LlamaExport options;
  options.kind = interop::LlamaFile::kSequence;
  options.version = format.version;
  options.k_type = format.k_type;
  options.v_type = format.v_type;
  options.rotation = format.is_rotated ? interop::LlamaRotation::kOn : interop::LlamaRotation::kOff;
  options.flash_attention = format.flash_attention;
  options.server_tokens = format.server_tokens;
  options.n_streams = format.n_streams;
  options.is_temporary = true;
  return options;
}

Result<void> PromptKeeper::rewrite(const Bound& model, std::shared_ptr<const ByteSource> from,
                                   const std::filesystem::path& to) {
  TQC_TRY_ASSIGN(const interop::OpenedCache opened, open_slot_file(model, std::move(from)));
  return interop::export_llama_state(*opened.cache, model.geometry, to, export_options(model));
}

Result<PromptKeeper::Found> PromptKeeper::find(std::span<const std::int32_t> tokens,
                                               const std::string& api_key) {
  Found found;
  found.model = bound();
  if (found.model == nullptr) return found;
  const Bound& model = *found.model;
  found.salt = salt_of(model, api_key);
  store::FindOptions options;
  // llama-server computes the last token of a prompt again. It can go back by one token, unless a
  // layer cannot.
  options.max_tokens = model.can_cut() ? std::ssize(tokens) : std::ssize(tokens) - 1;
  if (options.max_tokens < 1) return found;
  options.settings = &model.settings;
  options.finds_parts = true;
  store::Library stored = library(found.salt, options_.n_threads);
  TQC_TRY_ASSIGN(found.prefix, stored.find(model.identity, tokens, options));
  return found;
}

Result<std::int64_t> PromptKeeper::write_slot_file(Found& found,
                                                   std::span<const std::int32_t> tokens,
                                                   const std::filesystem::path& path) {
  if (found.model == nullptr) return Error{ErrorCode::kNotFound, "nothing was found"};
  const Bound& model = *found.model;
  // A client waits for this, and the server does as well.
  store::Library stored = library(found.salt, std::max(options_.n_threads, kRestoreThreads));
  TQC_TRY_ASSIGN(const std::unique_ptr<store::StoredPrompt> prompt, stored.fetch(found.prefix));
  if (prompt == nullptr) return Error{ErrorCode::kNotFound, "nothing is left of the prefix"};
  metrics_.add("tqcache_store_bytes_read_total", static_cast<double>(prompt->blob_bytes()));
  read_bytes_ += prompt->blob_bytes();
  const std::vector<std::int32_t>& has = prompt->description().tokens;
  const std::int64_t n_tokens = found.n_tokens();
  if (n_tokens < 1 || n_tokens > std::ssize(tokens) || n_tokens > std::ssize(has) ||
      !std::equal(has.begin(), has.begin() + n_tokens, tokens.begin())) {
    return corrupt("the store returned another prompt");
  }
  std::shared_ptr<const cache::CacheReader> common = cache::borrow(*prompt);
  if (n_tokens < std::ssize(has)) {
    TQC_TRY_ASSIGN(common, cache::first_tokens(std::move(common), n_tokens));
  }
  TQC_TRY(interop::export_llama_state(*common, model.geometry, path, export_options(model)));
  scores_.hit(store::blob_names(found.prefix), seconds_now());
  return n_tokens;
}

Result<PromptKeeper::Kept> PromptKeeper::keep(
    const BoundModel& bound_model, std::shared_ptr<const ByteSource> slot_file,
    const std::filesystem::path& scratch, const std::string& api_key,
    const std::function<bool(std::span<const std::int32_t>)>& is_expected) {
  const Bound& model = *bound_model;
  TQC_TRY_ASSIGN(const interop::OpenedCache opened, open_slot_file(model, slot_file));
  if (!is_expected(opened.cache->description().tokens)) return mismatch("the slot holds others");
  Kept kept;
  kept.file_bytes = slot_file->size();
  kept.n_tokens = opened.cache->n_tokens();
  kept.n_stored = kept.n_tokens;
  kept.tokens = opened.cache->description().tokens;
  store::PutOptions options;
  const std::lock_guard lock(put_mutex_);
  store::Library stored = library(salt_of(model, api_key), options_.n_threads);
  store::PutReport report;
  // The last tail of a conversation that is longer now.
  store::FindOptions longest;
  longest.max_tokens = kept.n_tokens;
  longest.settings = &model.settings;
  longest.finds_parts = true;
  TQC_TRY_ASSIGN(const store::Prefix before, stored.find(model.identity, kept.tokens, longest));
  options.quantization = form_;
  TQC_TRY_ASSIGN(report, stored.put(*opened.cache, "", {}, options));
  // The tail of the turn before the last one is not needed any more: the last one's is, by a turn
  // that is asked again.
  if (model.can_cut() && before.snapshot && before.n_tokens < kept.n_tokens) {
    longest.finds_parts = false;
    // It is behind the same token block as the last one, or behind the one before.
    const std::int64_t in_block = before.n_tokens - 1,
                       before_block = in_block / kBlock * kBlock - 1;
    for (const std::int64_t n_most : {in_block, before_block}) {
      if (n_most <= kBlock) continue;
      longest.max_tokens = n_most;
      const auto older = stored.find(model.identity, kept.tokens, longest);
      const Result<void> removed =
          older && older->snapshot ? stored.remove_snapshot(*older) : Result<void>();
      if (!removed) log_.warning("old-tail", {{"message", removed.error().message}});
    }
  }
  const bool must_measure = [&] {
    const std::lock_guard bound(bound_mutex_);
    return !std::exchange(rounding_is_known_, true);
  }();
  if (must_measure && model.can_cut()) {
    if (const auto measured = measure_rounding(model, *opened.cache, scratch); !measured) {
      log_.warning("rounding", {{"message", measured.error().message}});
    }
    std::error_code ignored;
    std::filesystem::remove(scratch, ignored);
  }
  kept.new_bytes = report.new_bytes;
  metrics_.add("tqcache_store_bytes_written_total", static_cast<double>(report.new_bytes));
  stored_bytes_ += report.new_bytes;
  collect_if_needed(report.new_bytes);
  return kept;
}

// What storing and restoring changes in the values of a slot: a stored form rounds them, and a
// server with quantized keys and values rounds what comes back.
Result<void> PromptKeeper::measure_rounding(const Bound& model, const cache::CacheReader& slot,
                                            const std::filesystem::path& scratch) {
  const std::int64_t n_tokens = std::min<std::int64_t>(slot.n_tokens(), 4 * kBlock);
  TQC_TRY_ASSIGN(const auto first, cache::first_tokens(cache::borrow(slot), n_tokens));
  std::shared_ptr<const cache::CacheReader> stored = first;
  if (form_) {
    TQC_TRY_ASSIGN(stored, cache::quantize(first, *form_));
  }
  TQC_TRY(interop::export_llama_state(*stored, model.geometry, scratch, export_options(model)));
  TQC_TRY_ASSIGN(std::shared_ptr<const ByteSource> written, open_regular_file(scratch));
  TQC_TRY_ASSIGN(const interop::OpenedCache again, open_slot_file(model, std::move(written)));
  TQC_TRY_ASSIGN(const cache::Cache before,
                 cache::load(*first, {options_.memory, options_.n_threads}));
  TQC_TRY_ASSIGN(const cache::Cache after,
                 cache::load(*again.cache, {options_.memory, options_.n_threads}));
  TQC_TRY_ASSIGN(const cache::CacheDifference difference,
                 cache::diff(before, after, options_.n_threads));
  const double keys = std::sqrt(difference.k.relative_mse);
  const double values = std::sqrt(difference.v.relative_mse);
  metrics_.set("tqcache_rounding_error", keys, {{"tensor", "keys"}});
  metrics_.set("tqcache_rounding_error", values, {{"tensor", "values"}});
  log_.info("rounding", {{"stored", options_.config},
                         {"server_keys", model.format.k_type},
                         {"server_values", model.format.v_type},
                         {"tokens", std::to_string(n_tokens)},
                         {"keys_error", fmt::format("{:.2g}", keys)},
                         {"values_error", fmt::format("{:.2g}", values)}});
  return {};
}

void PromptKeeper::collect_if_needed(std::uint64_t new_bytes) {
  bytes_since_collect_ += new_bytes;
  if (!options_.max_bytes || bytes_since_collect_ < *options_.max_bytes / 20) return;
  bytes_since_collect_ = 0;
  store::CollectOptions options;
  options.max_bytes = options_.max_bytes;
  options.grace = std::chrono::minutes(5);
  options.order_by = [&, now = seconds_now()](std::string_view name, std::chrono::seconds idle) {
    return scores_.idle(name, idle, now);
  };
  const auto report = store::collect(backend_, options);
  if (!report) {
    log_.warning("evict", {{"message", report.error().message}});
    return;
  }
  const std::uint64_t n =
      report->bytes_before - std::min(report->bytes_after, report->bytes_before);
  metrics_.add("tqcache_store_evicted_bytes_total", static_cast<double>(n));
  log_.info("evict", {{"bytes", std::to_string(n)}});
}

Result<void> PromptKeeper::save_scores() {
  if (options_.scores.empty() || !scores_.has_changed()) return {};
  return serve::save_scores(options_.scores.string(), scores_);
}

void PromptKeeper::note_rest() {
  if (read_bytes_ != 0 || stored_bytes_ != 0) note_usage(0, 0);
}

void PromptKeeper::note_usage(std::int64_t n_wanted, std::int64_t n_found) {
  store::UsageNote note;
  note.created = std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  note.wanted_tokens = n_wanted;
  note.found_tokens = std::min(n_found, n_wanted);
  note.read_bytes = read_bytes_.exchange(0);
  note.stored_bytes = stored_bytes_.exchange(0);
  store::Library stored = library(options_.salt, options_.n_threads);
  [[maybe_unused]] const Result<void> ignored = stored.note_usage(note);
}

}  // namespace tqcache::serve
