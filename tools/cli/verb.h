#pragma once
// tools/cli/verb.h: the verbs of the program.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"

namespace tqcache::cli {

// Runs a verb after its flags have been parsed.
using Action = std::function<Result<ExitCode>(const Console&)>;

// What a verb has to do with keys of encryption.
enum class Keys {
  kNone,       // reads and writes nothing that can be encrypted
  kTaken,      // takes --key-file
  kDemandable  // also takes --require-encrypted, for the cache files that it reads
};

// A verb or a group of verbs. `define` adds the flags and returns the action, which holds the
// options that parsing fills in.
struct Verb {
  std::string_view name;  // "convert", "store put"
  std::string_view summary;
  Action (*define)(FlagSet& flags);
  Keys keys = Keys::kTaken;
  bool has_json = true;              // whether it takes --json
  std::span<const Verb> verbs = {};  // of a word that groups others; it has no flags itself
};

// All verbs, in the order of --help.
std::span<const Verb> all_verbs();

// "put" of "store put".
std::string_view last_word(const Verb& verb);

// Defines the flags of a verb and returns its action; `console` gets --quiet and --json.
//
// Requires: `verb` is not a group.
Action define_verb(const Verb& verb, FlagSet& flags, Console& console);

// Parses the arguments after the verb and runs it; reports every failure.
ExitCode run_verb(const Verb& verb, const std::vector<std::string>& args);

// The command line of this process, quoted for a shell: "tqcache eval ppl -m 'my model.gguf'".
std::string command_line();
void set_command_line(const std::vector<std::string>& args);

// Whether errors are printed as JSON, for command lines that could not be parsed.
bool asks_for_json(const std::vector<std::string>& args);

// Each verb has its own verbs/cmd_*.cpp.
Action define_prefill(FlagSet& flags);
Action define_convert(FlagSet& flags);
Action define_info(FlagSet& flags);
Action define_verify(FlagSet& flags);
Action define_diff(FlagSet& flags);
Action define_migrate(FlagSet& flags);
Action define_compact(FlagSet& flags);
Action define_rekey(FlagSet& flags);
Action define_generate(FlagSet& flags);
Action define_chat(FlagSet& flags);
Action define_serve(FlagSet& flags);
Action define_bench(FlagSet& flags);
Action define_advise(FlagSet& flags);
Action define_profile(FlagSet& flags);
Action define_selftest(FlagSet& flags);
Action define_doctor(FlagSet& flags);
// verbs/eval_*.cpp
Action define_eval_ppl(FlagSet& flags);
Action define_eval_kld(FlagSet& flags);
Action define_eval_needle(FlagSet& flags);
Action define_eval_jsonl(FlagSet& flags);
Action define_eval_memory(FlagSet& flags);
Action define_eval_cache(FlagSet& flags);
// verbs/store_*.cpp
Action define_store_put(FlagSet& flags);
Action define_store_get(FlagSet& flags);
Action define_store_find(FlagSet& flags);
Action define_store_ls(FlagSet& flags);
Action define_store_info(FlagSet& flags);
Action define_store_rm(FlagSet& flags);
Action define_store_gc(FlagSet& flags);
Action define_store_stats(FlagSet& flags);
Action define_store_check(FlagSet& flags);
Action define_store_copy(FlagSet& flags);
Action define_store_forget(FlagSet& flags);

}  // namespace tqcache::cli
