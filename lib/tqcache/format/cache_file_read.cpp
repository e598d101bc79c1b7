#include <filesystem>
#include <memory>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/base/threads.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::format {
namespace {

Result<void> check_memory(const Manifest& manifest, std::uint64_t max_bytes) {
  const std::uint64_t bytes = total_memory_bytes(manifest);
  if (bytes <= max_bytes) return {};
  return Error{ErrorCode::kTooLarge, "the cache takes " + std::to_string(bytes) +
                                         " bytes of memory, " + std::to_string(max_bytes) +
                                         " are allowed"};
}

// Fills an empty cache from a file, or from a mapping of it.
class Loader {
 public:
  Loader(const SectionReader& reader, const ReadOptions& options, cache::Cache& cache)
      : reader_(reader), options_(options), cache_(cache) {}

  // Packed sections that are stored as they are stay in `file`.
  void leave_in_place(SharedBytes file) { mapped_ = std::move(file); }

  Result<void> load_all(const Progress& progress) {
    const std::uint64_t total = total_raw_bytes(reader_.info());
    std::uint64_t done = 0;
    const auto tell = [&](std::size_t i, std::size_t) -> Result<void> {
      done += reader_.section(i).raw_bytes;
      if (!progress || progress(done, total)) return {};
      return interrupted_error();
    };
    return run_in_order({reader_.info().sections.size(),
                         [this](std::size_t i, std::size_t) { return load(i); }, tell},
                        options_.n_threads);
  }

 private:
  Result<void> load(std::size_t i) {
    const SectionInfo& section = reader_.section(i);
    if (section.packed && section.compression == Compression::kNone && mapped_.size() > 0) {
      return map(i);
    }
    AlignedBytes raw;
    TQC_TRY(reader_.read(i, raw));
    place_section(section, std::move(raw), cache_);
    return {};
  }

  Result<void> map(std::size_t i) {
    const SectionInfo& section = reader_.section(i);
    SharedBytes stored = mapped_.part(section.file_offset, section.stored_bytes);
    TQC_TRY(reader_.check_in_place(i, stored.view(), options_.verify_checksums));
    place_section(section, std::move(stored), cache_);
    return {};
  }

  const SectionReader& reader_;
  const ReadOptions& options_;
  cache::Cache& cache_;
  SharedBytes mapped_;
};

// A cache with room for all of it, and none of it there.
Result<cache::Cache> make_room(const Manifest& manifest, const ReadOptions& options) {
  TQC_TRY(check_memory(manifest, options.max_payload_bytes));
  return make_empty_cache(manifest);
}

// A file that is mapped, and what reads it there.
struct MappedReader {
  SharedBytes mapped;
  std::unique_ptr<ByteSource> source;
  SectionReader reader;
};

// More often than a file can change between its being mapped and its header being read.
constexpr int kMaxMappings = 1000;

// Errors: those of the file itself, read by position.
Result<void> check_file(const std::filesystem::path& path) {
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  TQC_TRY(read_cache_info(*source));
  return {};
}

// A mapping keeps the size that the file had, while another process may append to it, or take such
// bytes away again, before the header is read, which then speaks of another size. So what is wrong
// with a mapping is held against the file.
Result<MappedReader> open_mapped(const std::filesystem::path& path, const ReadOptions& options) {
  for (int attempt = 1;; ++attempt) {
    TQC_TRY_ASSIGN(SharedBytes mapped, map_file(path));
    std::unique_ptr<ByteSource> source = memory_source(mapped);
    auto reader = SectionReader::open(*source, options.first_tokens);
    if (reader) return MappedReader{std::move(mapped), std::move(source), *std::move(reader)};
    const ErrorCode code = reader.error().code;
    const bool is_of_size = code == ErrorCode::kTruncated || code == ErrorCode::kCorrupt;
    if (!is_of_size || attempt == kMaxMappings) return reader.error();
    TQC_TRY(check_file(path));
  }
}

}  // namespace

Result<cache::Cache> read_cache(const ByteSource& source, const ReadOptions& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const SectionReader reader, SectionReader::open(source, options.first_tokens));
  TQC_TRY_ASSIGN(cache::Cache cache, make_room(reader.info(), options));
  TQC_TRY(Loader(reader, options, cache).load_all(progress));
  TQC_TRY(cache::validate(cache));
  return cache;
}

Result<cache::Cache> map_cache(const std::filesystem::path& path, const ReadOptions& options,
                               const Progress& progress) {
  TQC_TRY_ASSIGN(const MappedReader file, open_mapped(path, options));
  TQC_TRY_ASSIGN(cache::Cache cache, make_room(file.reader.info(), options));
  Loader loader(file.reader, options, cache);
  loader.leave_in_place(file.mapped);
  TQC_TRY(loader.load_all(progress));
  TQC_TRY(cache::validate(cache));
  return cache;
}

Result<CacheFileInfo> read_cache_info(const ByteSource& source) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(source));
  TQC_TRY(check_content_name(container.info));
  return std::move(container.info);
}

bool looks_like_cache_file(const ByteSource& source) { return has_magic(source); }

}  // namespace tqcache::format
