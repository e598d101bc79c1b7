#include "cli/store_flags.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "cli/cli.h"
#include "cli/console.h"
#include "cli/store_salt.h"
#include "cli/terminal.h"

namespace tqcache::cli {
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

// A whole number and a unit; nothing when it is none, or too large.
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

// Adds a flag whose word `parse` turns into a value.
template <class T, class Parse>
void add_parsed_flag(CLI::App& app, const std::string& flag, std::optional<T>& value,
                     const std::string& what, const char* type_name, Parse parse) {
  const auto check = [parse](std::string& word) {
    const auto parsed = parse(word);
    return parsed ? std::string() : parsed.error().message;
  };
  app.add_option_function<std::string>(
         flag, [&value, parse](const std::string& word) { value = parse(word).value(); }, what)
      ->type_name(type_name)
      ->check(CLI::Validator(check, ""));
}

Result<std::string> store_url(const StoreFlags& flags) {
  if (!flags.url.empty()) return flags.url;
  const char* const variable = std::getenv("TQCACHE_STORE");
  if (variable != nullptr && *variable != '\0') return std::string(variable);
  return usage_error("which store? --store URL or the variable TQCACHE_STORE is needed");
}

}  // namespace

void add_store_flag(CLI::App& app, StoreFlags& flags) {
  app.add_option("--store", flags.url,
                 "The store: dir:PATH, redis://HOST, s3://BUCKET (or the variable TQCACHE_STORE)")
      ->type_name("URL")
      ->check(file_name());
}

void add_salt_flag(CLI::App& app, StoreFlags& flags) {
  app.add_option("--salt-file", flags.salt_file,
                 "Only what was put with this file's text as its salt (or the variable "
                 "TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->check(file_name());
}

store::Library OpenStore::library(unsigned n_threads) const {
  const auto tell = [name = name()](const std::string& message) { warn(name, message); };
  return {*backend, {salt, n_threads, tell}};
}

Outcome<OpenStore> open_store(const StoreFlags& flags, StoreUse use) {
  TQC_TRY_ASSIGN(const std::string url, store_url(flags));
  return open_store(url, flags.salt_file, use);
}

Outcome<OpenStore> open_store(const std::string& url, const std::string& salt_file, StoreUse use) {
  OpenStore opened;
  TQC_TRY_ASSIGN(opened.salt, tenant_salt(salt_file));
  store::BackendOptions options;
  options.create = use == StoreUse::kPut;
  TQC_TRY_ASSIGN(opened.backend, store::open_backend(url, options));
  return opened;
}

Result<std::chrono::seconds> parse_duration(const std::string& text) {
  const auto seconds = parse_amount(text, kDurations);
  if (!seconds) {
    return usage_error(fmt::format("{} is not a time like 90s, 15m, 12h, 30d, 4w", text));
  }
  return std::chrono::seconds(*seconds);
}

void add_duration_flag(CLI::App& app, const std::string& flag,
                       std::optional<std::chrono::seconds>& duration, const std::string& what) {
  add_parsed_flag(app, flag, duration, what, "TIME", parse_duration);
}

Result<std::uint64_t> parse_bytes(const std::string& text) {
  const auto bytes = parse_amount(text, kSizes);
  if (!bytes) return usage_error(fmt::format("{} is not a size like 500MB, 20GiB", text));
  return *bytes;
}

void add_bytes_flag(CLI::App& app, const std::string& flag, std::optional<std::uint64_t>& bytes,
                    const std::string& what) {
  add_parsed_flag(app, flag, bytes, what, "SIZE", parse_bytes);
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

}  // namespace tqcache::cli
