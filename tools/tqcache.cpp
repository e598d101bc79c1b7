// tools/tqcache.cpp: the program: its verbs, and what it says without one.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <clocale>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "verbs/eval_verbs.h"
#include "cli/interrupt.h"
#include "verbs/store_verbs.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/store/backend.h"

namespace tqcache::cli {
namespace {

constexpr std::array kVerbs = {
    Verb{"prefill", "Run a model over a text and keep its prompt cache", define_prefill},
    Verb{"convert", "Pack a cache into turbo form, 4 bits a value unless told otherwise",
         define_convert},
    Verb{"info", "Tell what a cache file holds", define_info},
    Verb{"verify", "Check that a cache file is whole, and with a model that it belongs to it",
         define_verify},
    Verb{"diff", "Tell how far apart two caches of the same prompt are", define_diff},
    Verb{"migrate", "Turn files of version 1 into version 2", define_migrate},
    Verb{"compact", "Drop what later saves left dead in a cache file", define_compact},
    Verb{"generate", "Write on from a prompt, a cache, or both", define_generate},
    Verb{"chat", "Talk with a model, and keep the conversation as a cache", define_chat, false},
    Verb{"bench", "Measure how fast a model runs on caches of several kinds", define_bench},
    Verb{"advise", "Find the smallest configuration that is good enough for a model and its texts",
         define_advise},
    Verb{"profile", "Measure once what a model needs of an archive, for convert --tier archive",
         define_profile},
    Verb{"eval", "Measure what a way to keep caches costs a model", nullptr, true, eval_verbs},
    Verb{"store", "A library of prompts: put, found by their longest beginning, fetched", nullptr,
         true, store_verbs},
};

// "ppl" of "eval ppl".
std::string_view last_word(const Verb& verb) {
  return verb.name.substr(verb.name.find_last_of(' ') + 1);
}

std::string help() {
  std::string text =
      "tqcache: prompt caches of language models as files one can trust\n\n"
      "Usage: tqcache VERB [FLAGS]\n\n";
  for (const Verb& verb : kVerbs) text += fmt::format("  {:<10}{}\n", verb.name, verb.summary);
  return text +
         "\n  tqcache VERB --help    the flags of a verb, with examples\n"
         "  tqcache --version      the version of this program\n\n"
         "A file named - is standard input or standard output. TQCACHE_ISA=scalar, avx2,\n"
         "avx512 or neon chooses the kernels.\n"
         "Exit codes: 0 done, 1 failed, 2 usage, 3 done in part, 10 not found, 11 busy,\n"
         "20 corrupt, 21 unsupported, 22 not this model, 130 interrupted.\n";
}

ExitCode finish(const Outcome<Done>& printed) {
  return printed ? ExitCode::kDone : report(printed.error(), false);
}

ExitCode fail(const std::string& message, const std::vector<std::string>& args) {
  return report(Failure{usage_error(message), {}, false}, asks_for_json(args));
}

// `program` is what stands before the word: "tqcache", "tqcache eval".
ExitCode refuse_verb(const std::string& word, std::span<const Verb> verbs,
                     const std::string& program, const std::vector<std::string>& args) {
  std::vector<std::string> names;
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
  for (const Verb& verb : group.verbs()) {
    text += fmt::format("  {:<10}{}\n", last_word(verb), verb.summary);
  }
  return text +
         fmt::format("\n  tqcache {} VERB --help    the flags of one, with examples\n", group.name);
}

// Runs one of the verbs that `group` stands for.
ExitCode run_group(const Verb& group, const std::vector<std::string>& args) {
  const std::string program = fmt::format("tqcache {}", group.name);
  if (args.empty()) {
    std::string names;
    for (const Verb& verb : group.verbs()) names += fmt::format(" {},", last_word(verb));
    return fail(fmt::format("{} needs one of{} see {} --help", group.name, names, program), args);
  }
  const std::string& word = args.front();
  if (word == "--help" || word == "-h" || word == "help") return finish(print(group_help(group)));
  for (const Verb& verb : group.verbs()) {
    if (last_word(verb) == word) return run_verb(verb, {args.begin() + 1, args.end()});
  }
  return refuse_verb(word, group.verbs(), program, args);
}

// The program's version, and what it computes with on this CPU.
std::string version() {
  std::string all;
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    all += (all.empty() ? "" : ", ") + std::string(kernels->name);
  }
  return fmt::format("tqcache " TQCACHE_VERSION
                     "\nkernels  {} (of {}; TQCACHE_ISA chooses)\nstores   {}\n",
                     codec::best_kernels().name, all, fmt::join(store::schemes(), ", "));
}

// The library ignores a name that it does not know; who asks for it shall know, too.
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
    return report(Failure{isa.error(), {}, false}, asks_for_json(args));
  }
  if (args.empty()) return fail("no verb, see tqcache --help", args);
  const std::string& word = args.front();
  if (word == "--help" || word == "-h" || word == "help") return finish(print(help()));
  if (word == "--version") return finish(print(version()));
  for (const Verb& verb : kVerbs) {
    if (verb.name != word) continue;
    const std::vector<std::string> others(args.begin() + 1, args.end());
    return verb.verbs != nullptr ? run_group(verb, others) : run_verb(verb, others);
  }
  return refuse_verb(word, kVerbs, "tqcache", args);
}

}  // namespace
}  // namespace tqcache::cli

int main(int argc, char** argv) {
  // Line editing needs to know how wide a character is; numbers stay as the C locale has them.
  std::setlocale(LC_CTYPE, "");
  tqcache::cli::install_signal_handlers();
  try {
    return static_cast<int>(tqcache::cli::run({argv + 1, argv + argc}));
  } catch (const std::bad_alloc&) {
    tqcache::cli::complain({}, "out of memory");
  } catch (const std::exception& error) {
    tqcache::cli::complain({}, error.what());
  }
  return static_cast<int>(tqcache::cli::ExitCode::kFailed);
}
