#pragma once
// support/demo_model.h: the bundled model, loaded once for a test program, and its text.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/model.h"

namespace tqcache::test {

inline const model::Model& demo_model() {
  static const std::unique_ptr<model::Model> model =
      must(model::load_model(TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf"));
  return *model;
}

inline std::vector<std::int32_t> encode(std::string_view text) {
  return must(demo_model().tokenizer.encode(text, tokenizer::Tokenizer::Special::kAsText));
}

inline std::string excerpt_text() {
  const Bytes bytes = read_all(TQCACHE_DEMO_MODEL "/alice-excerpt.txt");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace tqcache::test
