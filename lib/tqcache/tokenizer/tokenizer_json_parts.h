#pragma once
// tokenizer/tokenizer_json_parts.h: readers for the parts of tokenizer.json. Safe for untrusted
// input.
//
// Not part of the public interface: it exposes the JSON library.

#include <string>
#include <string_view>

#include "tqcache/base/json.h"
#include "tqcache/tokenizer/tokenizer_spec.h"

namespace tqcache::tokenizer {

// "pre_tokenizer: Whitespace" and the like.
Error unsupported_part(std::string_view part, std::string_view what);

// Errors: kUnsupported, naming the key, when its value is true; kCorrupt.
Result<void> refuse_if_true(const Json& object, const char* key, std::string_view part);

// "normalizer", "pre_tokenizer" and "decoder": how a text is prepared and split into words, and the
// algorithm for words.
// Errors: kUnsupported, naming the part, for everything that is not implemented; kCorrupt.
Result<void> read_text_steps(const Json& root, TokenizerSpec& spec);

// "model" and "added_tokens". Requires: read_text_steps() has succeeded.
// Errors: as read_text_steps(); kTooLarge.
Result<void> read_vocabulary(const Json& root, TokenizerSpec& spec);

// "post_processor": the tokens added at the ends. Requires: read_vocabulary() has succeeded.
// Errors: as read_text_steps().
Result<void> read_added_ends(const Json& root, TokenizerSpec& spec);

// The id of an added token. Errors: kCorrupt when no added token has this name.
Result<std::int64_t> find_added_token(const TokenizerSpec& spec, std::string_view name);

}  // namespace tqcache::tokenizer
