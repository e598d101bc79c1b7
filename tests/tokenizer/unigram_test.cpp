// Unigram tokenizers.

#include "tqcache/tokenizer/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/tiny_pieces.h"
#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace unigram_test {

using testing::ElementsAre;
using tiny::Json;
using namespace tiny;  // NOLINT: ids by their names

using Ids = std::vector<std::int32_t>;
constexpr auto kParse = Tokenizer::Special::kParse;

Tokenizer from_json(const Json& root) {
  return Tokenizer::from_json(as_bytes(root.dump()), {}).value();
}

TEST(Unigram, TakesTheTokensWithTheHighestSum) {
  EXPECT_THAT(from_json(unigram()).encode("the in", kParse).value(),
              ElementsAre(kPieceSpaceThe, kPieceSpace, kPieceIn));
  Json root = unigram();
  root["model"]["vocab"][int{kPieceSpaceThe}][1] = -30.0;  // worse than its parts
  EXPECT_THAT(from_json(root).encode("the", kParse).value(), ElementsAre(kPieceSpaceT, kPieceHe));
}

TEST(Unigram, MakesOneUnknownTokenOfARunOfUnknownCharacters) {
  EXPECT_THAT(from_json(unigram()).encode("téàt", kParse).value(),
              ElementsAre(kPieceSpaceT, kUnknown, kPieceT));
}

TEST(Unigram, WritesUnknownCharactersAsBytesWhereThereAreSome) {
  Json root = unigram();
  root["model"]["byte_fallback"] = true;
  EXPECT_THAT(from_json(root).encode("té", kParse).value(),
              ElementsAre(kPieceSpaceT, kByte0 + 0xc3, kByte0 + 0xa9));
}

TEST(Unigram, ReadsGgufFiles) {
  tensors::Gguf file = pieces_gguf();
  file.metadata["tokenizer.ggml.model"] = std::string("t5");
  file.metadata["tokenizer.ggml.unknown_token_id"] = std::int64_t{kUnknown};
  std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"])
      .assign(kPieceCount, 1);
  std::get<std::vector<std::int64_t>>(file.metadata["tokenizer.ggml.token_type"])[0] = 2;
  const Tokenizer tokenizer = Tokenizer::from_gguf(file).value();
  Tokenizer::EncodeOptions options;
  options.ends = Tokenizer::Ends::kBoth;
  EXPECT_THAT(tokenizer.encode(" the   in ", options).value(),
              ElementsAre(kPieceSpaceThe, kPieceSpace, kPieceIn, kFinish));
}

// Tries every way to cut the text.
double best_sum(const std::string& text, const std::map<std::string, double>& scores) {
  if (text.empty()) return 0;
  double best = -1e9;
  for (std::size_t n = 1; n <= text.size(); ++n) {
    const auto found = scores.find(text.substr(0, n));
    if (found != scores.end()) {
      best = std::max(best, found->second + best_sum(text.substr(n), scores));
    }
  }
  return best;
}

TEST(Unigram, EqualsTheDefinition) {
  std::mt19937 random(5);
  std::vector<Token> tokens = {{"<unk>", TokenKind::kControl}};
  std::vector<double> scores = {0};
  std::map<std::string, double> by_text;
  for (const char* text : {"a", "b", "c", "ab", "bc", "ca", "abc", "bb", "cab", "aabb"}) {
    tokens.push_back({text});
    scores.push_back(-1.0 - static_cast<double>(random() % 1000) / 100);
    by_text[text] = scores.back();
  }
  const auto vocabulary = Vocabulary::make(tokens);
  const auto unigram = Unigram::make(*vocabulary, scores, {false, 0, true});
  ASSERT_TRUE(unigram.ok());
  Unigram::Scratch scratch;
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n) text += "abc"[random() % 3];
    Ids ids;
    unigram.value().encode(text, scratch, ids);
    double sum = 0;
    std::string again;
    for (const std::int32_t id : ids) {
      sum += scores[static_cast<std::size_t>(id)];
      again += tokens[static_cast<std::size_t>(id)].bytes;
    }
    EXPECT_EQ(again, text);
    EXPECT_NEAR(sum, best_sum(text, by_text), 1e-9) << text;
  }
}

TEST(Unigram, RefusesBadScores) {
  const auto vocabulary = Vocabulary::make({{"a"}, {"b"}});
  const UnknownRule unknown{false, 0, true};
  EXPECT_EQ(Unigram::make(*vocabulary, {1}, unknown).error().message, "scores: 1 for 2 tokens");
  EXPECT_EQ(Unigram::make(*vocabulary, {1, 0.0 / 0.0}, unknown).error().message,
            "scores: token 1: not a finite number");
  EXPECT_EQ(Unigram::make(*vocabulary, {1, 2}, {}).error().message, "scores: no unknown token");
}

}  // namespace unigram_test
}  // namespace tqcache::tokenizer
