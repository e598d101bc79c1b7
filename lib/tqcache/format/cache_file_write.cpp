#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/threads.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/compression.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/section_bytes.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::format {
namespace {

// Where the file goes: to disk or to memory.
struct Output {
  std::function<Result<void>(ByteView)> append;
  std::function<Result<void>(ByteView)> replace_start;  // the first bytes, once all is known
};

class ContainerWriter {
 public:
  explicit ContainerWriter(Output output) : output_(std::move(output)) {}

  // The header stays empty until all else is written: a file without it is none.
  Result<void> begin() { return append(std::array<std::byte, kHeaderBytes>{}); }

  // Gives the file offset where the bytes begin.
  Result<std::uint64_t> append_aligned(ByteView bytes) {
    constexpr std::array<std::byte, kSectionAlignment> kZeros{};
    TQC_TRY(append(ByteView(kZeros).first(align_section(position_) - position_)));
    const std::uint64_t offset = position_;
    TQC_TRY(append(bytes));
    return offset;
  }

  Result<void> finish(ByteView manifest) {
    HeaderSlot slot;
    slot.manifest_checksum = xxh3_128(manifest);
    TQC_TRY_ASSIGN(slot.manifest_offset, append_aligned(manifest));
    slot.file_bytes = position_;
    return output_.replace_start(encode_slot(slot));
  }

 private:
  Result<void> append(ByteView bytes) {
    position_ += bytes.size();
    return output_.append(bytes);
  }

  Output output_;
  std::uint64_t position_ = 0;
};

// One section on its way into the file.
struct PreparedSection {
  AlignedBytes scratch;
  Bytes frame;
  ByteView stored;
};

// Fills in the digests and the compression of `section`.
Result<void> prepare_section(const cache::Cache& cache, const Compressor* compressor,
                             SectionInfo& section, PreparedSection& prepared) {
  const ByteView raw = section_bytes(cache, section, prepared.scratch);
  section.raw_sha256 = sha256(raw);
  prepared.stored = raw;
  if (compressor != nullptr) {
    TQC_TRY_ASSIGN(const bool shrank, compressor->compress(raw, prepared.frame));
    if (shrank) {
      section.compression = Compression::kZstd;
      prepared.stored = prepared.frame;
    }
  }
  section.stored_bytes = prepared.stored.size();
  section.checksum = xxh3_128(prepared.stored);
  return {};
}

Result<void> write_batch(const cache::Cache& cache, const Compressor* compressor,
                         unsigned n_threads, std::span<SectionInfo> batch, ContainerWriter& out) {
  std::vector<PreparedSection> prepared(batch.size());
  TQC_TRY(parallel_try(batch.size(), n_threads, [&](std::size_t i) {
    return prepare_section(cache, compressor, batch[i], prepared[i]);
  }));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    TQC_TRY_ASSIGN(batch[i].file_offset, out.append_aligned(prepared[i].stored));
  }
  return {};
}

Result<void> write_sections(const cache::Cache& cache, const Compressor* compressor,
                            unsigned n_threads, const Progress& progress, Manifest& manifest,
                            ContainerWriter& out) {
  const std::uint64_t total = total_raw_bytes(manifest);
  std::uint64_t done = 0;
  for (std::size_t first = 0; first < manifest.sections.size();) {
    const std::size_t end = batch_end(manifest, first);
    const auto batch = std::span(manifest.sections).subspan(first, end - first);
    TQC_TRY(write_batch(cache, compressor, n_threads, batch, out));
    for (; first < end; ++first) done += manifest.sections[first].raw_bytes;
    if (progress && !progress(done, total)) return Error{ErrorCode::kInterrupted, "interrupted"};
  }
  return {};
}

std::string writer_name(const WriteOptions& options) {
  return options.writer.empty() ? "tqcache " TQCACHE_VERSION : options.writer;
}

Result<void> write_container(const cache::Cache& cache, const WriteOptions& options,
                             const Progress& progress, Output output) {
  TQC_TRY_ASSIGN(const Compressor compressor, Compressor::make(options.zstd_level));
  TQC_TRY(cache::validate(cache));
  Manifest manifest = describe(cache, writer_name(options));
  TQC_TRY(check_contents(manifest));
  // Its size does not depend on what is still missing: too large a manifest shows before the work.
  TQC_TRY(encode_manifest(manifest));

  ContainerWriter out(std::move(output));
  TQC_TRY(out.begin());
  TQC_TRY(write_sections(cache, options.compression == Compression::kZstd ? &compressor : nullptr,
                         options.n_threads, progress, manifest, out));
  manifest.content_name = content_name(manifest);
  TQC_TRY_ASSIGN(const Bytes bytes, encode_manifest(manifest));
  return out.finish(bytes);
}

}  // namespace

Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  const bool is_stream = !file.write_at(0, {});
  if (is_stream) {
    TQC_TRY_ASSIGN(const Bytes bytes, write_cache_bytes(cache, options, progress));
    TQC_TRY(file.write(bytes));
    return file.commit();
  }
  TQC_TRY(write_container(cache, options, progress,
                          {[&](ByteView bytes) { return file.write(bytes); },
                           [&](ByteView bytes) { return file.write_at(0, bytes); }}));
  return file.commit();
}

Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress) {
  Bytes out;
  const auto append = [&](ByteView bytes) -> Result<void> {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return {};
  };
  const auto replace_start = [&](ByteView bytes) -> Result<void> {
    std::ranges::copy(bytes, out.begin());
    return {};
  };
  TQC_TRY(write_container(cache, options, progress, {append, replace_start}));
  return out;
}

}  // namespace tqcache::format
