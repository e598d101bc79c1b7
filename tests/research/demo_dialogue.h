#pragma once
// research/demo_dialogue.h: turns of the bundled model, as ChatML has them.

#include "support/demo_model.h"
#include "tqcache/research/questions.h"

namespace tqcache::test {

inline research::Dialogue chat_dialogue() {
  const tokenizer::Tokenizer& tokenizer = demo_model().tokenizer;
  const research::Ids start = {*tokenizer.find_token("<|im_start|>")};
  const research::Ids end = {*tokenizer.find_token("<|im_end|>")};
  research::Dialogue dialogue;
  dialogue.open_user = research::join({start, encode("user\n")});
  dialogue.open_assistant = research::join({start, encode("assistant\n")});
  dialogue.close_user = dialogue.close_assistant = research::join({end, encode("\n")});
  return dialogue;
}

}  // namespace tqcache::test
