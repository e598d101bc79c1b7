#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/tokenizer_json_parts.h"

// The steps that huggingface/tokenizers calls normalizers, pre_tokenizers and decoders. Its
// SentencePiece vocabularies write a space as U+2581; see normalizer.h.

namespace tqcache::tokenizer {
namespace {

using tensors::printable_name;

constexpr const char* kNormalizer = "normalizer";
constexpr const char* kPretokenizer = "pre_tokenizer";

// The members of a "Sequence", or the step itself.
Result<std::vector<const Json*>> steps_of(const Json& step, const char* list) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type != "Sequence") return std::vector<const Json*>{&step};
  TQC_TRY_ASSIGN(const Json* members, get_array(step, list));
  std::vector<const Json*> steps;
  for (const Json& member : *members) steps.push_back(&member);
  return steps;
}

Result<Normalizer> read_replace(const Json& step) {
  TQC_TRY_ASSIGN(const Json* pattern, get_object(step, "pattern"));
  TQC_TRY_ASSIGN(const std::string content, get_string(step, "content"));
  if (content == kSpaceMark && *pattern == Json{{"String", " "}}) return Normalizer::kMarkSpaces;
  if (content == kSpaceMark && *pattern == Json{{"Regex", " {2,}"}}) return Normalizer::kJoinSpaces;
  return unsupported_part(kNormalizer, "Replace, of anything but spaces by U+2581");
}

Result<Normalizer> read_prepend(const Json& step) {
  TQC_TRY_ASSIGN(const std::string text, get_string(step, "prepend"));
  if (text != kSpaceMark) return unsupported_part(kNormalizer, "Prepend " + printable_name(text));
  return Normalizer::kPrependSpace;
}

Result<void> read_strip(const Json& step, Normalizers& steps) {
  TQC_TRY_ASSIGN(const bool left, get_bool_or(step, "strip_left", true));
  TQC_TRY_ASSIGN(const bool right, get_bool_or(step, "strip_right", true));
  if (left) steps.push_back(Normalizer::kStripLeft);
  if (right) steps.push_back(Normalizer::kStripRight);
  return {};
}

Result<void> read_normalizer_step(const Json& step, Normalizers& steps) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "Strip") return read_strip(step, steps);
  if (type == "NFC") {
    steps.push_back(Normalizer::kNfc);
  } else if (type == "Prepend") {
    TQC_TRY_ASSIGN(const Normalizer prepend, read_prepend(step));
    steps.push_back(prepend);
  } else if (type == "Replace") {
    TQC_TRY_ASSIGN(const Normalizer replace, read_replace(step));
    steps.push_back(replace);
  } else {
    return unsupported_part(kNormalizer, printable_name(type));
  }
  return {};
}

// In huggingface/tokenizers, spaces turned into marks are no longer white space to later steps.
// Here they still are.
Result<void> check_order(const Normalizers& steps) {
  bool has_marks = false;
  for (const Normalizer step : steps) {
    const bool makes_marks = step == Normalizer::kMarkSpaces || step == Normalizer::kPrependSpace ||
                             step == Normalizer::kJoinSpaces;
    if (has_marks && !makes_marks && step != Normalizer::kNfc) {
      return unsupported_part(kNormalizer, "Strip after U+2581");
    }
    has_marks |= makes_marks;
  }
  return {};
}

Result<void> read_normalizer(const Json& root, TokenizerSpec& spec) {
  const Json* normalizer = find_value(root, "normalizer");
  if (normalizer == nullptr) return {};
  TQC_TRY_ASSIGN(const auto steps, steps_of(*normalizer, "normalizers"));
  for (const Json* step : steps) TQC_TRY(read_normalizer_step(*step, spec.normalizer));
  return check_order(spec.normalizer);
}

Result<std::string> read_split(const Json& step) {
  TQC_TRY_ASSIGN(const std::string behavior, get_string(step, "behavior"));
  if (behavior != "Isolated") return unsupported_part(kPretokenizer, printable_name(behavior));
  TQC_TRY(refuse_if_true(step, "invert", kPretokenizer));
  TQC_TRY_ASSIGN(const Json* pattern, get_object(step, "pattern"));
  if (!pattern->contains("Regex")) {
    return unsupported_part(kPretokenizer, "a split without a pattern \"Regex\"");
  }
  return get_string(*pattern, "Regex");
}

Result<std::string> read_digits(const Json& step) {
  TQC_TRY_ASSIGN(const bool one_by_one, get_bool_or(step, "individual_digits", false));
  return std::string(one_by_one ? "\\p{N}" : "\\p{N}+");
}

Result<std::string> read_pattern_step(const Json& step) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "Split") return read_split(step);
  if (type == "Digits") return read_digits(step);
  return unsupported_part(kPretokenizer, printable_name(type));
}

// The step that maps bytes to letters. Returns whether it also splits by GPT-2's expression.
Result<bool> read_byte_level(const Json& step) {
  // huggingface/tokenizers adds the space by default.
  TQC_TRY_ASSIGN(const bool adds_space, get_bool_or(step, "add_prefix_space", true));
  if (adds_space) return unsupported_part(kPretokenizer, "add_prefix_space");
  return get_bool_or(step, "use_regex", true);
}

// Expressions, followed by ByteLevel.
Result<void> read_patterns(const std::vector<const Json*>& steps, TokenizerSpec& spec) {
  std::vector<std::string> patterns;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    TQC_TRY_ASSIGN(std::string pattern, read_pattern_step(*steps[i]));
    patterns.push_back(std::move(pattern));
  }
  TQC_TRY_ASSIGN(const bool uses_regex, read_byte_level(*steps.back()));
  if (uses_regex) patterns.emplace_back(kGpt2Pattern);
  if (patterns.empty()) return unsupported_part(kPretokenizer, "no expression");
  spec.pattern = std::move(patterns.front());
  patterns.erase(patterns.begin());
  spec.later_patterns = std::move(patterns);
  for (const Normalizer step : spec.normalizer) {
    if (step != Normalizer::kNfc) {
      return unsupported_part(kNormalizer, "anything but NFC before ByteLevel");
    }
  }
  return {};
}

Result<SpacePrefix> read_prefix(const Json& step) {
  if (find_value(step, "prepend_scheme") == nullptr) {
    TQC_TRY_ASSIGN(const bool adds, get_bool_or(step, "add_prefix_space", true));
    return adds ? SpacePrefix::kEach : SpacePrefix::kNever;
  }
  TQC_TRY_ASSIGN(const std::string scheme, get_string(step, "prepend_scheme"));
  if (scheme == "always") return SpacePrefix::kEach;
  if (scheme == "first") return SpacePrefix::kFirst;
  if (scheme == "never") return SpacePrefix::kNever;
  return unsupported_part(kPretokenizer, "prepend_scheme " + printable_name(scheme));
}

Result<void> read_metaspace(const Json& step, WordRules& words) {
  TQC_TRY_ASSIGN(const std::string mark, get_string(step, "replacement"));
  if (mark != kSpaceMark) {
    return unsupported_part(kPretokenizer, "replacement " + printable_name(mark));
  }
  words.mark_spaces = true;
  TQC_TRY_ASSIGN(words.prefix, read_prefix(step));
  TQC_TRY_ASSIGN(words.cut_at_spaces, get_bool_or(step, "split", true));
  return {};
}

// Checks that a split at spaces has no effect, because the normalizer left no spaces.
Result<void> check_idle_split(const Json& step, const TokenizerSpec& spec) {
  const Json* pattern = find_value(step, "pattern");
  const bool is_space = pattern != nullptr && *pattern == Json{{"String", " "}};
  const bool has_marks =
      !spec.normalizer.empty() && spec.normalizer.back() == Normalizer::kMarkSpaces;
  if (is_space && has_marks) return {};
  return unsupported_part(kPretokenizer, "a split at spaces that no normalizer marks");
}

Result<void> read_word_step(const Json& step, bool is_last, TokenizerSpec& spec) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "Metaspace" && is_last) return read_metaspace(step, spec.words);
  if (type == "Split") return check_idle_split(step, spec);
  if (type != "WhitespaceSplit") return unsupported_part(kPretokenizer, printable_name(type));
  spec.words.drop_white_space = true;
  return {};
}

// SentencePiece words, in which spaces become marks by one of several steps.
Result<void> read_words(const std::vector<const Json*>& steps, TokenizerSpec& spec) {
  for (const Json* step : steps) TQC_TRY(read_word_step(*step, step == steps.back(), spec));
  bool has_marks = spec.words.mark_spaces;
  bool strips_left = false;
  for (const Normalizer step : spec.normalizer) {
    has_marks |= step == Normalizer::kMarkSpaces;
    strips_left |= step == Normalizer::kStripLeft;
  }
  if (!has_marks) return unsupported_part(kPretokenizer, "none, and spaces that are no U+2581");
  // "First" refers to the position before the normalizer.
  if (strips_left && spec.words.prefix == SpacePrefix::kFirst) {
    return unsupported_part(kPretokenizer, "prepend_scheme \"first\" after Strip");
  }
  return {};
}

Result<void> read_pretokenizer(const Json& root, TokenizerSpec& spec) {
  std::vector<const Json*> steps;
  if (const Json* pretokenizer = find_value(root, "pre_tokenizer")) {
    TQC_TRY_ASSIGN(steps, steps_of(*pretokenizer, "pretokenizers"));
    if (steps.empty()) return unsupported_part(kPretokenizer, "a sequence of 0");
  }
  if (!steps.empty()) {
    TQC_TRY_ASSIGN(const std::string last, get_string(*steps.back(), "type"));
    if (last == "ByteLevel") return read_patterns(steps, spec);
  }
  spec.algorithm = Algorithm::kPieces;
  return read_words(steps, spec);
}

// Only this part of the decoder matters: the other parts define what tokens mean, which is known.
Result<bool> drops_first_space(const Json& step) {
  TQC_TRY_ASSIGN(const std::string type, get_string(step, "type"));
  if (type == "Metaspace") {
    TQC_TRY_ASSIGN(const SpacePrefix prefix, read_prefix(step));
    return prefix != SpacePrefix::kNever;
  }
  if (type != "Strip") return false;
  TQC_TRY_ASSIGN(const std::string content, get_string_or(step, "content", " "));
  TQC_TRY_ASSIGN(const std::int64_t start, get_int_or(step, "start", 0));
  return content == " " && start == 1;
}

Result<void> read_decoder(const Json& root, TokenizerSpec& spec) {
  const Json* decoder = find_value(root, "decoder");
  if (decoder == nullptr) return {};
  TQC_TRY_ASSIGN(const auto steps, steps_of(*decoder, "decoders"));
  for (const Json* step : steps) {
    TQC_TRY_ASSIGN(const bool drops, drops_first_space(*step));
    spec.drops_first_space |= drops;
  }
  return {};
}

}  // namespace

Error unsupported_part(std::string_view part, std::string_view what) {
  return {ErrorCode::kUnsupported, std::string(part) + ": " + std::string(what)};
}

Result<void> refuse_if_true(const Json& object, const char* key, std::string_view part) {
  TQC_TRY_ASSIGN(const bool value, get_bool_or(object, key, false));
  if (value) return unsupported_part(part, key);
  return {};
}

Result<void> read_text_steps(const Json& root, TokenizerSpec& spec) {
  TQC_TRY(read_normalizer(root, spec));
  TQC_TRY(read_pretokenizer(root, spec));
  return read_decoder(root, spec);
}

}  // namespace tqcache::tokenizer
