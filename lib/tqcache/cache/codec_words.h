#pragma once
// cache/codec_words.h: the words that select a codec on a command line or in a configuration
// (tqcache/quantize.h). Files use names of their own (format/type_names.h).

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/cache/centering.h"
#include "tqcache/cache/outliers.h"
#include "tqcache/codec_spec.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {

template <class Value>
struct Word {
  std::string_view word;
  Value value;
};

inline constexpr auto kModeWords = std::to_array<Word<codec::Mode>>({
    {"mse", codec::Mode::kMse},
    {"prod", codec::Mode::kProd},
    {"mixed", codec::Mode::kMixed},
    {"affine", codec::Mode::kAffine},
});
inline constexpr auto kScaleWords = std::to_array<Word<codec::ScaleRule>>({
    {"unbiased", codec::ScaleRule::kUnbiased},
    {"norm", codec::ScaleRule::kNorm},
    {"raw", codec::ScaleRule::kRaw},
});
inline constexpr auto kRotationWords = std::to_array<Word<codec::TransformKind>>({
    {"hadamard", codec::TransformKind::kHadamard},
    {"dense", codec::TransformKind::kDenseQr},
});
inline constexpr auto kResidualWords = std::to_array<Word<codec::TransformKind>>({
    {"gaussian", codec::TransformKind::kGaussian},
    {"orthogonal", codec::TransformKind::kDenseQr},
});
inline constexpr auto kCenteringWords = std::to_array<Word<Centering>>({
    {"pre-rope", Centering::kPreRope},
    {"post-rope", Centering::kPostRope},
    {"none", Centering::kNone},
});

inline constexpr auto kFitWords = std::to_array<Word<Fit>>({
    {"first", Fit::kFirstBlock},
    {"prompt", Fit::kPrompt},
});
inline constexpr auto kWindowWords = std::to_array<Word<WindowMode>>({
    {"keep", WindowMode::kAsTheyAre},
    {"turbo", WindowMode::kTurbo},
    {"turbo:center", WindowMode::kTurboCentered},
});

// nullopt for a word that is not in the table.
template <class Value, std::size_t n>
std::optional<Value> find_word(const std::array<Word<Value>, n>& table, std::string_view word) {
  for (const Word<Value>& each : table) {
    if (each.word == word) return each.value;
  }
  return std::nullopt;
}

// Empty for a value without a word.
template <class Value, std::size_t n>
std::string_view word_of(const std::array<Word<Value>, n>& table, Value value) {
  for (const Word<Value>& each : table) {
    if (each.value == value) return each.word;
  }
  return {};
}

// "unbiased, norm, raw"
template <class Value, std::size_t n>
std::string all_words(const std::array<Word<Value>, n>& table) {
  std::string all;
  for (const Word<Value>& each : table) {
    all += (all.empty() ? "" : ", ") + std::string(each.word);
  }
  return all;
}

}  // namespace tqcache::cache
