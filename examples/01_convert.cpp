// Quantizes a cache file of any kind and writes it as a .tqkv file.
//
// usage: 01_convert IN OUT [CONFIGURATION]     such as: 01_convert book.kv book.tqkv k4v3

#include <cstdio>

#include "tqcache/all.h"

using namespace tqcache;

static Result<void> run(const char* in, const char* out, const char* how) {
  TQC_TRY_ASSIGN(const auto plan, cache::parse_configuration(how));
  TQC_TRY_ASSIGN(auto opened, interop::open_any(in));
  TQC_TRY_ASSIGN(const auto quantized, cache::quantize(opened.cache, plan.options));
  TQC_TRY(format::write_cache_file(*quantized, out, {}));

  TQC_TRY_ASSIGN(const auto file, open_file(out));
  TQC_TRY_ASSIGN(const auto report, format::verify_cache(*file));
  std::printf("%lld tokens, %llu bytes, %zu damaged sections\n",
              static_cast<long long>(report.info.n_tokens()),
              static_cast<unsigned long long>(file->size()), report.damage.size());
  return {};
}

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  const auto done = run(argv[1], argv[2], argc == 4 ? argv[3] : "turbo4");
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
