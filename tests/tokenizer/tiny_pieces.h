#pragma once
// tests/tokenizer/tiny_pieces.h: a tokenizer of SentencePiece's kind small enough to write down, as
// tokenizer.json and as the metadata of a GGUF file.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::tiny {

// Ids. The pieces have the scores -1, -2, ... in this order.
enum PieceId : std::int32_t {
  kUnknown = 0,
  kBegin = 1,
  kFinish = 2,
  kByte0 = 3,  // the 256 bytes
  kPieceHe = 259,
  kPieceSpaceT,
  kPieceSpaceThe,
  kPieceIn,
  kPieceTwoSpaces,
  kPieceSpace,
  kPieceT,
  kPieceH,
  kPieceE,
  kPieceI,
  kPieceN,
  kPieceCount,
};

inline std::vector<std::string> piece_texts() {
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>"};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    texts.emplace_back(name);
  }
  texts.insert(texts.end(), {"he", "▁t", "▁the", "in", "▁▁", "▁", "t", "h", "e", "i", "n"});
  return texts;
}

// As Llama 2 has it. The merge list is what the scores stand for.
inline Json pieces() {
  const Json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
  Json vocab;
  const std::vector<std::string> texts = piece_texts();
  for (std::size_t id = 0; id < texts.size(); ++id) vocab[texts[id]] = id;
  Json root;
  root["added_tokens"] = {added_token(kUnknown, "<unk>", true), added_token(kBegin, "<s>", true),
                          added_token(kFinish, "</s>", true)};
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  root["pre_tokenizer"] = nullptr;
  root["post_processor"] = template_processing({"<s>", "$A"});
  root["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}},
                       {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  root["model"] = {{"type", "BPE"},        {"vocab", vocab},
                   {"unk_token", "<unk>"}, {"byte_fallback", true},
                   {"fuse_unk", true},     {"merges", {"h e", "▁ t", "▁t he", "i n", "▁ ▁"}}};
  return root;
}

inline Json metaspace(const std::string& scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
}

// The same with a step that marks spaces behind the normalizer.
inline Json pieces_with_metaspace(const std::string& scheme, bool split) {
  Json root = pieces();
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = metaspace(scheme, split);
  return root;
}

// The same as the metadata of a GGUF file.
inline tensors::Gguf pieces_gguf() {
  std::vector<std::int64_t> types = {2, 3, 3};
  types.resize(kPieceHe, 6);
  types.resize(kPieceCount, 1);
  std::vector<double> scores(kPieceHe, 0);
  for (int i = 1; scores.size() < kPieceCount; ++i) scores.push_back(-i);
  tensors::Gguf file;
  file.metadata = {
      {"tokenizer.ggml.model", std::string("llama")},
      {"tokenizer.ggml.tokens", kept(piece_texts())},
      {"tokenizer.ggml.token_type", types},
      {"tokenizer.ggml.scores", scores},
      {"tokenizer.ggml.bos_token_id", std::int64_t{kBegin}},
      {"tokenizer.ggml.eos_token_id", std::int64_t{kFinish}},
  };
  return file;
}

// Unigram, in which "the" and its parts have scores.
inline Json unigram() {
  Json root = pieces_with_metaspace("always", true);
  Json vocab = Json::array();
  for (const std::string& text : piece_texts()) vocab.push_back({text, 0.0});
  for (std::size_t i = kPieceHe; i < kPieceCount; ++i) vocab[i][1] = -1.0 - double(i - kPieceHe);
  root["model"] = {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", 0}, {"byte_fallback", false}};
  root["post_processor"] = template_processing({"$A", "</s>"});
  return root;
}

}  // namespace tqcache::tiny
