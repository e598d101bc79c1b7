#pragma once
// eval/demo_model.h: the bundled model, loaded once for a test program, and turns as ChatML has
// them.

#include <memory>
#include <string>
#include <string_view>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/eval/questions.h"
#include "tqcache/model.h"

namespace tqcache::test {

inline const model::Model& demo_model() {
  static const std::unique_ptr<model::Model> model =
      must(model::load_model(TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf"));
  return *model;
}

inline eval::Ids encode(std::string_view text) {
  return must(eval::encode_text(demo_model().tokenizer, text));
}

inline eval::Dialogue chat_dialogue() {
  const tokenizer::Tokenizer& tokenizer = demo_model().tokenizer;
  const eval::Ids start = {*tokenizer.find_token("<|im_start|>")};
  const eval::Ids end = {*tokenizer.find_token("<|im_end|>")};
  eval::Dialogue dialogue;
  dialogue.open_user = eval::join({start, encode("user\n")});
  dialogue.open_assistant = eval::join({start, encode("assistant\n")});
  dialogue.close_user = dialogue.close_assistant = eval::join({end, encode("\n")});
  return dialogue;
}

inline std::string excerpt_text() {
  const Bytes bytes = read_all(TQCACHE_DEMO_MODEL "/alice-excerpt.txt");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tqcache::test
