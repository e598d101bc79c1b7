#include "tqcache/format/section_reader.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/sections/plane_section.h"
#include "tqcache/format/sections/symbol_section.h"
#include "tqcache/hash.h"

namespace tqcache::format {

Result<void> check_stored(const SectionInfo& section, ByteView stored) {
  if (xxh3_128(stored) == section.checksum) return {};
  return Error{ErrorCode::kCorrupt, "checksum mismatch"};
}

Result<void> check_digest(const SectionInfo& section, ByteView raw) {
  if (sha256(raw) == section.raw_sha256) return {};
  return corrupt("SHA-256 of the content mismatch");
}

namespace {

// A seal makes the checksum superfluous.
Result<void> authenticate(const SectionInfo& section, const FileCipher* cipher,
                          std::span<std::byte> stored) {
  return cipher != nullptr ? cipher->unseal_section(section, stored)
                           : check_stored(section, stored);
}

}  // namespace

Result<void> unpack_stored(const Manifest& manifest, const SectionInfo& section, ByteView stored,
                           const Decompressor& decompressor, AlignedBytes& raw) {
  const cache::LayerDesc& layer = layer_of(manifest, section);
  if (section.compression == Compression::kPredicted) {
    return unsupported("a predicted section is read with the others of its token block");
  }
  if (section.compression == Compression::kPlanes) {
    const std::size_t width = number_bytes(layer, key_of(section));
    TQC_TRY(check_planes(stored, section.raw_bytes, width));
    raw.resize(section.raw_bytes);
    return decompress_planes(decompressor, stored, width, raw);
  }
  if (section.compression == Compression::kSymbols) {
    const SymbolShape shape = symbol_shape(layer, section);
    TQC_TRY(check_symbols(stored, shape));
    raw.resize(section.raw_bytes);
    return decompress_symbols(decompressor, stored, shape, raw);
  }
  TQC_TRY(Decompressor::check_frame(stored, section.raw_bytes));
  raw.resize(section.raw_bytes);
  return decompressor.decompress(stored, raw);
}

Result<void> read_stored_section(const ByteSource& source, const SectionInfo& section,
                                 const FileCipher* cipher, std::span<std::byte> stored) {
  TQC_TRY(source.read_at(section.file_offset, stored));
  return authenticate(section, cipher, stored);
}

Result<void> read_section(const ByteSource& source, const Manifest& manifest,
                          const SectionInfo& section, const FileCipher* cipher,
                          const Decompressor& decompressor, AlignedBytes& raw) {
  if (section.compression == Compression::kPredicted) {
    const ReadStored read = [&](const SectionInfo& other, AlignedBytes& stored) {
      stored.resize(other.stored_bytes);
      return read_stored_section(source, other, cipher, stored);
    };
    return read_predicted(manifest, section, read, raw);
  }
  if (section.compression == Compression::kNone) {
    raw.resize(section.stored_bytes);
    return read_stored_section(source, section, cipher, raw);
  }
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(section.stored_bytes);
  const std::span stored(memory.get(), section.stored_bytes);
  TQC_TRY(read_stored_section(source, section, cipher, stored));
  return unpack_stored(manifest, section, stored, decompressor, raw);
}

Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index) {
  const SectionInfo& section = manifest.sections[index];
  const std::uint64_t begin = section.file_offset + section.stored_bytes;
  if (align_section(begin) == begin) return {};
  std::array<std::byte, kSectionAlignment> padding{};
  const auto bytes = std::span(padding).first(align_section(begin) - begin);
  TQC_TRY(source.read_at(begin, bytes));
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (std::ranges::all_of(bytes, is_zero)) return {};
  return Error{ErrorCode::kCorrupt, "padding behind it is not zero"};
}

// The sections of a file that belong to one checkpoint, whose layers are numbered from 0.
class SectionReader::OfCheckpoint : public cache::CacheReader {
 public:
  OfCheckpoint(std::shared_ptr<const File> file, std::size_t number, std::size_t first_section)
      : file_(std::move(file)), first_section_(first_section) {
    const CacheFileInfo& info = file_->info;
    const cache::CheckpointDesc& checkpoint = info.checkpoints[number];
    description_ = cache::describe(info, checkpoint);
    const auto count = cache::count_blocks(checkpoint.layers, checkpoint.n_tokens);
    blocks_ = blocks_of(std::span(info.sections).subspan(first_section, count));
    const std::size_t first_layer = info.layers.size() + number * checkpoint.layers.size();
    for (cache::BlockInfo& block : blocks_) block.layer -= static_cast<std::int64_t>(first_layer);
  }

  const cache::CacheDesc& description() const override { return description_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t index, AlignedBytes& raw) const override {
    return file_->read(first_section_ + index, raw);
  }
  Result<SharedBytes> share(std::size_t index) const override {
    const std::size_t in_file = first_section_ + index;
    return file_->is_in_place(in_file) ? file_->share(in_file) : CacheReader::share(index);
  }
  Result<std::optional<cache::StoredBlock>> stored(std::size_t index,
                                                   const cache::Room& room) const override {
    return file_->stored(first_section_ + index, room);
  }

 private:
  std::shared_ptr<const File> file_;
  std::size_t first_section_;
  cache::CacheDesc description_;
  std::vector<cache::BlockInfo> blocks_;
};

SectionReader::SectionReader(std::shared_ptr<const ByteSource> source, OpenContainer container,
                             Digests digests)
    : file_(std::make_shared<File>(std::move(source), std::move(container), digests)) {
  const CacheFileInfo& info = file_->info;
  std::size_t first = count_cache_sections(info);
  blocks_ = blocks_of(std::span(info.sections).first(first));
  for (std::size_t i = 0; i < info.checkpoints.size(); ++i) {
    auto state = std::make_shared<const OfCheckpoint>(file_, i, first);
    first += state->blocks().size();
    checkpoints_.push_back({std::move(state), info.checkpoints[i].first_position});
  }
}

SectionReader::SectionReader(const ByteSource& source, OpenContainer container, Digests digests)
    : SectionReader(std::shared_ptr<const ByteSource>(std::shared_ptr<const void>(), &source),
                    std::move(container), digests) {}

Result<void> check_memory(const Manifest& manifest, const MemoryBudget& memory) {
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    const SectionInfo& section = manifest.sections[i];
    TQC_TRY(memory.check(section.raw_bytes, block_place(i, section), section.stored_bytes,
                         kSmallSectionBytes));
  }
  return {};
}

Result<void> check_memory(const CacheFileInfo& info, const MemoryBudget& memory) {
  const Manifest& manifest = info;
  TQC_TRY(check_memory(manifest, memory));
  return memory.check_proportion(cache::total_raw_bytes(info.sections), "values of the file",
                                 info.file_bytes, kSmallFileBytes);
}

Result<SectionReader> SectionReader::open(std::shared_ptr<const ByteSource> source,
                                          const Access& access, Digests digests) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(*source, access));
  TQC_TRY(check_content_name(container.info));
  TQC_TRY(check_memory(container.info, access.memory));
  if (container.info.prediction) {  // a missing profile is reported before any work
    TQC_TRY(container.info.predicted->predictor(container.info));
  }
  return SectionReader(std::move(source), std::move(container), digests);
}

Result<SectionReader> SectionReader::open(const ByteSource& source, const Access& access,
                                          Digests digests) {
  return open(std::shared_ptr<const ByteSource>(std::shared_ptr<const void>(), &source), access,
              digests);
}

Result<SectionReader> SectionReader::open_mapped(SharedBytes file, bool verify_checksums,
                                                 const Access& access, Digests digests) {
  TQC_TRY_ASSIGN(SectionReader reader,
                 open(std::shared_ptr<const ByteSource>(memory_source(file)), access, digests));
  reader.file_->mapped = std::move(file);
  reader.file_->verify_checksums = verify_checksums;
  return reader;
}

Result<void> SectionReader::File::read(std::size_t index, AlignedBytes& raw) const {
  const SectionInfo& section = info.sections[index];
  Result<void> done = read_section(*source, info, section, cipher.get(), decompressor, raw);
  if (done) done = compare(section, raw);
  if (done) done = check_padding(*source, info, index);
  if (!done) return in_context(block_place(index, section), std::move(done).error());
  return {};
}

bool SectionReader::File::is_in_place(std::size_t index) const {
  const SectionInfo& section = info.sections[index];
  return mapped.size() > 0 && section.packed && section.compression == Compression::kNone &&
         cipher == nullptr;
}

Result<SharedBytes> SectionReader::File::share(std::size_t index) const {
  const SectionInfo& section = info.sections[index];
  SharedBytes stored = mapped.part(section.file_offset, section.stored_bytes);
  Result<void> checked;
  if (verify_checksums) checked = check_stored(section, stored.view());
  if (checked) checked = compare(section, stored.view());
  if (checked) checked = check_padding(*source, info, index);
  if (!checked) return in_context(block_place(index, section), std::move(checked).error());
  return stored;
}

Result<std::optional<cache::StoredBlock>> SectionReader::File::stored(
    std::size_t index, const cache::Room& room) const {
  const SectionInfo& section = info.sections[index];
  const std::span<std::byte> bytes = room(section.stored_bytes);
  Result<void> done = source->read_at(section.file_offset, bytes);
  if (done) done = authenticate(section, cipher.get(), bytes);
  if (done && digests == Digests::kCompare) done = compare_stored(section, bytes);
  if (!done) return in_context(block_place(index, section), std::move(done).error());
  cache::StoredBlock stored{section.compression, section.checksum, section.raw_sha256};
  // The checksum of an encrypted file is that of the encrypted bytes.
  if (cipher != nullptr) stored.checksum = xxh3_128(bytes);
  return std::optional(stored);
}

Result<void> SectionReader::File::compare_stored(const SectionInfo& section,
                                                 ByteView stored) const {
  if (section.compression == Compression::kNone) return check_digest(section, stored);
  AlignedBytes raw;
  if (section.compression == Compression::kPredicted) {  // decoded with the rest of its token block
    TQC_TRY(read_section(*source, info, section, cipher.get(), decompressor, raw));
  } else {
    TQC_TRY(unpack_stored(info, section, stored, decompressor, raw));
  }
  return check_digest(section, raw);
}

Result<void> SectionReader::read(std::size_t index, AlignedBytes& raw) const {
  return file_->read(index, raw);
}

Result<SharedBytes> SectionReader::share(std::size_t index) const {
  return file_->is_in_place(index) ? file_->share(index) : CacheReader::share(index);
}

Result<std::optional<cache::StoredBlock>> SectionReader::stored(std::size_t index,
                                                                const cache::Room& room) const {
  return file_->stored(index, room);
}

}  // namespace tqcache::format
