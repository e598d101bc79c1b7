#include "tqcache/store/blobs/keys.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "tqcache/base/bytes.h"

namespace tqcache::store {
namespace {

// The first field of every hash: nothing that is hashed for one purpose passes for another.
constexpr std::string_view kScopeDomain = "tqcache store scope 1";
constexpr std::string_view kFirstDomain = "tqcache store first block 1";
constexpr std::string_view kRootDomain = "tqcache store root 1";
constexpr std::string_view kBlockDomain = "tqcache store block 1";
constexpr std::string_view kDataDomain = "tqcache store data 1";
constexpr std::string_view kTenantDomain = "tqcache store tenant 1";
constexpr std::string_view kNameDomain = "tqcache store name 1";

constexpr std::size_t kTenantKeyDigits = 16;
constexpr std::size_t kIndexKeyDigits = 6;

template <std::size_t n>
Sha256 hash_of(const ByteView (&fields)[n]) {
  return hash_fields(fields);
}

Bytes rope_bytes(const cache::Rope& rope) {
  ByteWriter out;
  out.write(static_cast<std::uint64_t>(rope.style));
  out.write(static_cast<std::uint64_t>(rope.n_dims));
  // 0 and -0 turn alike.
  out.write(std::bit_cast<std::uint64_t>(rope.base == 0 ? 0.0 : rope.base));
  out.append(object_bytes(rope.factors));
  return std::move(out).take();
}

Sha256 hash_block(const Sha256& before, std::span<const std::int32_t> tokens) {
  return hash_of({as_bytes(kBlockDomain), before, std::as_bytes(tokens)});
}

std::string index_text(std::int64_t index) {
  const std::string digits = std::to_string(index);
  const std::size_t n_zeros = kIndexKeyDigits - std::min(kIndexKeyDigits, digits.size());
  return std::string(n_zeros, '0') + digits;
}

}  // namespace

Sha256 hash_fields(std::span<const ByteView> fields) {
  Sha256Hasher hasher;
  for (const ByteView field : fields) {
    const auto size = std::bit_cast<std::array<std::byte, 8>>(std::uint64_t{field.size()});
    hasher.update(size);
    hasher.update(field);
  }
  return hasher.finish();
}

Sha256 hash_scope(const Scope& scope) {
  const cache::Identity& identity = scope.identity;
  const Bytes rope = rope_bytes(identity.rope);
  return hash_of(
      {as_bytes(kScopeDomain), as_bytes(identity.architecture), rope, identity.weights_fingerprint,
       identity.tokenizer_fingerprint,
       identity.adapter_fingerprint ? ByteView(*identity.adapter_fingerprint) : ByteView(),
       as_bytes(scope.salt)});
}

Sha256 hash_first(const Sha256& scope, std::span<const std::int32_t> block) {
  assert(!block.empty() && std::ssize(block) <= cache::kTokenBlock);
  return hash_of({as_bytes(kFirstDomain), scope, std::as_bytes(block)});
}

Sha256 hash_root(const Sha256& scope, const Sha256& parameters) {
  return hash_of({as_bytes(kRootDomain), scope, parameters});
}

std::vector<Sha256> hash_chain(const Sha256& root, std::span<const std::int32_t> tokens) {
  constexpr auto kBlock = static_cast<std::size_t>(cache::kTokenBlock);
  std::vector<Sha256> chain;
  chain.reserve(tokens.size() / kBlock);
  Sha256 before = root;
  for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock)) {
    before = hash_block(before, tokens.first(kBlock));
    chain.push_back(before);
  }
  return chain;
}

std::string parameters_key(const Sha256& first, int slot) {
  return "p/" + to_hex(first) + "/" + std::to_string(slot);
}

std::string block_key(const Sha256& hash, std::int64_t index, int part) {
  return "b/" + index_text(index) + "/" + to_hex(hash) + "/" + std::to_string(part);
}

std::string state_key(const Sha256& hash, int slot) {
  return "s/" + to_hex(hash) + "/" + std::to_string(slot);
}

std::string data_key(const Sha256& scope, ByteView content) {
  return "d/" + to_hex(hash_of({as_bytes(kDataDomain), scope, content}));
}

std::string record_prefix(std::string_view salt) {
  const Sha256 tenant = hash_of({as_bytes(kTenantDomain), as_bytes(salt)});
  return "n/" + to_hex(tenant).substr(0, kTenantKeyDigits) + "/";
}

std::string record_key(std::string_view salt, std::string_view name) {
  return record_prefix(salt) +
         to_hex(hash_of({as_bytes(kNameDomain), as_bytes(salt), as_bytes(name)}));
}

std::string usage_key(const Sha256& random) { return "u/" + to_hex(random); }

}  // namespace tqcache::store
