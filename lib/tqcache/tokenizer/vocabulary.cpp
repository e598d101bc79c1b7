#include "tqcache/tokenizer/vocabulary.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <chrono>
#include <string>
#include <utility>

#include "tqcache/base/posix.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {

namespace {

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (posix::getentropy(&seed, sizeof seed) == 0) return seed;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return static_cast<std::uint64_t>(now) * 0x9e3779b97f4a7c15u;
}

}  // namespace

std::uint64_t hash_seed() {
  static const std::uint64_t seed = random_seed();
  return seed;
}

std::size_t TextHash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), hash_seed());
}

namespace {

std::string place(std::size_t id) { return "token " + std::to_string(id); }

Result<void> check_token(const Token& token, std::size_t id) {
  if (token.bytes.empty()) return Error{ErrorCode::kCorrupt, place(id) + ": empty"};
  if (token.bytes.size() > kMaxTokenBytes) {
    return Error{ErrorCode::kTooLarge,
                 place(id) + ": " + std::to_string(token.bytes.size()) + " bytes"};
  }
  return {};
}

constexpr std::int32_t kNoToken = -1;

std::uint32_t mark_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

void TokenIndex::reserve(std::size_t n) {
  entries_.assign(std::bit_ceil(2 * n + 1), {0, kNoToken});
}

std::size_t TokenIndex::place_of(const std::vector<Token>& tokens, std::string_view bytes,
                                 std::uint64_t hash) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t place = static_cast<std::size_t>(hash) & mask;
  while (entries_[place].id != kNoToken &&
         (entries_[place].mark != mark_of(hash) ||
          tokens[static_cast<std::size_t>(entries_[place].id)].bytes != bytes)) {
    place = (place + 1) & mask;
  }
  return place;
}

std::int32_t TokenIndex::insert(const std::vector<Token>& tokens, std::int32_t id) {
  const std::string_view bytes = tokens[static_cast<std::size_t>(id)].bytes;
  const std::uint64_t hash = TextHash()(bytes);
  Entry& entry = entries_[place_of(tokens, bytes, hash)];
  if (entry.id == kNoToken) entry = {mark_of(hash), id};
  return entry.id;
}

std::optional<std::int32_t> TokenIndex::find(const std::vector<Token>& tokens,
                                             std::string_view bytes) const {
  const std::int32_t id = entries_[place_of(tokens, bytes, TextHash()(bytes))].id;
  if (id == kNoToken) return std::nullopt;
  return id;
}

Result<Vocabulary> Vocabulary::make(std::vector<Token> tokens) {
  if (tokens.empty()) return Error{ErrorCode::kCorrupt, "vocabulary: no tokens"};
  if (tokens.size() > static_cast<std::size_t>(kMaxVocabSize)) {
    return Error{ErrorCode::kTooLarge, "vocabulary: " + std::to_string(tokens.size()) + " tokens"};
  }
  Vocabulary vocabulary(std::move(tokens));
  TQC_TRY(vocabulary.index());
  return vocabulary;
}

Result<void> Vocabulary::index() {
  bytes_.fill(kNoToken);
  ordinary_.reserve(tokens_.size());
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    TQC_TRY(check_token(tokens_[id], id));
    if (tokens_[id].kind != TokenKind::kUnused) TQC_TRY(index_token(id));
  }
  // Unused tokens are found by name if nothing else has it. Files repeat their names.
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].kind != TokenKind::kUnused) continue;
    added_.emplace(tokens_[id].name(), static_cast<std::int32_t>(id));
  }
  // A word of the merge list that is also declared as an added token keeps its merges. In order of
  // ids, because the order of the hash table differs from process to process.
  for (std::int64_t id = 0; id < size(); ++id) {
    if (token(id).kind != TokenKind::kUserDefined) continue;
    ordinary_.insert(tokens_, static_cast<std::int32_t>(id));
  }
  return {};
}

Result<void> Vocabulary::index_token(std::size_t id) {
  const Token& token = tokens_[id];
  const auto id32 = static_cast<std::int32_t>(id);
  std::int32_t first;  // with these bytes
  if (token.kind == TokenKind::kByte) {
    std::int32_t& slot = bytes_[static_cast<unsigned char>(token.bytes[0])];
    if (slot == kNoToken) slot = id32;
    first = slot;
  } else if (token.kind == TokenKind::kOrdinary) {
    first = ordinary_.insert(tokens_, id32);
  } else {
    first = added_.emplace(token.name(), id32).first->second;
  }
  if (first == id32) return {};
  return Error{ErrorCode::kCorrupt, place(id) + ": " + tensors::printable_name(token.name()) +
                                        " is token " + std::to_string(first) + " too"};
}

std::optional<std::int32_t> Vocabulary::find_ordinary(std::string_view bytes) const {
  return ordinary_.find(tokens_, bytes);
}

std::optional<std::int32_t> Vocabulary::find_added(std::string_view name) const {
  const auto found = added_.find(name);
  if (found == added_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::int32_t> Vocabulary::find_byte(unsigned char byte) const {
  if (bytes_[byte] == kNoToken) return std::nullopt;
  return bytes_[byte];
}

namespace {

constexpr char32_t kFirstSubstitute = 0x100;
constexpr std::size_t kSubstitutes = 68;

constexpr bool stands_for_itself(unsigned byte) {
  // 0xAD, the soft hyphen, is invisible.
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

constexpr std::array<char, kSubstitutes> make_substituted_bytes() {
  std::array<char, kSubstitutes> bytes{};
  std::size_t n = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) bytes[n++] = static_cast<char>(byte);
  }
  return bytes;
}

constexpr std::array<char, kSubstitutes> kSubstitutedBytes = make_substituted_bytes();

std::optional<char> byte_of(char32_t code_point) {
  if (code_point >= kFirstSubstitute + kSubstitutes) return std::nullopt;
  if (code_point >= kFirstSubstitute) return kSubstitutedBytes[code_point - kFirstSubstitute];
  if (!stands_for_itself(static_cast<unsigned>(code_point))) return std::nullopt;
  return static_cast<char>(code_point);
}

}  // namespace

bool append_from_alphabet(std::string_view text, std::string& bytes) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const bool is_ascii = first < 0x80;  // most are
    const Utf8Character character =
        is_ascii ? Utf8Character{Utf8Status::kWhole, first, 1} : first_character(text);
    if (character.status != Utf8Status::kWhole) return false;
    const std::optional<char> byte = byte_of(character.code_point);
    if (!byte) return false;
    bytes += *byte;
    text.remove_prefix(character.n_bytes);
  }
  return true;
}

}  // namespace tqcache::tokenizer
