#pragma once
// tokenizer/known_pretokenizers.h: the pre-tokenizers that GGUF files name without holding their
// expressions.
//
// Source: llama.cpp src/llama-vocab.cpp for the names; the expressions are those of each family's
// tokenizer.json (of Mistral's: tekken.json), which llama.cpp writes differently where its own
// engine lacks a property.

#include <string_view>

namespace tqcache::tokenizer {

// GPT-2's expression, which byte-level tokenizers use when they name none.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct KnownPretokenizer {
  std::string_view name;
  std::string_view pattern;
  std::string_view later_pattern;  // cuts what the first one leaves; empty: none
  bool ignore_merges;
  bool adds_begin;  // unless the file says otherwise
};

// nullptr when the name is not known.
const KnownPretokenizer* find_pretokenizer(std::string_view name);

}  // namespace tqcache::tokenizer
