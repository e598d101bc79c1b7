// tools/tqcache.cpp: the program: its verbs, and what it says without one.

#include <fmt/format.h>

#include <array>
#include <clocale>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli.h"
#include "interrupt.h"
#include "tqcache/codec/kernels.h"

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
};

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

ExitCode refuse_verb(const std::string& word, const std::vector<std::string>& args) {
  std::vector<std::string> names;
  for (const Verb& verb : kVerbs) names.emplace_back(verb.name);
  const std::string meant = closest_word(word, names);
  const std::string hint = meant.empty() ? "see tqcache --help" : "did you mean " + meant + "?";
  const char* kind = word.starts_with("-") ? "flag" : "verb";
  return report(Failure{usage_error(fmt::format("unknown {} {}, {}", kind, word, hint)), {}, false},
                asks_for_json(args));
}

// The program's version, and what it computes with on this CPU.
std::string version() {
  std::string all;
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    all += (all.empty() ? "" : ", ") + std::string(kernels->name);
  }
  return fmt::format("tqcache " TQCACHE_VERSION "\nkernels  {} (of {}; TQCACHE_ISA chooses)\n",
                     codec::best_kernels().name, all);
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
  if (args.empty()) {
    return report(Failure{usage_error("no verb, see tqcache --help"), {}, false}, false);
  }
  const std::string& word = args.front();
  if (word == "--help" || word == "-h" || word == "help") return finish(print(help()));
  if (word == "--version") return finish(print(version()));
  for (const Verb& verb : kVerbs) {
    if (verb.name == word) return run_verb(verb, {args.begin() + 1, args.end()});
  }
  return refuse_verb(word, args);
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
