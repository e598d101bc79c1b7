#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/tokenizer_json_parts.h"

// The tokens of tokenizer.json and how they are made: "model" and "added_tokens".

// Reads tokenizer.json and the configs next to it. Settings that would change the ids and are not
// implemented are refused by name; "truncation" and "padding" do not affect the ids of a text and
// are ignored.

namespace tqcache::tokenizer {

namespace {

using tensors::printable_name;

constexpr const char* kModel = "model";

// Returns whether a key has a value other than null and "".
bool is_set(const Json& object, const char* key) {
  const Json* value = find_value(object, key);
  return value != nullptr && *value != "";
}

struct NumberedToken {
  std::int64_t id;
  Token token;
};
using NumberedTokens = std::vector<NumberedToken>;

Result<NumberedToken> read_added_token(const Json& entry, const TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::int64_t id, get_int(entry, "id"));
  TQC_TRY_ASSIGN(std::string name, get_string(entry, "content"));
  TQC_TRY(refuse_if_true(entry, "single_word", "added token " + printable_name(name)));
  TQC_TRY_ASSIGN(const bool special, get_bool_or(entry, "special", false));
  Token token;
  token.kind = special ? TokenKind::kControl : TokenKind::kUserDefined;
  TQC_TRY_ASSIGN(token.normalized, get_bool_or(entry, "normalized", !special));
  TQC_TRY_ASSIGN(token.strips_left, get_bool_or(entry, "lstrip", false));
  TQC_TRY_ASSIGN(token.strips_right, get_bool_or(entry, "rstrip", false));
  token.bytes = spec.algorithm == Algorithm::kByteLevel ? name : spaces_for_marks(name);
  if (token.bytes != name) token.written = std::move(name);
  return NumberedToken{id, std::move(token)};
}

Result<NumberedTokens> read_added_tokens(const Json& root, const TokenizerSpec& spec) {
  NumberedTokens added;
  if (find_value(root, "added_tokens") == nullptr) return added;
  TQC_TRY_ASSIGN(const Json* entries, get_array(root, "added_tokens"));
  for (std::size_t i = 0; i < entries->size(); ++i) {
    auto token = read_added_token((*entries)[i], spec);
    if (!token) return in_context("added token " + std::to_string(i), std::move(token).error());
    added.push_back(std::move(token).value());
  }
  return added;
}

// Tokens come in any order. Most files number them 0, 1, 2, ...; some leave ids out.
class TokenSlots {
 public:
  // Ids are below twice the number of tokens, so that a short file cannot claim much memory.
  explicit TokenSlots(std::size_t n_tokens) : slots_(2 * n_tokens) {}

  Result<void> put(std::int64_t id, Token token) {
    const std::string place = "token " + std::to_string(id);
    if (id < 0 || id >= static_cast<std::int64_t>(slots_.size())) {
      return corrupt(place + ": an id out of range, with " + std::to_string(slots_.size() / 2) +
                     " tokens");
    }
    n_ids_ = std::max(n_ids_, static_cast<std::size_t>(id) + 1);
    std::optional<Token>& slot = slots_[static_cast<std::size_t>(id)];
    if (slot) return corrupt(place + ": comes twice");
    slot = std::move(token);
    return {};
  }

  // An id that was left out becomes an unused token, with the name that it gets in GGUF files.
  std::vector<Token> take() && {
    std::vector<Token> tokens;
    tokens.reserve(n_ids_);
    for (std::size_t id = 0; id < n_ids_; ++id) {
      const Token unused = {"[PAD" + std::to_string(id) + "]", TokenKind::kUnused};
      tokens.push_back(std::move(slots_[id]).value_or(unused));
    }
    return tokens;
  }

 private:
  std::vector<std::optional<Token>> slots_;
  std::size_t n_ids_ = 0;
};

// Takes the ordinary tokens out of a vocabulary that also lists the added tokens.
class OrdinaryTokens {
 public:
  OrdinaryTokens(const NumberedTokens& added, const TokenizerSpec& spec) : spec_(spec) {
    for (const NumberedToken& entry : added) added_ids_.emplace(entry.token.name(), entry.id);
  }

  Result<void> add(std::string_view text, std::int64_t id) {
    const auto same_name = added_ids_.find(text);
    if (same_name != added_ids_.end()) {
      if (same_name->second == id) return {};
      return corrupt("vocab: " + printable_name(text) + ": another id among the added tokens");
    }
    if (spec_.algorithm != Algorithm::kByteLevel) {
      tokens_.push_back({id, piece_token(text, spec_.bytes_for_unknown)});
      return {};
    }
    TQC_TRY_ASSIGN(Token token, ordinary_token(text, id));
    tokens_.push_back({id, std::move(token)});
    return {};
  }

  NumberedTokens take() && { return std::move(tokens_); }

 private:
  const TokenizerSpec& spec_;
  std::map<std::string_view, std::int64_t> added_ids_;
  NumberedTokens tokens_;
};

// {"text": id}
Result<NumberedTokens> read_vocab(const Json& vocab, const NumberedTokens& added,
                                  const TokenizerSpec& spec) {
  OrdinaryTokens ordinary(added, spec);
  for (const auto& [text, value] : vocab.items()) {
    if (!value.is_number_integer()) {
      return corrupt("vocab: " + printable_name(text) + ": not an integer");
    }
    TQC_TRY(ordinary.add(text, value.get<std::int64_t>()));
  }
  return std::move(ordinary).take();
}

// [["text", score]], by id. Later added tokens have the score 0.
Result<NumberedTokens> read_scored_vocab(const Json& vocab, const NumberedTokens& added,
                                         TokenizerSpec& spec) {
  OrdinaryTokens ordinary(added, spec);
  for (std::size_t id = 0; id < vocab.size(); ++id) {
    const Json& entry = vocab[id];
    const bool is_pair =
        entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    if (!is_pair) return corrupt("vocab: " + std::to_string(id) + ": not a text and a score");
    spec.scores.push_back(entry[1].get<double>());
    TQC_TRY(ordinary.add(entry[0].get_ref<const std::string&>(), static_cast<std::int64_t>(id)));
  }
  return std::move(ordinary).take();
}

Result<void> read_tokens(const Json& root, const Json& model, TokenizerSpec& spec) {
  const bool is_scored = spec.algorithm == Algorithm::kUnigram;
  TQC_TRY_ASSIGN(const Json* vocab,
                 is_scored ? get_array(model, "vocab") : get_object(model, "vocab"));
  if (vocab->size() > static_cast<std::size_t>(kMaxVocabSize)) {
    return Error{ErrorCode::kTooLarge, "vocab: " + std::to_string(vocab->size()) + " tokens"};
  }
  TQC_TRY_ASSIGN(NumberedTokens added, read_added_tokens(root, spec));
  TQC_TRY_ASSIGN(NumberedTokens ordinary, is_scored ? read_scored_vocab(*vocab, added, spec)
                                                    : read_vocab(*vocab, added, spec));
  TokenSlots slots(added.size() + ordinary.size());
  for (NumberedTokens* list : {&added, &ordinary}) {
    for (NumberedToken& entry : *list) TQC_TRY(slots.put(entry.id, std::move(entry.token)));
  }
  spec.tokens = std::move(slots).take();
  if (is_scored) spec.scores.resize(spec.tokens.size(), 0.0);
  return {};
}

Result<MergeBytes> read_merge(const Json& line, std::size_t index, bool by_bytes) {
  const bool is_pair =
      line.is_array() && line.size() == 2 && line[0].is_string() && line[1].is_string();
  if (is_pair) {
    return parse_merge(line[0].get_ref<const std::string&>(), line[1].get_ref<const std::string&>(),
                       index, by_bytes);
  }
  if (line.is_string()) return parse_merge(line.get_ref<const std::string&>(), index, by_bytes);
  return corrupt("merge " + std::to_string(index) + ": not two parts");
}

// Names that no merge produces. SentencePiece vocabularies that were converted to merge lists may
// still have lines for them.
std::set<std::string, std::less<>> names_never_made(const TokenizerSpec& spec) {
  std::set<std::string, std::less<>> names;
  if (spec.algorithm == Algorithm::kByteLevel) return names;
  for (const Token& token : spec.tokens) {
    if (token.kind == TokenKind::kControl) names.insert(token.bytes);
  }
  return names;
}

Result<void> read_merges(const Json& model, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json* lines, get_array(model, "merges"));
  if (lines->size() > kMaxMerges) {
    return Error{ErrorCode::kTooLarge, "merges: " + std::to_string(lines->size())};
  }
  const auto never_made = names_never_made(spec);
  spec.merges.reserve(lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    TQC_TRY_ASSIGN(MergeBytes merge,
                   read_merge((*lines)[i], i, spec.algorithm == Algorithm::kByteLevel));
    if (never_made.contains(merge.whole)) continue;
    spec.merges.push_back(std::move(merge));
  }
  return {};
}

Result<void> read_bpe_options(const Json& model, TokenizerSpec& spec) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(model, key)) return unsupported_part(kModel, key);
  }
  TQC_TRY_ASSIGN(spec.ignore_merges, get_bool_or(model, "ignore_merges", false));
  const bool by_bytes = spec.algorithm == Algorithm::kByteLevel;
  if (!by_bytes) {
    TQC_TRY_ASSIGN(spec.bytes_for_unknown, get_bool_or(model, "byte_fallback", false));
  }
  TQC_TRY_ASSIGN(spec.joins_unknown, get_bool_or(model, "fuse_unk", false));
  if (!is_set(model, "unk_token")) return {};
  TQC_TRY_ASSIGN(const std::string name, get_string(model, "unk_token"));
  TQC_TRY_ASSIGN(const Json* vocab, get_object(model, "vocab"));
  // In a byte-level vocabulary it is needed only if a byte has no token (Tokenizer::build()).
  if (by_bytes && find_value(*vocab, name.c_str()) == nullptr) return {};
  TQC_TRY_ASSIGN(spec.unknown_id, get_int(*vocab, name.c_str()));
  return {};
}

Result<void> read_unigram_options(const Json& model, TokenizerSpec& spec) {
  if (spec.algorithm == Algorithm::kByteLevel) {
    return unsupported_part(kModel, "\"Unigram\" behind ByteLevel");
  }
  spec.algorithm = Algorithm::kUnigram;
  spec.joins_unknown = true;
  TQC_TRY_ASSIGN(spec.bytes_for_unknown, get_bool_or(model, "byte_fallback", false));
  TQC_TRY_ASSIGN(spec.unknown_id, get_int(model, "unk_id"));
  return {};
}

Result<void> read_options(const Json& model, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::string type, get_string_or(model, "type", "BPE"));
  if (type == "BPE") return read_bpe_options(model, spec);
  if (type == "Unigram") return read_unigram_options(model, spec);
  return unsupported_part(kModel, printable_name(type));
}

}  // namespace

Result<void> read_vocabulary(const Json& root, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json* model, get_object(root, "model"));
  TQC_TRY(read_options(*model, spec));
  TQC_TRY(read_tokens(root, *model, spec));
  return spec.algorithm == Algorithm::kUnigram ? Result<void>() : read_merges(*model, spec);
}

Result<std::int64_t> find_added_token(const TokenizerSpec& spec, std::string_view name) {
  for (std::size_t id = 0; id < spec.tokens.size(); ++id) {
    const Token& token = spec.tokens[id];
    const bool is_added =
        token.kind == TokenKind::kControl || token.kind == TokenKind::kUserDefined;
    if (is_added && token.name() == name) return static_cast<std::int64_t>(id);
  }
  return corrupt("token " + printable_name(name) + ": not an added token");
}

namespace {

using tensors::printable_name;

constexpr const char* kPostProcessor = "post_processor";

// An item of a template: "$A" or the name of a token.
Result<std::string> read_place(const Json& place) {
  if (find_value(place, "Sequence") != nullptr) return std::string();
  TQC_TRY_ASSIGN(const Json* token, get_object(place, "SpecialToken"));
  return get_string(*token, "id");
}

Result<void> read_template(const Json& step, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json* places, get_array(step, "single"));
  bool has_text = false;
  for (const Json& place : *places) {
    TQC_TRY_ASSIGN(const std::string name, read_place(place));
    const bool is_taken = name.empty() ? has_text
                          : has_text   ? spec.added_end_id.has_value()
                                       : spec.adds_begin;
    if (is_taken) return unsupported_part(kPostProcessor, "more than one token at an end");
    if (name.empty()) {
      has_text = true;
      continue;
    }
    TQC_TRY_ASSIGN(const std::int64_t id, find_added_token(spec, name));
    if (has_text) {
      spec.added_end_id = id;
    } else {
      spec.begin_id = id;
      spec.adds_begin = true;
    }
  }
  if (!has_text) return unsupported_part(kPostProcessor, "a template without the text");
  return {};
}

Result<void> read_post_processor(const Json& step, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "ByteLevel") return {};  // changes only offsets
  if (type == "TemplateProcessing") return read_template(step, spec);
  return unsupported_part(kPostProcessor, printable_name(type));
}

Result<TokenizerSpec> read_tokenizer_json(ByteView text) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY(get_object(root, "model"));
  TokenizerSpec spec;
  TQC_TRY(read_text_steps(root, spec));
  TQC_TRY(read_vocabulary(root, spec));
  TQC_TRY(read_added_ends(root, spec));
  return spec;
}

// A token name, or an added token object with the name as "content"; empty: absent.
Result<std::string> read_token_name(const Json& root, const char* key) {
  const Json* token = find_value(root, key);
  if (token == nullptr) return std::string();
  return token->is_object() ? get_string(*token, "content") : get_string(root, key);
}

// The names of the begin and end tokens. tokenizer.json decides whether they are added:
// "add_bos_token" and "add_eos_token" are ignored, as in transformers' PreTrainedTokenizerFast.
Result<void> read_config_ends(const Json& root, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::string begin, read_token_name(root, "bos_token"));
  TQC_TRY_ASSIGN(spec.end_name, read_token_name(root, "eos_token"));
  if (spec.begin_id || begin.empty()) return {};
  if (const auto id = find_added_token(spec, begin)) spec.begin_id = *id;
  return {};
}

// What templates call "bos_token" and the like.
void read_named_tokens(const Json& root, TokenizerSpec& spec) {
  for (const auto& [key, value] : root.items()) {
    const Json* const name = value.is_object() ? find_value(value, "content") : &value;
    if (!key.ends_with("_token") || name == nullptr || !name->is_string()) continue;
    spec.named_tokens.emplace_back(key, name->get<std::string>());
  }
}

// "chat_template": a text, or several named texts: "default", and "tool_use" for conversations with
// tools.
Result<void> read_chat_template(const Json& root, TokenizerSpec& spec) {
  const Json* value = find_value(root, "chat_template");
  if (value == nullptr) return {};
  if (!value->is_array()) {
    TQC_TRY_ASSIGN(spec.chat_template, get_string(root, "chat_template"));
    return {};
  }
  for (const Json& entry : *value) {
    TQC_TRY_ASSIGN(const std::string name, get_string(entry, "name"));
    if (name != "default" && name != "tool_use") continue;
    std::string& text = name == "default" ? spec.chat_template : spec.tool_template;
    TQC_TRY_ASSIGN(text, get_string(entry, "template"));
  }
  return {};
}

Result<void> read_tokenizer_config(ByteView text, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY(read_config_ends(root, spec));
  read_named_tokens(root, spec);
  return read_chat_template(root, spec);
}

// "eos_token_id": an id, or a list of them.
Result<void> read_generation_config(ByteView text, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  const Json* ids = find_value(root, "eos_token_id");
  if (ids == nullptr) return {};
  for (const Json& id : ids->is_array() ? *ids : Json::array({*ids})) {
    if (!id.is_number_integer()) {
      return Error{ErrorCode::kCorrupt, "key \"eos_token_id\": not an integer"};
    }
    spec.end_ids.push_back(id.get<std::int64_t>());
  }
  return {};
}

}  // namespace

Result<void> read_added_ends(const Json& root, TokenizerSpec& spec) {
  const Json* step = find_value(root, "post_processor");
  if (step == nullptr) return {};
  TQC_TRY_ASSIGN(const std::string type, get_string(*step, "type"));
  if (type != "Sequence") return read_post_processor(*step, spec);
  TQC_TRY_ASSIGN(const Json* steps, get_array(*step, "processors"));
  for (const Json& inner : *steps) TQC_TRY(read_post_processor(inner, spec));
  return {};
}

Result<TokenizerSpec> read_json_tokenizer(ByteView tokenizer_json, ByteView tokenizer_config_json,
                                          ByteView generation_config_json) {
  auto spec = read_tokenizer_json(tokenizer_json);
  if (!spec) return in_context("tokenizer.json", std::move(spec).error());
  if (!tokenizer_config_json.empty()) {
    auto read = read_tokenizer_config(tokenizer_config_json, *spec);
    if (!read) return in_context("tokenizer_config.json", std::move(read).error());
  }
  if (!generation_config_json.empty()) {
    auto read = read_generation_config(generation_config_json, *spec);
    if (!read) return in_context("generation_config.json", std::move(read).error());
  }
  return spec;
}

}  // namespace tqcache::tokenizer
