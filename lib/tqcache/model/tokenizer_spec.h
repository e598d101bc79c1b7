#pragma once
// model/tokenizer_spec.h: what a tokenizer's file says, in one form for every kind of file.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/model/merge_table.h"
#include "tqcache/model/normalizer.h"
#include "tqcache/model/vocabulary.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {

// GPT-2's expression, which byte-level tokenizers use when they name none.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct TokenizerSpec {
  std::vector<Token> tokens;  // by id
  std::vector<MergeBytes> merges;
  Normalizer normalizer = Normalizer::kNone;
  std::string pattern;                // of the pre-tokenizer
  bool ignore_merges = false;         // a piece that is a token as a whole is not merged
  std::vector<std::int64_t> end_ids;  // generation ends there, and at the token end_name
  std::string end_name;               // empty: not said
};

// Errors: those of Tokenizer::from_gguf() and from_json().
Result<TokenizerSpec> read_gguf_tokenizer(const tensors::Gguf& file);
Result<TokenizerSpec> read_json_tokenizer(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                          ByteView generation_config_json);

// A line of a merge list, "Ġ t". Errors: kCorrupt, naming the line.
Result<MergeBytes> parse_merge(std::string_view line, std::size_t index);
Result<MergeBytes> parse_merge(std::string_view left, std::string_view right, std::size_t index);

// A token of the byte alphabet. Errors: kCorrupt, naming the token.
Result<Token> ordinary_token(std::string_view text, std::int64_t id);

// SHA-256 of all that decides ids. Spec: docs/format.md §Fingerprints.
Sha256 tokenizer_fingerprint(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                             const std::vector<Merge>& merges);

}  // namespace tqcache::model
