#include "cli/any_input.h"

#include <fmt/format.h>

#include "cli/cache_io.h"
#include "report/info.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::cli {
namespace {

Result<AnyInput> open_own(const Console& console, const InputFile& file, const ForeignFlags& flags,
                          std::optional<std::int64_t> first_tokens, unsigned n_threads) {
  TQC_TRY_ASSIGN(const CacheInput own,
                 cache_input(console, file.name, file.kind(), file.source, n_threads));
  TQC_TRY_ASSIGN(auto reader,
                 in_file(file.name, format::SectionReader::open(own.source, console.access)));
  std::shared_ptr<const cache::CacheReader> cache =
      std::make_shared<format::SectionReader>(std::move(reader));
  if (flags.decode_keys && flags.decode_values) {
    TQC_TRY_ASSIGN(cache, in_file(file.name, cache::dequantize(cache)));
  }
  if (first_tokens) {
    TQC_TRY_ASSIGN(cache, in_file(file.name, cache::first_tokens(cache, *first_tokens)));
  }
  return AnyInput{
      own.file_bytes, value_count(cache->description(), cache->n_tokens()), cache, {}, {}};
}

}  // namespace

Result<InputFile> open_input_file(const std::string& path) {
  const std::string name = display_name(path, "standard input");
  TQC_TRY_ASSIGN(std::unique_ptr<ByteSource> source, open_source(path));
  TQC_TRY_ASSIGN(const std::optional<FileKind> kind, in_file(name, known_kind(*source)));
  return InputFile{name, kind, std::make_shared<const WatchedSource>(std::move(source))};
}

Result<AnyInput> open_any_input(const Console& console, const InputFile& file,
                                const ForeignFlags& flags, const ModelFacts& model,
                                std::optional<std::int64_t> first_tokens, unsigned n_threads) {
  if (!file.is_foreign()) return open_own(console, file, flags, first_tokens, n_threads);
  TQC_TRY(check_encrypted(console, file.name, *file.source));
  TQC_TRY_ASSIGN(ForeignInput input, open_foreign(console, file.name, file.source, file.kind(),
                                                  flags, model, first_tokens, n_threads));
  const cache::CacheDesc& cache = input.opened.cache->description();
  AnyInput any{input.file_bytes, value_count(cache, cache.n_tokens()), input.opened.cache,
               std::move(input.opened.notes), std::move(input.opened.dropped_fields)};
  if (model.not_run) {
    any.notes.push_back(
        fmt::format("{}: {}; the model of the cache is unknown, and no token was "
                    "recomputed",
                    flags.model, model.not_run->message));
  }
  return any;
}

}  // namespace tqcache::cli
