// Writes a state file of llama.cpp as a cache for Hugging Face transformers (tools/tqcache_hf.py
// loads it in Python).
//
// usage: 04_llama_to_hf MODEL.gguf STATE OUT.safetensors

#include <cstdio>

#include "tqcache/all.h"

using namespace tqcache;

static Result<void> run(const char* gguf, const char* state, const char* out) {
  // A state file contains neither the shapes of its layers nor the identity of its model.
  interop::OpenHints hints;
  TQC_TRY_ASSIGN(hints.geometry, interop::read_llama_geometry(gguf));
  TQC_TRY_ASSIGN(const auto model, model::load_model(gguf));
  hints.identity = model->identity;

  TQC_TRY_ASSIGN(const auto opened, interop::open_any(state, hints));
  for (const std::string& field : opened.dropped_fields) std::printf("%s\n", field.c_str());
  std::printf("%lld tokens\n", static_cast<long long>(opened.cache->n_tokens()));
  return interop::export_hf(*opened.cache, out, Overwrite::kRefuse);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto done = run(argv[1], argv[2], argv[3]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
