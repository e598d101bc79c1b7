#include "tqcache/store/blobs/key_parts.h"

#include <array>
#include <charconv>

#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {
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

// Digits alone, and no more of them than needed.
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
  if (!slot || *slot >= kSlots) return std::nullopt;
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
  constexpr std::array<std::string_view, kBlobKinds> kNames = {"parameters", "block",  "state",
                                                               "data",       "record", "usage"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<KeyParts> parse_key(std::string_view key) {
  const std::optional<Words> words = split(key);
  if (!words || words->word[0].size() != 1) return std::nullopt;
  switch (words->word[0].front()) {
    case 'b':
      return parse_block(key, *words);
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

}  // namespace tqcache::store
