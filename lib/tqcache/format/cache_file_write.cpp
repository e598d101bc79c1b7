// write_cache() and related functions: a new file.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache/memory_blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/header.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/tqkv.h"
#include "tqcache/version.h"

namespace tqcache::format {
namespace {

// The destination of the file: disk or memory.
struct Output {
  FileEnd::Write append;
  std::function<Result<void>(ByteView)> replace_start;  // the first bytes, once all are known
  std::function<Result<void>(std::uint64_t size)> truncate;
};

std::string this_writer() { return "tqcache " + std::string(version()); }

using Cipher = std::shared_ptr<const FileCipher>;

// The encryption of a new file, if there are keys.
Result<Cipher> new_cipher(const KeyRing& keys) {
  return keys.empty() ? Result<Cipher>(Cipher()) : FileCipher::make(keys);
}

void describe_encryption(const Cipher& cipher, Manifest& manifest) {
  manifest.encryption.reset();
  if (cipher != nullptr) manifest.encryption = cipher->description();
}

// The header stays zero until everything else is written: without it the file is invalid.
Result<void> write_empty_header(FileEnd& end) {
  return end.append(std::array<std::byte, kHeaderBytes>{});
}

Result<void> write_manifest_and_header(Manifest& manifest, const Cipher& cipher, FileEnd& end,
                                       const Output& output) {
  TQC_TRY_ASSIGN(const HeaderSlot slot, write_manifest(manifest, 1, cipher.get(), end));
  return output.replace_start(encode_slot(slot));
}

Result<void> write_all(const cache::CacheReader& reader, const WriteOptions& options,
                       const Progress& progress, const Output& output) {
  Manifest manifest = manifest_of(reader);
  add_checkpoints(reader, manifest);
  if (options.keep_stored) manifest.prediction = reader.prediction();
  manifest.writer = options.writer.empty() ? this_writer() : options.writer;
  TQC_TRY_ASSIGN(const Cipher cipher, new_cipher(options.keys));
  describe_encryption(cipher, manifest);
  TQC_TRY(prepare_manifest(manifest, options));
  std::vector<std::size_t> all(manifest.sections.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  FileEnd end(0, output.append);
  TQC_TRY(write_empty_header(end));
  TQC_TRY(write_sections(manifest, reader, all, options, cipher.get(), end, progress));
  return write_manifest_and_header(manifest, cipher, end, output);
}

Output output_to(AtomicFile& file) {
  return {[&](std::uint64_t, ByteView bytes) { return file.write(bytes); },
          [&](ByteView bytes) { return file.write_at(0, bytes); },
          [&](std::uint64_t size) { return file.truncate(size); }};
}

Output output_to(Bytes& out) {
  return {[&](std::uint64_t, ByteView bytes) -> Result<void> {
            out.insert(out.end(), bytes.begin(), bytes.end());
            return {};
          },
          [&](ByteView bytes) -> Result<void> {
            std::ranges::copy(bytes, out.begin());
            return {};
          },
          [&](std::uint64_t size) -> Result<void> {
            out.resize(size);
            return {};
          }};
}

std::uint64_t end_of(const SectionInfo& section) {
  return section.file_offset + section.stored_bytes;
}

}  // namespace

Result<void> write_cache(const cache::CacheReader& cache, AtomicFile& file,
                         const WriteOptions& options, const Progress& progress) {
  return write_all(cache, options, progress, output_to(file));
}

Result<void> write_cache(const cache::Cache& cache, AtomicFile& file, const WriteOptions& options,
                         const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  return write_cache(*cache::reader_of(cache), file, options, progress);
}

Result<void> write_cache_file(const cache::CacheReader& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY(Compressor::make(options.zstd_level));  // a bad level is reported before the file exists
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(write_cache(cache, file, options, progress));
  return file.commit();
}

Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(write_cache(cache, file, options, progress));
  return file.commit();
}

Result<Bytes> write_cache_bytes(const cache::CacheReader& cache, const WriteOptions& options,
                                const Progress& progress) {
  Bytes out;
  TQC_TRY(write_all(cache, options, progress, output_to(out)));
  return out;
}

Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  return write_cache_bytes(*cache::reader_of(cache), options, progress);
}

struct StoredSectionWriter::State {
  Cipher cipher;
  Output output;
  FileEnd end = FileEnd(0, output.append);
  std::vector<SectionInfo> sections = {};
  Bytes encrypted = {};
};

StoredSectionWriter::StoredSectionWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
StoredSectionWriter::StoredSectionWriter(StoredSectionWriter&&) noexcept = default;
StoredSectionWriter& StoredSectionWriter::operator=(StoredSectionWriter&&) noexcept = default;
StoredSectionWriter::~StoredSectionWriter() = default;

Result<StoredSectionWriter> StoredSectionWriter::begin(AtomicFile& file, const KeyRing& keys) {
  TQC_TRY_ASSIGN(Cipher cipher, new_cipher(keys));
  std::unique_ptr<State> state(new State{std::move(cipher), output_to(file)});
  TQC_TRY(write_empty_header(state->end));
  return StoredSectionWriter(std::move(state));
}

Result<void> StoredSectionWriter::add(const SectionInfo& info, ByteView stored) {
  State& state = *state_;
  const std::size_t number = state.sections.size();
  SectionInfo& section = state.sections.emplace_back(info);
  if (state.cipher != nullptr) {
    if (stored.size() > kMaxSealedBytes) return too_large("a section of more than 64 GiB");
    state.encrypted.resize(stored.size());
    state.cipher->seal_section(static_cast<std::uint32_t>(number), stored, state.encrypted,
                               section);
    stored = state.encrypted;
  }
  TQC_TRY_ASSIGN(section.file_offset, state.end.append_aligned(stored));
  return {};
}

Result<void> StoredSectionWriter::finish(Manifest manifest) {
  State& state = *state_;
  const std::size_t n_sections = manifest.sections.size();
  if (n_sections < state.sections.size()) {
    const std::uint64_t size =
        n_sections == 0 ? kHeaderBytes : end_of(state.sections[n_sections - 1]);
    TQC_TRY(state.output.truncate(size));
    state.end = FileEnd(size, state.output.append);
    state.sections.resize(n_sections);
  }
  if (manifest.writer.empty()) manifest.writer = this_writer();
  manifest.gaps.clear();
  manifest.sections = std::move(state.sections);
  describe_encryption(state.cipher, manifest);
  const Sha256 expected = manifest.content_name;
  TQC_TRY(write_manifest_and_header(manifest, state.cipher, state.end, state.output));
  if (manifest.content_name != expected) {
    return Error{ErrorCode::kCorrupt, "the content name is another than it should be"};
  }
  return {};
}

}  // namespace tqcache::format
