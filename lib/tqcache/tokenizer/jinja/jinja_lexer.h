#pragma once
// tokenizer/jinja/jinja_lexer.h: the tokens of a Jinja program, in the settings of transformers.
//
// A block tag removes the spaces before it on its line and the line end behind it (trim_blocks,
// lstrip_blocks); `-` at a tag's side removes all white space there, `+` keeps it.
//
// Source: jinja2 3.1 lexer.py; transformers utils/chat_template_utils.py.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"

namespace tqcache::tokenizer::jinja {

struct Token {
  enum class Kind : std::uint8_t {
    kData,        // text between tags
    kBeginBlock,  // {%
    kEndBlock,
    kBeginOutput,  // {{
    kEndOutput,
    kName,
    kString,  // its value, without quotes and escapes
    kInteger,
    kFloat,
    kOperator,  // "+", "==", "(", ...
    kEnd,       // of the program
  };
  Kind kind;
  std::string text;
  int line;
};

// Safe for untrusted input.
// Errors: kUnsupported, with the line: not a Jinja program, or not UTF-8.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tqcache::tokenizer::jinja
