#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/model/tokenizer_spec.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::Gguf;
using tensors::printable_name;

// A GGUF names its pre-tokenizer's expression and does not hold it.
// Source: llama.cpp src/llama-vocab.cpp, and the tokenizer.json of each model.
struct KnownPretokenizer {
  std::string_view name;
  std::string_view pattern;
  bool ignore_merges;
};
constexpr std::array kKnownPretokenizers = {
    KnownPretokenizer{"gpt-2", kGpt2Pattern, false},
    KnownPretokenizer{"qwen2",
                      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                      false},
    KnownPretokenizer{"qwen35",
                      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                      R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                      false},
    KnownPretokenizer{"llama-bpe",
                      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                      R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                      true},
};

Error unsupported(std::string_view key, std::string_view what) {
  return {ErrorCode::kUnsupported, "key \"" + std::string(key) + "\": " + std::string(what)};
}

Result<void> read_pretokenizer(const Gguf& file, TokenizerSpec& spec) {
  constexpr const char* kKey = "tokenizer.ggml.pre";
  TQC_TRY_ASSIGN(const std::string name, file.get_string(kKey));
  for (const KnownPretokenizer& known : kKnownPretokenizers) {
    if (name != known.name) continue;
    spec.pattern = known.pattern;
    spec.ignore_merges = known.ignore_merges;
    return {};
  }
  return unsupported(kKey, "pre-tokenizer " + printable_name(name) + " is not known");
}

// Source: llama.cpp include/llama.h, enum llama_token_type.
Result<Token> read_token(const std::string& text, std::int64_t type, std::int64_t id) {
  switch (type) {
    case 1:
      return ordinary_token(text, id);
    case 3:
      return Token{text, TokenKind::kControl, false};
    case 4:
      return Token{text, TokenKind::kUserDefined, false};
    case 5:
      return Token{text, TokenKind::kUnused, false};
    default:
      return unsupported("tokenizer.ggml.token_type",
                         "token " + std::to_string(id) + ": type " + std::to_string(type));
  }
}

Result<void> read_tokens(const Gguf& file, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const auto* texts, file.get_strings("tokenizer.ggml.tokens"));
  TQC_TRY_ASSIGN(const auto* types, file.get_ints("tokenizer.ggml.token_type"));
  if (types->size() != texts->size()) {
    return Error{ErrorCode::kCorrupt,
                 "key \"tokenizer.ggml.token_type\": " + std::to_string(types->size()) +
                     " types for " + std::to_string(texts->size()) + " tokens"};
  }
  spec.tokens.reserve(texts->size());
  for (std::size_t id = 0; id < texts->size(); ++id) {
    TQC_TRY_ASSIGN(Token token,
                   read_token((*texts)[id], (*types)[id], static_cast<std::int64_t>(id)));
    spec.tokens.push_back(std::move(token));
  }
  return {};
}

Result<void> read_merges(const Gguf& file, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const auto* lines, file.get_strings("tokenizer.ggml.merges"));
  spec.merges.reserve(lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    TQC_TRY_ASSIGN(MergeBytes merge, parse_merge((*lines)[i], i));
    spec.merges.push_back(std::move(merge));
  }
  return {};
}

Result<void> refuse_added_ends(const Gguf& file) {
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}) {
    if (!file.has(key)) continue;
    TQC_TRY_ASSIGN(const bool adds, file.get_bool(key));
    if (adds) return unsupported(key, "a token is added to every text");
  }
  return {};
}

Result<void> read_end_ids(const Gguf& file, TokenizerSpec& spec) {
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (!file.has(key)) continue;
    TQC_TRY_ASSIGN(const std::int64_t id, file.get_int(key));
    spec.end_ids.push_back(id);
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> read_gguf_tokenizer(const Gguf& file) {
  constexpr const char* kModelKey = "tokenizer.ggml.model";
  TQC_TRY_ASSIGN(const std::string kind, file.get_string(kModelKey));
  if (kind != "gpt2") {
    return unsupported(kModelKey, printable_name(kind) + " is not byte-level BPE");
  }
  TokenizerSpec spec;
  TQC_TRY(read_pretokenizer(file, spec));
  TQC_TRY(refuse_added_ends(file));
  TQC_TRY(read_tokens(file, spec));
  TQC_TRY(read_merges(file, spec));
  TQC_TRY(read_end_ids(file, spec));
  return spec;
}

}  // namespace tqcache::model
