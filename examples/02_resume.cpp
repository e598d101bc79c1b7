// Resumes a cache, continues its text, and saves the longer cache.
//
// usage: 02_resume MODEL CACHE PROMPT OUT

#include <cstdio>
#include <vector>

#include "tqcache/all.h"

using namespace tqcache;

static Result<void> run(char** args) {
  TQC_TRY_ASSIGN(const auto session, session::Session::open({.model = args[0], .cache = args[1]}));
  const tokenizer::Tokenizer& tokenizer = session->model().tokenizer;
  TQC_TRY_ASSIGN(const auto prompt, tokenizer.encode(args[2], {.at_beginning = false}));
  TQC_TRY(session->feed(prompt));

  const auto made = session->generate(16, true, [&](std::int32_t id) -> Result<bool> {
    std::fputs(tokenizer.token_bytes(id).c_str(), stdout);
    return true;
  });
  std::puts("");
  if (made.failure) return *made.failure;
  return format::write_cache_file(session->cache(), args[3], {});
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto done = run(argv + 1);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
