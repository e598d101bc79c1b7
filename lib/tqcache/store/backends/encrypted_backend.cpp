#include "tqcache/store/backends/encrypted_backend.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <optional>
#include <utility>

#include "tqcache/base/cipher.h"
#include "tqcache/hash.h"
#include "tqcache/store/backends/backend_support.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_format.h"

namespace tqcache::store {
namespace {

constexpr std::string_view kValueLabel = "tqcache blob 1";
constexpr std::string_view kNamesLabel = "tqcache store names 1";

// The fields of a sealed value: a blob header of version 2, salt, tag and ciphertext.
constexpr std::size_t kKeyIdAt = 24;
constexpr std::size_t kSaltAt = 64;
constexpr std::size_t kTagAt = 96;
constexpr std::size_t kReservedAt = 112;
constexpr std::size_t kSealedHeaderBytes = 128;
constexpr std::size_t kSaltBytes = 32;

// What a header of version 2 is. Only the first is ever stored; the others are made by the reader
// and take the place of a value that it cannot use.
enum class SealedKind : std::uint32_t { kSealed = 1, kPlain = 0xffffff00, kForged, kOtherScheme };

// The first 64 bytes. Magic and checksum have the same place as in version 1.
Bytes header_of(SealedKind kind, std::uint64_t size, const KeyId& id) {
  ByteWriter out;
  out.append(kBlobMagic);
  out.write(kSealedBlobVersion);
  out.write(static_cast<std::uint32_t>(kind));
  out.write(size);
  out.append(id);
  out.append(std::array<std::byte, 16>{});
  out.write(xxh3_64(out.bytes()));
  assert(out.bytes().size() == kBlobHeaderBytes);
  return std::move(out).take();
}

SecretKey key_of(const SecretKey& master, ByteView salt) {
  return derive_key(master, salt, kValueLabel);
}

// Header and salt of the value, and the key that it is stored under.
Bytes associated_with(ByteView sealed, std::string_view key) {
  Bytes bytes(sealed.begin(), sealed.begin() + kTagAt);
  bytes.insert(bytes.end(), as_bytes(key).begin(), as_bytes(key).end());
  return bytes;
}

KeyId id_of(ByteView header) {
  KeyId id;
  std::ranges::copy(header.subspan(kKeyIdAt, id.size()), id.begin());
  return id;
}

bool is_whole(ByteView value, std::uint32_t version) {
  return value.size() >= kBlobHeaderBytes &&
         std::ranges::equal(value.first(kBlobMagic.size()), kBlobMagic) &&
         number_at<std::uint32_t>(value, 8) == version &&
         number_at<std::uint64_t>(value, 56) == xxh3_64(value.first(56));
}

// The value in `room`, or what stands for it.
ByteView opened(const KeyRing& keys, std::string_view key, ByteView stored, Bytes& room) {
  const auto stand_in = [&](SealedKind kind) {
    room = header_of(kind, kBlobHeaderBytes, {});
    return ByteView(room);
  };
  if (stored.empty()) return stored;  // of no kind: damaged, with a key and without
  if (!is_whole(stored, kSealedBlobVersion)) {
    const bool is_plain = is_whole(stored, kBlobVersion) || is_whole(stored, kMediaBlobVersion);
    return stand_in(is_plain ? SealedKind::kPlain : SealedKind::kForged);
  }
  if (number_at<std::uint32_t>(stored, 12) != static_cast<std::uint32_t>(SealedKind::kSealed)) {
    return stand_in(SealedKind::kOtherScheme);
  }
  const auto master = keys.find(id_of(stored));
  if (master == nullptr) {
    room.assign(stored.begin(), stored.begin() + kBlobHeaderBytes);  // names the key
    return room;
  }
  const bool fits =
      stored.size() >= kSealedHeaderBytes &&
      number_at<std::uint64_t>(stored, 16) == stored.size() &&
      std::ranges::all_of(stored.subspan(kReservedAt, kSealedHeaderBytes - kReservedAt),
                          [](std::byte byte) { return byte == std::byte{0}; });
  if (!fits) return stand_in(SealedKind::kForged);
  Tag tag;
  std::ranges::copy(stored.subspan(kTagAt, tag.size()), tag.begin());
  const ByteView encrypted = stored.subspan(kSealedHeaderBytes);
  room.assign(encrypted.begin(), encrypted.end());
  const SecretKey secret = key_of(*master, stored.subspan(kSaltAt, kSaltBytes));
  if (unseal(secret, {}, associated_with(stored, key), tag, room)) return room;
  return stand_in(SealedKind::kForged);
}

class EncryptedBackend : public Backend {
 public:
  EncryptedBackend(std::unique_ptr<Backend> inner, const KeyRing& keys,
                   const BackendOptions& options)
      : Backend(inner->name(), options), inner_(std::move(inner)), keys_(keys) {}

  bool touches_cheaply() const override { return inner_->touches_cheaply(); }
  bool lists_cheaply() const override { return inner_->lists_cheaply(); }
  Result<Leftovers> leftovers(std::chrono::seconds min_age, bool remove) override {
    return inner_->leftovers(min_age, remove);
  }

 private:
  // Encrypted a few at a time: a batch may hold many megabytes.
  Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) override {
    constexpr std::size_t kAtOnce = 8;
    return put_in_batches(blobs, kAtOnce, [&](auto some, auto& outcomes) -> Result<void> {
      std::vector<Bytes> sealed;
      std::vector<Blob> values;
      for (const Blob& blob : some) {
        TQC_TRY_ASSIGN(Bytes value, seal_value(keys_, blob.key, blob.value));
        sealed.push_back(std::move(value));
        values.push_back({blob.key, sealed.back()});
      }
      TQC_TRY_ASSIGN(const std::vector<PutOutcome> put, inner_->put(values));
      outcomes.insert(outcomes.end(), put.begin(), put.end());
      return {};
    });
  }

  Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) override {
    Bytes room;
    return inner_->get(keys, [&](std::size_t i, std::optional<ByteView> stored) -> Result<void> {
      if (!stored) return sink(i, std::nullopt);
      return sink(i, opened(keys_, keys[i], *stored, room));
    });
  }

  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    return inner_->exists(keys);
  }

  // The caller knows what the value was opened to; the other backend compares what it stores.
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    if (!only) return inner_->remove(key);
    TQC_TRY_ASSIGN(const std::optional<Bytes> stored, inner_->get(key));
    if (!stored) return false;
    Bytes room;
    if (!std::ranges::equal(opened(keys_, key, *stored, room), *only)) return false;
    return inner_->remove_if_same(key, *stored);
  }

  Result<void> do_list(const std::string& prefix, const EntrySink& sink) override {
    return inner_->list(prefix, sink);
  }

  Result<void> do_touch(std::span<const std::string> keys) override { return inner_->touch(keys); }

  Result<void> do_replace(const Blob& blob) override {
    TQC_TRY_ASSIGN(const Bytes sealed, seal_value(keys_, blob.key, blob.value));
    return inner_->replace(blob.key, sealed);
  }

  std::unique_ptr<Backend> inner_;
  KeyRing keys_;
};

}  // namespace

Result<Bytes> seal_value(const KeyRing& keys, std::string_view key, ByteView value) {
  const KeyId& id = keys.first_id();
  Bytes sealed = header_of(SealedKind::kSealed, kSealedHeaderBytes + value.size(), id);
  sealed.resize(kSealedHeaderBytes + value.size());
  const auto salt = std::span(sealed).subspan(kSaltAt, kSaltBytes);
  TQC_TRY(fill_random(salt));
  const SecretKey secret = key_of(*keys.find(id), salt);
  const Tag tag = seal(secret, {}, associated_with(sealed, key), value,
                       std::span(sealed).subspan(kSealedHeaderBytes));
  std::ranges::copy(tag, sealed.begin() + kTagAt);
  return sealed;
}

Error sealed_value_error(ByteView header) {
  switch (static_cast<SealedKind>(number_at<std::uint32_t>(header, 12))) {
    case SealedKind::kSealed:
      return {ErrorCode::kNoKey,
              "encrypted with the key " + to_hex(id_of(header)) + ", which is not given"};
    case SealedKind::kPlain:
      return {ErrorCode::kNoKey, "not encrypted, though a key is given"};
    case SealedKind::kForged:
      return corrupt("authentication failed: damaged, or changed without the key");
    case SealedKind::kOtherScheme:
      break;
  }
  return unsupported("an unknown scheme of encryption");
}

std::unique_ptr<Backend> encrypted_backend(std::unique_ptr<Backend> inner, const KeyRing& keys,
                                           const BackendOptions& options) {
  return std::make_unique<EncryptedBackend>(std::move(inner), keys, options);
}

std::string secret_salt(const KeyRing& keys, std::string_view salt) {
  if (keys.empty()) return std::string(salt);
  const SecretKey names = derive_key(*keys.find(keys.first_id()), as_bytes(salt), kNamesLabel);
  return "\xff" +
         std::string(reinterpret_cast<const char*>(names.bytes().data()), names.bytes().size());
}

namespace {

// The value of kKeyCheck, before encryption: a header without a blob.
Bytes key_check() {
  ByteWriter out;
  out.append(kBlobMagic);
  out.write(kBlobVersion);
  out.write(std::uint32_t{0});
  out.write(std::uint64_t{kBlobHeaderBytes});
  out.append(std::array<std::byte, 32>{});
  out.write(xxh3_64(out.bytes()));
  return std::move(out).take();
}

enum class KeyCheckState { kAbsent, kGood, kDamaged };

// Errors: kNoKey and kUnsupported, for a value of another key or a later kind; those of the
// backend.
Result<KeyCheckState> read_key_check(Backend& backend) {
  TQC_TRY_ASSIGN(const std::optional<Bytes> value, backend.get(std::string(kKeyCheck)));
  if (!value) return KeyCheckState::kAbsent;
  if (*value == key_check()) return KeyCheckState::kGood;
  if (!is_whole(*value, kSealedBlobVersion)) return KeyCheckState::kDamaged;
  Error error = sealed_value_error(*value);
  if (error.code == ErrorCode::kCorrupt) return KeyCheckState::kDamaged;
  return in_context(std::string(kKeyCheck), std::move(error));
}

// The key of the first parameters, if there are any.
Result<std::optional<std::string>> first_parameters(Backend& backend) {
  std::optional<std::string> key;
  const Result<void> listed = backend.list("p/", [&](const Entry& entry) -> Result<void> {
    key = entry.key;
    return interrupted_error();
  });
  if (!key && !listed) return listed.error();
  return key;
}

Result<void> check_parameters(Backend& backend, const std::string& key) {
  TQC_TRY_ASSIGN(const std::optional<Bytes> value, backend.get(key));
  if (!value) return {};
  const auto content = decode_blob(key, SharedBytes(nullptr, ByteView(*value)));
  if (content || content.error().code != ErrorCode::kNoKey) return {};
  return in_context(key, content.error());
}

Result<void> check_by_listing(Backend& backend) {
  TQC_TRY_ASSIGN(const std::optional<std::string> key, first_parameters(backend));
  return key ? check_parameters(backend, *key) : Result<void>();
}

Result<void> check_by_value(Backend& backend, BeforePut before_put) {
  const Result<KeyCheckState> state = read_key_check(backend);
  if (state && *state == KeyCheckState::kGood) return {};
  if (!state && state.error().code != ErrorCode::kNoKey) return state.error();
  TQC_TRY_ASSIGN(const std::optional<std::string> key, first_parameters(backend));
  if (key && !state) return state.error();
  if (key) TQC_TRY(check_parameters(backend, *key));
  if (before_put == BeforePut::kNo) return {};
  // What another key left when the store was emptied is in nobody's way.
  const bool is_taken = !state || *state == KeyCheckState::kDamaged;
  if (is_taken) return backend.replace(std::string(kKeyCheck), key_check());
  TQC_TRY_ASSIGN(const PutOutcome put, backend.put(std::string(kKeyCheck), key_check()));
  if (put == PutOutcome::kStored) return {};
  // Another process was first, perhaps with another key.
  const Result<KeyCheckState> others = read_key_check(backend);
  return others ? Result<void>() : others.error();
}

}  // namespace

Result<void> check_store_key(Backend& backend, BeforePut before_put) {
  Result<void> checked =
      backend.lists_cheaply() ? check_by_listing(backend) : check_by_value(backend, before_put);
  if (checked || before_put == BeforePut::kNo) return checked;
  const ErrorCode code = checked.error().code;
  const bool is_final = code == ErrorCode::kNoKey || code == ErrorCode::kUnsupported ||
                        code == ErrorCode::kInterrupted;
  return is_final ? checked : Result<void>();
}

}  // namespace tqcache::store
