#include "tqcache/format/open_container.h"

#include <memory>
#include <string>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/predicted_blocks.h"

namespace tqcache::format {
namespace {

// Feature bits keep out readers that do not know a feature; so this reader checks the bits exactly.
Result<void> check_features(const Manifest& manifest, const HeaderSlot& slot) {
  const std::uint32_t expected = required_features(manifest);
  if (slot.required_features == expected) return {};
  return Error{ErrorCode::kCorrupt, "required features " + std::to_string(slot.required_features) +
                                        " where the manifest has " + std::to_string(expected)};
}

struct ReadManifest {
  Manifest manifest;
  std::shared_ptr<const FileCipher> cipher;
};

// Replaces the encrypted manifest by its content. Returns its cipher; null: it was plain.
Result<std::shared_ptr<const FileCipher>> decrypt(const HeaderSlot& slot, const KeyRing& keys,
                                                  AlignedBytes& bytes) {
  if ((slot.required_features & kFeatureEncrypted) == 0) return std::shared_ptr<const FileCipher>();
  TQC_TRY_ASSIGN(const Envelope envelope, parse_envelope(bytes));
  TQC_TRY_ASSIGN(auto cipher, FileCipher::find(keys, envelope));
  TQC_TRY_ASSIGN(bytes, cipher->unseal_manifest(slot, bytes));
  return cipher;
}

// Adds what the envelope says to what the manifest says. Returns the cipher for all sections.
Result<std::shared_ptr<const FileCipher>> add_envelope(const FileCipher& cipher,
                                                       Manifest& manifest) {
  const Encryption& known = cipher.description();
  Encryption& encryption = *manifest.encryption;
  if (encryption.writes.back() != known.writes.back()) {
    return corrupt("manifest: of another write than its envelope");
  }
  encryption.key_id = known.key_id;
  encryption.file_id = known.file_id;
  return cipher.with_writes(encryption.writes);
}

Result<ReadManifest> read_manifest(const ByteSource& source, const HeaderSlot& slot,
                                   const Access& access) {
  AlignedBytes bytes(slot.file_bytes - slot.manifest_offset);
  TQC_TRY(source.read_at(slot.manifest_offset, bytes));
  if (xxh3_128(bytes) != slot.manifest_checksum) {
    return Error{ErrorCode::kCorrupt, "manifest: checksum mismatch"};
  }
  TQC_TRY_ASSIGN(auto cipher, decrypt(slot, access.keys, bytes));
  TQC_TRY_ASSIGN(Manifest manifest, decode_manifest(bytes));
  TQC_TRY(check_features(manifest, slot));
  TQC_TRY(check_contents(manifest));
  TQC_TRY(check_sections(manifest, slot.manifest_offset));
  if (cipher != nullptr) {
    TQC_TRY_ASSIGN(cipher, add_envelope(*cipher, manifest));
  }
  if (manifest.prediction) manifest.predicted = std::make_shared<PredictedBlocks>(access);
  return ReadManifest{std::move(manifest), std::move(cipher)};
}

std::uint64_t total_stored_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.stored_bytes;
  return total;
}

std::uint64_t total_gap_bytes(const Manifest& manifest) {
  std::uint64_t total = 0;
  for (const GapInfo& gap : manifest.gaps) total += gap.bytes;
  return total;
}

}  // namespace

CacheFileInfo make_info(const Header& header, Manifest manifest) {
  const HeaderSlot& slot = header.slot;
  CacheFileInfo info{std::move(manifest)};
  info.version = slot.version;
  info.generation = slot.generation;
  info.required_features = slot.required_features;
  info.optional_features = slot.optional_features;
  info.file_bytes = slot.file_bytes;
  info.manifest_bytes = slot.file_bytes - slot.manifest_offset;
  info.gap_bytes = total_gap_bytes(info);
  info.trailing_bytes = header.trailing_bytes;
  info.damage = header.damage;
  info.padding_bytes =
      slot.manifest_offset - kHeaderBytes - total_stored_bytes(info) - info.gap_bytes;
  return info;
}

Result<OpenContainer> open_container(const ByteSource& source, const Access& access) {
  TQC_TRY_ASSIGN(Header header, read_header(source));
  TQC_TRY_ASSIGN(ReadManifest read, read_manifest(source, header.slot, access));
  CacheFileInfo info = make_info(header, std::move(read.manifest));
  return OpenContainer{std::move(info), std::move(header), std::move(read.cipher)};
}

Result<void> check_content_name(const Manifest& manifest) {
  if (content_name(manifest) == manifest.content_name) return {};
  return Error{ErrorCode::kCorrupt, "manifest: content name mismatch"};
}

}  // namespace tqcache::format
