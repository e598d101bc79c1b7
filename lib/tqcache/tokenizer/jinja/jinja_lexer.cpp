#include "tqcache/tokenizer/jinja/jinja_lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"
#include "tqcache/tokenizer/utf8.h"

namespace tqcache::tokenizer::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                           "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                           "]",  "{",  "}",  ",",  ".",  ":",  "|"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) {
  return is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// With line ends of one kind, and without one at the end.
std::string normalized_lines(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    text += source[i] == '\r' ? '\n' : source[i];
    if (source.substr(i).starts_with("\r\n")) ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : owned_(normalized_lines(source)), rest_(owned_) {}

  Result<std::vector<Token>> run() {
    while (!rest_.empty()) TQC_TRY(read_data_and_tag());
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  Error error(const std::string& what) const {
    return unsupported("line " + std::to_string(line_) + ": " + what);
  }
  void add(Token::Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  // Removes `n` bytes from what is to be read.
  std::string_view take(std::size_t n) {
    const std::string_view taken = rest_.substr(0, n);
    line_ += static_cast<int>(std::ranges::count(taken, '\n'));
    if (n > 0) at_line_start_ = taken.back() == '\n';
    rest_.remove_prefix(n);
    return taken;
  }
  void take_spaces() {
    std::size_t n = 0;
    while (n < rest_.size() && is_python_space(character_at(rest_, n)))
      n = next_character(rest_, n);
    take(n);
  }

  // A tag, and the text before it.
  Result<void> read_data_and_tag() {
    std::size_t at = rest_.find('{');
    const auto opens = [&] {
      return at + 1 < rest_.size() &&
             (rest_[at + 1] == '{' || rest_[at + 1] == '%' || rest_[at + 1] == '#');
    };
    while (at != std::string_view::npos && !opens()) at = rest_.find('{', at + 1);
    if (at == std::string_view::npos) {
      add_data(rest_);
      take(rest_.size());
      return {};
    }
    const char opener = rest_[at + 1];
    std::string_view data = rest_.substr(0, at);
    const char sign = at + 2 < rest_.size() ? rest_[at + 2] : '\0';
    data = before_tag(data, opener, sign);
    add_data(data);
    take(at + 2 + (sign == '-' || sign == '+' ? 1 : 0));
    if (opener == '#') return read_comment();
    if (opener == '{') {
      add(Token::Kind::kBeginOutput, "");
      return read_expression(Token::Kind::kEndOutput);
    }
    if (is_raw()) return read_raw();
    add(Token::Kind::kBeginBlock, "");
    return read_expression(Token::Kind::kEndBlock);
  }

  void add_data(std::string_view data) {
    if (!data.empty()) add(Token::Kind::kData, data);
  }

  std::string_view before_tag(std::string_view data, char opener, char sign) const {
    if (sign == '-') return data.substr(0, stripped_end(data));
    if (sign == '+' || opener == '{') return data;
    const std::size_t line_end = data.rfind('\n');
    const std::size_t line = line_end == std::string_view::npos ? 0 : line_end + 1;
    if (line == 0 && !at_line_start_) return data;
    return stripped_end(data.substr(line)) == 0 ? data.substr(0, line) : data;
  }

  // Reads the end of a block or of a comment, with what it removes behind it.
  bool take_end(std::string_view end) {
    if (rest_.starts_with('-') && rest_.substr(1).starts_with(end)) {
      take(1 + end.size());
      take_spaces();
      return true;
    }
    if (rest_.starts_with('+') && rest_.substr(1).starts_with(end) && end != "}}") {
      take(1 + end.size());
      return true;
    }
    if (!rest_.starts_with(end)) return false;
    take(end.size());
    if (end != "}}" && rest_.starts_with('\n')) take(1);
    return true;
  }

  Result<void> read_comment() {
    const int line = line_;
    for (std::size_t at = rest_.find("#}"); at != std::string_view::npos;) {
      if (at > 0 && (rest_[at - 1] == '-' || rest_[at - 1] == '+')) --at;
      take(at);
      take_end("#}");
      return {};
    }
    line_ = line;
    return error("a comment without an end");
  }

  bool is_raw() const {
    const std::string_view word =
        rest_.substr(std::min(rest_.find_first_not_of(" \t\n"), rest_.size()));
    return word.starts_with("raw") && word.size() > 3 && !is_name_character(word[3]);
  }

  Result<void> read_raw() {
    take(rest_.find("raw") + 3);
    take_spaces();
    // The first line end of the text is kept, unlike behind other blocks.
    const bool strips = rest_.starts_with("-%}");
    if (!strips && !rest_.starts_with("%}")) return error("a raw block with something behind raw");
    take(strips ? 3 : 2);
    if (strips) take_spaces();
    for (std::size_t at = rest_.find("{%"); at != std::string_view::npos;
         at = rest_.find("{%", at + 2)) {
      std::string_view tag = rest_.substr(at + 2);
      const char sign = tag.empty() ? '\0' : tag[0];
      if (sign == '-' || sign == '+') tag.remove_prefix(1);
      tag.remove_prefix(std::min(tag.find_first_not_of(" \t\n"), tag.size()));
      if (!tag.starts_with("endraw")) continue;
      tag.remove_prefix(6);
      tag.remove_prefix(std::min(tag.find_first_not_of(" \t\n"), tag.size()));
      if (!tag.starts_with("%}") && !tag.starts_with("-%}") && !tag.starts_with("+%}")) continue;
      add_data(before_tag(rest_.substr(0, at), '%', sign));
      take(rest_.size() - tag.size());
      take_end("%}");
      return {};
    }
    return error("a raw block without an end");
  }

  Result<void> read_expression(Token::Kind end_kind) {
    const std::string_view end = end_kind == Token::Kind::kEndBlock ? "%}" : "}}";
    std::string open;  // brackets
    const int line = line_;
    while (true) {
      take_spaces();
      if (rest_.empty()) {
        line_ = line;
        return error("a tag without an end");
      }
      if (open.empty()) {
        add(end_kind, "");
        if (take_end(end)) return {};
        tokens_.pop_back();
      }
      TQC_TRY(read_token(open));
    }
  }

  Result<void> read_token(std::string& open) {
    const char first = rest_[0];
    if (first == '\'' || first == '"') return read_string();
    if (is_digit(first)) return read_number();
    if (is_name_character(first)) {
      const auto end = std::ranges::find_if_not(rest_, is_name_character);
      const auto n = static_cast<std::size_t>(end - rest_.begin());
      add(Token::Kind::kName, rest_.substr(0, n));
      take(n);
      return {};
    }
    for (const std::string_view each : kOperators) {
      if (!rest_.starts_with(each)) continue;
      if (each == "(" || each == "[" || each == "{") open += each;
      if (each == ")" || each == "]" || each == "}") {
        const char opener = each == ")" ? '(' : each == "]" ? '[' : '{';
        if (open.empty() || open.back() != opener) return error("unexpected " + std::string(each));
        open.pop_back();
      }
      add(Token::Kind::kOperator, each);
      take(each.size());
      return {};
    }
    return error("unexpected " +
                 tensors::printable_name(std::string(rest_.substr(0, next_character(rest_, 0)))));
  }

  // 1_000, 0x1f, 1.5e3
  Result<void> read_number() {
    std::size_t n = 0;
    std::string digits;
    const auto take_digits = [&] {
      while (n < rest_.size() && (is_digit(rest_[n]) || rest_[n] == '_')) {
        if (rest_[n] != '_') digits += rest_[n];
        ++n;
      }
    };
    take_digits();
    bool is_float = false;
    const auto digit_at = [&](std::size_t at) { return at < rest_.size() && is_digit(rest_[at]); };
    if (n < rest_.size() && rest_[n] == '.' && digit_at(n + 1)) {
      is_float = true;
      digits += '.';
      ++n;
      take_digits();
    }
    if (n < rest_.size() && (rest_[n] == 'e' || rest_[n] == 'E')) {
      const std::size_t sign = n + 1 < rest_.size() && (rest_[n + 1] == '+' || rest_[n + 1] == '-');
      if (digit_at(n + 1 + sign)) {
        is_float = true;
        digits += rest_.substr(n, 1 + sign);
        n += 1 + sign;
        take_digits();
      }
    }
    const bool has_zeros = !is_float && digits.size() > 1 && digits[0] == '0';
    if ((n < rest_.size() && is_name_character(rest_[n])) || has_zeros) {
      return error("a number in a form that is not supported");
    }
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
    take(n);
    return {};
  }

  Result<void> read_string() {
    const char quote = rest_[0];
    std::string value;
    std::size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      if (rest_[at] != '\\') {
        value += rest_[at++];
        continue;
      }
      if (at + 1 == rest_.size()) break;
      TQC_TRY(read_escape(at, value));
    }
    if (at >= rest_.size()) return error("a string without an end");
    add(Token::Kind::kString, value);
    take(at + 1);
    return {};
  }

  // Python's escapes. An unknown one stands for itself, with its backslash.
  Result<void> read_escape(std::size_t& at, std::string& value) {
    static constexpr std::pair<char, char> kSimple[] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
        {'"', '"'},  {'a', '\a'}, {'b', '\b'}, {'f', '\f'},  {'v', '\v'}};
    const char code = rest_[at + 1];
    at += 2;
    for (const auto& [name, meaning] : kSimple) {
      if (code == name) return value += meaning, Result<void>();
    }
    if (code == '\n') return {};
    const std::size_t n_digits = code == 'x' ? 2 : code == 'u' ? 4 : code == 'U' ? 8 : 0;
    if (n_digits > 0) {
      char32_t c = 0;
      for (std::size_t i = 0; i < n_digits; ++i, ++at) {
        const std::size_t digit = at < rest_.size()
                                      ? std::string_view("0123456789abcdef").find(lower(rest_[at]))
                                      : std::string_view::npos;
        if (digit == std::string_view::npos) return error("a bad escape in a string");
        c = c * 16 + static_cast<char32_t>(digit);
      }
      if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return error("a bad character in a string");
      value += utf8_of(c);
      return {};
    }
    if (is_digit(code) || code == 'N') return error("an escape that is not supported");
    value += '\\';
    value += code;
    return {};
  }
  static char lower(char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; }

  std::string owned_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  int line_ = 1;
  bool at_line_start_ = true;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  if (valid_utf8_bytes(source) != source.size()) return unsupported("the program is not UTF-8");
  return Lexer(source).run();
}

}  // namespace tqcache::tokenizer::jinja
