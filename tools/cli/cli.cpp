#include "cli/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/text.h"

namespace tqcache::cli {
namespace {

constexpr unsigned kMaxThreads = 1024;  // more is a typing mistake

void add_console_flags(CLI::App& app, Console& console, bool has_json) {
  app.add_flag("-q,--quiet", console.quiet, "No progress and no summary on standard error");
  if (!has_json) return;
  app.add_flag("--json", console.json, "Result, and error if any, as a JSON object");
}

// All spellings of all flags: "--model", "-o".
std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// CLI11 says "Could not convert: --bits = x".
std::string plain_message(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::size_t equals = message.find(" = ");
  if (!message.starts_with(kConversion) || equals == std::string::npos) return message;
  return fmt::format("{}: {} is not a number this flag takes",
                     message.substr(kConversion.size(), equals - kConversion.size()),
                     message.substr(equals + 3));
}

// A flag that does not exist explains a command line better than what it left missing.
std::string parse_message(const CLI::App& app, const CLI::ParseError& error) {
  for (const std::string& word : app.remaining()) {
    if (!word.starts_with("-") || word == "-") continue;
    const std::string name = word.substr(0, word.find('='));
    const std::string meant = closest_word(name, flag_names(app));
    return fmt::format("unknown flag {}{}", name,
                       meant.empty() ? "" : fmt::format(", did you mean {}?", meant));
  }
  if (const std::vector<std::string> extra = app.remaining(); !extra.empty()) {
    return fmt::format("unexpected argument {}", extra.front());
  }
  return plain_message(error.what());
}

ExitCode report_usage(const Verb& verb, const std::string& message, bool json) {
  const std::string hint = fmt::format(" (see tqcache {} --help)", verb.name);
  return report(Failure{usage_error(message + hint), {}, false}, json);
}

}  // namespace

ExitCode run_verb(const Verb& verb, const std::vector<std::string>& args) {
  CLI::App app{std::string(verb.summary), fmt::format("tqcache {}", verb.name)};
  Console console;
  const Action action = verb.define(app);
  add_console_flags(app, console, verb.has_json);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them reversed
  } catch (const CLI::CallForHelp&) {
    const Outcome<Done> printed = print(app.help());
    return printed ? ExitCode::kDone : report(printed.error(), false);
  } catch (const CLI::ParseError& error) {
    return report_usage(verb, parse_message(app, error), asks_for_json(args));
  }
  const Outcome<ExitCode> outcome = action(console);
  return outcome ? *outcome : report(outcome.error(), console.json);
}

std::string closest_word(std::string_view word, const std::vector<std::string>& known) {
  for (const std::string& candidate : known) {
    if (word.size() >= 3 && candidate.starts_with(word)) return candidate;  // cut short
  }
  std::string best;
  std::size_t best_distance = word.size() < 4 ? 2 : 3;  // further away is another word
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

CLI::Validator at_least(std::int64_t minimum) {
  const auto check = [minimum](std::string& word) {
    std::int64_t number = 0;
    if (CLI::detail::lexical_cast(word, number) && number >= minimum) return std::string();
    return fmt::format("{} is not a whole number of at least {}", word, minimum);
  };
  return {check, ""};
}

CLI::Validator file_name() {
  const auto check = [](std::string& word) {
    return word.empty() ? std::string("the name is empty") : std::string();
  };
  return {check, ""};
}

bool asks_for_json(const std::vector<std::string>& args) {
  return std::find(args.begin(), args.end(), "--json") != args.end();
}

void add_model_flag(CLI::App& app, std::string& path, bool required) {
  app.add_option("-m,--model", path, "GGUF file, or Hugging Face folder")
      ->type_name("PATH")
      ->check(file_name())
      ->required(required);
}

void add_threads_flag(CLI::App& app, unsigned& n_threads) {
  app.add_option("-t,--threads", n_threads, "Threads to work with; 0: all processors")
      ->type_name("N")
      ->check(CLI::Range(0u, kMaxThreads).description(""))
      ->capture_default_str();
}

void add_scorer_flag(CLI::App& app, model::Scorer& scorer) {
  static const std::map<std::string, model::Scorer> kScorers = {{"fast", model::Scorer::kFast},
                                                                {"exact", model::Scorer::kExact}};
  app.add_option_function<std::string>(
         "--scorer", [&scorer](const std::string& word) { scorer = kScorers.at(word); },
         "How packed codes are scored: fast (bytes, where the CPU has it) or exact (f32)")
      ->type_name("HOW")
      ->check(CLI::IsMember(kScorers).description(""))
      ->default_str("fast");
}

void add_map_flag(CLI::App& app, bool& map) {
  app.add_flag("--map", map,
               "Use what stands in the cache file uncompressed where it is, without reading it "
               "first; the file must not be cut or changed meanwhile");
}

void add_first_tokens_flag(CLI::App& app, std::optional<std::int64_t>& first_tokens) {
  app.add_option("--tokens", first_tokens,
                 "Take the first N tokens alone; what belongs to the others is not read")
      ->type_name("N")
      ->check(at_least(1));
}

void add_no_tokens_flag(CLI::App& app, bool& no_tokens) {
  app.add_flag("--no-tokens", no_tokens,
               "Keep hashes of the prompt's tokens in the file and not the tokens: who has the "
               "prompt can go on");
}

void add_force_flag(CLI::App& app, bool& force) {
  app.add_flag("-f,--force", force, "Replace the output file if it exists");
}

void add_compression_flags(CLI::App& app, CompressionFlags& flags, const std::string& method) {
  flags.method = method;
  app.add_option_function<std::string>(
         "--compress",
         [&flags](const std::string& word) {
           flags.method = word;
           flags.is_given = true;
         },
         "zstd, planes or none, for the file's sections: planes takes dense values apart, so that "
         "their exponents become small, and is zstd for packed ones")
      ->type_name("METHOD")
      ->default_str(method);
  app.add_option("--level", flags.level, "Level of zstd, 1 to 19")
      ->type_name("N")
      ->capture_default_str();
}

Result<format::WriteOptions> write_options(const CompressionFlags& flags, unsigned n_threads,
                                           bool force) {
  static const std::map<std::string, format::Compression> kMethods = {
      {"none", format::Compression::kNone},
      {"zstd", format::Compression::kZstd},
      {"planes", format::Compression::kPlanes}};
  const auto method = kMethods.find(flags.method);
  if (method == kMethods.end()) {
    return usage_error(fmt::format("--compress: {} is not zstd, planes or none", flags.method));
  }
  if (flags.level < 1 || flags.level > 19) {
    return usage_error(fmt::format("--level: {} is not 1 to 19", flags.level));
  }
  format::WriteOptions options;
  options.compression = method->second;
  options.zstd_level = flags.level;
  options.n_threads = n_threads;
  options.overwrite = force ? Overwrite::kAllow : Overwrite::kRefuse;
  return options;
}

}  // namespace tqcache::cli
