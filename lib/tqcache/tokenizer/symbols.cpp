#include "tqcache/tokenizer/symbols.h"

#include <string>

#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer {
namespace {

Error no_token(std::size_t byte) {
  return {ErrorCode::kCorrupt, "vocabulary: no token for byte " + std::to_string(byte)};
}

}  // namespace

Result<Symbols> Symbols::of_bytes(const Vocabulary& vocabulary) {
  Symbols symbols(true, {});
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::optional<std::int32_t> id = vocabulary.find_ordinary({&c, 1});
    if (!id) return no_token(byte);
    symbols.ids_[byte] = *id;
  }
  return symbols;
}

Result<Symbols> Symbols::of_characters(const Vocabulary& vocabulary, const UnknownRule& unknown) {
  Symbols symbols(false, unknown);
  if (!unknown.as_bytes && !unknown.token) {
    return Error{ErrorCode::kCorrupt, "vocabulary: nothing for characters without a token"};
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    std::optional<std::int32_t> id;
    if (byte < 128) id = vocabulary.find_ordinary({&c, 1});
    symbols.is_character_[byte] = id.has_value();
    if (!id && unknown.as_bytes) {
      id = vocabulary.find_byte(static_cast<unsigned char>(byte));
      if (!id) return no_token(byte);
    }
    symbols.ids_[byte] = id.value_or(0);
  }
  return symbols;
}

void Symbols::split(std::string_view piece, const Vocabulary& vocabulary,
                    MergeTable::Scratch& scratch) const {
  scratch.clear();
  if (by_bytes_) {
    for (const char c : piece) scratch.add(ids_[static_cast<unsigned char>(c)]);
    return;
  }
  bool follows_unknown = false;
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, first_character(piece).n_bytes);
    piece.remove_prefix(character.size());
    const std::optional<std::int32_t> id = find(character, vocabulary);
    if (id) {
      scratch.add(*id);
    } else {
      add_unknown(character, follows_unknown, scratch);
    }
    follows_unknown = !id;
  }
}

std::optional<std::int32_t> Symbols::find(std::string_view character,
                                          const Vocabulary& vocabulary) const {
  if (character.size() > 1) return vocabulary.find_ordinary(character);
  const auto byte = static_cast<unsigned char>(character[0]);
  if (!is_character_[byte]) return std::nullopt;
  return ids_[byte];
}

void Symbols::add_unknown(std::string_view character, bool follows_unknown,
                          MergeTable::Scratch& scratch) const {
  if (unknown_.as_bytes) {
    for (const char c : character) scratch.add(ids_[static_cast<unsigned char>(c)]);
  } else if (!unknown_.joined || !follows_unknown) {
    scratch.add(*unknown_.token);
  }
}

}  // namespace tqcache::tokenizer
