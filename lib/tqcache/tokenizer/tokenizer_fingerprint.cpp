#include <cstdint>

#include "tqcache/base/bytes.h"
#include "tqcache/tokenizer/tokenizer_spec.h"

namespace tqcache::tokenizer {
namespace {

constexpr std::uint8_t kNormalizedFlag = 4;  // beside the kind

// GGUF files fill the ids up to the height of the embedding matrix; tokenizer.json does not.
std::int64_t count_used(const Vocabulary& vocabulary) {
  std::int64_t n = vocabulary.size();
  while (n > 0 && vocabulary.token(n - 1).kind == TokenKind::kUnused) --n;
  return n;
}

bool strips(const Token& token) { return token.strips_left || token.strips_right; }

// Whether the first fields say everything, as they did when there was byte-level BPE alone.
bool is_plain(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  if (spec.algorithm != Algorithm::kByteLevel || !spec.later_patterns.empty()) return false;
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

// Tokens that take white space with them, or are written otherwise than what they stand for.
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
  // Where characters become bytes, no unknown token is ever made by merging.
  const bool needs_unknown = spec.algorithm == Algorithm::kUnigram ||
                             (spec.algorithm == Algorithm::kPieces && !spec.bytes_for_unknown);
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
  ByteWriter out;
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
  }
  out.write<std::uint64_t>(merges.size());
  for (const Merge& merge : merges) {
    out.write<std::int32_t>(merge.left);
    out.write<std::int32_t>(merge.right);
  }
  if (!is_plain(spec, vocabulary)) write_more(spec, vocabulary, out);
  return sha256(out.bytes());
}

}  // namespace tqcache::tokenizer
