// The tokenizer at work: texts to ids and back.

#include "tqcache/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "tqcache/file.h"
#include "tqcache/tensors/gguf.h"
#include "tqcache/tokenizer/merge_table.h"

namespace tqcache::tokenizer {
namespace tokenizer_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using tiny::Json;
using Ids = std::vector<std::int32_t>;

constexpr auto kParse = Tokenizer::Special::kParse;
constexpr auto kAsText = Tokenizer::Special::kAsText;

const std::string kDemo = TQCACHE_DEMO_MODEL;

Tokenizer demo_from_gguf() {
  const MappedFile file = MappedFile::open(kDemo + "/tqcache-demo-17m.q8_0.gguf").value();
  return Tokenizer::from_gguf(tensors::read_gguf(file.bytes()).value()).value();
}

Tokenizer demo_from_json() {
  return Tokenizer::from_json(test::read_all(kDemo + "/hf/tokenizer.json"),
                              test::read_all(kDemo + "/hf/tokenizer_config.json"))
      .value();
}

Tokenizer from_json(const Json& root) {
  return Tokenizer::from_json(as_bytes(root.dump()), {}).value();
}

Json reference() {
  const Bytes text = test::read_all(std::string(TQCACHE_TEST_DATA) + "/reference.json");
  return Json::parse(reinterpret_cast<const char*>(text.data()),
                     reinterpret_cast<const char*>(text.data()) + text.size());
}

std::uint32_t below(std::mt19937& random, std::uint32_t n) {
  return static_cast<std::uint32_t>(random() % n);
}

// Every length of UTF-8, spaces, digits and the demo's special names, in random order.
std::string random_text(std::mt19937& random) {
  const std::vector<std::string> pieces = {" ",   "  ", "\n",   "\r\n",         "\t",        "the",
                                           "'ll", "42", "<|im", "<|im_start|>", "<|im_end|>"};
  std::string text;
  for (std::uint32_t n = below(random, 20); n > 0; --n) {
    const std::uint32_t kind = below(random, 4);
    if (kind == 0) text += pieces[below(random, static_cast<std::uint32_t>(pieces.size()))];
    if (kind == 1) text += tiny::utf8(below(random, 0x80));
    if (kind == 2) text += tiny::utf8(0x80 + below(random, 0xd780));  // up to the surrogates
    if (kind == 3) text += tiny::utf8(0x10000 + below(random, 0x100000));
  }
  return text;
}

TEST(Tokenizer, GivesTheReferenceIdsFromBothFiles) {
  const Json root = reference();
  std::vector<Json> cases(root["tokenizer"].begin(), root["tokenizer"].end());
  cases.insert(cases.end(), root["prompts"].begin(), root["prompts"].end());
  ASSERT_EQ(cases.size(), 13u);
  const Tokenizer from_gguf = demo_from_gguf();
  const Tokenizer from_files = demo_from_json();
  for (const Json& one : cases) {
    const auto text = one["text"].get<std::string>();
    const auto ids = one["ids"].get<Ids>();
    EXPECT_EQ(from_gguf.encode(text, kParse).value(), ids) << text;
    EXPECT_EQ(from_files.encode(text, kParse).value(), ids) << text;
  }
}

TEST(Tokenizer, DecodesWhatItEncoded) {
  const Tokenizer tokenizer = demo_from_gguf();
  std::mt19937 random(20240511);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_text(random);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, kParse).value()), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, kAsText).value()), text);
  }
}

TEST(Tokenizer, NeverMakesAControlTokenFromTextThatIsToStayText) {
  const Tokenizer tokenizer = demo_from_gguf();
  std::mt19937 random(7);
  bool parsed_any = false;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_text(random);
    const Ids as_text = tokenizer.encode(text, kAsText).value();
    for (const std::int32_t id : as_text) {
      EXPECT_FALSE(tokenizer.is_special(id)) << text;
    }
    const Ids parsed = tokenizer.encode(text, kParse).value();
    parsed_any |= std::any_of(parsed.begin(), parsed.end(),
                              [&](std::int32_t id) { return tokenizer.is_special(id); });
  }
  EXPECT_TRUE(parsed_any);
}

TEST(Tokenizer, FindsUserDefinedWordsEvenInPlainText) {
  const Tokenizer tokenizer = from_json(tiny::tokenizer());
  const std::string text = "<tool>hello<|im_end|>";
  EXPECT_THAT(tokenizer.encode(text, kParse).value(),
              ElementsAre(tiny::kTool, tiny::kHello, tiny::kEnd));
  const Ids as_text = tokenizer.encode(text, kAsText).value();
  EXPECT_EQ(as_text[0], tiny::kTool);
  EXPECT_EQ(as_text.size(), 2 + std::string("<|im_end|>").size());
}

TEST(Tokenizer, TakesTheLongestSpecialNameThatBeginsFirst) {
  Json root = tiny::tokenizer();
  root["added_tokens"].push_back(tiny::added_token(264, "<a>", false));
  root["added_tokens"].push_back(tiny::added_token(265, "<a><b>", false));
  root["added_tokens"].push_back(tiny::added_token(266, "a><b><c>", false));
  const Tokenizer tokenizer = from_json(root);
  EXPECT_THAT(tokenizer.encode("<a><b>", kParse).value(), ElementsAre(265));
  EXPECT_THAT(tokenizer.encode("<a><a>", kParse).value(), ElementsAre(264, 264));
  EXPECT_THAT(tokenizer.encode("<a><b><c>", kParse).value(), ElementsAre(265, '<', 'c', '>'));
  EXPECT_THAT(tokenizer.encode("a><b><c>", kParse).value(), ElementsAre(266));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer = demo_from_gguf();
  const std::vector<std::string> bad = {
      "\x80",              // a continuation byte alone
      "\xc3",              // cut short
      "\xc0\xaf",          // overlong /
      "\xe0\x80\x80",      // overlong NUL
      "\xed\xa0\x80",      // a surrogate
      "\xf4\x90\x80\x80",  // past U+10FFFF
      "\xff",              // no lead byte
      "\xe2\x82 ",         // cut short in the middle
  };
  for (const std::string& bytes : bad) {
    EXPECT_THAT(tokenizer.encode("ok " + bytes, kParse),
                test::FailsWith(ErrorCode::kCorrupt, "text: byte 3: not UTF-8"));
  }
}

TEST(Tokenizer, KeepsNulBytesOfTheText) {
  const Tokenizer tokenizer = demo_from_gguf();
  const std::string text("a\0b", 3);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, kParse).value()), text);
}

TEST(Tokenizer, GivesNoBytesForIdsOutsideTheVocabulary) {
  const Tokenizer tokenizer = from_json(tiny::tokenizer());
  EXPECT_EQ(tokenizer.vocab_size(), tiny::kVocabSize);
  EXPECT_EQ(tokenizer.token_bytes(tiny::kSpaceHello), " hello");
  EXPECT_EQ(tokenizer.token_bytes(tiny::kEnd), "<|im_end|>");
  EXPECT_EQ(tokenizer.token_bytes(tiny::kVocabSize), "");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_FALSE(tokenizer.is_special(tiny::kVocabSize));
  EXPECT_TRUE(tokenizer.is_special(tiny::kStart));
  EXPECT_FALSE(tokenizer.is_special(tiny::kTool));
}

TEST(Tokenizer, FindsTokensByNameOrBytes) {
  const Tokenizer tokenizer = from_json(tiny::tokenizer());
  EXPECT_EQ(tokenizer.find_token("<|im_end|>"), tiny::kEnd);
  EXPECT_EQ(tokenizer.find_token(" hello"), tiny::kSpaceHello);
  EXPECT_EQ(tokenizer.find_token("\n"), '\n');
  EXPECT_EQ(tokenizer.find_token("Ġhello"), std::nullopt);
}

TEST(Tokenizer, EndsAtTheTokensThatTheFilesName) {
  EXPECT_THAT(demo_from_gguf().end_tokens(), ElementsAre(0, 2));
  EXPECT_THAT(demo_from_json().end_tokens(), ElementsAre(0, 2));
  const std::string tokenizer = tiny::tokenizer().dump();
  const auto ends = [&](const char* config, const char* generation) {
    return Tokenizer::from_json(as_bytes(tokenizer), as_bytes(config), as_bytes(generation))
        .value()
        .end_tokens();
  };
  EXPECT_THAT(ends("", ""), ElementsAre(tiny::kEnd));
  EXPECT_THAT(ends(R"({"eos_token":{"content":"<tool>"}})", R"({"eos_token_id":259})"),
              ElementsAre(tiny::kHello, tiny::kEnd, tiny::kTool));
  EXPECT_THAT(ends(R"({"eos_token":null})", R"({"eos_token_id":[256,257]})"),
              ElementsAre(tiny::kHe, tiny::kLl, tiny::kEnd));
}

TEST(Tokenizer, TakesAPieceOfAHundredThousandBytes) {
  const Tokenizer tokenizer = from_json(tiny::tokenizer());
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "hello";
  EXPECT_EQ(tokenizer.encode(text, kParse).value(), Ids(20'000, tiny::kHello));
  const Tokenizer demo = demo_from_gguf();
  EXPECT_EQ(demo.decode(demo.encode(text, kParse).value()), text);
}

// The definition, step by step: the earliest pair of the list, leftmost first, until none is left.
Ids merge_plainly(const std::string& piece, const std::vector<Merge>& merges) {
  Ids ids(piece.begin(), piece.end());
  while (true) {
    const auto occurs = [&](const Merge& merge) {
      return std::adjacent_find(ids.begin(), ids.end(), [&](auto a, auto b) {
        return a == merge.left && b == merge.right;
      });
    };
    const auto first = std::find_if(merges.begin(), merges.end(),
                                    [&](const Merge& m) { return occurs(m) != ids.end(); });
    if (first == merges.end()) return ids;
    const auto at = occurs(*first);
    *at = first->result;
    ids.erase(at + 1);
  }
}

TEST(MergeTable, EqualsTheDefinition) {
  std::mt19937 random(99);
  for (int round = 0; round < 50; ++round) {
    std::vector<Token> tokens;
    for (int byte = 0; byte < 256; ++byte)
      tokens.push_back({std::string(1, static_cast<char>(byte))});
    std::vector<std::string> parts = {"a", "b", "c"};
    std::vector<MergeBytes> lines;
    for (int i = 0; i < 12; ++i) {  // parts come before what they make, as training finds them
      const auto n_parts = static_cast<std::uint32_t>(parts.size());
      const std::string left = parts[below(random, n_parts)];
      const MergeBytes line{left + parts[below(random, n_parts)], left.size()};
      if (std::find(parts.begin(), parts.end(), line.whole) != parts.end()) continue;
      parts.push_back(line.whole);
      tokens.push_back({line.whole});
      lines.push_back(line);
    }
    const auto vocabulary = Vocabulary::make(std::move(tokens));
    ASSERT_TRUE(vocabulary.ok());
    const auto merges = resolve_merges(lines, *vocabulary);
    ASSERT_TRUE(merges.ok());
    const auto table = MergeTable::make(*merges);
    ASSERT_TRUE(table.ok());
    const Symbols symbols = Symbols::of_bytes(*vocabulary).value();
    MergeTable::Scratch scratch;
    for (int i = 0; i < 100; ++i) {
      std::string piece;
      for (std::uint32_t n = below(random, 40); n > 0; --n) piece += "abc"[below(random, 3)];
      Ids ids;
      symbols.split(piece, *vocabulary, scratch);
      WorkBudget budget(0);
      ASSERT_TRUE(table.value().merge(scratch, ids, budget).ok());
      EXPECT_EQ(ids, merge_plainly(piece, *merges)) << piece;
    }
  }
}

TEST(TakeWholeCharacters, KeepsOnlyACharacterThatIsStillIncomplete) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80!";  // a é € 😀 !
  std::string pending;
  std::string out;
  for (const char byte : text) {
    pending += byte;
    out += take_whole_characters(pending);
    EXPECT_LE(pending.size(), 3u);
  }
  EXPECT_EQ(out, text);
  EXPECT_THAT(pending, IsEmpty());
}

TEST(TakeWholeCharacters, ReplacesBytesThatCanNeverBecomeACharacter) {
  const std::string replacement = "\xef\xbf\xbd";
  std::string pending =
      "a\xff"
      "b\xe2\x82"
      "c\xf0\x9f";
  EXPECT_EQ(take_whole_characters(pending), "a" + replacement + "b" + replacement + "c");
  EXPECT_EQ(pending, "\xf0\x9f");
  pending += "x";
  EXPECT_EQ(take_whole_characters(pending), replacement + "x");
  EXPECT_THAT(pending, IsEmpty());
}

TEST(TokenizerFingerprint, IsTheSameFromBothFiles) {
  EXPECT_EQ(demo_from_gguf().fingerprint(), demo_from_json().fingerprint());
  EXPECT_EQ(Tokenizer::from_gguf(tiny::gguf())->fingerprint(),
            from_json(tiny::tokenizer()).fingerprint());
}

// The serialization is written down in docs/reference/format.md; this is the demo model's.
TEST(TokenizerFingerprint, NeverChangesForTheSameTokenizer) {
  EXPECT_EQ(to_hex(demo_from_gguf().fingerprint()),
            "748089347209a4521252d1bec100394218a586585285c83ad8678c75a4b6932c");
}

TEST(TokenizerFingerprint, DiffersWhenAnythingThatDecidesIdsDoes) {
  const Json original = tiny::tokenizer();
  std::vector<Json> changed(10, original);
  std::swap(changed[0]["model"]["merges"][0], changed[0]["model"]["merges"][1]);
  changed[1]["added_tokens"][2]["special"] = true;
  changed[2]["normalizer"] = {{"type", "NFC"}};
  changed[3]["model"]["ignore_merges"] = true;
  changed[4]["added_tokens"][2]["normalized"] = true;
  changed[5]["added_tokens"][2]["content"] = "<fool>";
  changed[6]["added_tokens"][2]["lstrip"] = true;
  changed[7]["added_tokens"][2]["rstrip"] = true;
  changed[8]["post_processor"] = tiny::template_processing({"<|im_start|>", "$A"});
  changed[9]["post_processor"] = tiny::template_processing({"$A", "<|im_end|>"});
  std::vector<Sha256> prints = {from_json(original).fingerprint()};
  for (const Json& root : changed) prints.push_back(from_json(root).fingerprint());
  tensors::Gguf other_pattern = tiny::gguf();
  other_pattern.metadata["tokenizer.ggml.pre"] = std::string("qwen2");
  prints.push_back(Tokenizer::from_gguf(other_pattern)->fingerprint());
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::adjacent_find(prints.begin(), prints.end()), prints.end());
}

TEST(TokenizerFingerprint, LeavesOutTheUnusedTokensAtTheEnd) {
  tensors::Gguf padded = tiny::gguf();
  std::get<std::vector<std::string_view>>(padded.metadata["tokenizer.ggml.tokens"])
      .push_back("[PAD]");
  std::get<std::vector<std::int64_t>>(padded.metadata["tokenizer.ggml.token_type"]).push_back(5);
  const Tokenizer tokenizer = Tokenizer::from_gguf(padded).value();
  EXPECT_EQ(tokenizer.vocab_size(), tiny::kVocabSize + 1);
  EXPECT_EQ(tokenizer.fingerprint(), from_json(tiny::tokenizer()).fingerprint());
  EXPECT_EQ(tokenizer.encode("[PAD]", kParse)->size(), 5u);
}

}  // namespace tokenizer_test
}  // namespace tqcache::tokenizer
