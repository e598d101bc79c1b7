#pragma once
// tokenizer/tokenizer_spec.h: the contents of a tokenizer file, in one struct for all kinds of
// files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tokenizer/merge_table.h"
#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/pretokenizer.h"
#include "tqcache/tokenizer/vocabulary.h"

namespace tqcache::tokenizer {

// How a piece of text becomes tokens. The numbers are part of the fingerprint.
enum class Algorithm : std::uint8_t {
  kByteLevel = 0,  // bytes are merged
  kPieces = 1,     // characters are merged
  kUnigram = 2,    // the tokens with the highest scores are chosen
};

struct TokenizerSpec {
  Algorithm algorithm = Algorithm::kByteLevel;
  std::vector<Token> tokens;  // by id
  std::vector<MergeBytes> merges;
  std::vector<double> scores;  // by id; for kUnigram, and for kPieces instead of merges
  Normalizers normalizer;
  std::string pattern;                      // pre-tokenizer pattern of kByteLevel
  std::vector<std::string> later_patterns;  // each splits what the one before leaves
  WordRules words;                          // for the other algorithms
  bool guesses_words = false;               // the file does not say which pattern it needs
  bool ignore_merges = false;               // a piece that is itself a token is not merged

  bool bytes_for_unknown = false;  // a character without a token becomes its bytes
  bool joins_unknown = false;      // a run of such characters is one unknown token
  std::optional<std::int64_t> unknown_id;

  std::optional<std::int64_t> begin_id;      // the token for the beginning of a text
  bool adds_begin = false;                   // texts get begin_id
  std::optional<std::int64_t> added_end_id;  // a token that is appended to texts
  bool drops_first_space = false;            // in decoded texts

  std::vector<std::int64_t> end_ids;  // generation ends there, and at the token end_name
  std::string end_name;               // empty: not given
  std::string chat_template;          // Jinja, as in the file; empty: none
  std::string tool_template;          // the one for conversations with tools; empty: the same
  std::vector<std::pair<std::string, std::string>> named_tokens;  // {"bos_token", "<s>"}
};

// Errors: those of Tokenizer::from_gguf() and from_json().
Result<TokenizerSpec> read_gguf_tokenizer(const tensors::Gguf& file);
Result<TokenizerSpec> read_json_tokenizer(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                          ByteView generation_config_json);

// A line of a merge list: "Ġ t" in the byte alphabet, or "U+2581 t" in SentencePiece's spelling.
// Errors: kCorrupt, naming the line.
Result<MergeBytes> parse_merge(std::string_view line, std::size_t index, bool by_bytes);
Result<MergeBytes> parse_merge(std::string_view left, std::string_view right, std::size_t index,
                               bool by_bytes);

// A SentencePiece token: spaces for U+2581, a byte for "<0x41>" if characters without a token
// become bytes. A token that contains a literal space is never made from text.
Token piece_token(std::string_view text, bool has_byte_tokens);

// A token in the byte alphabet. Errors: kCorrupt, naming the token.
Result<Token> ordinary_token(std::string_view text, std::int64_t id);

// SHA-256 of everything that determines ids. Spec: docs/reference/format.md §Fingerprints.
Sha256 tokenizer_fingerprint(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                             const std::vector<Merge>& merges);

}  // namespace tqcache::tokenizer
