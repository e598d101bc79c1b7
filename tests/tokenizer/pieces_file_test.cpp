// What files of SentencePiece's kind may say, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/matchers.h"
#include "tokenizer/tiny_pieces.h"
#include "tqcache/tokenizer.h"

namespace tqcache::tokenizer {
namespace pieces_file_test {

using testing::HasSubstr;
using tiny::Json;
using namespace tiny;  // NOLINT: ids by their names

struct JsonCase {
  ErrorCode code;
  std::string message;  // a part of it
  std::function<void(Json&)> change;
};

void expect_refused(const Json& original, const std::vector<JsonCase>& cases) {
  for (const JsonCase& one : cases) {
    Json root = original;
    one.change(root);
    EXPECT_THAT(Tokenizer::from_json(as_bytes(root.dump()), {}),
                test::FailsWith(one.code, HasSubstr(one.message)));
  }
}

TEST(PiecesJson, RefusesNormalizersThatItDoesNotDo) {
  const auto steps = [](std::vector<Json> list) {
    return [=](Json& r) { r["normalizer"] = {{"type", "Sequence"}, {"normalizers", list}}; };
  };
  const Json mark = pieces()["normalizer"]["normalizers"][1];
  expect_refused(
      pieces(),
      {
          {ErrorCode::kUnsupported, "normalizer: \"Precompiled\"",
           steps({{{"type", "Precompiled"}, {"precompiled_charsmap", "AA=="}}})},
          {ErrorCode::kUnsupported, "normalizer: \"Lowercase\"", steps({{{"type", "Lowercase"}}})},
          {ErrorCode::kUnsupported, "normalizer: Prepend \"_\"",
           steps({{{"type", "Prepend"}, {"prepend", "_"}}})},
          {ErrorCode::kUnsupported, "normalizer: Replace, of anything but spaces",
           steps({{{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}}})},
          {ErrorCode::kUnsupported, "normalizer: Replace, of anything but spaces",
           steps({{{"type", "Replace"}, {"pattern", {{"Regex", " "}}}, {"content", "▁"}}})},
          {ErrorCode::kUnsupported, "normalizer: Strip after U+2581",
           steps({mark, {{"type", "Strip"}}})},
          {ErrorCode::kUnsupported, "none, and spaces that are no U+2581", steps({})},
          {ErrorCode::kCorrupt, "key \"normalizers\": missing",
           [](Json& r) {
             r["normalizer"] = {{"type", "Sequence"}};
           }},
      });
}

TEST(PiecesJson, RefusesPretokenizersThatItDoesNotDo) {
  const auto set = [](const char* key, Json value) {
    return [=](Json& r) { r["pre_tokenizer"][key] = value; };
  };
  expect_refused(
      pieces_with_metaspace("always", true),
      {
          {ErrorCode::kUnsupported, "pre_tokenizer: replacement \"_\"", set("replacement", "_")},
          {ErrorCode::kUnsupported, "pre_tokenizer: prepend_scheme \"last\"",
           set("prepend_scheme", "last")},
          {ErrorCode::kCorrupt, "key \"split\": not true or false", set("split", 1)},
          {ErrorCode::kUnsupported, "pre_tokenizer: \"Whitespace\"", set("type", "Whitespace")},
          {ErrorCode::kUnsupported, "pre_tokenizer: \"Metaspace\"",  // not at the end
           [](Json& r) {
             const Json step = metaspace("always", true);
             r["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, step}}};
           }},
          {ErrorCode::kUnsupported, "pre_tokenizer: a split at spaces that no normalizer marks",
           [](Json& r) {
             r["pre_tokenizer"] = {{"type", "Split"},
                                   {"pattern", {{"String", " "}}},
                                   {"behavior", "MergedWithPrevious"}};
           }},
          {ErrorCode::kUnsupported, "prepend_scheme \"first\" after Strip",
           [](Json& r) {
             r["pre_tokenizer"]["prepend_scheme"] = "first";
             r["normalizer"] = {{"type", "Strip"}};
           }},
      });
}

TEST(PiecesJson, KnowsTheOlderKeyOfMetaspace) {
  Json older = pieces_with_metaspace("always", true);
  older["pre_tokenizer"].erase("prepend_scheme");
  const auto print = [](const Json& root) {
    return Tokenizer::from_json(as_bytes(root.dump()), {})->fingerprint();
  };
  EXPECT_EQ(print(older), print(pieces_with_metaspace("always", true)));
  older["pre_tokenizer"]["add_prefix_space"] = false;
  EXPECT_EQ(print(older), print(pieces_with_metaspace("never", true)));
}

TEST(PiecesJson, RefusesBadModels) {
  expect_refused(pieces(), {
                               {ErrorCode::kCorrupt, "no token for byte 10",
                                [](Json& r) {
                                  r["model"]["vocab"].erase("<0x0A>");
                                  r["model"]["vocab"]["x"] = kByte0 + 10;
                                }},
                               {ErrorCode::kCorrupt, "key \"<x>\": missing",
                                [](Json& r) { r["model"]["unk_token"] = "<x>"; }},
                               {ErrorCode::kCorrupt, "nothing for characters without a token",
                                [](Json& r) {
                                  r["model"]["byte_fallback"] = false;
                                  r["model"].erase("unk_token");
                                }},
                               {ErrorCode::kUnsupported, "model: dropout",
                                [](Json& r) { r["model"]["dropout"] = 0.5; }},
                               {ErrorCode::kCorrupt, "merge 5: a part is not",
                                [](Json& r) { r["model"]["merges"].push_back("x y"); }},
                           });
}

TEST(PiecesJson, RefusesBadUnigramModels) {
  expect_refused(unigram(), {
                                {ErrorCode::kCorrupt, "key \"unk_id\": missing",
                                 [](Json& r) { r["model"].erase("unk_id"); }},
                                {ErrorCode::kCorrupt, "unknown token -1: no such token",
                                 [](Json& r) { r["model"]["unk_id"] = -1; }},
                                {ErrorCode::kCorrupt, "vocab: 5: not a text and a score",
                                 [](Json& r) { r["model"]["vocab"][5] = "x"; }},
                                {ErrorCode::kCorrupt, "vocab: 5: not a text and a score",
                                 [](Json& r) {
                                   r["model"]["vocab"][5] = {"x", "y"};
                                 }},
                                {ErrorCode::kCorrupt, "key \"vocab\": not an array",
                                 [](Json& r) { r["model"]["vocab"] = Json::object(); }},
                                {ErrorCode::kCorrupt, "no token for byte",
                                 [](Json& r) {
                                   r["model"]["byte_fallback"] = true;
                                   r["model"]["vocab"][10][0] = "xyz";
                                 }},
                            });
}

struct GgufCase {
  ErrorCode code;
  std::string message;
  std::function<void(tensors::Gguf&)> change;
};

TEST(PiecesGguf, RefusesBadFiles) {
  using tensors::Gguf;
  const auto set = [](const char* key, tensors::GgufValue value) {
    return [=](Gguf& f) { f.metadata[key] = value; };
  };
  const auto set_score = [](double score) {
    return [=](Gguf& f) {
      std::get<std::vector<double>>(f.metadata["tokenizer.ggml.scores"])[kPieceHe] = score;
    };
  };
  const std::vector<GgufCase> cases = {
      {ErrorCode::kCorrupt, "\"tokenizer.ggml.scores\": missing",
       [](Gguf& f) { f.metadata.erase("tokenizer.ggml.scores"); }},
      {ErrorCode::kCorrupt, "\"tokenizer.ggml.scores\": missing, or no list of numbers",
       set("tokenizer.ggml.scores", std::vector<std::string_view>{"1"})},
      {ErrorCode::kCorrupt, "scores: 1 for 270 tokens",
       set("tokenizer.ggml.scores", std::vector<std::int64_t>{1})},
      {ErrorCode::kCorrupt, "scores: token 259: not a finite number",
       set_score(std::numeric_limits<double>::quiet_NaN())},
      {ErrorCode::kCorrupt, "scores: token 259: not a finite number",
       set_score(std::numeric_limits<double>::infinity())},
      {ErrorCode::kCorrupt, "token 259: \"he\" is no byte",
       [](Gguf& f) {
         std::get<std::vector<std::int64_t>>(f.metadata["tokenizer.ggml.token_type"])[kPieceHe] = 6;
       }},
      {ErrorCode::kUnsupported, "token 5: type 7",
       [](Gguf& f) {
         std::get<std::vector<std::int64_t>>(f.metadata["tokenizer.ggml.token_type"])[5] = 7;
       }},
      {ErrorCode::kCorrupt, "is token 13 too",
       [](Gguf& f) {
         std::get<std::vector<std::string_view>>(f.metadata["tokenizer.ggml.tokens"])[kByte0 + 11] =
             "<0x0A>";
       }},
      {ErrorCode::kTooLarge, "token 259: 600 bytes",
       [](Gguf& f) {
         std::get<std::vector<std::string_view>>(f.metadata["tokenizer.ggml.tokens"])[kPieceHe] =
             tiny::kept({std::string(600, 'x')})[0];
       }},
      {ErrorCode::kUnsupported, "precompiled_charsmap\": a normalizer of SentencePiece",
       set("tokenizer.ggml.precompiled_charsmap", std::vector<std::int64_t>{1})},
      {ErrorCode::kUnsupported, "remove_extra_whitespaces\": not with this kind",
       set("tokenizer.ggml.remove_extra_whitespaces", true)},
      {ErrorCode::kCorrupt, "tokenizer.ggml.add_space_prefix",
       set("tokenizer.ggml.add_space_prefix", std::int64_t{1})},
  };
  for (const GgufCase& one : cases) {
    Gguf file = pieces_gguf();
    one.change(file);
    EXPECT_THAT(Tokenizer::from_gguf(file), test::FailsWith(one.code, HasSubstr(one.message)));
  }
}

TEST(PiecesGguf, TakesAnEmptyCharsmapForNone) {
  tensors::Gguf file = pieces_gguf();
  file.metadata["tokenizer.ggml.precompiled_charsmap"] = std::vector<std::int64_t>{};
  EXPECT_TRUE(Tokenizer::from_gguf(file).ok());
}

}  // namespace pieces_file_test
}  // namespace tqcache::tokenizer
