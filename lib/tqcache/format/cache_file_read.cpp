#include <filesystem>
#include <memory>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/format/header.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

Result<cache::Cache> load(const SectionReader& reader, const ReadOptions& options,
                          const Progress& progress) {
  if (options.accept) TQC_TRY(options.accept(reader.info()));
  const cache::LoadOptions load{options.access.memory, options.n_threads};
  if (!options.first_tokens) return cache::load(reader, load, progress);
  TQC_TRY_ASSIGN(const auto first,
                 cache::first_tokens(cache::borrow(reader), *options.first_tokens));
  return cache::load(*first, load, progress);
}

Digests digests_of(const ReadOptions& options) {
  return options.verify_digests ? Digests::kCompare : Digests::kTrust;
}

// More often than a file can change between mapping it and reading its header.
constexpr int kMaxMappings = 1000;

// Errors: those of the file itself, read without mapping.
Result<void> check_file(const std::filesystem::path& path, const KeyRing& keys) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  TQC_TRY(read_cache_info(*source, keys));
  return {};
}

// A mapping keeps the size that the file had. Before the header is read, another process may append
// to the file or remove such bytes, and the header then states another size. So errors of a mapping
// are checked against the file.
Result<SectionReader> open_mapped(const std::filesystem::path& path, const ReadOptions& options) {
  for (int attempt = 1;; ++attempt) {
    TQC_TRY_ASSIGN(SharedBytes mapped, map_file(path));
    auto reader = SectionReader::open_mapped(std::move(mapped), options.verify_checksums,
                                             options.access, digests_of(options));
    if (reader) return reader;
    const ErrorCode code = reader.error().code;
    const bool is_of_size = code == ErrorCode::kTruncated || code == ErrorCode::kCorrupt;
    if (!is_of_size || attempt == kMaxMappings) return reader.error();
    TQC_TRY(check_file(path, options.access.keys));
  }
}

}  // namespace

Result<cache::Cache> read_cache(const ByteSource& source, const ReadOptions& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const SectionReader reader,
                 SectionReader::open(source, options.access, digests_of(options)));
  return load(reader, options, progress);
}

Result<cache::Cache> map_cache(const std::filesystem::path& path, const ReadOptions& options,
                               const Progress& progress) {
  TQC_TRY_ASSIGN(const SectionReader reader, open_mapped(path, options));
  return load(reader, options, progress);
}

Result<CacheFileInfo> read_cache_info(const ByteSource& source, const KeyRing& keys) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(source, {.keys = keys}));
  TQC_TRY(check_content_name(container.info));
  return std::move(container.info);
}

bool looks_like_cache_file(const ByteSource& source) { return has_magic(source); }

}  // namespace tqcache::format
