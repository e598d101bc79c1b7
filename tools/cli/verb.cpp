#include "cli/verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "cli/common_flags.h"
#include "cli/terminal.h"
#include "tqcache/base/posix.h"

namespace tqcache::cli {
namespace {

// Longer lines are hard to read, even on a wide terminal.
constexpr std::size_t kMaxColumns = 100;
constexpr std::size_t kMinColumns = 60;

// The keys of --key-file, or else of TQCACHE_KEY_FILE.
Result<void> read_keys(Console& console) {
  std::string path = console.key_file;
  if (path.empty()) {
    const char* const name = std::getenv("TQCACHE_KEY_FILE");
    if (name == nullptr || *name == '\0') return {};
    path = name;
  }
  TQC_TRY_ASSIGN(console.access.keys, in_file(path, KeyRing::read_file(path)));
  return {};
}

std::size_t help_columns() {
  if (!is_terminal(STDOUT_FILENO)) return 80;
  return std::clamp(terminal_columns(STDOUT_FILENO), kMinColumns, kMaxColumns);
}

}  // namespace

std::string_view last_word(const Verb& verb) {
  return verb.name.substr(verb.name.find_last_of(' ') + 1);
}

Action define_verb(const Verb& verb, FlagSet& flags, Console& console) {
  Action action = verb.define(flags);
  if (verb.keys != Keys::kNone) {
    flags
        .add("--key-file", console.key_file,
             "File with the keys that encrypt and decrypt .tqkv files and stores; also "
             "TQCACHE_KEY_FILE")
        ->type_name("FILE")
        ->file()
        ->shared()
        ->group("Encryption");
  }
  if (verb.keys == Keys::kDemandable) {
    flags
        .add("--require-encrypted", console.require_encrypted,
             "Refuse files that are not encrypted; with a key they are told in a warning otherwise")
        ->shared()
        ->group("Encryption");
  }
  flags.add("-q,--quiet", console.quiet, "Print no progress and no summary on standard error")
      ->shared()
      ->group("Output");
  if (verb.has_json) {
    flags.add("--json", console.json, "Print the result, and an error, as a JSON object")
        ->shared()
        ->group("Output");
  }
  return action;
}

ExitCode run_verb(const Verb& verb, const std::vector<std::string>& args) {
  FlagSet flags(fmt::format("tqcache {}", verb.name), std::string(verb.summary));
  Console console;
  const Action action = define_verb(verb, flags, console);
  if (const Result<void> parsed = flags.parse(args); !parsed) {
    return report(parsed.error(), asks_for_json(args));
  }
  if (flags.help_wanted()) {
    const Result<void> printed = print(help_text(flags, help_columns(), flags.all_help_wanted()));
    return printed ? ExitCode::kDone : report(printed.error(), false);
  }
  if (verb.keys != Keys::kNone) {
    if (const Result<void> read = read_keys(console); !read) {
      return report(read.error(), console.json);
    }
    if (console.require_encrypted && console.access.keys.empty()) {
      return report(usage_error("--require-encrypted needs --key-file or TQCACHE_KEY_FILE"),
                    console.json);
    }
  }
  if (flags.max_memory) console.access.memory = MemoryBudget::of_user(*flags.max_memory);
  if (const char* const folder = std::getenv("TQCACHE_PROFILES")) {
    console.access.profiles = predict::Profiles().with_folder(folder);
  }
  const Result<ExitCode> outcome = action(console);
  return outcome ? *outcome : report(outcome.error(), console.json);
}

namespace {

std::string g_command_line;  // set once, before any verb runs

std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string command_line() { return g_command_line; }

void set_command_line(const std::vector<std::string>& args) {
  g_command_line = "tqcache";
  constexpr std::size_t kMaxWord = 200;  // a list of token ids may have thousands
  for (const std::string& word : args) {
    g_command_line +=
        " " +
        quoted(word.size() <= kMaxWord ? word : fmt::format("{}...", word.substr(0, kMaxWord)));
  }
}

bool asks_for_json(const std::vector<std::string>& args) {
  return std::ranges::find(args, "--json") != args.end();
}

}  // namespace tqcache::cli
