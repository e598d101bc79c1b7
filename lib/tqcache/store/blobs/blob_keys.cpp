
#include "tqcache/store/blobs/blob_keys.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <charconv>

#include "tqcache/bytes.h"
#include "tqcache/store/blobs/blob_io.h"

namespace tqcache::store {

namespace {

// The first field of every hash, so that a hash for one purpose cannot be used for another.
constexpr std::string_view kNamespaceDomain = "tqcache store scope 1";
// With the fingerprint version and the model fingerprint as further fields.
constexpr std::string_view kNamespaceDomain2 = "tqcache store scope 2";
constexpr std::string_view kFirstDomain = "tqcache store first block 1";
constexpr std::string_view kOwnDomain = "tqcache store own parameters 1";
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
  // 0 and -0 give the same rotation.
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

Sha256 hash_namespace(const Namespace& name_space) {
  const cache::Identity& identity = name_space.identity;
  const Bytes rope = rope_bytes(identity.rope);
  const ByteView adapter =
      identity.adapter_fingerprint ? ByteView(*identity.adapter_fingerprint) : ByteView();
  if (!identity.model_fingerprint) {
    return hash_of({as_bytes(kNamespaceDomain), as_bytes(identity.architecture), rope,
                    identity.weights_fingerprint, identity.tokenizer_fingerprint, adapter,
                    as_bytes(name_space.salt)});
  }
  const auto version = std::byte{identity.model_fingerprint->version};
  return hash_of({as_bytes(kNamespaceDomain2), as_bytes(identity.architecture), rope,
                  identity.weights_fingerprint, identity.tokenizer_fingerprint, adapter,
                  ByteView(&version, 1), identity.model_fingerprint->digest,
                  as_bytes(name_space.salt)});
}

Sha256 hash_first(const Sha256& name_space, std::span<const std::int32_t> block) {
  assert(!block.empty() && std::ssize(block) <= cache::kTokenBlock);
  return hash_of({as_bytes(kFirstDomain), name_space, std::as_bytes(block)});
}

Sha256 hash_own(std::string_view first, const Sha256& parameters, std::string_view model_name) {
  return hash_of({as_bytes(kOwnDomain), as_bytes(first), parameters, as_bytes(model_name)});
}

Sha256 hash_root(const Sha256& name_space, const Sha256& parameters) {
  return hash_of({as_bytes(kRootDomain), name_space, parameters});
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

std::string data_key(const Sha256& name_space, ByteView content) {
  return "d/" + to_hex(hash_of({as_bytes(kDataDomain), name_space, content}));
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

std::string next_key(const Sha256& hash, int slot) {
  return "c/" + to_hex(hash) + "/" + std::to_string(slot);
}

namespace {

constexpr std::size_t kHashDigits = 64;
constexpr std::size_t kTenantDigits = 16;
constexpr std::size_t kIndexDigits = 6;

struct Words {
  std::array<std::string_view, 4> word;
  std::size_t count = 0;
};

std::optional<Words> split(std::string_view key) {
  Words words;
  for (;;) {
    if (words.count == words.word.size()) return std::nullopt;
    const std::size_t end = key.find('/');
    words.word[words.count++] = key.substr(0, end);
    if (end == std::string_view::npos) return words;
    key.remove_prefix(end + 1);
  }
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Digits only, without leading zeros.
std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const std::from_chars_result parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < 0) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  return number;
}

std::optional<KeyParts> parse_block(std::string_view key, const Words& words) {
  if (words.count != 4 || words.word[1].size() != kIndexDigits) return std::nullopt;
  if (words.word[1].find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const std::optional<int> part = number_of(words.word[3]);
  if (!is_hex(words.word[2], kHashDigits) || !part) return std::nullopt;
  int index = 0;
  std::from_chars(words.word[1].data(), words.word[1].data() + kIndexDigits, index);
  const std::string_view name = key.substr(0, key.size() - words.word[3].size() - 1);
  return KeyParts{BlobKind::kBlock, words.word[2], index, *part, name};
}

std::optional<KeyParts> parse_slot(BlobKind kind, std::string_view key, const Words& words) {
  if (words.count != 3 || !is_hex(words.word[1], kHashDigits)) return std::nullopt;
  const std::optional<int> slot = number_of(words.word[2]);
  const int n_slots = kind == BlobKind::kState ? kStateSlots : kCandidateSlots;
  if (!slot || *slot >= n_slots) return std::nullopt;
  return KeyParts{kind, words.word[1], 0, *slot, key};
}

std::optional<KeyParts> parse_single(BlobKind kind, std::string_view key, const Words& words) {
  if (words.count != 2 || !is_hex(words.word[1], kHashDigits)) return std::nullopt;
  return KeyParts{kind, words.word[1], 0, 0, key};
}

std::optional<KeyParts> parse_record(std::string_view key, const Words& words) {
  if (words.count != 3 || !is_hex(words.word[1], kTenantDigits)) return std::nullopt;
  if (!is_hex(words.word[2], kHashDigits)) return std::nullopt;
  return KeyParts{BlobKind::kRecord, words.word[2], 0, 0, key};
}

}  // namespace

std::string_view name_of(BlobKind kind) {
  constexpr std::array<std::string_view, kBlobKinds> kNames = {
      "parameters", "block", "state", "data", "record", "usage", "next"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<KeyParts> parse_key(std::string_view key) {
  const std::optional<Words> words = split(key);
  if (!words || words->word[0].size() != 1) return std::nullopt;
  switch (words->word[0].front()) {
    case 'b':
      return parse_block(key, *words);
    case 'c':
      return parse_slot(BlobKind::kNext, key, *words);
    case 'd':
      return parse_single(BlobKind::kData, key, *words);
    case 'n':
      return parse_record(key, *words);
    case 'p':
      return parse_slot(BlobKind::kParameters, key, *words);
    case 's':
      return parse_slot(BlobKind::kState, key, *words);
    case 'u':
      return parse_single(BlobKind::kUsage, key, *words);
    default:
      return std::nullopt;
  }
}

std::string block_name(const Sha256& hash, std::int64_t index) {
  const std::string key = block_key(hash, index, 0);
  return key.substr(0, key.rfind('/'));
}

std::string part_key(std::string_view block_name, int part) {
  return std::string(block_name) + "/" + std::to_string(part);
}

std::vector<std::string> parameters_slot_keys(const Sha256& first) {
  std::vector<std::string> keys;
  for (int slot = 0; slot < kCandidateSlots; ++slot) keys.push_back(parameters_key(first, slot));
  return keys;
}

std::vector<std::string> next_slot_keys(const Sha256& hash) {
  std::vector<std::string> keys;
  for (int slot = 0; slot < kCandidateSlots; ++slot) keys.push_back(next_key(hash, slot));
  return keys;
}

std::vector<std::string> state_slot_keys(const Sha256& hash, int first) {
  std::vector<std::string> keys;
  for (int i = 0; i < kCandidateSlots; ++i) keys.push_back(state_key(hash, first + i));
  return keys;
}

}  // namespace tqcache::store
