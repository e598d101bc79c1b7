// What the tokenizer's files may say, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "tqcache/model/tokenizer.h"

namespace tqcache::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tiny::Json;

constexpr auto kParse = Tokenizer::Special::kParse;

Result<Tokenizer> from_json(const Json& root) {
  return Tokenizer::from_json(as_bytes(root.dump()), {});
}

struct JsonCase {
  ErrorCode code;
  std::string message;  // a part of it
  std::function<void(Json&)> change;
};

void expect_refused(const std::vector<JsonCase>& cases) {
  for (const JsonCase& one : cases) {
    Json root = tiny::tokenizer();
    one.change(root);
    const auto tokenizer = from_json(root);
    ASSERT_FALSE(tokenizer.ok()) << one.message;
    EXPECT_THAT(tokenizer.error().message, HasSubstr(one.message));
    EXPECT_EQ(tokenizer.error().code, one.code) << tokenizer.error().message;
  }
}

Json split_then_byte_level(const std::string& pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

TEST(TokenizerJson, RefusesWhatIsNoTokenizerFile) {
  const auto error_of = [](std::string_view text) {
    return Tokenizer::from_json(as_bytes(text), {}).error();
  };
  EXPECT_EQ(error_of("").code, ErrorCode::kCorrupt);
  EXPECT_EQ(error_of("[]").code, ErrorCode::kCorrupt);
  EXPECT_EQ(error_of("{").code, ErrorCode::kCorrupt);
  EXPECT_EQ(error_of("{}").message, "tokenizer.json: key \"model\": missing");
  EXPECT_EQ(error_of("{\"a\":\"\xff\"}").code, ErrorCode::kCorrupt);
  EXPECT_EQ(error_of("{\"a\":1e999}").code, ErrorCode::kCorrupt);
  EXPECT_EQ(error_of("{\"a\":" + std::string(100'000, '[')).code, ErrorCode::kTooLarge);
  const std::string whole = tiny::tokenizer().dump();
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    EXPECT_EQ(error_of(whole.substr(0, size)).code, ErrorCode::kCorrupt);
  }
}

TEST(TokenizerJson, RefusesOtherModels) {
  expect_refused({
      {ErrorCode::kUnsupported, "model: \"Unigram\"",
       [](Json& r) { r["model"]["type"] = "Unigram"; }},
      {ErrorCode::kUnsupported, "model: byte_fallback",
       [](Json& r) { r["model"]["byte_fallback"] = true; }},
      {ErrorCode::kUnsupported, "model: dropout", [](Json& r) { r["model"]["dropout"] = 0.1; }},
      {ErrorCode::kUnsupported, "model: unk_token",
       [](Json& r) { r["model"]["unk_token"] = "<unk>"; }},
      {ErrorCode::kUnsupported, "model: continuing_subword_prefix",
       [](Json& r) { r["model"]["continuing_subword_prefix"] = "##"; }},
      {ErrorCode::kUnsupported, "model: end_of_word_suffix",
       [](Json& r) { r["model"]["end_of_word_suffix"] = "</w>"; }},
      {ErrorCode::kUnsupported, "normalizer: \"NFKC\"",
       [](Json& r) {
         r["normalizer"] = {{"type", "NFKC"}};
       }},
      {ErrorCode::kCorrupt, "key \"byte_fallback\": not true or false",
       [](Json& r) { r["model"]["byte_fallback"] = "yes"; }},
  });
}

TEST(TokenizerJson, RefusesOtherPretokenizers) {
  const auto change_split = [](const char* key, Json value) {
    return [=](Json& r) {
      r["pre_tokenizer"] = split_then_byte_level("a");
      r["pre_tokenizer"]["pretokenizers"][0][key] = value;
    };
  };
  expect_refused({
      {ErrorCode::kCorrupt, "key \"pre_tokenizer\": missing",
       [](Json& r) { r["pre_tokenizer"] = nullptr; }},
      {ErrorCode::kUnsupported, "pre_tokenizer: \"Whitespace\"",
       [](Json& r) {
         r["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {ErrorCode::kUnsupported, "pre_tokenizer: add_prefix_space",
       [](Json& r) { r["pre_tokenizer"].erase("add_prefix_space"); }},
      {ErrorCode::kUnsupported, "pre_tokenizer: no expression",
       [](Json& r) { r["pre_tokenizer"]["use_regex"] = false; }},
      {ErrorCode::kUnsupported, "pre_tokenizer: a sequence of 0",
       [](Json& r) {
         r["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
       }},
      {ErrorCode::kUnsupported, "pre_tokenizer: \"Removed\"", change_split("behavior", "Removed")},
      {ErrorCode::kUnsupported, "pre_tokenizer: invert", change_split("invert", true)},
      {ErrorCode::kUnsupported, "pre_tokenizer: \"Digits\"", change_split("type", "Digits")},
      {ErrorCode::kUnsupported, "pre_tokenizer: a pattern of another kind",
       change_split("pattern", {{"String", " "}})},
      {ErrorCode::kCorrupt, "pattern: ", change_split("pattern", {{"Regex", "(a"}})},
      {ErrorCode::kUnsupported, "pattern: ", change_split("pattern", {{"Regex", "\\w+"}})},
  });
}

TEST(TokenizerJson, RefusesToAddTokensAtTheEnds) {
  const Json adds = {{"type", "TemplateProcessing"},
                     {"single",
                      {{{"SpecialToken", {{"id", "<|im_start|>"}, {"type_id", 0}}}},
                       {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  expect_refused({
      {ErrorCode::kUnsupported, "post_processor: a template that adds tokens",
       [&](Json& r) { r["post_processor"] = adds; }},
      {ErrorCode::kUnsupported, "post_processor: \"BertProcessing\"",
       [](Json& r) {
         r["post_processor"] = {{"type", "BertProcessing"}};
       }},
  });
  const std::string plain = tiny::tokenizer().dump();
  const auto with_config =
      Tokenizer::from_json(as_bytes(plain), as_bytes(R"({"add_bos_token":true})"));
  EXPECT_EQ(with_config.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(with_config.error().message, "tokenizer_config.json: every text: add_bos_token");

  Json harmless = tiny::tokenizer();
  harmless["post_processor"] = {{"type", "ByteLevel"}};
  EXPECT_TRUE(from_json(harmless).ok());
  Json empty = tiny::tokenizer();
  empty["post_processor"] = adds;
  empty["post_processor"]["single"].erase(0);
  EXPECT_TRUE(from_json(empty).ok());
}

TEST(TokenizerJson, RefusesBadVocabularies) {
  expect_refused({
      {ErrorCode::kCorrupt, "key \"vocab\": missing", [](Json& r) { r["model"].erase("vocab"); }},
      {ErrorCode::kCorrupt, "an id out of range", [](Json& r) { r["model"]["vocab"]["he"] = 999; }},
      {ErrorCode::kCorrupt, "an id out of range", [](Json& r) { r["model"]["vocab"]["he"] = -1; }},
      {ErrorCode::kCorrupt, "token 257: comes twice",
       [](Json& r) { r["model"]["vocab"]["he"] = 257; }},
      {ErrorCode::kCorrupt, "not an integer", [](Json& r) { r["model"]["vocab"]["he"] = 1.5; }},
      {ErrorCode::kCorrupt, "outside the byte alphabet",
       [](Json& r) { r["model"]["vocab"]["h e"] = 264; }},
      {ErrorCode::kCorrupt, "no token for byte 33",
       [](Json& r) {
         r["model"]["vocab"].erase("!");
         r["model"]["vocab"]["!!"] = 33;
       }},
      {ErrorCode::kCorrupt, "token 264: empty", [](Json& r) { r["model"]["vocab"][""] = 264; }},
      {ErrorCode::kTooLarge, "token 264: 65537 bytes",
       [](Json& r) { r["model"]["vocab"][std::string(65'537, 'x')] = 264; }},
  });
}

TEST(TokenizerJson, RefusesBadAddedTokens) {
  const auto change = [](const char* key, Json value) {
    return [=](Json& r) { r["added_tokens"][2][key] = value; };
  };
  expect_refused({
      {ErrorCode::kUnsupported, "\"<tool>\": lstrip", change("lstrip", true)},
      {ErrorCode::kUnsupported, "\"<tool>\": rstrip", change("rstrip", true)},
      {ErrorCode::kUnsupported, "\"<tool>\": single_word", change("single_word", true)},
      {ErrorCode::kCorrupt, "an id out of range", change("id", 300)},
      {ErrorCode::kCorrupt, "token 262: comes twice", change("id", 262)},
      {ErrorCode::kCorrupt, "is token 262 too", change("content", "<|im_end|>")},
      {ErrorCode::kCorrupt, "empty", change("content", "")},
      {ErrorCode::kCorrupt, "added token 2: key \"content\"", change("content", 5)},
      {ErrorCode::kCorrupt, "another id among the added tokens",
       [](Json& r) { r["model"]["vocab"]["<tool>"] = 264; }},
  });
}

TEST(TokenizerJson, RefusesBadMerges) {
  const auto add = [](Json merge) {
    return [=](Json& r) { r["model"]["merges"].push_back(merge); };
  };
  expect_refused({
      {ErrorCode::kCorrupt, "merge 5: not two parts", add("hello")},
      {ErrorCode::kCorrupt, "merge 5: not two parts", add("h e l")},
      {ErrorCode::kCorrupt, "merge 5: not two parts", add({"h", "e", "l"})},
      {ErrorCode::kCorrupt, "merge 5: not two parts", add(7)},
      {ErrorCode::kCorrupt, "merge 5: an empty part", add("h ")},
      {ErrorCode::kCorrupt, "merge 5: a character outside", add({"h", " "})},
      {ErrorCode::kCorrupt, "merge 5: a part is not", add("hex x")},
      {ErrorCode::kCorrupt, "merge 5: the result is not", add("x y")},
      {ErrorCode::kCorrupt, "merge 5: the pair was merged before", add("h e")},
      {ErrorCode::kCorrupt, "merge 5: the result is not",  // a control token is never merged
       [](Json& r) {
         r["added_tokens"].push_back(tiny::added_token(264, "xy", true));
         r["model"]["merges"].push_back("x y");
       }},
  });
}

TEST(TokenizerJson, RefusesAnEndThatIsNoToken) {
  const std::string tokenizer = tiny::tokenizer().dump();
  for (const char* config : {R"({"eos_token":"</s>"})", R"({"eos_token":5})", "[]"}) {
    const auto result = Tokenizer::from_json(as_bytes(tokenizer), as_bytes(config));
    ASSERT_FALSE(result.ok()) << config;
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  }
  for (const char* config : {R"({"eos_token_id":264})", R"({"eos_token_id":["a"]})"}) {
    const auto result = Tokenizer::from_json(as_bytes(tokenizer), {}, as_bytes(config));
    ASSERT_FALSE(result.ok()) << config;
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  }
}

TEST(TokenizerJson, TakesMergesAsLinesOrPairs) {
  Json pairs = tiny::tokenizer();
  pairs["model"]["merges"] =
      Json::parse(R"([["h","e"],["l","l"],["he","ll"],["hell","o"],["Ġ","hello"]])");
  const Tokenizer from_pairs = from_json(pairs).value();
  EXPECT_EQ(from_pairs.fingerprint(), from_json(tiny::tokenizer())->fingerprint());
  EXPECT_THAT(from_pairs.encode("hello hello", kParse).value(),
              ElementsAre(tiny::kHello, tiny::kSpaceHello));
}

TEST(TokenizerJson, IgnoresTheMergesOfAPieceThatIsAToken) {
  Json root = tiny::tokenizer();
  root["model"]["vocab"]["xyz"] = 264;  // no merge makes it
  EXPECT_THAT(from_json(root)->encode("xyz", kParse).value(), ElementsAre('x', 'y', 'z'));
  root["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer = from_json(root).value();
  EXPECT_THAT(tokenizer.encode("xyz", kParse).value(), ElementsAre(264));
  EXPECT_THAT(tokenizer.encode("xyzz", kParse).value(), ElementsAre('x', 'y', 'z', 'z'));
}

TEST(TokenizerJson, NormalizesToNfcButNotInsideNamesThatAreFoundBefore) {
  Json root = tiny::tokenizer();
  const std::string composed = "\xc3\xa9", decomposed = "e\xcc\x81";  // é
  Json found_before = tiny::added_token(264, "<" + decomposed + ">", false);
  Json found_after = tiny::added_token(265, "[" + decomposed + "]", false);
  found_after["normalized"] = true;
  root["added_tokens"].push_back(found_before);
  root["added_tokens"].push_back(found_after);
  const auto bytes = [](const std::string& text) {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  EXPECT_EQ(from_json(root)->encode(decomposed, kParse).value(), bytes(decomposed));

  root["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = from_json(root).value();
  EXPECT_EQ(tokenizer.encode(decomposed, kParse).value(), bytes(composed));
  EXPECT_THAT(tokenizer.encode("<" + decomposed + ">", kParse).value(), ElementsAre(264));
  EXPECT_EQ(tokenizer.encode("<" + composed + ">", kParse).value(), bytes("<" + composed + ">"));
  EXPECT_THAT(tokenizer.encode("[" + decomposed + "]", kParse).value(), ElementsAre(265));
  EXPECT_THAT(tokenizer.encode("[" + composed + "]", kParse).value(), ElementsAre(265));
}

struct GgufCase {
  ErrorCode code;
  std::string message;
  std::function<void(tensors::Gguf&)> change;
};

TEST(TokenizerGguf, RefusesBadFiles) {
  using tensors::Gguf;
  const auto set = [](const char* key, tensors::GgufValue value) {
    return [=](Gguf& f) { f.metadata[key] = value; };
  };
  const auto erase = [](const char* key) { return [=](Gguf& f) { f.metadata.erase(key); }; };
  const auto set_type = [](std::size_t id, std::int64_t type) {
    return [=](Gguf& f) {
      std::get<std::vector<std::int64_t>>(f.metadata["tokenizer.ggml.token_type"])[id] = type;
    };
  };
  const std::vector<GgufCase> cases = {
      {ErrorCode::kCorrupt, "tokenizer.ggml.model", erase("tokenizer.ggml.model")},
      {ErrorCode::kUnsupported, "\"llama\" is not byte-level BPE",
       set("tokenizer.ggml.model", std::string("llama"))},
      {ErrorCode::kCorrupt, "tokenizer.ggml.pre", erase("tokenizer.ggml.pre")},
      {ErrorCode::kUnsupported, "pre-tokenizer \"falcon\" is not known",
       set("tokenizer.ggml.pre", std::string("falcon"))},
      {ErrorCode::kUnsupported, "tokenizer.ggml.add_bos_token",
       set("tokenizer.ggml.add_bos_token", true)},
      {ErrorCode::kCorrupt, "tokenizer.ggml.tokens",
       set("tokenizer.ggml.tokens", std::vector<std::int64_t>{1})},
      {ErrorCode::kCorrupt, "vocabulary: no tokens",
       [](Gguf& f) {
         f.metadata["tokenizer.ggml.tokens"] = std::vector<std::string>{};
         f.metadata["tokenizer.ggml.token_type"] = std::vector<std::int64_t>{};
       }},
      {ErrorCode::kCorrupt, "1 types for 264 tokens",
       set("tokenizer.ggml.token_type", std::vector<std::int64_t>{1})},
      {ErrorCode::kUnsupported, "token 5: type 6", set_type(5, 6)},
      {ErrorCode::kCorrupt, "no token for byte 65", set_type('A', 3)},
      {ErrorCode::kCorrupt, "merge 0: the result is not", set_type(tiny::kHe, 3)},
      {ErrorCode::kCorrupt, "token 1: ",
       [](Gguf& f) {
         auto& tokens = std::get<std::vector<std::string>>(f.metadata["tokenizer.ggml.tokens"]);
         tokens[1] = tokens[0];
       }},
      {ErrorCode::kCorrupt, "its name is not UTF-8",
       [](Gguf& f) {
         std::get<std::vector<std::string>>(f.metadata["tokenizer.ggml.tokens"])[tiny::kTool] =
             "\xff";
       }},
      {ErrorCode::kCorrupt, "merge 0: not two parts",
       set("tokenizer.ggml.merges", std::vector<std::string>{"he"})},
      {ErrorCode::kCorrupt, "end token 264", set("tokenizer.ggml.eos_token_id", std::int64_t{264})},
  };
  for (const GgufCase& one : cases) {
    Gguf file = tiny::gguf();
    one.change(file);
    const auto tokenizer = Tokenizer::from_gguf(file);
    ASSERT_FALSE(tokenizer.ok()) << one.message;
    EXPECT_THAT(tokenizer.error().message, HasSubstr(one.message));
    EXPECT_EQ(tokenizer.error().code, one.code) << tokenizer.error().message;
  }
}

TEST(TokenizerGguf, KnowsThePretokenizersByName) {
  constexpr std::int32_t k12 = 264, kEAndHalfAMark = 265;
  tensors::Gguf file = tiny::gguf();
  const auto add = [&](const char* token, const char* merge) {
    std::get<std::vector<std::string>>(file.metadata["tokenizer.ggml.tokens"]).push_back(token);
    std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"]).push_back(1);
    std::get<std::vector<std::string>>(file.metadata["tokenizer.ggml.merges"]).push_back(merge);
  };
  add("12", "1 2");
  add("eÌ", "e Ì");  // "e" and the first byte, 0xCC, of U+0301
  const std::vector<std::pair<std::string, std::vector<std::int32_t>>> cases = {
      {"gpt-2", {k12, k12, 'e', 0xcc, 0x81}},                 // all digits; marks apart
      {"llama-bpe", {k12, '1', '2', 'e', 0xcc, 0x81}},        // three digits; marks apart
      {"qwen2", {'1', '2', '1', '2', 'e', 0xcc, 0x81}},       // each digit; marks apart
      {"qwen35", {'1', '2', '1', '2', kEAndHalfAMark, 0x81}}  // each digit; marks with letters
  };
  for (const auto& [name, ids] : cases) {
    file.metadata["tokenizer.ggml.pre"] = name;
    EXPECT_EQ(Tokenizer::from_gguf(file)->encode("1212e\xcc\x81", kParse).value(), ids) << name;
  }
}

}  // namespace
}  // namespace tqcache::model
