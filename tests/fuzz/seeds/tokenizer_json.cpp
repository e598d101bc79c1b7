// Tokenizers of a few tokens, with and without the configs beside them.

#include <string>

#include "fuzz/seeds/seeds.h"
#include "model/tiny_files.h"
#include "tokenizer/tiny_pieces.h"

namespace tqcache::fuzz {
namespace {

// With the letters of the byte alphabet as the target has them: one byte.
std::string shortened(const tiny::Json& tokenizer) {
  tiny::Json root = tokenizer;
  for (const std::string& letter : tiny::byte_letters()) root["model"]["vocab"].erase(letter);
  root["model"]["vocab"]["#"] = 0;
  std::string text = root.dump();
  return text.replace(text.find("\"#\":0"), 5, "\x1f");
}

// SentencePiece's vocabularies with few of their bytes, as a target that changes bytes likes them.
void make_pieces(const SeedFolder& seeds) {
  tiny::Json root = tiny::pieces_with_metaspace("first", false);
  root["model"]["byte_fallback"] = false;
  root["model"]["vocab"] = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"▁", 3},
                            {"t", 4},     {"h", 5},   {"▁t", 6}};
  root["model"]["merges"] = {"▁ t"};
  root["added_tokens"][1]["rstrip"] = true;
  root["added_tokens"][2]["lstrip"] = true;
  seeds.add("pieces_metaspace", root.dump());
  root["normalizer"] = tiny::pieces()["normalizer"];
  root["pre_tokenizer"] = nullptr;
  root["added_tokens"][1]["normalized"] = true;
  seeds.add("pieces_prepend", root.dump());
  root["model"] = {{"type", "Unigram"},
                   {"unk_id", 0},
                   {"vocab",
                    {{"<unk>", 0.0},
                     {"<s>", 0.0},
                     {"</s>", 0.0},
                     {"▁", -2.5},
                     {"t", -3.0},
                     {"▁th", -4.0},
                     {"the", -4.5}}}};
  seeds.add("unigram", root.dump());
}

}  // namespace

void make_tokenizer_json(const SeedFolder& seeds) {
  tiny::Json root = tiny::tokenizer();
  seeds.add("tiny", shortened(root));
  seeds.add("with_configs", shortened(root) + "\x1e{\"eos_token\":\"<|im_end|>\"}\x1e" +
                                R"({"eos_token_id":[261,262]})");
  root["normalizer"] = {{"type", "NFC"}};
  root["post_processor"] = {{"type", "ByteLevel"}};
  const tiny::Json split = {{"type", "Split"},
                            {"pattern", {{"Regex", "\\p{N}|[^\\s]+|\\s+(?!\\S)"}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  const tiny::Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  seeds.add("split_and_nfc", shortened(root));
  root["model"]["vocab"] = {{"a", 0}};
  root["model"]["merges"] = tiny::Json::array({tiny::Json::array({"a", "a"})});
  root["model"]["ignore_merges"] = true;
  root["added_tokens"] = tiny::Json::array({tiny::added_token(1, "<x>", true)});
  seeds.add("short", root.dump());
  make_pieces(seeds);
}

}  // namespace tqcache::fuzz
