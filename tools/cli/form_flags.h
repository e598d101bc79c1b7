#pragma once
// tools/cli/form_flags.h: the flags that say in which form a session's new cache is kept.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "tqcache/base/result.h"
#include "tqcache/cache/plan.h"

namespace tqcache::cli {

struct FormFlags {
  std::optional<int> bits;
  std::optional<std::string> configuration;

  bool given() const { return bits || configuration; }
};

void add_form_flags(CLI::App& app, FormFlags& flags);

// As convert takes them; nullopt when none is given.
// Errors: kInvalidArgument, naming the flag.
Result<std::optional<cache::ConvertOptions>> form_of(const FormFlags& flags);

}  // namespace tqcache::cli
