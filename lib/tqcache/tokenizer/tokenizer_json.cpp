#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/tokenizer_json_parts.h"

// Reads tokenizer.json and the configs beside it. Whatever would change the ids and is not done
// here is refused by name; "truncation" and "padding" say nothing about the ids of a text and are
// left alone.

namespace tqcache::tokenizer {
namespace {

using tensors::printable_name;

constexpr const char* kPostProcessor = "post_processor";

// One of a template's places: "$A" or a token's name.
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
  if (type == "ByteLevel") return {};  // moves offsets only
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

// A token's name, or an added token's object with the name as "content"; empty: none.
Result<std::string> read_token_name(const Json& root, const char* key) {
  const Json* token = find_value(root, key);
  if (token == nullptr) return std::string();
  return token->is_object() ? get_string(*token, "content") : get_string(root, key);
}

// The names of the tokens for both ends. What is added is tokenizer.json's to say: "add_bos_token"
// and "add_eos_token" do not count, as they do not for transformers' PreTrainedTokenizerFast.
Result<void> read_config_ends(const Json& root, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::string begin, read_token_name(root, "bos_token"));
  TQC_TRY_ASSIGN(spec.end_name, read_token_name(root, "eos_token"));
  if (spec.begin_id || begin.empty()) return {};
  if (const auto id = find_added_token(spec, begin)) spec.begin_id = *id;
  return {};
}

// "chat_template": a text, or several with names, of which the one called "default" counts.
Result<void> read_chat_template(const Json& root, TokenizerSpec& spec) {
  const Json* value = find_value(root, "chat_template");
  if (value == nullptr) return {};
  if (!value->is_array()) {
    TQC_TRY_ASSIGN(spec.chat_template, get_string(root, "chat_template"));
    return {};
  }
  for (const Json& entry : *value) {
    TQC_TRY_ASSIGN(const std::string name, get_string(entry, "name"));
    if (name != "default") continue;
    TQC_TRY_ASSIGN(spec.chat_template, get_string(entry, "template"));
  }
  return {};
}

Result<void> read_tokenizer_config(ByteView text, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY(read_config_ends(root, spec));
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
