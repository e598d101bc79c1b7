#include "tqcache/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/new_characters.h"
#include "tqcache/tokenizer/normalizer.h"
#include "tqcache/tokenizer/utf8.h"

// Every accepted construct has the same meaning in both regex engines. Refused are, among others:
// anchors (in Ruby's dialect ^ and $ match at every line), \w and \b (other sets of letters), \h (a
// hex digit there, a space here), classes inside classes and &&, and all escapes that are not
// listed.

namespace tqcache::tokenizer {

std::string pcre2_version() {
  std::array<char, 64> version{}, unicode{};  // more than both ever take
  pcre2_config(PCRE2_CONFIG_VERSION, version.data());
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode.data());
  return std::string(version.data()) + ", Unicode " + unicode.data();
}

namespace {

using Word = std::function<Result<void>(std::string_view)>;

// Source: huggingface/tokenizers pre_tokenizers/metaspace.rs.
Result<void> emit(const WordRules& rules, std::string_view text, bool begins, const Word& word) {
  const bool wants_space =
      rules.prefix == SpacePrefix::kEach || (rules.prefix == SpacePrefix::kFirst && begins);
  std::string spaced;
  if (rules.mark_spaces && text.find(kSpaceMark) != std::string_view::npos) {
    spaced = spaces_for_marks(text);
    text = spaced;
  }
  if (wants_space && !text.starts_with(' ')) {
    spaced = " " + std::string(text);
    text = spaced;
  }
  while (rules.cut_at_spaces && !text.empty()) {
    const std::size_t size = std::min(text.find(' ', 1), text.size());
    TQC_TRY(word(text.substr(0, size)));
    text.remove_prefix(size);
  }
  if (!text.empty()) TQC_TRY(word(text));
  return {};
}

std::size_t size_of_word(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const Utf8Character character = first_character(text.substr(n));
    if (is_white_space(character.code_point)) break;
    n += character.n_bytes;
  }
  return n;
}

}  // namespace

std::size_t find_word_end(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return text.size();
  return std::min(text.find(' ', begin), text.size());
}

Result<void> split_words(const WordRules& rules, std::string_view text, bool begins,
                         const Word& word) {
  if (!rules.drop_white_space) {
    return text.empty() ? Result<void>() : emit(rules, text, begins, word);
  }
  for (bool is_first = begins;; is_first = false) {
    const std::size_t space = leading_white_space(text);
    text.remove_prefix(space);
    const std::size_t size = size_of_word(text);
    if (size == 0) return {};
    TQC_TRY(emit(rules, text.substr(0, size), is_first && space == 0, word));
    text.remove_prefix(size);
  }
}

namespace {

constexpr std::size_t kMaxPatternBytes = 16 * 1024;  // the longest in use has about 1,000

// A run of a million spaces takes a few million steps with the patterns in use. The limit, about a
// second of work, marks a pattern as runaway.
constexpr std::uint32_t kMatchLimit = 100'000'000;

// PCRE2 limits the steps of each start position, and does not report how many it took. So a match
// is first tried with a small limit, which ordinary patterns stay below, over many start positions.
// When the limit is hit, positions are tried one by one, with growing limits.
constexpr std::uint32_t kFirstLimit = 256;
constexpr std::uint32_t kLimitFactor = 16;
constexpr std::size_t kFirstPlaces = 1024;
constexpr std::size_t kMostPlaces = 64 * 1024;

// PCRE2 does not count the characters of possessive runs such as \s++; this many make one step.
constexpr std::size_t kUncounted = 256;
constexpr std::uint32_t kDepthLimit = 1'000'000;
constexpr std::uint32_t kHeapLimit = 256 * 1024;               // KiB, when there is no JIT
constexpr std::size_t kJitStackStart = std::size_t{32} << 10;  // bytes
constexpr std::size_t kJitStackMax = std::size_t{8} << 20;

template <auto function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    function(object);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using ContextPtr = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR as_subject(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

Result<CodePtr> compile_translated(const std::string& pattern) {
  int error = 0;
  std::size_t place = 0;
  CodePtr code(pcre2_compile(as_subject(pattern), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT, &error, &place,
                             nullptr));
  if (!code) return Error{ErrorCode::kCorrupt, "pattern: " + message(error)};
  // Without a JIT, or without executable memory, the interpreter gives the same result.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  return code;
}

// The first of the new characters has three bytes in UTF-8.
bool has_new_characters(std::string_view text) {
  constexpr unsigned char kLeadOfThree = 0xe0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) < kLeadOfThree) continue;
    const char32_t c = first_character(text.substr(i)).code_point;
    const auto after = std::ranges::upper_bound(kNewCharacters, c, {}, &NewCharacters::first);
    if (after != kNewCharacters.begin() && c <= std::prev(after)->last) {
      return true;
    }
  }
  return false;
}

template <class Pointer>
Pointer require_memory(Pointer pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct Pretokenizer::State {
  CodePtr code;
  CodePtr code_for_new;  // for texts with new characters: has_new_characters()
};

Pretokenizer::Pretokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

Result<Pretokenizer> Pretokenizer::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return Error{ErrorCode::kTooLarge, "pattern: " + std::to_string(pattern.size()) + " bytes"};
  }
  TQC_TRY_ASSIGN(const std::string translated, translate_pattern(pattern));
  TQC_TRY_ASSIGN(CodePtr code, compile_translated(translated));
  // Long classes take time at each character, so most texts are matched without them.
  TQC_TRY_ASSIGN(const std::string with_new, translate_pattern(pattern, true));
  CodePtr code_for_new;
  if (with_new != translated) {
    TQC_TRY_ASSIGN(code_for_new, compile_translated(with_new));
  }
  return Pretokenizer(std::make_unique<State>(State{std::move(code), std::move(code_for_new)}));
}

struct Pretokenizer::Matcher::State {
  const Pretokenizer::State* patterns;
  const pcre2_code* code;  // for the text at hand
  MatchDataPtr data;
  ContextPtr context;
  JitStackPtr jit_stack;
};

Pretokenizer::Matcher::Matcher(const Pretokenizer& pretokenizer) {
  const pcre2_code* code = pretokenizer.state_->code.get();
  state_ = std::make_unique<State>(
      State{pretokenizer.state_.get(), code,
            // Groups are the same in both.
            require_memory(MatchDataPtr(pcre2_match_data_create_from_pattern(code, nullptr))),
            require_memory(ContextPtr(pcre2_match_context_create(nullptr))),
            JitStackPtr(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr))});
  pcre2_match_context* context = state_->context.get();
  pcre2_set_depth_limit(context, kDepthLimit);
  pcre2_set_heap_limit(context, kHeapLimit);
  pcre2_jit_stack_assign(context, nullptr, state_->jit_stack.get());
}

Pretokenizer::Matcher::Matcher(Matcher&&) noexcept = default;
Pretokenizer::Matcher::~Matcher() = default;

// The first match that begins at `from` or later.
Result<std::optional<Pretokenizer::Matcher::Range>> Pretokenizer::Matcher::find(
    std::string_view text, std::size_t from, WorkBudget& budget) {
  pcre2_match_context* context = state_->context.get();
  std::uint32_t limit = kFirstLimit;
  std::size_t n_places = kFirstPlaces;
  while (from < text.size()) {
    const std::size_t last = from + std::min(n_places, text.size() - from) - 1;
    pcre2_set_match_limit(context, limit);
    pcre2_set_offset_limit(context, last);
    const std::size_t uncounted = (text.size() - from) / kUncounted;
    const int n_groups = pcre2_match(state_->code, as_subject(text), text.size(), from,
                                     PCRE2_NO_UTF_CHECK, state_->data.get(), context);
    if (n_groups > 0) {
      const std::size_t* range = pcre2_get_ovector_pointer(state_->data.get());
      TQC_TRY(budget.spend(range[1] - from + 1 + (limit > kFirstLimit ? limit : 0), uncounted));
      return std::optional(Range{range[0], range[1]});
    }
    if (n_groups == PCRE2_ERROR_NOMATCH) {
      TQC_TRY(budget.spend(last + 1 - from + (limit > kFirstLimit ? limit : 0), uncounted));
      from = last + 1;
      while (from < text.size() && (text[from] & 0xc0) == 0x80) ++from;  // inside a character
      limit = kFirstLimit;
      n_places = std::min(2 * n_places, kMostPlaces);
      continue;
    }
    const bool may_take_more = n_groups == PCRE2_ERROR_MATCHLIMIT && limit < kMatchLimit;
    if (!may_take_more) return Error{ErrorCode::kTooLarge, "pattern: " + message(n_groups)};
    TQC_TRY(budget.spend(limit, uncounted));
    if (n_places == 1) limit = std::min(limit * kLimitFactor, kMatchLimit);
    n_places = 1;
  }
  return std::optional<Range>();
}

Result<void> Pretokenizer::Matcher::split(
    std::string_view text, WorkBudget& budget,
    const std::function<Result<void>(std::string_view)>& piece) {
  const auto emit = [&](std::size_t begin, std::size_t end) {
    return begin < end ? piece(text.substr(begin, end - begin)) : Result<void>();
  };
  const Pretokenizer::State& patterns = *state_->patterns;
  const bool needs_new = patterns.code_for_new && has_new_characters(text);
  state_->code = (needs_new ? patterns.code_for_new : patterns.code).get();
  std::size_t done = 0;    // the text before is split
  std::size_t search = 0;  // where the next match may begin
  while (search < text.size()) {
    TQC_TRY_ASSIGN(const std::optional<Range> match, find(text, search, budget));
    if (!match) break;
    if (match->begin == match->end) {  // an empty match is not a piece; continue after it
      if (match->end == text.size()) break;
      search = match->end + first_character(text.substr(match->end)).n_bytes;
      continue;
    }
    TQC_TRY(emit(done, match->begin));
    TQC_TRY(emit(match->begin, match->end));
    done = search = match->end;
  }
  return emit(done, text.size());
}

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

// Phi-4-mini, GPT-4o
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoderPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
// MiniCPM5, behind a split into up to three digits
constexpr std::string_view kMiniCpm5Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// llama.cpp's, for files that name no pre-tokenizer. Older versions of its converter wrote none.
constexpr KnownPretokenizer kDefault = {
    {}, {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}, false, false};

// The families of expressions. The names of models whose tokenizers are equal share one.
constexpr KnownPretokenizer kGpt2 = {{}, {kGpt2Pattern}, false, false};
constexpr KnownPretokenizer kQwen2 = {{}, {kQwen2Pattern}, false, false};
constexpr KnownPretokenizer kQwen35 = {{}, {kQwen35Pattern}, false, false};
constexpr KnownPretokenizer kLlama3 = {{}, {kLlama3Pattern}, true, true};
constexpr KnownPretokenizer kDbrx = {{}, {kLlama3Pattern}, false, false};
constexpr KnownPretokenizer kTekken = {{}, {kTekkenPattern}, true, true};
constexpr KnownPretokenizer kO200k = {{}, {kO200kPattern}, false, false};
constexpr KnownPretokenizer kDigits = {{}, {R"(\p{N})", kGpt2Pattern}, false, false};
constexpr KnownPretokenizer kSeedCoder = {{}, {kSeedCoderPattern}, false, false};
constexpr KnownPretokenizer kMiniCpm5 = {{}, {R"(\p{N}{1,3})", kMiniCpm5Pattern}, true, false};
constexpr KnownPretokenizer kDeepSeekCoder = {
    {},
    {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"},
    false,
    false};

constexpr KnownPretokenizer named(std::string_view name, KnownPretokenizer family) {
  family.name = name;
  return family;
}

// One name a line:
// clang-format off
constexpr std::array kKnown = {
    named("default", kDefault),
    named("gpt-2", kGpt2),
    named("a.x-4.0", kGpt2),
    named("granite-docling", kGpt2),
    named("mellum", kGpt2),
    named("trillion", kGpt2),
    named("qwen2", kQwen2),
    named("deepseek-r1-qwen", kQwen2),
    named("f2llmv2", kQwen2),
    named("kormo", kQwen2),
    named("megrez", kQwen2),
    named("qwen35", kQwen35),
    named("llama-bpe", kLlama3),
    named("llama3", kLlama3),
    named("llama-v3", kLlama3),
    named("falcon3", kLlama3),
    named("midm-2.0", kLlama3),
    named("pixtral", kLlama3),
    named("dbrx", kDbrx),
    named("smaug-bpe", kDbrx),
    named("glm4", kDbrx),
    named("chatglm-bpe", kDbrx),
    named("tekken", kTekken),
    named("gpt-4o", kO200k),
    named("smollm", kDigits),
    named("minerva-7b", kDigits),
    named("refact", kDigits),
    named("seed-coder", kSeedCoder),
    named("minicpm5", kMiniCpm5),
    named("deepseek-coder", kDeepSeekCoder),
};
// clang-format on

}  // namespace

const KnownPretokenizer* find_pretokenizer(std::string_view name) {
  const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                  [&](const KnownPretokenizer& k) { return k.name == name; });
  return known == kKnown.end() ? nullptr : &*known;
}

namespace {

// White_Space of Unicode. PCRE2's \s also contains U+180E, which is not a space since Unicode 6.3.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

constexpr std::string_view kControlEscapes = "rntf";
constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";

// The new characters of a category such as Lu, or L for all whose category begins so, as a part of
// a class.
std::string new_characters_of(std::string_view category) {
  std::string ranges;
  for (const NewCharacters& n : kNewCharacters) {
    const bool is_cased = n.category == "Lu" || n.category == "Ll" || n.category == "Lt";
    if (category == "LC" ? is_cased : n.category.starts_with(category)) {
      ranges += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<std::uint32_t>(n.first),
                            static_cast<std::uint32_t>(n.last));
    }
  }
  return ranges;
}

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class Translator {
 public:
  Translator(std::string_view pattern, bool lists_new) : in_(pattern), lists_new_(lists_new) {}

  Result<std::string> run() {
    while (at_ < in_.size()) TQC_TRY(take_one());
    if (in_class_) return Error{ErrorCode::kCorrupt, "pattern: ends inside a class"};
    return std::move(out_);
  }

 private:
  Error refuse(std::string_view what) const {
    return {ErrorCode::kUnsupported,
            "pattern: byte " + std::to_string(at_) + ": " + tensors::printable_name(what)};
  }

  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  Result<void> take_one() {
    if (in_[at_] == '\\') return take_escape();
    return in_class_ ? take_in_class() : take_outside();
  }

  Result<void> take_outside() {
    const char c = in_[at_];
    const std::string_view two = in_.substr(at_, 2);
    if (c == '^' || c == '$') return refuse(in_.substr(at_, 1));
    if (two == "{," || two == "}+") return refuse(two);  // {0,n} or literal; possessive or not
    if (c == '(') return take_group();
    if (c == '[') return begin_class();
    copy(1);
    return {};
  }

  Result<void> begin_class() {
    in_class_ = true;
    copy(in_.substr(at_, 2) == "[^" ? 2 : 1);
    // One engine ends the class here, the other reads a literal.
    if (in_.substr(at_, 1) == "]") return refuse("[]");
    return {};
  }

  // "(", "(?:", "(?i:" and the four look-arounds.
  Result<void> take_group() {
    for (const std::string_view start : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (!in_.substr(at_).starts_with(start)) continue;
      copy(start.size());
      return {};
    }
    const std::string_view next = in_.substr(at_, 2);
    if (next == "(?" || next == "(*") return refuse(in_.substr(at_, 3));
    copy(1);
    return {};
  }

  Result<void> take_in_class() {
    const char c = in_[at_];
    if (c == '[' || in_.substr(at_, 2) == "&&") return refuse(in_.substr(at_, 2));
    if (c == ']') in_class_ = false;
    copy(1);
    return {};
  }

  Result<void> take_escape() {
    if (at_ + 1 == in_.size()) return Error{ErrorCode::kCorrupt, "pattern: ends in a backslash"};
    const char c = in_[at_ + 1];
    if (c == 's' || c == 'S') return take_space(c == 'S');
    if (c == 'p' || c == 'P') return take_property();
    if (c == 'd' || c == 'D') {
      take_category(2, "Nd", c == 'D');
      return {};
    }
    if (kControlEscapes.find(c) != std::string_view::npos ||
        kPunctuation.find(c) != std::string_view::npos) {
      copy(2);
      return {};
    }
    return refuse(in_.substr(at_, 2));
  }

  Result<void> take_space(bool negated) {
    if (in_class_ && negated) return refuse(in_.substr(at_, 2));
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += kSpaces;
    if (!in_class_) out_ += ']';
    at_ += 2;
    return {};
  }

  // \p{L}, \p{Lu}: a general category. Scripts and other properties differ in their names.
  Result<void> take_property() {
    std::size_t end = at_ + 3;
    while (end < in_.size() && is_letter(in_[end])) ++end;
    const std::size_t n_letters = end - at_ - 3;
    const bool in_braces = in_.substr(at_ + 2, 1) == "{" && in_.substr(end, 1) == "}";
    if (!in_braces || n_letters < 1 || n_letters > 2) return refuse(in_.substr(at_, 12));
    std::string category(in_.substr(at_ + 3, n_letters));
    if (category != "LC") {
      for (char& c : category) c = static_cast<char>(c | ('a' ^ 'A'));
      category[0] = static_cast<char>(category[0] & ~('a' ^ 'A'));
    }
    take_category(end + 1 - at_, category, in_[at_ + 1] == 'P');
    return {};
  }

  // Copies `size` bytes that stand for the characters of a category, or for all others. Categories
  // of what has no character (C, Cn) and negated ones in a class would have to lose the new
  // characters; they stay as the tables of PCRE2 have them.
  void take_category(std::size_t size, std::string_view category, bool is_negated) {
    const bool loses = category[0] == 'C' || (in_class_ && is_negated);
    const std::string more = lists_new_ && !loses ? new_characters_of(category) : std::string();
    if (more.empty()) return copy(size);
    if (in_class_) {
      copy(size);
      out_ += more;
      return;
    }
    out_ += is_negated ? "[^" : "[";
    out_ += category == "Nd" && size == 2 ? "\\d" : fmt::format("\\p{{{}}}", category);
    out_ += more + "]";
    at_ += size;
  }

  std::string_view in_;
  bool lists_new_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern, bool lists_new) {
  return Translator(pattern, lists_new).run();
}

}  // namespace tqcache::tokenizer
