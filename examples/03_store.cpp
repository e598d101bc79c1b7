// Answers a prompt with the help of a store: loads the stored part of the prompt, computes the rest
// and adds it for the next run.
//
// usage: 03_store MODEL STORE PROMPT     such as: 03_store model.gguf dir:prompts "Once upon"

#include <cstdio>
#include <span>
#include <vector>

#include "tqcache/all.h"

using namespace tqcache;

static Result<void> run(const char* model, const char* url, const char* text) {
  TQC_TRY_ASSIGN(const auto session, session::Session::open({.model = model}));
  TQC_TRY_ASSIGN(const auto store, session::PromptStore::open({.url = url}));
  if (store == nullptr) return Error{ErrorCode::kIo, "the store cannot be reached"};
  TQC_TRY_ASSIGN(const auto prompt, session->model().tokenizer.encode(text, {}));

  TQC_TRY(session->begin_from(*store, prompt));
  const auto n_found = static_cast<std::size_t>(session->cache().n_tokens());
  TQC_TRY(session->feed(std::span(prompt).subspan(n_found)));
  const auto made = session->generate(8, false, [](std::int32_t) -> Result<bool> { return true; });
  if (made.failure) return *made.failure;
  TQC_TRY(store->finish(session->cache()));

  std::printf("%zu of %zu tokens came from the store; the answer:%s\n", n_found, prompt.size(),
              session->model().tokenizer.decode(made.ids).c_str());
  return {};
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto done = run(argv[1], argv[2], argv[3]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
