#include "cli/cache_pair.h"

#include <utility>

#include "cli/cache_io.h"
#include "cli/cli.h"

namespace tqcache::cli {

void add_cache_pair_flags(CLI::App& app, CachePairFlags& flags) {
  app.add_option("a", flags.a, "The reference")->type_name("")->check(file_name())->required();
  app.add_option("b", flags.b, "The cache to compare with it")
      ->type_name("")
      ->check(file_name())
      ->required();
  add_first_tokens_flag(app, flags.first_tokens);
  add_threads_flag(app, flags.n_threads);
}

Outcome<CachePair> load_cache_pair(const Console& console, const CachePairFlags& flags) {
  if (flags.a == "-" && flags.b == "-") return usage_error("only one of the two can be -");
  format::ReadOptions read;
  read.n_threads = flags.n_threads;
  read.first_tokens = flags.first_tokens;
  CachePair pair;
  TQC_TRY_ASSIGN(pair.a, load_cache(console, flags.a, read));
  TQC_TRY_ASSIGN(pair.b, load_cache(console, flags.b, read));
  TQC_TRY_ASSIGN(pair.diff, in_file(flags.b, cache::diff(pair.a, pair.b, flags.n_threads)));
  return pair;
}

}  // namespace tqcache::cli
