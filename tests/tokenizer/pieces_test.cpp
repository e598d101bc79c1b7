// Tokenizers of SentencePiece's kind at work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer/tiny_pieces.h"
#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace pieces_test {

using testing::ElementsAre;
using testing::ElementsAreArray;
using tiny::Json;
using namespace tiny;  // NOLINT: ids by their names

using Ids = std::vector<std::int32_t>;

constexpr auto kParse = Tokenizer::Special::kParse;
constexpr auto kAsText = Tokenizer::Special::kAsText;

Tokenizer from_json(const Json& root) {
  return Tokenizer::from_json(as_bytes(root.dump()), {}).value();
}

Tokenizer from_gguf() { return Tokenizer::from_gguf(pieces_gguf()).value(); }

std::int32_t byte_id(int byte) { return kByte0 + byte; }

TEST(Pieces, MergesCharactersTheBestScoreFirst) {
  const Ids expected = {kPieceSpaceThe, kPieceSpace, kPieceIn, kPieceTwoSpaces, kPieceE};
  EXPECT_EQ(from_json(pieces()).encode("the in  e", kParse).value(), expected);
  EXPECT_EQ(from_gguf().encode("the in  e", kParse).value(), expected);
}

// A token across the border of words is made, too, where there is one.
TEST(Pieces, AreMergedAcrossWordsOnlyWhereATokenIs) {
  Json root = pieces();
  EXPECT_THAT(from_json(root).encode("t in", kParse).value(),
              ElementsAre(kPieceSpaceT, kPieceSpace, kPieceIn));
  root["model"]["vocab"]["▁t▁"] = int{kPieceCount};
  root["model"]["merges"].push_back("▁t ▁");
  EXPECT_THAT(from_json(root).encode("t in", kParse).value(),
              ElementsAre(int{kPieceCount}, kPieceIn));
}

TEST(Pieces, HaveTheSameFingerprintFromBothFiles) {
  EXPECT_EQ(from_json(pieces()).fingerprint(), from_gguf().fingerprint());
}

TEST(Pieces, AddTheBeginTokenWhenAsked) {
  Tokenizer::EncodeOptions options;
  options.ends = Tokenizer::Ends::kBoth;
  EXPECT_THAT(from_json(pieces()).encode("the", options).value(),
              ElementsAre(kBegin, kPieceSpaceThe));
  EXPECT_THAT(from_gguf().encode("the", options).value(), ElementsAre(kBegin, kPieceSpaceThe));
  EXPECT_THAT(from_gguf().encode("", options).value(), ElementsAre(kBegin));
}

TEST(Pieces, AreBytesForACharacterWithoutAToken) {
  const Tokenizer tokenizer = from_gguf();
  const Ids ids = tokenizer.encode("tét", kParse).value();
  EXPECT_THAT(ids, ElementsAre(kPieceSpaceT, byte_id(0xc3), byte_id(0xa9), kPieceT));
  EXPECT_EQ(tokenizer.decode(ids), "tét");
  EXPECT_EQ(tokenizer.token_bytes(byte_id(0xc3)), "\xc3");
}

TEST(Pieces, AreUnknownWhereThereAreNoBytes) {
  Json root = pieces();
  root["model"]["byte_fallback"] = false;
  EXPECT_THAT(from_json(root).encode("téàt", kParse).value(),
              ElementsAre(kPieceSpaceT, kUnknown, kPieceT));
  root["model"]["fuse_unk"] = false;
  EXPECT_THAT(from_json(root).encode("téàt", kParse).value(),
              ElementsAre(kPieceSpaceT, kUnknown, kUnknown, kPieceT));
}

TEST(Pieces, BeginWithASpaceBehindEverySpecialToken) {
  for (const Tokenizer& tokenizer : {from_json(pieces()), from_gguf()}) {
    EXPECT_THAT(tokenizer.encode("the</s>the", kParse).value(),
                ElementsAre(kPieceSpaceThe, kFinish, kPieceSpaceThe));
    EXPECT_THAT(tokenizer.encode("", kParse).value(), ElementsAre());
  }
}

TEST(Pieces, BeginWithASpaceAsTheSchemeSays) {
  const auto ids = [](const char* scheme, const char* text) {
    return from_json(pieces_with_metaspace(scheme, false)).encode(text, kParse).value();
  };
  EXPECT_THAT(ids("always", "the</s>the"), ElementsAre(kPieceSpaceThe, kFinish, kPieceSpaceThe));
  EXPECT_THAT(ids("first", "the</s>the"), ElementsAre(kPieceSpaceThe, kFinish, kPieceT, kPieceHe));
  EXPECT_THAT(ids("never", "the</s>the"),
              ElementsAre(kPieceT, kPieceHe, kFinish, kPieceT, kPieceHe));
  EXPECT_THAT(ids("first", " the"), ElementsAre(kPieceSpaceThe));  // it has one
  EXPECT_THAT(ids("first", "▁the"), ElementsAre(kPieceSpaceThe));
}

TEST(Pieces, BeginWithASpaceOnlyWhereTheTextBegins) {
  Tokenizer::EncodeOptions options;
  options.at_beginning = false;
  EXPECT_THAT(from_json(pieces_with_metaspace("first", false)).encode("the", options).value(),
              ElementsAre(kPieceT, kPieceHe));
}

TEST(Pieces, TakeAMarkForASpace) {
  EXPECT_EQ(from_gguf().encode("the▁the", kParse).value(),
            from_gguf().encode("the the", kParse).value());
}

TEST(Pieces, DropTheFirstSpaceOfADecodedText) {
  const Tokenizer tokenizer = from_json(pieces());
  EXPECT_EQ(tokenizer.decode(Ids{kPieceSpaceThe, kPieceSpaceThe}), "the the");
  EXPECT_EQ(tokenizer.decode(Ids{kBegin, kPieceSpaceThe}), "<s> the");
  EXPECT_TRUE(tokenizer.drops_first_space());
  tensors::Gguf plain = pieces_gguf();
  plain.metadata["tokenizer.ggml.add_space_prefix"] = false;
  EXPECT_EQ(Tokenizer::from_gguf(plain)->decode(Ids{kPieceSpaceThe}), " the");
}

TEST(Pieces, AreNeverMadeWhereAFileHoldsASpace) {
  Json root = pieces();
  root["model"]["vocab"][" the"] = int{kPieceCount};
  EXPECT_THAT(from_json(root).encode("the", kParse).value(), ElementsAre(kPieceSpaceThe));
}

TEST(Pieces, AreNotMergedIntoControlTokens) {
  Json root = pieces();
  root["added_tokens"].push_back(added_token(kPieceCount, "ti", true));
  root["model"]["merges"].push_back("t i");
  EXPECT_THAT(from_json(root).encode("nti", kAsText).value(),
              ElementsAre(kPieceSpace, kPieceN, kPieceT, kPieceI));
}

TEST(Pieces, KeepTheMergesOfUserDefinedWords) {
  Json root = pieces();
  root["added_tokens"].push_back(added_token(kPieceTwoSpaces, "▁▁", false));
  const Tokenizer tokenizer = from_json(root);
  EXPECT_THAT(tokenizer.encode("i  i", kParse).value(),
              ElementsAre(kPieceSpace, kPieceI, kPieceTwoSpaces, kPieceI));
  // Spelled with marks it is found before the normalizer, which begins anew behind it.
  EXPECT_THAT(tokenizer.encode("i▁▁i", kParse).value(),
              ElementsAre(kPieceSpace, kPieceI, kPieceTwoSpaces, kPieceSpace, kPieceI));
  EXPECT_EQ(tokenizer.token_bytes(kPieceTwoSpaces), "  ");
}

TEST(Pieces, LoseTheWhiteSpaceThatASpecialTokenTakes) {
  Json root = pieces_with_metaspace("never", false);
  Json token = added_token(kPieceCount, "<x>", true);
  const auto ids = [&](bool left, bool right) {
    token["lstrip"] = left;
    token["rstrip"] = right;
    root["added_tokens"][3] = token;
    return from_json(root).encode("t \n<x> \u00a0t", kParse).value();
  };
  const Ids space_and_line_end = {kPieceSpace, byte_id('\n')};
  const Ids spaces = {kPieceSpace, byte_id(0xc2), byte_id(0xa0)};
  EXPECT_THAT(ids(true, true), ElementsAre(kPieceT, kPieceCount, kPieceT));
  Ids left = {kPieceT, kPieceCount};
  left.insert(left.end(), spaces.begin(), spaces.end());
  left.push_back(kPieceT);
  EXPECT_THAT(ids(true, false), ElementsAreArray(left));
  Ids right = {kPieceT};
  right.insert(right.end(), space_and_line_end.begin(), space_and_line_end.end());
  right.insert(right.end(), {kPieceCount, kPieceT});
  EXPECT_THAT(ids(false, true), ElementsAreArray(right));
}

TEST(Pieces, LoseWhiteSpaceBehindPhi3sMarks) {
  tensors::Gguf file = pieces_gguf();
  file.metadata["general.architecture"] = std::string("phi3");
  const Tokenizer tokenizer = Tokenizer::from_gguf(file).value();
  EXPECT_THAT(tokenizer.encode("</s>\n t", kParse).value(), ElementsAre(kFinish, kPieceSpaceT));
  EXPECT_THAT(tokenizer.encode("<s>\nt", kParse).value(),
              ElementsAre(kBegin, kPieceSpace, byte_id('\n'), kPieceT));
}

// What somebody said stays text, and the marks around it do not.
TEST(Pieces, AreNoControlTokensInPlainRanges) {
  const std::string text = "<s>t</s>e</s>";
  const Tokenizer tokenizer = from_json(pieces_with_metaspace("never", false));
  const std::vector<Tokenizer::TextRange> plain = {{3, 9}};
  Tokenizer::EncodeOptions options;
  options.plain = plain;
  EXPECT_THAT(tokenizer.encode(text, options).value(),
              ElementsAre(kBegin, kPieceT, byte_id('<'), byte_id('/'), byte_id('s'), byte_id('>'),
                          kPieceE, kFinish));
}

TEST(Pieces, AreNoControlTokensAcrossTheEdgeOfAPlainRange) {
  const Tokenizer tokenizer = from_json(pieces_with_metaspace("never", false));
  const std::vector<Tokenizer::TextRange> plain = {{0, 1}};  // "<", and "s>" behind it
  Tokenizer::EncodeOptions options;
  options.plain = plain;
  EXPECT_THAT(tokenizer.encode("<s>", options).value(),
              ElementsAre(byte_id('<'), byte_id('s'), byte_id('>')));
}

TEST(Pieces, AreNoControlTokensBehindTheNormalizerOfAPlainText) {
  Json root = pieces_with_metaspace("never", false);
  root["added_tokens"][1]["normalized"] = true;
  const Tokenizer tokenizer = from_json(root);
  const std::vector<Tokenizer::TextRange> plain = {{0, 4}};
  Tokenizer::EncodeOptions options;
  EXPECT_THAT(tokenizer.encode("<s>t", options).value(), ElementsAre(kBegin, kPieceT));
  options.plain = plain;
  EXPECT_THAT(tokenizer.encode("<s>t", options).value(),
              ElementsAre(byte_id('<'), byte_id('s'), byte_id('>'), kPieceT));
}

TEST(Pieces, CutWordsAtSpacesWhereTheFileSaysSo) {
  Json root = pieces_with_metaspace("always", true);
  EXPECT_THAT(from_json(root).encode("in  in", kParse).value(),
              ElementsAre(kPieceSpace, kPieceIn, kPieceSpace, kPieceSpace, kPieceIn));
  root["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace("always", true)}}};
  EXPECT_THAT(from_json(root).encode(" in \n in ", kParse).value(),
              ElementsAre(kPieceSpace, kPieceIn, kPieceSpace, kPieceIn));
}

TEST(Pieces, TakeGemmasCutAtSpacesOfWhichNoneAreLeft) {
  Json root = pieces();
  root["normalizer"] = root["normalizer"]["normalizers"][1];
  root["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"String", " "}}},
                           {"behavior", "MergedWithPrevious"},
                           {"invert", false}};
  EXPECT_THAT(from_json(root).encode("in  in", kParse).value(),
              ElementsAre(kPieceIn, kPieceTwoSpaces, kPieceIn));
}

TEST(PiecesFingerprint, DiffersWhenAnythingThatDecidesIdsDoes) {
  std::vector<Json> all(9, pieces());
  all[1]["model"]["byte_fallback"] = false;
  all[2] = all[1];
  all[2]["model"]["fuse_unk"] = false;
  all[3]["post_processor"] = nullptr;
  all[4]["normalizer"] = all[4]["normalizer"]["normalizers"][1];
  all[5] = pieces_with_metaspace("first", false);
  all[6] = pieces_with_metaspace("first", true);
  all[7] = pieces_with_metaspace("always", false);
  all[8] = unigram();
  all.push_back(unigram());
  all.back()["model"]["vocab"][int{kPieceIn}][1] = -0.5;
  all.push_back(pieces_with_metaspace("always", false));
  all.back()["added_tokens"].push_back(added_token(kPieceTwoSpaces, "▁▁", false));
  std::vector<Sha256> prints;
  for (const Json& root : all) prints.push_back(from_json(root).fingerprint());
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::adjacent_find(prints.begin(), prints.end()), prints.end());
}

}  // namespace pieces_test
}  // namespace tqcache::tokenizer
