#include <string>
#include <string_view>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/pretokenizer.h"

// What is let through means the same to both engines. Refused are, among others: anchors (in
// Ruby's dialect ^ and $ stand at every line), \w and \b (other sets of letters), \h (a hex digit
// there, a space here), classes inside classes and &&, and everything with a backslash that is
// not listed.

namespace tqcache::tokenizer {
namespace {

// White_Space of Unicode. PCRE2's \s would take U+180E as well, which stopped being a space in
// Unicode 6.3.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"
    "\\x{3000}";

constexpr std::string_view kControlEscapes = "rntf";
constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ";

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

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
    // The end of the class to one engine, a literal to the other.
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
    if (c == 'd' || c == 'D' || kControlEscapes.find(c) != std::string_view::npos ||
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
    copy(end + 1 - at_);
    return {};
  }

  std::string_view in_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace tqcache::tokenizer
