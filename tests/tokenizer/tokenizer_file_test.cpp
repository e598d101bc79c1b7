// What the tokenizer's files may say, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace tokenizer_file_test {

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
    EXPECT_THAT(from_json(root), test::FailsWith(one.code, HasSubstr(one.message)));
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
      {ErrorCode::kUnsupported, "model: \"Unigram\" behind ByteLevel",
       [](Json& r) { r["model"]["type"] = "Unigram"; }},
      {ErrorCode::kUnsupported, "model: \"WordPiece\"",
       [](Json& r) { r["model"]["type"] = "WordPiece"; }},
      {ErrorCode::kUnsupported, "model: dropout", [](Json& r) { r["model"]["dropout"] = 0.1; }},
      {ErrorCode::kUnsupported, "model: continuing_subword_prefix",
       [](Json& r) { r["model"]["continuing_subword_prefix"] = "##"; }},
      {ErrorCode::kUnsupported, "model: end_of_word_suffix",
       [](Json& r) { r["model"]["end_of_word_suffix"] = "</w>"; }},
      {ErrorCode::kUnsupported, "normalizer: \"NFKC\"",
       [](Json& r) {
         r["normalizer"] = {{"type", "NFKC"}};
       }},
      {ErrorCode::kUnsupported, "normalizer: anything but NFC before ByteLevel",
       [](Json& r) {
         r["normalizer"] = {{"type", "Strip"}};
       }},
      {ErrorCode::kCorrupt, "key \"ignore_merges\": not true or false",
       [](Json& r) { r["model"]["ignore_merges"] = "yes"; }},
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
      {ErrorCode::kUnsupported, "pre_tokenizer: none, and spaces that are no U+2581",
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
      {ErrorCode::kUnsupported, "pre_tokenizer: \"Punctuation\"",
       change_split("type", "Punctuation")},
      {ErrorCode::kUnsupported, "pre_tokenizer: a split without a pattern \"Regex\"",
       change_split("pattern", {{"String", " "}})},
      {ErrorCode::kCorrupt, "pattern: ", change_split("pattern", {{"Regex", "(a"}})},
      {ErrorCode::kUnsupported, "pattern: ", change_split("pattern", {{"Regex", "\\w+"}})},
  });
}

std::vector<std::int32_t> with_ends(const Tokenizer& tokenizer, Tokenizer::Ends ends) {
  Tokenizer::EncodeOptions options;
  options.ends = ends;
  return tokenizer.encode("hello", options).value();
}

TEST(TokenizerJson, AddsTokensAtTheEndsWhenAsked) {
  Json root = tiny::tokenizer();
  root["post_processor"] = tiny::template_processing({"<|im_start|>", "$A", "<|im_end|>"});
  const Tokenizer tokenizer = from_json(root).value();
  EXPECT_TRUE(tokenizer.adds_begin_token());
  EXPECT_EQ(tokenizer.begin_token(), tiny::kStart);
  EXPECT_THAT(with_ends(tokenizer, Tokenizer::Ends::kNone), ElementsAre(tiny::kHello));
  EXPECT_THAT(with_ends(tokenizer, Tokenizer::Ends::kBegin),
              ElementsAre(tiny::kStart, tiny::kHello));
  EXPECT_THAT(with_ends(tokenizer, Tokenizer::Ends::kBoth),
              ElementsAre(tiny::kStart, tiny::kHello, tiny::kEnd));

  Json sequence = tiny::tokenizer();
  sequence["post_processor"] = {{"type", "Sequence"},
                                {"processors", {{{"type", "ByteLevel"}}, root["post_processor"]}}};
  EXPECT_EQ(from_json(sequence)->fingerprint(), tokenizer.fingerprint());
}

TEST(TokenizerJson, AddsNothingWhereTheTemplateHoldsTheTextAlone) {
  for (const Json& step : {Json{{"type", "ByteLevel"}}, tiny::template_processing({"$A"})}) {
    Json root = tiny::tokenizer();
    root["post_processor"] = step;
    const Tokenizer tokenizer = from_json(root).value();
    EXPECT_THAT(with_ends(tokenizer, Tokenizer::Ends::kBoth), ElementsAre(tiny::kHello));
    EXPECT_EQ(tokenizer.begin_token(), std::nullopt);
  }
}

TEST(TokenizerJson, AddsNothingThatTheConfigAloneSays) {
  const Json root = tiny::tokenizer();
  const auto tokenizer = Tokenizer::from_json(
      as_bytes(root.dump()), as_bytes(R"({"bos_token":"<|im_start|>","add_bos_token":true,
                                          "eos_token":"<|im_end|>","add_eos_token":true})"));
  EXPECT_THAT(with_ends(tokenizer.value(), Tokenizer::Ends::kBoth), ElementsAre(tiny::kHello));
  EXPECT_FALSE(tokenizer->adds_begin_token());
  EXPECT_EQ(tokenizer->begin_token(), tiny::kStart);  // for chat templates
  EXPECT_EQ(tokenizer->fingerprint(), from_json(root)->fingerprint());
}

// transformers 5 writes extra_special_tokens as a list, 4 as an object, and older ones
// additional_special_tokens. Which tokens are special, tokenizer.json alone says.
TEST(TokenizerJson, IgnoresSpecialTokensOfTheConfigInEveryForm) {
  const Json root = tiny::tokenizer();
  for (const char* config : {R"({"extra_special_tokens":["<|im_start|>","<image>"]})",
                             R"({"extra_special_tokens":{"image_token":"<image>"}})",
                             R"({"additional_special_tokens":["<tool>"],
                                 "extra_special_tokens":[]})"}) {
    const auto tokenizer = Tokenizer::from_json(as_bytes(root.dump()), as_bytes(config));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->fingerprint(), from_json(root)->fingerprint()) << config;
    EXPECT_EQ(tokenizer->find_token("<image>"), std::nullopt);
  }
}

TEST(TokenizerJson, TakesTheBeginTokenFromTheTemplateInTheFirstPlace) {
  Json root = tiny::tokenizer();
  root["post_processor"] = tiny::template_processing({"<tool>", "$A"});
  for (const char* config : {R"({"bos_token":"<|im_start|>"})", R"({"bos_token":"<s>"})"}) {
    const auto tokenizer = Tokenizer::from_json(as_bytes(root.dump()), as_bytes(config));
    EXPECT_EQ(tokenizer->begin_token(), tiny::kTool);
  }
}

TEST(TokenizerJson, RefusesOtherPostProcessors) {
  const auto set = [](Json step) { return [=](Json& r) { r["post_processor"] = step; }; };
  const char* const kStartName = "<|im_start|>";
  expect_refused({
      {ErrorCode::kUnsupported, "post_processor: \"BertProcessing\"",
       set({{"type", "BertProcessing"}})},
      {ErrorCode::kUnsupported, "post_processor: more than one token at an end",
       set(tiny::template_processing({kStartName, kStartName, "$A"}))},
      {ErrorCode::kUnsupported, "post_processor: more than one token at an end",
       set(tiny::template_processing({"$A", kStartName, kStartName}))},
      {ErrorCode::kUnsupported, "post_processor: more than one token at an end",
       set(tiny::template_processing({"$A", "$A"}))},
      {ErrorCode::kUnsupported, "post_processor: a template without the text",
       set(tiny::template_processing({kStartName}))},
      {ErrorCode::kCorrupt, "token \"<s>\": not an added token",
       set(tiny::template_processing({"<s>", "$A"}))},
      {ErrorCode::kCorrupt, "key \"SpecialToken\": missing",
       set({{"type", "TemplateProcessing"}, {"single", {{{"Other", 1}}}}})},
  });
}

TEST(TokenizerJson, TakesTheChatTemplateFromTheConfig) {
  const std::string root = tiny::tokenizer().dump();
  const auto chat_template = [&](const char* config) {
    return Tokenizer::from_json(as_bytes(root), as_bytes(config))->chat_template();
  };
  EXPECT_EQ(chat_template("{}"), "");
  EXPECT_EQ(chat_template(R"({"chat_template":"a"})"), "a");
  EXPECT_EQ(chat_template(R"({"chat_template":[{"name":"tool_use","template":"a"},
                                               {"name":"default","template":"b"}]})"),
            "b");
  const auto bad = Tokenizer::from_json(as_bytes(root), as_bytes(R"({"chat_template":5})"));
  EXPECT_EQ(bad.error().code, ErrorCode::kCorrupt);
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
      {ErrorCode::kCorrupt, "no token for any byte",
       [](Json& r) {
         r["model"]["vocab"] = {{"hello", 0}, {"world", 1}};
         r["model"]["merges"] = Json::array();
         for (std::size_t i = 0; i < 3; ++i) r["added_tokens"][i]["id"] = 2 + i;
       }},
      {ErrorCode::kCorrupt, "token 264: empty", [](Json& r) { r["model"]["vocab"][""] = 264; }},
      {ErrorCode::kTooLarge, "token 264: 65537 bytes",
       [](Json& r) { r["model"]["vocab"][std::string(65'537, 'x')] = 264; }},
  });
}

// "e", "f" and the control character 4 have no token; "!!" merges.
Json with_missing_bytes() {
  Json root = tiny::tokenizer();
  Json& vocab = root["model"]["vocab"];
  for (const int byte : {4, 0x65, 0x66}) {
    vocab.erase(tiny::byte_letters()[static_cast<std::size_t>(byte)]);
    vocab["unused" + std::to_string(byte)] = byte;
  }
  vocab.erase("he");
  vocab["!!"] = int{tiny::kHe};
  root["model"]["merges"] = {"! !", "l l"};
  return root;
}

TEST(TokenizerJson, LeavesOutBytesWithoutAToken) {
  const Tokenizer tokenizer = from_json(with_missing_bytes()).value();
  EXPECT_THAT(tokenizer.encode("ae\x04z", kParse).value(), ElementsAre('a', 'z'));
  // As in transformers, the neighbors of what is left out become neighbors.
  EXPECT_THAT(tokenizer.encode("!\x04!", kParse).value(), ElementsAre(tiny::kHe));
  EXPECT_THAT(tokenizer.encode("\x04", kParse).value(), ElementsAre());
  EXPECT_EQ(tokenizer.find_left_out("abc"), std::nullopt);
  EXPECT_EQ(tokenizer.find_left_out("ab\x04 e"), 2u);
  EXPECT_EQ(from_json(tiny::tokenizer())->find_left_out("ab\x04"), std::nullopt);
}

TEST(TokenizerJson, NamesTheWholeCharacterThatIsLeftOut) {
  Json root = tiny::tokenizer();
  root["model"]["vocab"].erase(tiny::byte_letters()[0x81]);  // the last byte of U+0301
  root["model"]["vocab"]["unused"] = 0x81;
  const Tokenizer tokenizer = from_json(root).value();
  EXPECT_EQ(tokenizer.find_left_out("ae\xcc\x81"), 2u);
  EXPECT_THAT(tokenizer.encode("\xcc\x81", kParse).value(), ElementsAre(0xcc));
}

TEST(TokenizerJson, PutsTheUnknownTokenInPlaceOfBytesWithoutAToken) {
  const auto encode = [](const Json& root) {
    return from_json(root)->encode("aeefz", kParse).value();
  };
  Json root = with_missing_bytes();
  root["model"]["unk_token"] = "hello";
  EXPECT_THAT(encode(root), ElementsAre('a', tiny::kHello, tiny::kHello, tiny::kHello, 'z'));
  EXPECT_EQ(from_json(root)->find_left_out("e"), std::nullopt);
  EXPECT_NE(from_json(root)->fingerprint(), from_json(with_missing_bytes())->fingerprint());
  root["model"]["fuse_unk"] = true;
  EXPECT_THAT(encode(root), ElementsAre('a', tiny::kHello, 'z'));

  // Where every byte has a token, nothing is unknown, and the fingerprint says nothing of it.
  Json whole = tiny::tokenizer();
  whole["model"]["unk_token"] = "hello";
  EXPECT_EQ(from_json(whole)->fingerprint(), from_json(tiny::tokenizer())->fingerprint());
}

TEST(TokenizerJson, FillsIdsThatAreLeftOut) {
  Json root = tiny::tokenizer();
  root["added_tokens"][2]["id"] = 266;  // <tool>; 263 to 265 are nothing
  const Tokenizer tokenizer = from_json(root).value();
  EXPECT_EQ(tokenizer.vocab_size(), 267);
  EXPECT_EQ(tokenizer.ordinary_size(), 261);
  EXPECT_THAT(tokenizer.encode("<tool>[PAD264]", kParse).value(),
              ElementsAre(266, '[', 'P', 'A', 'D', '2', '6', '4', ']'));

  tensors::Gguf file = tiny::gguf();  // the same vocabulary as llama.cpp's converter writes it
  auto& tokens = std::get<std::vector<std::string_view>>(file.metadata["tokenizer.ggml.tokens"]);
  auto& types = std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"]);
  tokens.pop_back();
  types.pop_back();
  tokens.insert(tokens.end(), {"[PAD263]", "[PAD264]", "[PAD265]", "<tool>"});
  types.insert(types.end(), {5, 5, 5, 4});
  EXPECT_EQ(Tokenizer::from_gguf(file)->fingerprint(), tokenizer.fingerprint());
}

TEST(TokenizerJson, RefusesBadAddedTokens) {
  const auto change = [](const char* key, Json value) {
    return [=](Json& r) { r["added_tokens"][2][key] = value; };
  };
  expect_refused({
      {ErrorCode::kCorrupt, "key \"lstrip\": not true or false", change("lstrip", 1)},
      {ErrorCode::kUnsupported, "\"<tool>\": single_word", change("single_word", true)},
      {ErrorCode::kCorrupt, "an id out of range", change("id", 528)},
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
      {ErrorCode::kUnsupported, "\"bert\" is none of gpt2, llama and t5",
       set("tokenizer.ggml.model", std::string("bert"))},
      {ErrorCode::kUnsupported, "pre-tokenizer \"falcon\" is not known",
       set("tokenizer.ggml.pre", std::string("falcon"))},
      {ErrorCode::kCorrupt, "tokenizer.ggml.add_bos_token",
       set("tokenizer.ggml.add_bos_token", std::int64_t{1})},
      {ErrorCode::kCorrupt, "tokenizer.chat_template",
       set("tokenizer.chat_template", std::int64_t{1})},
      {ErrorCode::kCorrupt, "tokenizer.ggml.tokens",
       set("tokenizer.ggml.tokens", std::vector<std::int64_t>{1})},
      {ErrorCode::kCorrupt, "vocabulary: no tokens",
       [](Gguf& f) {
         f.metadata["tokenizer.ggml.tokens"] = std::vector<std::string_view>{};
         f.metadata["tokenizer.ggml.token_type"] = std::vector<std::int64_t>{};
       }},
      {ErrorCode::kCorrupt, "1 types for 264 tokens",
       set("tokenizer.ggml.token_type", std::vector<std::int64_t>{1})},
      {ErrorCode::kUnsupported, "token 5: type 6", set_type(5, 6)},
      {ErrorCode::kCorrupt, "merge 0: the result is not", set_type(tiny::kHe, 3)},
      {ErrorCode::kCorrupt, "token 1: ",
       [](Gguf& f) {
         auto& tokens =
             std::get<std::vector<std::string_view>>(f.metadata["tokenizer.ggml.tokens"]);
         tokens[1] = tokens[0];
       }},
      {ErrorCode::kCorrupt, "its name is not UTF-8",
       [](Gguf& f) {
         std::get<std::vector<std::string_view>>(f.metadata["tokenizer.ggml.tokens"])[tiny::kTool] =
             "\xff";
       }},
      {ErrorCode::kCorrupt, "merge 0: not two parts",
       set("tokenizer.ggml.merges", std::vector<std::string_view>{"he"})},
  };
  for (const GgufCase& one : cases) {
    Gguf file = tiny::gguf();
    one.change(file);
    EXPECT_THAT(Tokenizer::from_gguf(file), test::FailsWith(one.code, HasSubstr(one.message)));
  }
}

TEST(TokenizerGguf, TakesVocabulariesAsTheyAre) {
  tensors::Gguf file = tiny::gguf();
  auto& tokens = std::get<std::vector<std::string_view>>(file.metadata["tokenizer.ggml.tokens"]);
  auto& types = std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"]);
  types['A'] = 3;  // no token for this byte
  tokens.insert(tokens.end(), {"<unused>", "<unused>", "", "<unk>", "<unk>"});
  types.insert(types.end(), {5, 5, 1, 5, 2});
  const Tokenizer tokenizer = Tokenizer::from_gguf(file).value();
  EXPECT_THAT(tokenizer.encode("bAb", Tokenizer::Special::kAsText).value(), ElementsAre('b', 'b'));
  EXPECT_EQ(tokenizer.find_left_out("bA"), 1u);
  EXPECT_THAT(tokenizer.encode("<unk>", kParse).value(), ElementsAre(268));
  EXPECT_EQ(tokenizer.token_bytes(266), "[EMPTY_266]");
  EXPECT_EQ(tokenizer.ordinary_size(), 261);
}

TEST(TokenizerGguf, KnowsThePretokenizersOfOtherFamilies) {
  tensors::Gguf file = tiny::gguf();
  const auto fingerprint_of = [&](const char* name) {
    file.metadata["tokenizer.ggml.pre"] = std::string(name);
    file.metadata["tokenizer.ggml.add_bos_token"] = false;
    const auto tokenizer = Tokenizer::from_gguf(file);
    EXPECT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.error().message;
    return tokenizer->fingerprint();
  };
  const std::vector<std::vector<const char*>> families = {
      {"gpt-2", "a.x-4.0", "granite-docling", "mellum", "trillion"},
      {"qwen2", "deepseek-r1-qwen", "f2llmv2", "kormo", "megrez"},
      {"qwen35"},
      {"default"},
      {"llama-bpe", "llama3", "llama-v3", "falcon3", "midm-2.0", "pixtral"},
      {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"},
      {"tekken"},
      {"gpt-4o"},
      {"smollm", "minerva-7b", "refact"},
      {"seed-coder"},
      {"minicpm5"},
      {"deepseek-coder"},
  };
  std::set<Sha256> all;
  for (const auto& names : families) {
    for (const char* name : names) {
      EXPECT_EQ(fingerprint_of(name), fingerprint_of(names[0])) << name;
    }
    EXPECT_TRUE(all.insert(fingerprint_of(names[0])).second) << names[0];
  }
}

// Older files have none of these keys; llama.cpp reads them.
TEST(TokenizerGguf, FillsInWhatLlamaCppFillsIn) {
  tensors::Gguf file = tiny::gguf();
  file.metadata["tokenizer.ggml.pre"] = std::string("default");
  const Tokenizer named = Tokenizer::from_gguf(file).value();
  file.metadata.erase("tokenizer.ggml.pre");
  EXPECT_EQ(Tokenizer::from_gguf(file)->fingerprint(), named.fingerprint());

  auto& tokens = std::get<std::vector<std::string_view>>(file.metadata["tokenizer.ggml.tokens"]);
  auto& types = std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"]);
  tokens.push_back("<|eot_id|>");
  types.push_back(3);
  types.push_back(1);  // one more than there are tokens
  const auto id = static_cast<std::int32_t>(tokens.size() - 1);
  EXPECT_THAT(Tokenizer::from_gguf(file)->encode("<|eot_id|>", kParse).value(), ElementsAre(id));
  // A number that is no token's means none.
  file.metadata["tokenizer.ggml.eos_token_id"] = std::int64_t{0xffff'ffff};
  file.metadata["tokenizer.ggml.bos_token_id"] = std::int64_t{-1};
  EXPECT_TRUE(Tokenizer::from_gguf(file).ok());
  // Without types only what has a known name is a control token.
  file.metadata.erase("tokenizer.ggml.token_type");
  const auto untyped = Tokenizer::from_gguf(file);
  ASSERT_TRUE(untyped.ok()) << untyped.error().message;
  EXPECT_THAT(untyped->encode("<|eot_id|>", kParse).value(), ElementsAre(id));
}

TEST(TokenizerGguf, KnowsThePretokenizersByName) {
  constexpr std::int32_t k12 = 264, kEAndHalfAMark = 265;
  tensors::Gguf file = tiny::gguf();
  const auto add = [&](const char* token, const char* merge) {
    std::get<std::vector<std::string_view>>(file.metadata["tokenizer.ggml.tokens"])
        .push_back(token);
    std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"]).push_back(1);
    std::get<std::vector<std::string_view>>(file.metadata["tokenizer.ggml.merges"])
        .push_back(merge);
  };
  add("12", "1 2");
  add("eÌ", "e Ì");  // "e" and the first byte, 0xCC, of U+0301
  const std::vector<std::pair<std::string, std::vector<std::int32_t>>> cases = {
      {"gpt-2", {k12, k12, 'e', 0xcc, 0x81}},                 // all digits; marks apart
      {"default", {k12, '1', '2', 'e', 0xcc, 0x81}},          // three digits; marks apart
      {"llama-bpe", {k12, '1', '2', 'e', 0xcc, 0x81}},        // three digits; marks apart
      {"qwen2", {'1', '2', '1', '2', 'e', 0xcc, 0x81}},       // each digit; marks apart
      {"qwen35", {'1', '2', '1', '2', kEAndHalfAMark, 0x81}}  // each digit; marks with letters
  };
  for (const auto& [name, ids] : cases) {
    file.metadata["tokenizer.ggml.pre"] = name;
    EXPECT_EQ(Tokenizer::from_gguf(file)->encode("1212e\xcc\x81", kParse).value(), ids) << name;
  }
}

}  // namespace tokenizer_file_test
}  // namespace tqcache::tokenizer
