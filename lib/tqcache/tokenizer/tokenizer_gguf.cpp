#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/tokenizer_spec.h"

// Reads the keys tokenizer.*. Absent keys have llama.cpp's defaults.
// Source: llama.cpp src/llama-vocab.cpp.

namespace tqcache::tokenizer {
namespace {

using tensors::Gguf;
using tensors::printable_name;

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kScoresKey = "tokenizer.ggml.scores";
constexpr const char* kCharsmapKey = "tokenizer.ggml.precompiled_charsmap";
constexpr const char* kRemoveSpacesKey = "tokenizer.ggml.remove_extra_whitespaces";

Error unsupported(std::string_view key, std::string_view what) {
  return {ErrorCode::kUnsupported, "key \"" + std::string(key) + "\": " + std::string(what)};
}

Result<bool> get_flag_or(const Gguf& file, const char* key, bool fallback) {
  return file.has(key) ? file.get_bool(key) : Result<bool>(fallback);
}

// A number that is no token's, such as the 2^32 - 1 that some writers mean by "none", counts as
// absent. Requires: the tokens are read.
Result<std::optional<std::int64_t>> get_id(const Gguf& file, const char* key,
                                           const TokenizerSpec& spec,
                                           std::optional<std::int64_t> fallback) {
  if (!file.has(key)) return fallback;
  TQC_TRY_ASSIGN(const std::int64_t id, file.get_int(key));
  return id >= 0 && std::cmp_less(id, spec.tokens.size()) ? std::optional(id) : fallback;
}

// The kinds of tokenizer.ggml.model, and their defaults.
struct Kind {
  std::string_view name;
  Algorithm algorithm;
  bool adds_begin;
  bool adds_end;
  std::optional<std::int64_t> begin_id;
  std::optional<std::int64_t> unknown_id;
};
constexpr std::array kKinds = {
    Kind{"gpt2", Algorithm::kByteLevel, false, false, std::nullopt, std::nullopt},
    Kind{"llama", Algorithm::kPieces, true, false, 1, 0},
    Kind{"t5", Algorithm::kUnigram, false, true, std::nullopt, 2},
};

Result<Kind> read_kind(const Gguf& file) {
  TQC_TRY_ASSIGN(const std::string name, file.get_string(kModelKey));
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  return unsupported(kModelKey, printable_name(name) + " is none of gpt2, llama and t5");
}

Result<void> read_pretokenizer(const Gguf& file, Kind& kind, TokenizerSpec& spec) {
  constexpr const char* kKey = "tokenizer.ggml.pre";
  // Files that are older than the key have none.
  std::string name = "default";
  if (file.has(kKey)) {
    TQC_TRY_ASSIGN(name, file.get_string(kKey));
  }
  const KnownPretokenizer* known = find_pretokenizer(name);
  if (known == nullptr) {
    return unsupported(kKey, "pre-tokenizer " + printable_name(name) + " is not known");
  }
  spec.guesses_words = known->name == "default";
  spec.pattern = known->patterns[0];
  for (const std::string_view later : std::span(known->patterns).subspan(1)) {
    if (!later.empty()) spec.later_patterns.emplace_back(later);
  }
  spec.ignore_merges = known->ignore_merges;
  kind.adds_begin = known->adds_begin;
  return {};
}

// Both SentencePiece algorithms put a space before each text that follows a special token.
Result<void> read_spaces(const Gguf& file, TokenizerSpec& spec) {
  const auto charsmap = file.metadata.find(kCharsmapKey);
  if (charsmap != file.metadata.end()) {
    const auto* bytes = std::get_if<std::vector<std::int64_t>>(&charsmap->second);
    if (bytes == nullptr || !bytes->empty()) {
      return unsupported(kCharsmapKey, "a normalizer of SentencePiece");
    }
  }
  TQC_TRY_ASSIGN(const bool removes_spaces,
                 get_flag_or(file, kRemoveSpacesKey, spec.algorithm == Algorithm::kUnigram));
  if (removes_spaces && spec.algorithm == Algorithm::kPieces) {
    return unsupported(kRemoveSpacesKey, "not with this kind of tokenizer");
  }
  TQC_TRY_ASSIGN(const bool adds_space, get_flag_or(file, "tokenizer.ggml.add_space_prefix", true));
  if (removes_spaces) {
    spec.normalizer = {Normalizer::kStripSpaces, Normalizer::kJoinSpaces};
  }
  if (adds_space) spec.normalizer.push_back(Normalizer::kPrependSpace);
  spec.normalizer.push_back(Normalizer::kMarkSpaces);
  spec.drops_first_space = adds_space;
  return {};
}

// A word that is split off from the text; it may write a space as U+2581.
Token user_defined_token(std::string_view text, const TokenizerSpec& spec) {
  Token token{std::string(text), TokenKind::kUserDefined};
  if (spec.algorithm == Algorithm::kByteLevel) return token;
  token.bytes = spaces_for_marks(text);
  if (token.bytes != text) token.written = text;
  return token;
}

// Source: llama.cpp include/llama.h, enum llama_token_type.
Result<Token> read_token(std::string_view text, std::int64_t type, std::int64_t id,
                         const TokenizerSpec& spec) {
  const bool by_bytes = spec.algorithm == Algorithm::kByteLevel;
  if (text.empty()) return Token{"[EMPTY_" + std::to_string(id) + "]", TokenKind::kUnused};
  if (type == 1) return by_bytes ? ordinary_token(text, id) : piece_token(text, false);
  if (type == 3 || type == 2) return Token{std::string(text), TokenKind::kControl};
  if (type == 4) return user_defined_token(text, spec);
  if (type == 5) return Token{std::string(text), TokenKind::kUnused};
  const std::string place = "token " + std::to_string(id) + ": ";
  if (type != 6 || by_bytes) {
    return unsupported("tokenizer.ggml.token_type", place + "type " + std::to_string(type));
  }
  Token token = piece_token(text, true);
  if (token.kind == TokenKind::kByte) return token;
  return Error{ErrorCode::kCorrupt, place + printable_name(text) + " is no byte"};
}

// Tokens that llama.cpp makes control tokens by their names: those that end an answer, or separate
// the parts of a program's text. Here they count where a file lists no types; another name that is
// not known is an ordinary token, as there.
constexpr std::array<std::string_view, 57> kControlNames = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

// The type of a token in a file that lists no types: an ordinary one, unless its name says more.
std::int64_t type_of_name(std::string_view text, const TokenizerSpec& spec) {
  if (std::ranges::find(kControlNames, text) != kControlNames.end()) return 3;
  const bool is_byte =
      spec.algorithm != Algorithm::kByteLevel && piece_token(text, true).kind == TokenKind::kByte;
  return is_byte ? 6 : 1;
}

Result<void> read_tokens(const Gguf& file, TokenizerSpec& spec) {
  constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
  TQC_TRY_ASSIGN(const auto* texts, file.get_strings("tokenizer.ggml.tokens"));
  const std::vector<std::int64_t>* types = nullptr;
  if (file.has(kTypesKey)) {
    TQC_TRY_ASSIGN(types, file.get_ints(kTypesKey));
    if (types->size() < texts->size()) {
      return Error{ErrorCode::kCorrupt, "key \"" + std::string(kTypesKey) +
                                            "\": " + std::to_string(types->size()) + " types for " +
                                            std::to_string(texts->size()) + " tokens"};
    }
  }
  spec.tokens.reserve(texts->size());
  for (std::size_t id = 0; id < texts->size(); ++id) {
    const std::string_view text = (*texts)[id];
    const std::int64_t type = types != nullptr ? (*types)[id] : type_of_name(text, spec);
    TQC_TRY_ASSIGN(Token token, read_token(text, type, static_cast<std::int64_t>(id), spec));
    spec.bytes_for_unknown |= token.kind == TokenKind::kByte;
    spec.tokens.push_back(std::move(token));
  }
  return {};
}

Result<void> read_merges(const Gguf& file, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const auto* lines, file.get_strings("tokenizer.ggml.merges"));
  spec.merges.reserve(lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    TQC_TRY_ASSIGN(MergeBytes merge, parse_merge((*lines)[i], i, true));
    spec.merges.push_back(std::move(merge));
  }
  return {};
}

Result<void> read_scores(const Gguf& file, TokenizerSpec& spec) {
  const auto found = file.metadata.find(kScoresKey);
  if (found != file.metadata.end()) {
    if (const auto* scores = std::get_if<std::vector<double>>(&found->second)) {
      spec.scores = *scores;
    } else if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&found->second)) {
      spec.scores.assign(whole->begin(), whole->end());
    }
  }
  if (spec.scores.empty()) {
    return Error{ErrorCode::kCorrupt,
                 "key \"" + std::string(kScoresKey) + "\": missing, or no list of numbers"};
  }
  if (spec.scores.size() > spec.tokens.size()) spec.scores.resize(spec.tokens.size());
  return {};
}

Result<void> read_ends(const Gguf& file, const Kind& kind, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(spec.begin_id, get_id(file, "tokenizer.ggml.bos_token_id", spec, kind.begin_id));
  TQC_TRY_ASSIGN(spec.adds_begin,
                 get_flag_or(file, "tokenizer.ggml.add_bos_token", kind.adds_begin));
  TQC_TRY_ASSIGN(const bool adds_end,
                 get_flag_or(file, "tokenizer.ggml.add_eos_token", kind.adds_end));
  if (adds_end) {
    TQC_TRY_ASSIGN(spec.added_end_id,
                   get_id(file, "tokenizer.ggml.eos_token_id", spec, std::nullopt));
  }
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    TQC_TRY_ASSIGN(const auto id, get_id(file, key, spec, std::nullopt));
    if (id) spec.end_ids.push_back(*id);
  }
  // What templates call them.
  static constexpr std::pair<const char*, const char*> kNamed[] = {
      {"bos_token", "tokenizer.ggml.bos_token_id"},
      {"eos_token", "tokenizer.ggml.eos_token_id"},
      {"unk_token", "tokenizer.ggml.unknown_token_id"},
      {"pad_token", "tokenizer.ggml.padding_token_id"}};
  for (const auto& [name, key] : kNamed) {
    TQC_TRY_ASSIGN(const auto id, get_id(file, key, spec, std::nullopt));
    if (id) spec.named_tokens.emplace_back(name, spec.tokens[static_cast<std::size_t>(*id)].name());
  }
  return {};
}

// GGUF files do not say which tokens strip white space. For one family it is known.
// Source: llama.cpp src/llama-vocab.cpp, which checks the model's name; tokenizer.json of Phi-3.
Result<void> set_known_strips(const Gguf& file, TokenizerSpec& spec) {
  constexpr const char* kKey = "general.architecture";
  if (spec.algorithm != Algorithm::kPieces || !file.has(kKey)) return {};
  TQC_TRY_ASSIGN(const std::string architecture, file.get_string(kKey));
  if (architecture != "phi3") return {};
  constexpr std::array<std::string_view, 3> kPlain = {"<unk>", "<s>", "<|endoftext|>"};
  for (Token& token : spec.tokens) {
    const bool is_plain = std::find(kPlain.begin(), kPlain.end(), token.bytes) != kPlain.end();
    token.strips_right = token.kind == TokenKind::kControl && !is_plain;
  }
  return {};
}

}  // namespace

Result<TokenizerSpec> read_gguf_tokenizer(const Gguf& file) {
  TQC_TRY_ASSIGN(Kind kind, read_kind(file));
  TokenizerSpec spec;
  spec.algorithm = kind.algorithm;
  const bool by_bytes = kind.algorithm == Algorithm::kByteLevel;
  TQC_TRY(by_bytes ? read_pretokenizer(file, kind, spec) : read_spaces(file, spec));
  TQC_TRY(read_tokens(file, spec));
  TQC_TRY(by_bytes ? read_merges(file, spec) : read_scores(file, spec));
  if (!by_bytes) {
    TQC_TRY_ASSIGN(spec.unknown_id,
                   get_id(file, "tokenizer.ggml.unknown_token_id", spec, kind.unknown_id));
    spec.joins_unknown = true;
  }
  TQC_TRY(read_ends(file, kind, spec));
  TQC_TRY(set_known_strips(file, spec));
  if (file.has("tokenizer.chat_template")) {
    TQC_TRY_ASSIGN(spec.chat_template, file.get_string("tokenizer.chat_template"));
  }
  constexpr const char* kForTools = "tokenizer.chat_template.tool_use";
  if (file.has(kForTools)) {
    TQC_TRY_ASSIGN(spec.tool_template, file.get_string(kForTools));
  }
  return spec;
}

}  // namespace tqcache::tokenizer
