
#include <algorithm>
#include <cassert>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>

#include "tqcache/access.h"
#include "tqcache/base/cipher.h"
#include "tqcache/base/file_io.h"
#include "tqcache/base/posix.h"

namespace tqcache {
namespace {

constexpr std::string_view kIdLabel = "tqcache key id 1";
constexpr std::size_t kMaxKeys = 64;
constexpr std::size_t kMaxKeyFileBytes = 64 << 10;
constexpr std::size_t kDigits = 2 * SecretKey::kBytes;

// The content of a key file, overwritten when it is no longer needed.
struct SecretText {
  Bytes bytes;
  SecretText() : bytes(kMaxKeyFileBytes + 1) {}
  SecretText(const SecretText&) = delete;
  SecretText& operator=(const SecretText&) = delete;
  ~SecretText() { wipe_bytes(bytes); }
};

KeyId id_of(const SecretKey& secret) {
  const SecretKey derived = derive_key(secret, {}, kIdLabel);
  KeyId id;
  std::ranges::copy(derived.bytes().first(id.size()), id.begin());
  return id;
}

std::optional<std::byte> digit_of(char c) {
  if (c >= '0' && c <= '9') return static_cast<std::byte>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<std::byte>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<std::byte>(c - 'A' + 10);
  return std::nullopt;
}

std::optional<SecretKey> key_of_line(std::string_view line) {
  if (line.size() != kDigits) return std::nullopt;
  std::array<std::byte, SecretKey::kBytes> bytes;
  std::optional<SecretKey> key;
  bool is_hex = true;
  for (std::size_t i = 0; i < bytes.size() && is_hex; ++i) {
    const auto high = digit_of(line[2 * i]), low = digit_of(line[2 * i + 1]);
    is_hex = high && low;
    if (is_hex) bytes[i] = *high << 4 | *low;
  }
  if (is_hex) key.emplace(bytes);
  wipe_bytes(bytes);
  return key;
}

// Secrets that others can read are not secret. Pipes, as of a password manager, have no mode that
// matters.
Result<void> check_mode(const Descriptor& file) {
  posix::Stat info{};
  if (posix::fstat(file.get(), &info) != 0) return system_error("stat", errno);
  if (S_ISDIR(info.st_mode)) return system_error("read", EISDIR);
  if (!S_ISREG(info.st_mode) || (info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  return invalid("others may read this key file; chmod 600 makes it private");
}

// A key file may be a pipe, so its size is not known before.
Result<std::size_t> read_all(const Descriptor& file, std::span<std::byte> out) {
  std::size_t size = 0;
  while (size < out.size()) {
    const auto rest = out.subspan(size);
    const ssize_t n =
        retry_interrupted([&] { return posix::read(file.get(), rest.data(), rest.size()); });
    if (n < 0) return system_error("read", errno);
    if (n == 0) return size;
    size += static_cast<std::size_t>(n);
  }
  return invalid("too large for a key file");
}

}  // namespace

Result<KeyRing> KeyRing::parse(ByteView file) {
  KeyRing ring;
  const auto add = [&](SecretKey secret) {
    const KeyId id = id_of(secret);
    if (ring.find(id) != nullptr) return;  // a repeated key
    ring.keys_.push_back({id, std::make_shared<const SecretKey>(std::move(secret))});
  };
  if (file.size() == SecretKey::kBytes) {
    add(SecretKey(file));
    return ring;
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    number += 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    auto key = key_of_line(line);
    if (!key) {
      return invalid("line " + std::to_string(number) +
                     " is no key; a key is 64 hexadecimal digits, or 32 bytes that are the "
                     "whole file");
    }
    if (ring.keys_.size() == kMaxKeys) {
      return invalid("more than " + std::to_string(kMaxKeys) + " keys");
    }
    add(std::move(*key));
  }
  if (ring.empty()) return invalid("the key file has no key");
  return ring;
}

Result<KeyRing> KeyRing::read_file(const std::filesystem::path& path) {
  const Descriptor file(
      retry_interrupted([&] { return posix::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!file.is_open()) {
    if (errno == ENOENT) return Error{ErrorCode::kNotFound, "no such file"};
    return system_error("open", errno);
  }
  TQC_TRY(check_mode(file));
  SecretText text;
  TQC_TRY_ASSIGN(const std::size_t size, read_all(file, text.bytes));
  return parse(ByteView(text.bytes).first(size));
}

std::vector<KeyId> KeyRing::ids() const {
  std::vector<KeyId> ids;
  for (const Key& key : keys_) ids.push_back(key.id);
  return ids;
}

KeyRing KeyRing::only(const KeyId& id) const {
  KeyRing ring;
  for (const Key& key : keys_) {
    if (key.id == id) ring.keys_.push_back(key);
  }
  return ring;
}

KeyRing KeyRing::with(const KeyRing& others) const {
  KeyRing ring = *this;
  for (const Key& key : others.keys_) {
    if (ring.find(key.id) == nullptr) ring.keys_.push_back(key);
  }
  return ring;
}

std::shared_ptr<const SecretKey> KeyRing::find(const KeyId& id) const {
  for (const Key& key : keys_) {
    if (key.id == id) return key.secret;
  }
  return nullptr;
}

const KeyId& KeyRing::first_id() const {
  assert(!empty());
  return keys_.front().id;
}

}  // namespace tqcache
