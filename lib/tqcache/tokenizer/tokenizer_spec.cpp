#include "tqcache/tokenizer/tokenizer_spec.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/vocabulary.h"

namespace tqcache::tokenizer {

namespace {

Error corrupt_merge(std::size_t index, std::string_view what) {
  return {ErrorCode::kCorrupt, "merge " + std::to_string(index) + ": " + std::string(what)};
}

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  return std::nullopt;
}

// The byte that "<0x41>" represents.
std::optional<char> byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || name[5] != '>') return std::nullopt;
  const std::optional<unsigned> high = hex_digit(name[3]);
  const std::optional<unsigned> low = hex_digit(name[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high << 4 | *low);
}

}  // namespace

Token piece_token(std::string_view text, bool has_byte_tokens) {
  if (has_byte_tokens) {
    if (const auto byte = byte_of_name(text)) return {std::string(1, *byte), TokenKind::kByte};
  }
  if (text.find(' ') != std::string_view::npos) return {std::string(text), TokenKind::kUnused};
  return {spaces_for_marks(text), TokenKind::kOrdinary};
}

Result<MergeBytes> parse_merge(std::string_view line, std::size_t index, bool by_bytes) {
  const std::size_t space = line.find(' ');  // spaces inside a part are spelled differently
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    return corrupt_merge(index, "not two parts");
  }
  return parse_merge(line.substr(0, space), line.substr(space + 1), index, by_bytes);
}

Result<MergeBytes> parse_merge(std::string_view left, std::string_view right, std::size_t index,
                               bool by_bytes) {
  if (left.empty() || right.empty()) return corrupt_merge(index, "an empty part");
  MergeBytes merge;
  if (by_bytes) {
    const bool is_left_good = append_from_alphabet(left, merge.whole);
    merge.n_left = merge.whole.size();
    if (!is_left_good || !append_from_alphabet(right, merge.whole)) {
      return corrupt_merge(index, "a character outside the byte alphabet");
    }
  } else {
    merge.whole = spaces_for_marks(left);
    merge.n_left = merge.whole.size();
    merge.whole += spaces_for_marks(right);
  }
  return merge;
}

Result<Token> ordinary_token(std::string_view text, std::int64_t id) {
  Token token;
  if (!append_from_alphabet(text, token.bytes)) {
    return Error{ErrorCode::kCorrupt, "token " + std::to_string(id) + ": " +
                                          tensors::printable_name(text) +
                                          " has a character outside the byte alphabet"};
  }
  return token;
}

namespace {

constexpr std::uint8_t kNormalizedFlag = 4;  // added to the kind

// GGUF files pad the ids up to the height of the embedding matrix; tokenizer.json does not.
std::int64_t count_used(const Vocabulary& vocabulary) {
  std::int64_t n = vocabulary.size();
  while (n > 0 && vocabulary.token(n - 1).kind == TokenKind::kUnused) --n;
  return n;
}

bool strips(const Token& token) { return token.strips_left || token.strips_right; }

// Returns whether the first fields describe the tokenizer fully, as they did for byte-level BPE
// only.
bool is_plain(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  if (spec.algorithm != Algorithm::kByteLevel || !spec.later_patterns.empty()) return false;
  if (spec.unknown_id) return false;
  if ((spec.adds_begin && spec.begin_id) || spec.added_end_id) return false;
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    if (strips(vocabulary.token(id))) return false;
  }
  return true;
}

void write_words(const WordRules& words, ByteWriter& out) {
  out.write<std::uint8_t>(words.drop_white_space ? 1 : 0);
  out.write<std::uint8_t>(words.mark_spaces ? 1 : 0);
  out.write<std::uint8_t>(static_cast<std::uint8_t>(words.prefix));
  out.write<std::uint8_t>(words.cut_at_spaces ? 1 : 0);
}

// Tokens that strip white space, or whose spelling differs from the bytes that they represent.
void write_odd_tokens(const Vocabulary& vocabulary, ByteWriter& out) {
  for (std::int64_t id = 0; id < vocabulary.size(); ++id) {
    const Token& token = vocabulary.token(id);
    if (!strips(token) && token.written.empty()) continue;
    out.write<std::int64_t>(id);
    out.write<std::uint8_t>(
        static_cast<std::uint8_t>((token.strips_left ? 1 : 0) | (token.strips_right ? 2 : 0)));
    out.append_sized(as_bytes(token.bytes));
  }
  out.write<std::int64_t>(-1);
}

void write_more(const TokenizerSpec& spec, const Vocabulary& vocabulary, ByteWriter& out) {
  constexpr std::int64_t kNone = -1;
  out.append_sized(as_bytes("more"));
  out.write<std::uint8_t>(static_cast<std::uint8_t>(spec.algorithm));
  out.write<std::uint64_t>(spec.later_patterns.size());
  for (const std::string& pattern : spec.later_patterns) out.append_sized(as_bytes(pattern));
  write_words(spec.words, out);
  // If characters become bytes, merging never produces an unknown token. A byte-level tokenizer has
  // one only if a byte has no token.
  const bool needs_unknown =
      spec.algorithm == Algorithm::kUnigram ||
      (spec.algorithm == Algorithm::kPieces && !spec.bytes_for_unknown) ||
      (spec.algorithm == Algorithm::kByteLevel && spec.unknown_id.has_value());
  out.write<std::uint8_t>(spec.bytes_for_unknown ? 1 : 0);
  out.write<std::uint8_t>(needs_unknown && spec.joins_unknown ? 1 : 0);
  out.write<std::int64_t>(needs_unknown ? spec.unknown_id.value_or(kNone) : kNone);
  out.write<std::int64_t>(spec.adds_begin ? spec.begin_id.value_or(kNone) : kNone);
  out.write<std::int64_t>(spec.added_end_id.value_or(kNone));
  const bool has_scores = spec.algorithm == Algorithm::kUnigram;
  out.write<std::uint64_t>(has_scores ? spec.scores.size() : 0);
  for (std::size_t i = 0; has_scores && i < spec.scores.size(); ++i) {
    out.write<double>(spec.scores[i]);
  }
  write_odd_tokens(vocabulary, out);
}

}  // namespace

Sha256 tokenizer_fingerprint(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                             const std::vector<Merge>& merges) {
  constexpr std::size_t kPieceBytes = 1 << 16;
  Sha256Hasher hasher;
  ByteWriter out;
  const auto hash_if_long = [&] {
    if (out.bytes().size() < kPieceBytes) return;
    hasher.update(out.bytes());
    out = {};
  };
  out.append_sized(as_bytes("tqcache tokenizer 1"));
  out.append_sized(as_bytes(normalizers_name(spec.normalizer)));
  out.append_sized(as_bytes(spec.pattern));
  out.write<std::uint8_t>(spec.ignore_merges ? 1 : 0);
  const std::int64_t n_tokens = count_used(vocabulary);
  out.write<std::uint64_t>(static_cast<std::uint64_t>(n_tokens));
  for (std::int64_t id = 0; id < n_tokens; ++id) {
    const Token& token = vocabulary.token(id);
    const std::uint8_t normalized = token.normalized ? kNormalizedFlag : 0;
    out.write<std::uint8_t>(static_cast<std::uint8_t>(token.kind) | normalized);
    out.append_sized(as_bytes(token.name()));
    hash_if_long();
  }
  out.write<std::uint64_t>(merges.size());
  for (const Merge& merge : merges) {
    out.write<std::int32_t>(merge.left);
    out.write<std::int32_t>(merge.right);
    hash_if_long();
  }
  if (!is_plain(spec, vocabulary)) write_more(spec, vocabulary, out);
  hasher.update(out.bytes());
  return hasher.finish();
}

}  // namespace tqcache::tokenizer
