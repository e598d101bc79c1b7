#include "tqcache/format/encryption.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/hash.h"

namespace tqcache::format {
namespace {

constexpr std::string_view kWriteLabel = "tqcache file 1";
constexpr std::uint32_t kScheme = 1;  // AES-256-GCM, keys by HKDF-SHA256

// The kinds of messages, the first four bytes of a nonce.
constexpr std::uint32_t kManifestMessage = 0;
constexpr std::uint32_t kSectionMessage = 1;

constexpr std::size_t kTagAt = 96;           // in the envelope; everything before is authenticated
constexpr std::size_t kBoundSlotBytes = 40;  // of the slot: all fields before the checksums

Nonce nonce_of(std::uint32_t kind, std::uint64_t number) {
  ByteWriter out;
  out.write(kind);
  out.write(number);
  Nonce nonce;
  assert(out.bytes().size() == nonce.size());
  std::ranges::copy(out.bytes(), nonce.begin());
  return nonce;
}

SecretKey write_key(const SecretKey& master, const Salt& file_id, const Salt& write) {
  std::array<std::byte, 64> salt;
  std::ranges::copy(file_id, salt.begin());
  std::ranges::copy(write, salt.begin() + 32);
  return derive_key(master, salt, kWriteLabel);
}

// What a section is, so that none can take the place of another.
Bytes associated_with(const Salt& file_id, const SectionInfo& section) {
  ByteWriter out;
  out.append(file_id);
  out.write(kSectionMessage);
  out.write(static_cast<std::uint32_t>(section.layer));
  out.write(static_cast<std::uint32_t>(section.block));
  out.write(static_cast<std::uint8_t>(section.tensor));
  out.write(static_cast<std::uint8_t>(section.packed ? 1 : 0));
  out.write(static_cast<std::uint8_t>(section.compression));
  out.write(std::uint8_t{0});
  out.write(std::uint64_t{section.raw_bytes});
  out.write(std::uint64_t{section.stored_bytes});
  return std::move(out).take();
}

// The envelope up to the tag.
Bytes envelope_start(const Encryption& description) {
  ByteWriter out;
  out.write(kScheme);
  out.append(std::array<std::byte, 12>{});
  out.append(description.key_id);
  out.append(description.file_id);
  out.append(description.writes.back());
  assert(out.bytes().size() == kTagAt);
  return std::move(out).take();
}

Bytes associated_with(const HeaderSlot& slot, ByteView envelope_start) {
  const SlotBytes encoded = encode_slot(slot);
  ByteWriter out;
  out.append(ByteView(encoded).first(kBoundSlotBytes));
  out.append(envelope_start);
  return std::move(out).take();
}

bool is_zero(ByteView bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

Error no_key(const KeyRing& keys, const KeyId& id) {
  std::string message = "encrypted with the key " + to_hex(id) + ", ";
  if (keys.empty()) return {ErrorCode::kNoKey, message + "and no key is given"};
  message += "which is not among the keys given:";
  for (const KeyId& given : keys.ids()) message += " " + to_hex(given);
  return {ErrorCode::kNoKey, std::move(message)};
}

}  // namespace

Result<Envelope> parse_envelope(ByteView manifest) {
  if (manifest.size() <= kEnvelopeBytes) return corrupt("manifest: too short to be encrypted");
  const auto scheme = number_at<std::uint32_t>(manifest, 0);
  if (scheme != kScheme) {
    return unsupported("manifest: encryption scheme " + std::to_string(scheme));
  }
  Envelope envelope;
  std::size_t at = 16;
  const auto take = [&](auto& field) {
    std::ranges::copy(manifest.subspan(at, field.size()), field.begin());
    at += field.size();
  };
  take(envelope.key_id);
  take(envelope.file_id);
  take(envelope.write);
  take(envelope.tag);
  if (is_zero(manifest.subspan(4, 12)) && is_zero(manifest.subspan(at, kEnvelopeBytes - at))) {
    return envelope;
  }
  return corrupt("manifest: reserved bytes not zero");
}

FileCipher::FileCipher(std::shared_ptr<const SecretKey> master, Encryption description)
    : master_(std::move(master)), description_(std::move(description)) {
  for (const Salt& write : description_.writes) {
    keys_.push_back(write_key(*master_, description_.file_id, write));
  }
}

Result<std::shared_ptr<const FileCipher>> FileCipher::make(const KeyRing& keys) {
  Encryption description;
  description.key_id = keys.first_id();
  TQC_TRY(fill_random(description.file_id));
  const FileCipher without_writes(keys.find(keys.first_id()), std::move(description));
  return without_writes.for_append({});
}

Result<std::shared_ptr<const FileCipher>> FileCipher::find(const KeyRing& keys,
                                                           const Envelope& envelope) {
  auto master = keys.find(envelope.key_id);
  if (master == nullptr) return no_key(keys, envelope.key_id);
  return std::shared_ptr<const FileCipher>(
      new FileCipher(std::move(master), {envelope.key_id, envelope.file_id, {envelope.write}}));
}

std::shared_ptr<const FileCipher> FileCipher::with_writes(const std::vector<Salt>& writes) const {
  return std::shared_ptr<const FileCipher>(
      new FileCipher(master_, {description_.key_id, description_.file_id, writes}));
}

Result<std::shared_ptr<const FileCipher>> FileCipher::for_append(
    std::vector<Salt> kept_writes) const {
  TQC_TRY(fill_random(kept_writes.emplace_back()));
  return with_writes(kept_writes);
}

void FileCipher::seal_section(std::uint32_t number, ByteView stored, std::span<std::byte> out,
                              SectionInfo& section) const {
  assert(stored.size() == section.stored_bytes);
  section.seal.write = static_cast<std::uint32_t>(keys_.size() - 1);
  section.seal.number = number;
  section.seal.tag = seal(keys_.back(), nonce_of(kSectionMessage, number),
                          associated_with(description_.file_id, section), stored, out);
  section.checksum = xxh3_128(out);
}

// A tag finds damage, too; the checksum only tells it from an attack.
Result<void> FileCipher::unseal_section(const SectionInfo& section,
                                        std::span<std::byte> stored) const {
  if (stored.size() > kMaxSealedBytes) return corrupt("too long to be encrypted");
  const Seal& seal = section.seal;
  if (unseal(keys_[seal.write], nonce_of(kSectionMessage, seal.number),
             associated_with(description_.file_id, section), seal.tag, stored)) {
    return {};
  }
  return corrupt("authentication failed: damaged, or changed without the key");
}

Bytes FileCipher::seal_manifest(const HeaderSlot& slot, ByteView manifest) const {
  Bytes sealed = envelope_start(description_);
  const Bytes associated = associated_with(slot, sealed);
  sealed.resize(kEnvelopeBytes + manifest.size());
  const Tag tag = seal(keys_.back(), nonce_of(kManifestMessage, 0), associated, manifest,
                       std::span(sealed).subspan(kEnvelopeBytes));
  std::ranges::copy(tag, sealed.begin() + kTagAt);
  return sealed;
}

Result<AlignedBytes> FileCipher::unseal_manifest(const HeaderSlot& slot, ByteView sealed) const {
  TQC_TRY_ASSIGN(const Envelope envelope, parse_envelope(sealed));
  const ByteView encrypted = sealed.subspan(kEnvelopeBytes);
  AlignedBytes manifest(encrypted.begin(), encrypted.end());
  if (unseal(keys_.back(), nonce_of(kManifestMessage, 0),
             associated_with(slot, sealed.first(kTagAt)), envelope.tag, manifest)) {
    return manifest;
  }
  return corrupt("manifest: authentication failed: damaged, or changed without the key");
}

std::vector<Salt> prune_writes(const std::vector<Salt>& writes,
                               const std::vector<std::size_t>& new_sections,
                               std::vector<SectionInfo>& sections) {
  std::vector<bool> is_used(writes.size());
  auto next_new = new_sections.begin();
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const bool is_new = next_new != new_sections.end() && *next_new == i;
    is_new ? void(++next_new) : void(is_used[sections[i].seal.write] = true);
  }
  std::vector<std::uint32_t> places(writes.size());
  std::vector<Salt> kept;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    places[i] = static_cast<std::uint32_t>(kept.size());
    if (is_used[i]) kept.push_back(writes[i]);
  }
  for (SectionInfo& section : sections) section.seal.write = places[section.seal.write];
  return kept;
}

}  // namespace tqcache::format
