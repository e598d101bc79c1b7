#include "cli/store_flags.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/model_facts.h"
#include "cli/terminal.h"
#include "report/info.h"
#include "tqcache/base/posix.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/model.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::cli {

namespace {

constexpr std::size_t kMaxSaltBytes = 4096;

Error too_long() { return {ErrorCode::kTooLarge, "a salt has at most 4,096 bytes"}; }

// Reading a salt that others can read is no error: containers mount secrets so.
void warn_if_readable_by_others(const std::string& path) {
  posix::Stat info{};
  if (posix::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      (info.st_mode & 0077) == 0) {
    return;
  }
  warn("--salt-file " + path, fmt::format("other users can use it (mode {:04o}); chmod 600 keeps "
                                          "the salt secret",
                                          info.st_mode & 07777));
}

Result<std::string> read_salt(const std::string& path) {
  warn_if_readable_by_others(path);
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> file, open_file(path));
  if (file->size() > kMaxSaltBytes) return too_long();
  std::string salt(static_cast<std::size_t>(file->size()), '\0');
  TQC_TRY(file->read_at(0, std::as_writable_bytes(std::span(salt))));
  while (salt.ends_with('\n') || salt.ends_with('\r')) salt.pop_back();
  if (salt.empty()) return usage_error("the salt is empty");
  return salt;
}

}  // namespace

Result<std::string> tenant_salt(const std::string& file) {
  if (!file.empty()) {
    auto salt = read_salt(file);
    if (!salt) return in_context("--salt-file " + file, std::move(salt).error());
    return salt;
  }
  const char* const variable = std::getenv("TQCACHE_STORE_SALT");
  if (variable == nullptr) return std::string();
  std::string salt = variable;
  // Probably a secret that was not set. Without it, the prompts would be those of all.
  if (salt.empty()) {
    return usage_error("TQCACHE_STORE_SALT is set but empty; unset it to use no salt");
  }
  if (salt.size() > kMaxSaltBytes) return in_context("TQCACHE_STORE_SALT", too_long());
  return salt;
}

namespace {

struct UnitName {
  std::string_view name;
  std::uint64_t factor;
};

constexpr UnitName kDurations[] = {
    {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {"w", 7 * 86400}};

constexpr std::uint64_t kKi = 1024;
constexpr UnitName kSizes[] = {{"", 1},
                               {"B", 1},
                               {"KB", 1000},
                               {"MB", 1000'000},
                               {"GB", 1000'000'000},
                               {"TB", 1000'000'000'000},
                               {"K", kKi},
                               {"M", kKi* kKi},
                               {"G", kKi* kKi* kKi},
                               {"T", kKi* kKi* kKi* kKi},
                               {"KiB", kKi},
                               {"MiB", kKi* kKi},
                               {"GiB", kKi* kKi* kKi},
                               {"TiB", kKi* kKi* kKi* kKi}};

// A whole number and a unit; absent if it is malformed or too large.
std::optional<std::uint64_t> parse_amount(std::string_view text, std::span<const UnitName> units) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const std::from_chars_result parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc()) return std::nullopt;
  const std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const UnitName& unit : units) {
    if (rest != unit.name) continue;
    if (number > kMax / unit.factor) return std::nullopt;
    return number * unit.factor;
  }
  return std::nullopt;
}

// Adds a flag whose text `parse` turns into a value.
template <class T, class Parse>
Flag* add_parsed_flag(FlagSet& app, const std::string& flag, std::optional<T>& value,
                      const std::string& text, const char* type_name, Parse parse) {
  return app
      .add_text(
          flag, [&value, parse](const std::string& word) { value = parse(word).value(); }, text)
      ->type_name(type_name)
      ->check([parse](const std::string& word) -> Result<void> {
        if (auto parsed = parse(word); !parsed) return std::move(parsed).error();
        return {};
      });
}

Result<std::string> store_url(const StoreFlags& flags) {
  if (!flags.url.empty()) return flags.url;
  const char* const variable = std::getenv("TQCACHE_STORE");
  if (variable != nullptr && *variable != '\0') return std::string(variable);
  return usage_error("no store: --store URL or the variable TQCACHE_STORE is required");
}

}  // namespace

void add_store_flag(FlagSet& app, StoreFlags& flags) {
  app.add("--store", flags.url,
          "URL of the store: dir:PATH, redis://HOST or s3://BUCKET (or the variable TQCACHE_STORE)")
      ->type_name("URL")
      ->not_empty();
}

void add_salt_flag(FlagSet& app, StoreFlags& flags) {
  app.add("--salt-file", flags.salt_file,
          "File with the salt of the tenant: only prompts stored with the same salt are visible "
          "(or the variable TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->file();
}

store::Library OpenStore::library(unsigned n_threads) const {
  const auto tell = [name = name()](const std::string& message) { warn(name, message); };
  return {*backend, {salt, n_threads, memory, tell}};
}

Result<void> OpenStore::check_key() const {
  return in(store::check_store_key(*backend, store::BeforePut::kNo));
}

Result<OpenStore> open_store(const Console& console, const StoreFlags& flags, StoreUse use) {
  TQC_TRY_ASSIGN(const std::string url, store_url(flags));
  return open_store(console, url, flags.salt_file, use);
}

namespace {

// The URL without what could be a password.
std::string display_url(const std::string& url) {
  if (url.starts_with("dir:")) return url;
  const std::size_t begin = url.find("://");
  if (begin == std::string::npos) return "store";
  const std::size_t host = url.rfind('@');
  const std::string rest =
      url.substr(host == std::string::npos || host < begin ? begin + 3 : host + 1);
  return url.substr(0, begin + 3) + rest.substr(0, rest.find_first_of("?#"));
}

}  // namespace

Result<OpenStore> open_store(const Console& console, const std::string& url,
                             const std::string& salt_file, StoreUse use) {
  OpenStore opened;
  opened.memory = console.access.memory;
  TQC_TRY_ASSIGN(const std::string salt, tenant_salt(salt_file));
  opened.salt = store::secret_salt(console.access.keys, salt);
  store::BackendOptions options;
  options.create = use == StoreUse::kPut;
  options.interrupted = interrupted;
  options.keys = console.access.keys;
  options.credentials = store::credentials_of_environment();
  TQC_TRY_ASSIGN(opened.backend, in_file(display_url(url), store::open_backend(url, options)));
  // Prompts of two keys in one store hide each other, and gc stops.
  if (use == StoreUse::kPut) {
    TQC_TRY(opened.in(store::check_store_key(*opened.backend, store::BeforePut::kYes)));
  }
  return opened;
}

Result<std::chrono::seconds> parse_duration(const std::string& text) {
  const auto seconds = parse_amount(text, kDurations);
  if (!seconds) {
    return usage_error(fmt::format("{} is not a time such as 90s, 15m, 12h, 30d, 4w", text));
  }
  return std::chrono::seconds(*seconds);
}

void add_duration_flag(FlagSet& app, const std::string& flag,
                       std::optional<std::chrono::seconds>& duration, const std::string& what) {
  add_parsed_flag(app, flag, duration, what, "TIME", parse_duration);
}

Result<std::uint64_t> parse_bytes(const std::string& text) {
  const auto bytes = parse_amount(text, kSizes);
  if (!bytes) return usage_error(fmt::format("{} is not a size such as 500MB, 20GiB", text));
  return *bytes;
}

Flag* add_bytes_flag(FlagSet& app, const std::string& flag, std::optional<std::uint64_t>& bytes,
                     const std::string& what) {
  return add_parsed_flag(app, flag, bytes, what, "SIZE", parse_bytes);
}

std::string duration_text(std::chrono::seconds duration) {
  const std::int64_t seconds = duration.count();
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 120 * 60) return fmt::format("{} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} days", seconds / 86400);
}

std::string time_text(std::int64_t seconds_since_1970) {
  constexpr std::int64_t kYear10000 = 253402300800;
  if (seconds_since_1970 <= 0 || seconds_since_1970 >= kYear10000) return "unknown";
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::gmtime(std::time_t{seconds_since_1970}));
}

void add_selection_flags(FlagSet& app, StoreSelection& selection) {
  app.add("name", selection.name, "Name of the prompt")->type_name("")->not_empty();
  add_model_flag(app, selection.model, false);
  add_prompt_flags(app, selection.prompt);
}

Result<void> check_selection(const StoreSelection& selection) {
  TQC_TRY(check_prompt_flags(selection.prompt));
  if (selection.by_name() == selection.prompt.given()) {
    return usage_error("no prompt: a NAME, or --prompt, --file or --ids with --model, is required");
  }
  if (selection.by_name() && !selection.model.empty()) {
    return usage_error("--model needs --prompt, --file or --ids");
  }
  if (!selection.by_name() && selection.model.empty()) {
    return usage_error("--prompt, --file and --ids need --model");
  }
  return {};
}

Result<FoundPrefix> find_prefix(const Console& console, const OpenStore& store,
                                store::Library& library, const StoreSelection& selection) {
  TQC_TRY_ASSIGN(const std::unique_ptr<model::Model> model, load_model(console, selection.model));
  TQC_TRY_ASSIGN(const std::vector<std::int32_t> tokens,
                 read_prompt(selection.prompt, model->tokenizer));
  FoundPrefix found;
  found.n_wanted = std::ssize(tokens);
  store::FindOptions options;
  options.max_tokens = found.n_wanted;
  TQC_TRY_ASSIGN(found.prefix, store.in(library.find(model->identity, tokens, options)));
  if (found.prefix.n_tokens > 0) return found;
  TQC_TRY(store.check_key());
  const std::string message =
      fmt::format("none of the {} tokens of the prompt is stored", found.n_wanted);
  return Error{ErrorCode::kNotFound, message, store.name()};
}

Result<store::PromptRecord> find_record(const OpenStore& store, store::Library& library,
                                        const std::string& name) {
  TQC_TRY_ASSIGN(std::optional<store::PromptRecord> record, store.in(library.record(name)));
  if (record) return std::move(*record);
  TQC_TRY(store.check_key());
  const std::string message = fmt::format("no prompt has the name {}", printable(name));
  return Error{ErrorCode::kNotFound, message, store.name()};
}

Result<std::vector<cache::LayerDesc>> layers_of(const OpenStore& store,
                                                const store::PromptRecord& record) {
  const std::string& key = record.parameters_key;
  TQC_TRY_ASSIGN(const std::optional<Bytes> blob, store.in(store.backend->get(key)));
  if (!blob) return std::vector<cache::LayerDesc>{};
  TQC_TRY_ASSIGN(store::Content content,
                 store.in(store::decode_blob(key, SharedBytes(nullptr, ByteView(*blob)))));
  const auto* parameters = std::get_if<store::Parameters>(&content);
  if (parameters == nullptr) return std::vector<cache::LayerDesc>{};
  return store.in(store::join_layers(parameters->layers, record.snapshot.layers));
}

Json record_json(const store::PromptRecord& record) {
  Json json;
  json["name"] = record.name;
  json["model_name"] = record.model_name;
  json["architecture"] = record.architecture;
  json["n_tokens"] = record.snapshot.n_tokens;
  json["n_blocks"] = record.chain.size();
  json["bytes"] = record.bytes;
  json["created"] = record.created;
  json["content_name"] = to_hex(record.snapshot.content_name);
  if (record.standing == cache::Standing::kUnchecked) json["standing"] = "unchecked";
  return json;
}

Json prefix_json(const FoundPrefix& found) {
  const store::Prefix& prefix = found.prefix;
  Json json;
  json["prompt_tokens"] = found.n_wanted;
  json["found_tokens"] = prefix.n_tokens;
  json["n_blocks"] = prefix.chain.size();
  json["ends_with_state"] = prefix.snapshot.has_value();
  json["layers"] = layers_json(prefix.parameters.layers, {});
  return json;
}

namespace {

std::string store_variable() {
  const char* const value = std::getenv("TQCACHE_STORE");
  return value == nullptr ? std::string() : std::string(value);
}

Result<void> check_flags(const PromptStoreFlags& flags, bool has_store) {
  if (flags.no_store && !flags.url.empty()) {
    return usage_error("--store and --no-store exclude each other");
  }
  if (!flags.name.empty() && flags.read_only) {
    return usage_error("--store-name and --store-read-only exclude each other");
  }
  const bool needs_store = flags.read_only || !flags.salt_file.empty() || !flags.name.empty();
  if (needs_store && !has_store) {
    return usage_error("--store-name, --store-read-only and --salt-file need --store");
  }
  return {};
}

}  // namespace

void add_prompt_store_flags(FlagSet& app, PromptStoreFlags& flags, StoreNames names) {
  const std::string group = "Store";
  app.add("--store", flags.url,
          "Reuse what this store has of the prompt, and add new blocks to it: dir:PATH, "
          "redis://HOST or s3://BUCKET (or the variable TQCACHE_STORE)")
      ->type_name("URL")
      ->not_empty()
      ->group(group);
  app.add("--no-store", flags.no_store, "Use no store, even if TQCACHE_STORE is set")->group(group);
  app.add("--store-read-only", flags.read_only, "Read from the store, add nothing")->group(group);
  if (names == StoreNames::kWithName) {
    app.add("--store-name", flags.name, "Save the whole cache in the store under this name")
        ->type_name("NAME")
        ->not_empty()
        ->group(group);
  }
  app.add("--salt-file", flags.salt_file,
          "File with the salt of the tenant: only prompts stored with the same salt are found (or "
          "the variable TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->file()
      ->group(group);
}

Result<std::optional<PromptStoreChoice>> choose_prompt_store(const PromptStoreFlags& flags,
                                                             std::string_view obstacle) {
  const bool is_given = !flags.url.empty();
  if (is_given && !obstacle.empty()) return usage_error("--store: " + std::string(obstacle));
  std::string url = is_given ? flags.url : store_variable();
  const bool has_store = !url.empty() && !flags.no_store && obstacle.empty();
  TQC_TRY(check_flags(flags, has_store));
  if (!has_store) return std::optional<PromptStoreChoice>();
  TQC_TRY_ASSIGN(std::string salt, tenant_salt(flags.salt_file));
  return std::optional(
      PromptStoreChoice{std::move(url), std::move(salt), flags.read_only, flags.name});
}

}  // namespace tqcache::cli
