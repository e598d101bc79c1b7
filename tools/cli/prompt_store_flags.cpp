#include "cli/prompt_store_flags.h"

#include <cstdlib>
#include <utility>

#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/store_salt.h"

namespace tqcache::cli {
namespace {

std::string store_variable() {
  const char* const value = std::getenv("TQCACHE_STORE");
  return value == nullptr ? std::string() : std::string(value);
}

Result<void> check_flags(const PromptStoreFlags& flags, bool has_store) {
  if (flags.no_store && !flags.url.empty()) {
    return usage_error("only one of --store and --no-store can be given");
  }
  if (!flags.name.empty() && flags.read_only) {
    return usage_error("--store-name: with --store-read-only nothing is kept");
  }
  const bool needs_store = flags.read_only || !flags.salt_file.empty() || !flags.name.empty();
  if (needs_store && !has_store) {
    return usage_error(
        "--store-name, --store-read-only and --salt-file are of use only with --store");
  }
  return {};
}

}  // namespace

void add_prompt_store_flags(CLI::App& app, PromptStoreFlags& flags, StoreNames names) {
  const std::string group = "Store";
  app.add_option(
         "--store", flags.url,
         "Begin from what this store has of the prompt, and put there what is new: dir:PATH, "
         "redis://HOST, s3://BUCKET (or the variable TQCACHE_STORE)")
      ->type_name("URL")
      ->check(file_name())
      ->group(group);
  app.add_flag("--no-store", flags.no_store, "Use none, whatever TQCACHE_STORE says")->group(group);
  app.add_flag("--store-read-only", flags.read_only, "Put nothing")->group(group);
  if (names == StoreNames::kWithName) {
    app.add_option("--store-name", flags.name, "Keep the whole under this name in the store")
        ->type_name("NAME")
        ->check(file_name())
        ->group(group);
  }
  app.add_option("--salt-file", flags.salt_file,
                 "Find and put only what has this file's text as its salt (or the variable "
                 "TQCACHE_STORE_SALT)")
      ->type_name("FILE")
      ->check(file_name())
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
