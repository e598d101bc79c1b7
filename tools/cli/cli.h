#pragma once
// tools/cli/cli.h: the command line: verbs, the flags that several of them share, and its mistakes.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/outcome.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/sampler.h"

namespace tqcache::cli {

// What a verb does once its flags are known.
using Action = std::function<Outcome<ExitCode>(const Console&)>;

// One word of the command line. `define` adds the verb's flags to `app` and gives its action,
// which holds the options that parsing fills in.
struct Verb {
  std::string_view name;
  std::string_view summary;
  Action (*define)(CLI::App& app);
  bool has_json = true;  // whether the result can be a JSON object
  // Of a word that only groups others: these, each named by both words. It has no flags of its own.
  std::span<const Verb> (*verbs)() = nullptr;
};

// Each stands in its own cmd_*.cpp.
Action define_prefill(CLI::App& app);
Action define_convert(CLI::App& app);
Action define_info(CLI::App& app);
Action define_verify(CLI::App& app);
Action define_diff(CLI::App& app);
Action define_migrate(CLI::App& app);
Action define_compact(CLI::App& app);
Action define_generate(CLI::App& app);
Action define_chat(CLI::App& app);
Action define_bench(CLI::App& app);
Action define_advise(CLI::App& app);
Action define_profile(CLI::App& app);

// Parses the arguments after the verb and runs it; tells of every failure.
ExitCode run_verb(const Verb& verb, const std::vector<std::string>& args);

// The word among `known` that `word` was probably meant to be, or empty.
std::string closest_word(std::string_view word, const std::vector<std::string>& known);

// Whether errors shall be JSON too, for command lines that could not be parsed.
bool asks_for_json(const std::vector<std::string>& args);

// A check for add_option: a whole number of at least `minimum`.
CLI::Validator at_least(std::int64_t minimum);

// A check for add_option: not empty, as a script's unset variable would be.
CLI::Validator file_name();

// Flags that several verbs share.
void add_model_flag(CLI::App& app, std::string& path, bool required);
void add_threads_flag(CLI::App& app, unsigned& n_threads);
void add_scorer_flag(CLI::App& app, model::Scorer& scorer);
void add_map_flag(CLI::App& app, bool& map);
void add_first_tokens_flag(CLI::App& app, std::optional<std::int64_t>& first_tokens);
void add_no_tokens_flag(CLI::App& app, bool& no_tokens);
void add_force_flag(CLI::App& app, bool& force);

struct CompressionFlags {
  std::string method;  // "zstd", "planes", "none"
  bool is_given = false;
  int level = 1;  // of zstd
};
void add_compression_flags(CLI::App& app, CompressionFlags& flags, const std::string& method);

// Errors: kInvalidArgument.
Result<format::WriteOptions> write_options(const CompressionFlags& flags, unsigned n_threads,
                                           bool force);

}  // namespace tqcache::cli
