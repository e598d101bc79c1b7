#include "tqcache/base/cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cassert>
#include <memory>
#include <new>

namespace tqcache {
namespace {

// OpenSSL takes lengths as int. A multiple of the block size of AES.
constexpr std::size_t kChunkBytes = std::size_t{1} << 30;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* used) const { EVP_CIPHER_CTX_free(used); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

// With valid arguments these calls fail only if memory runs out.
void require_memory(bool ok) {
  if (!ok) throw std::bad_alloc();
}

const unsigned char* data_of(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* data_of(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

// GCM with a key and a nonce, after the associated data. `encrypt` is 1 or 0.
Context begin(const SecretKey& key, const Nonce& nonce, ByteView associated, int encrypt) {
  Context context(EVP_CIPHER_CTX_new());
  require_memory(context != nullptr);
  static_assert(std::tuple_size_v<Nonce> == 12, "the nonce length that GCM has by default");
  require_memory(EVP_CipherInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, data_of(key.bytes()),
                                   data_of(ByteView(nonce)), encrypt) == 1);
  int n = 0;
  require_memory(EVP_CipherUpdate(context.get(), nullptr, &n, data_of(associated),
                                  static_cast<int>(associated.size())) == 1);
  return context;
}

void process(EVP_CIPHER_CTX* context, ByteView in, std::span<std::byte> out) {
  assert(in.size() == out.size());
  for (std::size_t done = 0; done < in.size(); done += kChunkBytes) {
    const ByteView chunk = in.subspan(done, std::min(kChunkBytes, in.size() - done));
    int n = 0;
    require_memory(EVP_CipherUpdate(context, data_of(out.subspan(done)), &n, data_of(chunk),
                                    static_cast<int>(chunk.size())) == 1);
  }
}

using Mac = std::array<std::byte, 32>;

Mac hmac_sha256(ByteView key, ByteView message) {
  Mac mac;
  unsigned n = 0;
  const auto* const done =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data_of(message), message.size(),
           data_of(std::span<std::byte>(mac)), &n);
  require_memory(done != nullptr && n == mac.size());
  return mac;
}

}  // namespace

void wipe_bytes(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

SecretKey::SecretKey(ByteView bytes) {
  assert(bytes.size() == kBytes);
  std::ranges::copy(bytes, bytes_.begin());
}

SecretKey::SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) { other.wipe(); }

SecretKey& SecretKey::operator=(SecretKey&& other) noexcept {
  if (this == &other) return *this;
  bytes_ = other.bytes_;
  other.wipe();
  return *this;
}

SecretKey::~SecretKey() { wipe(); }

void SecretKey::wipe() { wipe_bytes(bytes_); }

// One block of output is enough: T(1) = HMAC(PRK, info | 1).
SecretKey derive_key(const SecretKey& secret, ByteView salt, std::string_view label) {
  Mac extracted = hmac_sha256(salt, secret.bytes());
  Bytes info(as_bytes(label).begin(), as_bytes(label).end());
  info.push_back(std::byte{1});
  SecretKey key;
  key.bytes_ = hmac_sha256(extracted, info);
  wipe_bytes(extracted);
  return key;
}

Result<void> fill_random(std::span<std::byte> bytes) {
  if (RAND_bytes(data_of(bytes), static_cast<int>(bytes.size())) == 1) return {};
  return Error{ErrorCode::kIo, "the system gives no random numbers"};
}

Tag seal(const SecretKey& key, const Nonce& nonce, ByteView associated, ByteView plain,
         std::span<std::byte> out) {
  const Context context = begin(key, nonce, associated, 1);
  process(context.get(), plain, out);
  std::array<unsigned char, 16> nothing;
  int n = 0;
  require_memory(EVP_CipherFinal_ex(context.get(), nothing.data(), &n) == 1);
  Tag tag;
  require_memory(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG,
                                     static_cast<int>(tag.size()), tag.data()) == 1);
  return tag;
}

bool unseal(const SecretKey& key, const Nonce& nonce, ByteView associated, const Tag& tag,
            std::span<std::byte> bytes) {
  const Context context = begin(key, nonce, associated, 0);
  process(context.get(), bytes, bytes);
  Tag expected = tag;
  require_memory(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG,
                                     static_cast<int>(expected.size()), expected.data()) == 1);
  std::array<unsigned char, 16> nothing;
  int n = 0;
  if (EVP_CipherFinal_ex(context.get(), nothing.data(), &n) == 1) return true;
  std::ranges::fill(bytes, std::byte{0});
  return false;
}

}  // namespace tqcache
