#include "tqcache/format/section_writer.h"

#include <array>
#include <cassert>
#include <optional>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/sections/section_compressor.h"

namespace tqcache::format {
namespace {

// One section before it is written to the file.
struct PreparedSection {
  SharedBytes raw;
  Bytes compressed;  // empty: stored uncompressed

  ByteView stored() const { return compressed.empty() ? raw.view() : ByteView(compressed); }
};

class SectionWriter {
 public:
  // The arguments must outlive this.
  SectionWriter(Manifest& manifest, const cache::CacheReader& reader,
                const std::vector<std::size_t>& numbers, const SectionCompressor& compressor,
                FileEnd& end)
      : manifest_(manifest),
        reader_(reader),
        numbers_(numbers),
        compressor_(compressor),
        end_(end) {}

  Result<void> write_all(const WriteOptions& options, const Progress& progress) {
    std::uint64_t total = 0;
    for (const std::size_t i : numbers_) total += manifest_.sections[i].raw_bytes;
    progress_.emplace(progress, total);
    copies_ = options.compression == Compression::kNone ? 1 : 2;
    slots_.resize(slot_count(options.n_threads));
    return run_in_order(
        {.count = numbers_.size(),
         .make = [this](std::size_t i, std::size_t slot) { return prepare(i, slots_[slot]); },
         .take = [this](std::size_t i, std::size_t slot) { return write(i, slots_[slot]); },
         .bytes = [this](std::size_t i) { return held_bytes(i); },
         .window_bytes = options.window_bytes},
        options.n_threads);
  }

 private:
  SectionInfo& section(std::size_t i) { return manifest_.sections[numbers_[i]]; }

  std::uint64_t held_bytes(std::size_t i) { return section(i).raw_bytes * copies_; }

  // Fills in the digests and the compression of a section.
  Result<void> prepare(std::size_t i, PreparedSection& prepared) {
    SectionInfo& info = section(i);
    TQC_TRY_ASSIGN(prepared.raw, reader_.share(numbers_[i]));
    assert(prepared.raw.size() == info.raw_bytes);
    const cache::LayerDesc& layer = manifest_.layers[static_cast<std::size_t>(info.layer)];
    compressor_.prepare(layer, prepared.raw.view(), info, prepared.compressed);
    return {};
  }

  Result<void> write(std::size_t i, PreparedSection& prepared) {
    TQC_TRY_ASSIGN(section(i).file_offset, end_.append_aligned(prepared.stored()));
    prepared = {};  // releases the memory
    return progress_->add(section(i).raw_bytes);
  }

  Manifest& manifest_;
  const cache::CacheReader& reader_;
  const std::vector<std::size_t>& numbers_;
  const SectionCompressor& compressor_;
  FileEnd& end_;
  std::vector<PreparedSection> slots_;
  std::uint64_t copies_ = 1;  // of each section held in memory
  std::optional<ProgressCounter> progress_;
};

}  // namespace

Result<void> FileEnd::append(ByteView bytes) {
  TQC_TRY(write_(position_, bytes));
  position_ += bytes.size();
  return {};
}

Result<std::uint64_t> FileEnd::append_aligned(ByteView bytes) {
  constexpr std::array<std::byte, kSectionAlignment> kZeros{};
  const std::uint64_t offset = align_section(position_);
  if (offset > position_) TQC_TRY(append(ByteView(kZeros).first(offset - position_)));
  TQC_TRY(append(bytes));
  return offset;
}

Manifest manifest_of(const cache::CacheReader& reader) {
  return {reader.description(), {}, sections_of(reader), {}, {}};
}

void hide_tokens(Manifest& manifest) {
  if (manifest.hidden_tokens) return;
  manifest.hidden_tokens = cache::hash_tokens(manifest.tokens);
  manifest.tokens.assign(manifest.tokens.size(), cache::kUnknownToken);
}

Result<void> prepare_manifest(Manifest& manifest, const WriteOptions& options) {
  TQC_TRY(Compressor::make(options.zstd_level));
  if (options.hide_tokens) hide_tokens(manifest);
  TQC_TRY(check_contents(manifest));
  // The size of the manifest does not depend on the missing fields.
  TQC_TRY(encode_manifest(manifest));
  return {};
}

Result<void> write_sections(Manifest& manifest, const cache::CacheReader& reader,
                            const std::vector<std::size_t>& numbers, const WriteOptions& options,
                            FileEnd& end, const Progress& progress) {
  TQC_TRY_ASSIGN(const SectionCompressor compressor,
                 SectionCompressor::make(options.compression, options.zstd_level));
  return SectionWriter(manifest, reader, numbers, compressor, end).write_all(options, progress);
}

Result<HeaderSlot> write_manifest(Manifest& manifest, FileEnd& end) {
  manifest.content_name = content_name(manifest);
  TQC_TRY_ASSIGN(const Bytes bytes, encode_manifest(manifest));
  HeaderSlot slot;
  slot.required_features = required_features(manifest);
  slot.manifest_checksum = xxh3_128(bytes);
  TQC_TRY_ASSIGN(slot.manifest_offset, end.append_aligned(bytes));
  slot.file_bytes = end.position();
  return slot;
}

}  // namespace tqcache::format
