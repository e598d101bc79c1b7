#include "tqcache/eval/answers_dialogue.h"

#include <algorithm>

namespace tqcache::eval {

Ids Dialogue::user(const Ids& text) const { return join({open_user, text, close_user}); }

Ids Dialogue::assistant(const Ids& text) const {
  return join({open_assistant, text, close_assistant});
}

Result<Ids> encode_text(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, tokenizer::Tokenizer::Special::kAsText);
}

Result<Dialogue> plain_dialogue(const tokenizer::Tokenizer& tokenizer) {
  Dialogue dialogue;
  TQC_TRY_ASSIGN(dialogue.close_user, encode_text(tokenizer, "\n"));
  TQC_TRY_ASSIGN(dialogue.open_assistant, encode_text(tokenizer, "Answer:"));
  TQC_TRY_ASSIGN(dialogue.close_assistant, encode_text(tokenizer, "\n\n"));
  dialogue.one_line = true;
  dialogue.answer_start = " ";
  return dialogue;
}

Ids join(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

EndsAnswer answer_end(const Dialogue& dialogue, const tokenizer::Tokenizer& tokenizer) {
  return [&dialogue, &tokenizer, end_tokens = tokenizer.end_tokens()](std::int32_t id) {
    if (std::ranges::binary_search(end_tokens, id)) return true;
    return dialogue.one_line && tokenizer.token_bytes(id).find('\n') != std::string::npos;
  };
}

}  // namespace tqcache::eval
