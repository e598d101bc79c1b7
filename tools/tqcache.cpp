// tools/tqcache.cpp: the program: its verbs, its help and its version.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/common_flags.h"
#include "cli/console.h"
#include "cli/machine.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "reference.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/tiles.h"
#include "tqcache/store.h"

namespace tqcache::cli {
namespace {

constexpr std::array kEvalVerbs = {
    Verb{"eval ppl", "Measure perplexity with the cache quantized in several ways", define_eval_ppl,
         Keys::kNone},
    Verb{"eval kld", "Measure how far predictions move from those with a dense cache",
         define_eval_kld, Keys::kNone},
#ifdef TQCACHE_RESEARCH
    Verb{"eval needle", "Measure how often a model finds a fact hidden in a long text",
         define_eval_needle, Keys::kNone},
    Verb{"eval jsonl", "Count how many questions of a file a model answers", define_eval_jsonl,
         Keys::kNone},
    Verb{"eval memory", "Measure what a model recalls of a saved and reloaded conversation",
         define_eval_memory},
#endif
    Verb{"eval cache", "Compare two caches head by head, and attention over them",
         define_eval_cache, Keys::kDemandable},
};

constexpr std::array kStoreVerbs = {
    Verb{"store put", "Put a cache file into a store", define_store_put, Keys::kDemandable},
    Verb{"store get", "Fetch a cache by its name or by the longest stored prefix of a prompt",
         define_store_get},
    Verb{"store find", "Report how much of a prompt is stored", define_store_find},
    Verb{"store ls", "List named prompts", define_store_ls},
    Verb{"store info", "Describe one named prompt", define_store_info},
    Verb{"store rm", "Remove names of prompts", define_store_rm},
    Verb{"store gc", "Remove unreachable, old or least recently used data", define_store_gc},
    Verb{"store stats", "Report sizes, savings from sharing, and hit rates", define_store_stats},
    Verb{"store check", "Check that a store is complete and undamaged", define_store_check},
    Verb{"store forget", "Remove everything that one tenant has stored", define_store_forget},
    Verb{"store copy", "Copy prompts, or everything, to another store", define_store_copy},
};

constexpr std::array kVerbs = {
    Verb{"prefill", "Run a model over a prompt and save its cache", define_prefill},
    Verb{"convert", "Quantize a cache, or convert it to or from another program's format",
         define_convert, Keys::kDemandable},
    Verb{"migrate", "Upgrade version 1 files to version 2", define_migrate},
    Verb{"compact", "Reclaim dead space in cache files", define_compact, Keys::kDemandable},
    Verb{"rekey", "Encrypt a cache file, change its key, or decrypt it", define_rekey},
    Verb{"generate", "Generate text from a prompt, a cache, or both", define_generate,
         Keys::kDemandable},
    Verb{"chat", "Chat with a model, and save the conversation as a cache", define_chat,
         Keys::kDemandable, false},
    Verb{"serve", "Answer HTTP requests, and keep prompts over restarts", define_serve,
         Keys::kTaken, false},
    Verb{"info", "Describe a cache file", define_info, Keys::kDemandable},
    Verb{"verify", "Check a cache file for damage, and that it belongs to a model", define_verify,
         Keys::kDemandable},
    Verb{"diff", "Compare two caches of the same prompt", define_diff, Keys::kDemandable},
    Verb{"selftest", "Check that this program works on this machine", define_selftest, Keys::kNone},
    Verb{"doctor", "Report what was found on this machine, for reports of faults", define_doctor,
         Keys::kNone},
    Verb{"bench", "Measure speed and memory with dense and quantized caches", define_bench,
         Keys::kNone},
    Verb{"advise", "Find the smallest configuration that is good enough for a model", define_advise,
         Keys::kNone},
    Verb{"profile", "Measure a model once for convert --config archive", define_profile,
         Keys::kNone},
    Verb{"eval", "Measure what quantizing the cache costs a model", nullptr, Keys::kNone, true,
         kEvalVerbs},
    Verb{"store", "Share prompt caches through a folder, Redis or S3", nullptr, Keys::kNone, true,
         kStoreVerbs},
};

// Headings of --help, each with its first verb.
struct Group {
  std::string_view title, first;
};
constexpr std::array kGroups = {Group{"Make and convert caches", "prefill"},
                                Group{"Generate text", "generate"}, Group{"Inspect caches", "info"},
                                Group{"Measure", "bench"}, Group{"Share", "store"}};

std::string help() {
  std::string text =
      "tqcache: save, shrink, verify and move KV caches of language models\n\n"
      "Usage: tqcache VERB [FLAGS]\n";
  const Group* next = kGroups.begin();
  for (const Verb& verb : kVerbs) {
    if (next != kGroups.end() && next->first == verb.name) {
      text += fmt::format("\n{}:\n", (next++)->title);
    }
    text += fmt::format("  {:<10}{}\n", verb.name, verb.summary);
  }
  return text +
         "\nExamples:\n"
         "  tqcache prefill -m model.gguf --file book.txt -o book.kv\n"
         "  tqcache convert book.kv book.tqkv\n"
         "  tqcache verify book.tqkv -m model.gguf\n"
         "  tqcache generate -m model.gguf --cache book.tqkv -n 100\n"
         "\ntqcache help VERB lists the flags of a verb, tqcache --version the version.\n"
         "tqcache completion SHELL writes the completions for bash, zsh or fish.\n"
         "tqcache --core-dumps VERB allows a core dump, which holds prompts, and debuggers.\n"
         "A file name of - means standard input or standard output. The variable TQCACHE_ISA\n"
         "(scalar, avx2, avx512 or neon) chooses the instruction set.\n"
         "\nExit codes: 0 success, 1 failure, 2 usage, 3 partial success, 10 not found, 11 busy,\n"
         "20 corrupt, 21 unsupported, 22 wrong model or key, 130 interrupted.\n";
}

ExitCode finish(const Result<void>& printed) {
  return printed ? ExitCode::kDone : report(printed.error(), false);
}

ExitCode fail(const std::string& message, const std::vector<std::string>& args) {
  return report(usage_error(message), asks_for_json(args));
}

// `program` is the command before the word: "tqcache", "tqcache eval".
ExitCode refuse_verb(const std::string& word, std::span<const Verb> verbs,
                     const std::string& program, const std::vector<std::string>& args) {
  std::vector<std::string> names = {"--help"};
  if (program == "tqcache")
    names.insert(names.end(), {"--version", "version", "help", "completion"});
  for (const Verb& verb : verbs) names.emplace_back(last_word(verb));
  const std::string meant = closest_word(word, names);
  const std::string hint =
      meant.empty() ? fmt::format("see {} --help", program) : "did you mean " + meant + "?";
  const char* kind = word.starts_with("-") ? "flag" : "verb";
  return fail(fmt::format("unknown {} {}, {}", kind, word, hint), args);
}

std::string group_help(const Verb& group) {
  std::string text =
      fmt::format("{}\n\nUsage: tqcache {} VERB [FLAGS]\n\n", group.summary, group.name);
  for (const Verb& verb : group.verbs) {
    text += fmt::format("  {:<10}{}\n", last_word(verb), verb.summary);
  }
  return text +
         fmt::format("\ntqcache help {} VERB lists the flags of one, with examples.\n", group.name);
}

// Runs one of the verbs of a group.
ExitCode run_group(const Verb& group, const std::vector<std::string>& args) {
  const std::string program = fmt::format("tqcache {}", group.name);
  if (args.empty()) {
    std::string names;
    for (const Verb& verb : group.verbs) names += fmt::format(" {},", last_word(verb));
    return fail(fmt::format("{} needs one of{} see {} --help", group.name, names, program), args);
  }
  const std::string& word = args.front();
  if (word == "--help" || word == "-h" || word == "help") return finish(print(group_help(group)));
  for (const Verb& verb : group.verbs) {
    if (last_word(verb) == word) return run_verb(verb, {args.begin() + 1, args.end()});
  }
  return refuse_verb(word, group.verbs, program, args);
}

Json version_json() {
  return {{"schema", 1},
          {"version", TQCACHE_VERSION},
          {"kernels", codec::best_kernels().name},
          {"amx", model::best_tiles() != nullptr},
          {"stores", store::schemes()}};
}

// The program's version, and the kernels that it uses on this CPU.
std::string version() {
  return fmt::format("tqcache " TQCACHE_VERSION "\nkernels  {}\nprompts  {}\nstores   {}\n",
                     kernels_text(), prompts_text(), fmt::join(store::schemes(), ", "));
}

// The library ignores an unknown name; the program reports it.
Result<void> check_isa() {
  const char* const name = std::getenv("TQCACHE_ISA");
  if (name == nullptr || *name == '\0') return {};
  if (auto found = codec::find_kernels(name); !found) {
    return in_context("TQCACHE_ISA", std::move(found).error());
  }
  return {};
}

ExitCode run(const std::vector<std::string>& args) {
  if (const Result<void> isa = check_isa(); !isa) {
    return report(isa.error(), asks_for_json(args));
  }
  if (args.empty()) return fail("no verb, see tqcache --help", args);
  const std::string& word = args.front();
  if (word == "--help" || word == "-h" || word == "--help-all") return finish(print(help()));
  if (word == "help") {
    if (args.size() == 1) return finish(print(help()));
    // tqcache help store put = tqcache store put --help
    std::vector<std::string> asked(args.begin() + 1, args.end());
    if (!asked.front().starts_with('-')) asked.emplace_back("--help");
    return run(asked);
  }
  if (word == "--version" || word == "-V" || word == "version") {
    return finish(asks_for_json(args) ? print_json(version_json()) : print(version()));
  }
  if (word == "completion") {
    if (args.size() != 2) return fail("completion needs one of bash, zsh, fish", args);
    const Result<std::string> script = completion_script(args[1]);
    return script ? finish(print(*script)) : report(script.error(), asks_for_json(args));
  }
  // For the build: tests/cli keeps the generated pages in step with the flags.
  if (word == "--write-reference" && args.size() == 2) return finish(write_reference(args[1]));
  for (const Verb& verb : kVerbs) {
    if (verb.name != word) continue;
    const std::vector<std::string> others(args.begin() + 1, args.end());
    return !verb.verbs.empty() ? run_group(verb, others) : run_verb(verb, others);
  }
  return refuse_verb(word, kVerbs, "tqcache", args);
}

}  // namespace

std::span<const Verb> all_verbs() { return kVerbs; }

ExitCode run_program(const std::vector<std::string>& args) {
  set_command_line(args);
  return run(args);
}

}  // namespace tqcache::cli

int main(int argc, char** argv) {
  tqcache::cli::choose_locale();
  tqcache::cli::install_signal_handlers();
  const int n_flags = argc > 1 && std::string_view(argv[1]) == "--core-dumps" ? 1 : 0;
  if (n_flags == 0) tqcache::cli::forbid_core_dumps();
  try {
    return static_cast<int>(tqcache::cli::run_program({argv + 1 + n_flags, argv + argc}));
  } catch (const std::bad_alloc&) {
    tqcache::cli::complain({}, "out of memory");
  } catch (const std::exception& error) {
    // What oneTBB throws when it gets no thread.
    const std::string_view what = error.what();
    tqcache::cli::complain({}, what.starts_with("pthread_create has failed")
                                   ? "no memory for a thread, or too many processes (ulimit -v, "
                                     "ulimit -u); -t 1 starts fewer"
                                   : what);
  }
  return static_cast<int>(tqcache::cli::ExitCode::kFailed);
}
