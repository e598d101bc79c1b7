#include "tqcache/tokenizer/known_pretokenizers.h"

#include <algorithm>
#include <array>

namespace tqcache::tokenizer {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array kKnown = {
    KnownPretokenizer{"gpt-2", kGpt2Pattern, {}, false, false},
    KnownPretokenizer{"qwen2", kQwen2Pattern, {}, false, false},
    KnownPretokenizer{"deepseek-r1-qwen", kQwen2Pattern, {}, false, false},
    KnownPretokenizer{"qwen35", kQwen35Pattern, {}, false, false},
    KnownPretokenizer{"llama-bpe", kLlama3Pattern, {}, true, true},
    KnownPretokenizer{"tekken", kTekkenPattern, {}, true, true},
    KnownPretokenizer{"smollm", R"(\p{N})", kGpt2Pattern, false, false},
};

}  // namespace

const KnownPretokenizer* find_pretokenizer(std::string_view name) {
  const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                  [&](const KnownPretokenizer& k) { return k.name == name; });
  return known == kKnown.end() ? nullptr : &*known;
}

}  // namespace tqcache::tokenizer
