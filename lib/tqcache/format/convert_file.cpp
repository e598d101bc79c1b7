#include <cstdint>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

Result<void> convert_file(const cache::CacheReader& source, AtomicFile& file,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress) {
  TQC_TRY(Compressor::make(write.zstd_level));  // a bad level is reported before the work
  const std::uint64_t source_bytes = cache::total_raw_bytes(cache::all_blocks(source));
  // Fitting the codecs reads little, or blocks that are read again; it can be stopped.
  const auto fitting = [&](std::uint64_t, std::uint64_t) {
    return !progress || progress(0, source_bytes);
  };
  const auto writing = [&](std::uint64_t done, std::uint64_t total) {
    const double part = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
    return !progress ||
           progress(static_cast<std::uint64_t>(part * static_cast<double>(source_bytes)),
                    source_bytes);
  };
  TQC_TRY_ASSIGN(const auto quantized, cache::quantize(cache::borrow(source), options, fitting));
  WriteOptions on_all_threads = write;
  on_all_threads.n_threads = options.n_threads;
  return write_cache(*quantized, file, on_all_threads, writing);
}

Result<void> convert_file(const cache::CacheReader& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress) {
  TQC_TRY(Compressor::make(write.zstd_level));  // a bad level is reported before the work
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, write.overwrite));
  TQC_TRY(convert_file(source, file, options, write, progress));
  return file.commit();
}

Result<void> convert_file(const ByteSource& source, const std::filesystem::path& path,
                          const cache::ConvertOptions& options, const WriteOptions& write,
                          const Progress& progress, const ReadOptions& read) {
  TQC_TRY(Compressor::make(write.zstd_level));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, write.overwrite));
  TQC_TRY_ASSIGN(const SectionReader reader, SectionReader::open(source, read.access));
  std::shared_ptr<const cache::CacheReader> cache = cache::borrow(reader);
  if (read.first_tokens) {
    TQC_TRY_ASSIGN(cache, cache::first_tokens(std::move(cache), *read.first_tokens));
  }
  TQC_TRY(convert_file(*cache, file, options, write, progress));
  return file.commit();
}

}  // namespace tqcache::format
