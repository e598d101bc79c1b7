#pragma once
// model/tokenizer/chat_formats.h: the forms that conversations have, and how a Jinja template is told to be
// one of them. docs/reference/tokenizers.md describes them. Safe for untrusted input.

#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/model/tokenizer/chat_template.h"

namespace tqcache::model {

std::vector<ChatFormat> chat_formats();

// Nothing when it is none of them.
std::optional<ChatFormat> recognize_chat_format(std::string_view jinja);

}  // namespace tqcache::model
