#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/model/json_fields.h"
#include "tqcache/model/tokenizer_spec.h"
#include "tqcache/tensors/printable_name.h"

// Reads tokenizer.json. Whatever would change the ids and is not done here is refused by name;
// "truncation", "padding" and "decoder" say nothing about the ids of a text and are left alone.

namespace tqcache::model {
namespace {

using tensors::printable_name;

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
Error unsupported(std::string_view part, std::string_view what) {
  return {ErrorCode::kUnsupported, std::string(part) + ": " + std::string(what)};
}

Result<void> refuse_if_true(const Json& object, const char* key, std::string_view part) {
  TQC_TRY_ASSIGN(const bool value, get_bool_or(object, key, false));
  if (value) return unsupported(part, key);
  return {};
}

// Set to something: neither absent, null, nor "".
bool is_set(const Json& object, const char* key) {
  const Json* value = find_value(object, key);
  return value != nullptr && *value != "";
}

Result<Normalizer> read_normalizer(const Json& root) {
  const Json* normalizer = find_value(root, "normalizer");
  if (normalizer == nullptr) return Normalizer::kNone;
  TQC_TRY_ASSIGN(const std::string type, get_string(*normalizer, "type"));
  if (type != "NFC") return unsupported("normalizer", printable_name(type));
  return Normalizer::kNfc;
}

// The part that turns bytes into letters. Says whether it also cuts by GPT-2's expression.
Result<bool> read_byte_level(const Json& step) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type != "ByteLevel") return unsupported("pre_tokenizer", printable_name(type));
  // The library adds the space unless told otherwise.
  TQC_TRY_ASSIGN(const bool adds_space, get_bool_or(step, "add_prefix_space", true));
  if (adds_space) return unsupported("pre_tokenizer", "add_prefix_space");
  return get_bool_or(step, "use_regex", true);
}

Result<std::string> read_split(const Json& step) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type != "Split") return unsupported("pre_tokenizer", printable_name(type));
  TQC_TRY_ASSIGN(const std::string behavior, get_string(step, "behavior"));
  if (behavior != "Isolated") return unsupported("pre_tokenizer", printable_name(behavior));
  TQC_TRY(refuse_if_true(step, "invert", "pre_tokenizer"));
  TQC_TRY_ASSIGN(const Json* pattern, get_object(step, "pattern"));
  if (!pattern->contains("Regex")) return unsupported("pre_tokenizer", "a pattern of another kind");
  return get_string(*pattern, "Regex");
}

// Either ByteLevel alone, or Split and then ByteLevel without an expression of its own.
Result<std::string> read_pattern(const Json& root) {
  TQC_TRY_ASSIGN(const Json* pretokenizer, get_object(root, "pre_tokenizer"));
  TQC_TRY_ASSIGN(const std::string type, get_string(*pretokenizer, "type"));
  if (type != "Sequence") {
    TQC_TRY_ASSIGN(const bool uses_regex, read_byte_level(*pretokenizer));
    if (!uses_regex) return unsupported("pre_tokenizer", "no expression");
    return std::string(kGpt2Pattern);
  }
  TQC_TRY_ASSIGN(const Json* steps, get_array(*pretokenizer, "pretokenizers"));
  if (steps->size() != 2) {
    return unsupported("pre_tokenizer", "a sequence of " + std::to_string(steps->size()));
  }
  TQC_TRY_ASSIGN(std::string pattern, read_split((*steps)[0]));
  TQC_TRY_ASSIGN(const bool uses_regex, read_byte_level((*steps)[1]));
  if (uses_regex) return unsupported("pre_tokenizer", "use_regex after another expression");
  return pattern;
}

// A template adds nothing when it holds the text and nothing else.
Result<void> check_template(const Json& step) {
  TQC_TRY_ASSIGN(const Json* single, get_array(step, "single"));
  if (single->size() == 1 && find_value((*single)[0], "Sequence") != nullptr) return {};
  return unsupported("post_processor", "a template that adds tokens");
}

Result<void> check_post_processor(const Json& step) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "ByteLevel") return {};  // moves offsets only
  if (type == "TemplateProcessing") return check_template(step);
  return unsupported("post_processor", printable_name(type));
}

Result<void> check_model(const Json& model) {
  TQC_TRY_ASSIGN(const std::string type, get_string_or(model, "type", "BPE"));
  if (type != "BPE") return unsupported("model", printable_name(type));
  TQC_TRY(refuse_if_true(model, "byte_fallback", "model"));
  TQC_TRY(refuse_if_true(model, "fuse_unk", "model"));
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(model, key)) return unsupported("model", key);
  }
  return {};
}

struct NumberedToken {
  std::int64_t id;
  Token token;
};

Result<NumberedToken> read_added_token(const Json& entry) {
  TQC_TRY_ASSIGN(const std::int64_t id, get_int(entry, "id"));
  TQC_TRY_ASSIGN(std::string name, get_string(entry, "content"));
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    TQC_TRY(refuse_if_true(entry, key, "added token " + printable_name(name)));
  }
  TQC_TRY_ASSIGN(const bool special, get_bool_or(entry, "special", false));
  TQC_TRY_ASSIGN(const bool normalized, get_bool_or(entry, "normalized", !special));
  const TokenKind kind = special ? TokenKind::kControl : TokenKind::kUserDefined;
  return NumberedToken{id, Token{std::move(name), kind, normalized}};
}

Result<std::vector<NumberedToken>> read_added_tokens(const Json& root) {
  std::vector<NumberedToken> added;
  if (find_value(root, "added_tokens") == nullptr) return added;
  TQC_TRY_ASSIGN(const Json* entries, get_array(root, "added_tokens"));
  for (std::size_t i = 0; i < entries->size(); ++i) {
    auto token = read_added_token((*entries)[i]);
    if (!token) return in_context("added token " + std::to_string(i), std::move(token).error());
    added.push_back(std::move(token).value());
  }
  return added;
}

// Tokens come in any order, and their ids must turn out to be 0, 1, 2, ...
class TokenSlots {
 public:
  explicit TokenSlots(std::size_t n) : slots_(n) {}

  Result<void> put(std::int64_t id, Token token) {
    const std::string place = "token " + std::to_string(id);
    if (id < 0 || id >= static_cast<std::int64_t>(slots_.size())) {
      return corrupt(place + ": an id out of range, with " + std::to_string(slots_.size()) +
                     " tokens");
    }
    std::optional<Token>& slot = slots_[static_cast<std::size_t>(id)];
    if (slot) return corrupt(place + ": comes twice");
    slot = std::move(token);
    return {};
  }

  // As many tokens as slots, and none twice: so none is missing. Requires: that many were put.
  std::vector<Token> take() && {
    std::vector<Token> tokens;
    tokens.reserve(slots_.size());
    for (std::optional<Token>& slot : slots_) tokens.push_back(std::move(slot).value());
    return tokens;
  }

 private:
  std::vector<std::optional<Token>> slots_;
};

// The ordinary tokens: all of "vocab" but the added tokens that are listed there as well.
Result<std::vector<NumberedToken>> read_vocab(const Json& vocab,
                                              const std::vector<NumberedToken>& added) {
  std::map<std::string_view, std::int64_t> added_ids;
  for (const NumberedToken& entry : added) added_ids.emplace(entry.token.bytes, entry.id);
  std::vector<NumberedToken> ordinary;
  ordinary.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    const std::string place = "vocab: " + printable_name(text);
    if (!value.is_number_integer()) return corrupt(place + ": not an integer");
    const auto id = value.get<std::int64_t>();
    const auto same_name = added_ids.find(text);
    if (same_name == added_ids.end()) {
      TQC_TRY_ASSIGN(Token token, ordinary_token(text, id));
      ordinary.push_back({id, std::move(token)});
    } else if (same_name->second != id) {
      return corrupt(place + ": another id among the added tokens");
    }
  }
  return ordinary;
}

Result<std::vector<Token>> read_tokens(const Json& root, const Json& vocab) {
  if (vocab.size() > static_cast<std::size_t>(kMaxVocabSize)) {
    return Error{ErrorCode::kTooLarge, "vocab: " + std::to_string(vocab.size()) + " tokens"};
  }
  TQC_TRY_ASSIGN(std::vector<NumberedToken> added, read_added_tokens(root));
  TQC_TRY_ASSIGN(std::vector<NumberedToken> ordinary, read_vocab(vocab, added));
  TokenSlots slots(added.size() + ordinary.size());
  for (std::vector<NumberedToken>* list : {&added, &ordinary}) {
    for (NumberedToken& entry : *list) TQC_TRY(slots.put(entry.id, std::move(entry.token)));
  }
  return std::move(slots).take();
}

Result<std::vector<MergeBytes>> read_merges(const Json& model) {
  TQC_TRY_ASSIGN(const Json* lines, get_array(model, "merges"));
  if (lines->size() > kMaxMerges) {
    return Error{ErrorCode::kTooLarge, "merges: " + std::to_string(lines->size())};
  }
  std::vector<MergeBytes> merges;
  merges.reserve(lines->size());
  for (std::size_t i = 0; i < lines->size(); ++i) {
    const Json& line = (*lines)[i];
    const bool is_pair =
        line.is_array() && line.size() == 2 && line[0].is_string() && line[1].is_string();
    if (!is_pair && !line.is_string()) {
      return corrupt("merge " + std::to_string(i) + ": not two parts");
    }
    TQC_TRY_ASSIGN(MergeBytes merge, is_pair ? parse_merge(line[0].get_ref<const std::string&>(),
                                                           line[1].get_ref<const std::string&>(), i)
                                             : parse_merge(line.get_ref<const std::string&>(), i));
    merges.push_back(std::move(merge));
  }
  return merges;
}

Result<TokenizerSpec> read_tokenizer_json(ByteView text) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY_ASSIGN(const Json* model, get_object(root, "model"));
  TQC_TRY(check_model(*model));
  if (const Json* step = find_value(root, "post_processor")) TQC_TRY(check_post_processor(*step));

  TokenizerSpec spec;
  TQC_TRY_ASSIGN(spec.normalizer, read_normalizer(root));
  TQC_TRY_ASSIGN(spec.pattern, read_pattern(root));
  TQC_TRY_ASSIGN(spec.ignore_merges, get_bool_or(*model, "ignore_merges", false));
  TQC_TRY_ASSIGN(const Json* vocab, get_object(*model, "vocab"));
  TQC_TRY_ASSIGN(spec.tokens, read_tokens(root, *vocab));
  TQC_TRY_ASSIGN(spec.merges, read_merges(*model));
  return spec;
}

// "eos_token": its name, or an added token's object with the name as "content".
Result<void> read_tokenizer_config(ByteView text, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY(refuse_if_true(root, "add_bos_token", "every text"));
  TQC_TRY(refuse_if_true(root, "add_eos_token", "every text"));
  const Json* eos = find_value(root, "eos_token");
  if (eos == nullptr) return {};
  if (eos->is_object()) {
    TQC_TRY_ASSIGN(spec.end_name, get_string(*eos, "content"));
    return {};
  }
  TQC_TRY_ASSIGN(spec.end_name, get_string(root, "eos_token"));
  return {};
}

// "eos_token_id": an id, or a list of them.
Result<void> read_generation_config(ByteView text, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  const Json* ids = find_value(root, "eos_token_id");
  if (ids == nullptr) return {};
  for (const Json& id : ids->is_array() ? *ids : Json::array({*ids})) {
    if (!id.is_number_integer()) return corrupt("key \"eos_token_id\": not an integer");
    spec.end_ids.push_back(id.get<std::int64_t>());
  }
  return {};
}

}  // namespace

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

}  // namespace tqcache::model
