#include "tqcache/format/section_writer.h"

#include <array>
#include <cassert>
#include <optional>
#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/cache.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/error.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/sections/section_compressor.h"
#include "tqcache/hash.h"

namespace tqcache::format {
namespace {

// One section before it is written to the file.
struct PreparedSection {
  SharedBytes raw;
  Bytes encoded;  // compressed, encrypted or both; empty: stored as it is (`raw`)

  ByteView stored() const { return encoded.empty() ? raw.view() : ByteView(encoded); }
};

class SectionWriter {
 public:
  // The arguments must outlive this.
  SectionWriter(Manifest& manifest, const cache::CacheReader& reader,
                const std::vector<std::size_t>& numbers, const SectionCompressor& compressor,
                const SectionCompressor& of_checkpoints, bool keep_stored, const FileCipher* cipher,
                FileEnd& end)
      : manifest_(manifest),
        reader_(reader),
        numbers_(numbers),
        compressor_(compressor),
        of_checkpoints_(of_checkpoints),
        keep_stored_(keep_stored),
        cipher_(cipher),
        end_(end) {}

  Result<void> write_all(const WriteOptions& options, const Progress& progress) {
    std::uint64_t total = 0;
    for (const std::size_t i : numbers_) total += manifest_.sections[i].raw_bytes;
    progress_.emplace(progress, total);
    copies_ = options.compression == Compression::kNone && cipher_ == nullptr ? 1 : 2;
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
    TQC_TRY_ASSIGN(const bool is_kept, keep(i, prepared));
    if (is_kept) return cipher_ == nullptr ? Result<void>() : encrypt(i, prepared);
    TQC_TRY_ASSIGN(prepared.raw, cache::share_any(reader_, numbers_[i]));
    assert(prepared.raw.size() == info.raw_bytes);
    const bool is_of_cache = info.layer < std::ssize(manifest_.layers);
    const SectionCompressor& compressor = is_of_cache ? compressor_ : of_checkpoints_;
    compressor.prepare(layer_of(manifest_, info), prepared.raw.view(), info, prepared.encoded);
    return cipher_ == nullptr ? Result<void>() : encrypt(i, prepared);
  }

  // Whether the section is stored as the reader has it.
  Result<bool> keep(std::size_t i, PreparedSection& prepared) {
    if (!keep_stored_) return false;
    SectionInfo& info = section(i);
    const cache::Room room = [&](std::size_t n_bytes) {
      prepared.encoded.resize(n_bytes);
      return std::span<std::byte>(prepared.encoded);
    };
    TQC_TRY_ASSIGN(const auto stored, cache::stored_any(reader_, numbers_[i], room));
    if (!stored) return false;
    info.compression = stored->compression;
    info.stored_bytes = prepared.encoded.size();
    info.checksum = stored->checksum;
    info.raw_sha256 = stored->raw_sha256;
    return true;
  }

  // In the buffer of the stored bytes, if there is one.
  Result<void> encrypt(std::size_t i, PreparedSection& prepared) {
    SectionInfo& info = section(i);
    if (info.stored_bytes > kMaxSealedBytes) return too_large("a section of more than 64 GiB");
    const bool is_raw = prepared.encoded.empty();
    prepared.encoded.resize(info.stored_bytes);  // no change if it holds them
    const ByteView stored = is_raw ? prepared.raw.view() : ByteView(prepared.encoded);
    cipher_->seal_section(static_cast<std::uint32_t>(numbers_[i]), stored, prepared.encoded, info);
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
  const SectionCompressor& of_checkpoints_;
  bool keep_stored_;
  const FileCipher* cipher_;
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
  return {reader.description(), {}, sections_of(reader.blocks()), {}, {}};
}

void add_checkpoints(const cache::CacheReader& reader, Manifest& manifest) {
  for (const cache::Checkpoint& checkpoint : reader.checkpoints()) {
    manifest.checkpoints.push_back(cache::describe(checkpoint));
  }
  manifest.sections = sections_of(cache::all_blocks(reader));
}

void hide_tokens(Manifest& manifest) {
  if (manifest.hidden_tokens) return;
  manifest.hidden_tokens = cache::hash_tokens(manifest.tokens);
  manifest.tokens.assign(manifest.tokens.size(), cache::kUnknownToken);
  for (cache::MediaSpan& span : manifest.media) {
    span.id.clear();
    span.source.clear();  // may name it, too
  }
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
                            const FileCipher* cipher, FileEnd& end, const Progress& progress) {
  TQC_TRY_ASSIGN(const SectionCompressor compressor,
                 SectionCompressor::make(options.compression, options.zstd_level));
  // Recurrent state is mostly f32, whose bytes zstd alone hardly compresses.
  const bool is_raw = options.compression == Compression::kNone;
  TQC_TRY_ASSIGN(const SectionCompressor of_checkpoints,
                 SectionCompressor::make(is_raw ? Compression::kNone : Compression::kPlanes,
                                         options.zstd_level));
  return SectionWriter(manifest, reader, numbers, compressor, of_checkpoints, options.keep_stored,
                       cipher, end)
      .write_all(options, progress);
}

Result<HeaderSlot> write_manifest(Manifest& manifest, std::uint32_t generation,
                                  const FileCipher* cipher, FileEnd& end) {
  manifest.content_name = content_name(manifest);
  TQC_TRY_ASSIGN(Bytes bytes, encode_manifest(manifest));
  HeaderSlot slot;
  slot.generation = generation;
  slot.required_features = required_features(manifest);
  slot.manifest_offset = align_section(end.position());
  slot.file_bytes = slot.manifest_offset + bytes.size() + (cipher != nullptr ? kEnvelopeBytes : 0);
  if (cipher != nullptr) bytes = cipher->seal_manifest(slot, bytes);
  slot.manifest_checksum = xxh3_128(bytes);
  TQC_TRY(end.append_aligned(bytes));
  assert(end.position() == slot.file_bytes);
  return slot;
}

}  // namespace tqcache::format
