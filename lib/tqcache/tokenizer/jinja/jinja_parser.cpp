#include <algorithm>
#include <charconv>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_lexer.h"
#include "tqcache/tokenizer/jinja/jinja_syntax.h"

namespace tqcache::tokenizer::jinja {
namespace {

using Kind = Expression::Kind;
using Names = std::vector<std::string_view>;

constexpr int kMaxSyntaxDepth = 100;  // of blocks and expressions in each other

// After the first error the parser stands at the end of the program, so every loop ends.
class Parser {
 public:
  Parser(std::vector<Token> tokens, std::set<std::string, std::less<>>& names)
      : tokens_(std::move(tokens)), names_(names) {}

  Result<std::vector<Statement>> run() {
    std::vector<Statement> body = read_body({});
    if (error_) return *error_;
    return body;
  }

 private:
  // Counts the levels of the recursion.
  struct Level {
    explicit Level(Parser& owner) : parser(owner) {
      if (++parser.depth_ > kMaxSyntaxDepth) parser.fail_deep();
    }
    ~Level() { --parser.depth_; }
    Parser& parser;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool is_name(std::string_view text) const {
    return now().kind == Token::Kind::kName && now().text == text;
  }
  bool is_operator(std::string_view text) const {
    return now().kind == Token::Kind::kOperator && now().text == text;
  }
  bool skip_name(std::string_view text) { return is_name(text) && (take(), true); }
  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }
  // Whether a list of things goes on: it ends at `end`, and there are commas between the things.
  bool goes_on(std::string_view end, bool is_first) {
    if (error_ || skip_operator(end)) return false;
    if (is_first) return true;
    expect(",");
    return !error_ && !skip_operator(end);
  }

  void fail(int line, const std::string& what, ErrorCode code = ErrorCode::kUnsupported) {
    if (!error_) error_ = {code, "line " + std::to_string(line) + ": " + what};
    at_ = tokens_.size() - 1;
  }
  void fail_deep() {
    fail(now().line, "nested deeper than " + std::to_string(kMaxSyntaxDepth), ErrorCode::kTooLarge);
  }
  void fail_expected(const std::string& expected) {
    const Token::Kind kind = now().kind;
    const std::string found = kind == Token::Kind::kEnd        ? "the end"
                              : kind == Token::Kind::kEndBlock ? "%}"
                              : kind == Token::Kind::kEndOutput
                                  ? "}}"
                                  : tensors::printable_name(now().text);
    fail(now().line, "expected " + expected + ", found " + found);
  }
  void expect(std::string_view text) {
    if (!skip_operator(text)) fail_expected(std::string(text));
  }
  void expect_end(Token::Kind kind) {
    if (now().kind != kind) return fail_expected(kind == Token::Kind::kEndBlock ? "%}" : "}}");
    take();
  }
  void expect_block_end() { expect_end(Token::Kind::kEndBlock); }
  std::string expect_name(const char* what) {
    if (now().kind == Token::Kind::kName) return take().text;
    fail_expected(what);
    return {};
  }

  // --- Statements

  // Up to a block tag of one of these names, which is not taken; without names, up to the end.
  std::vector<Statement> read_body(const Names& ends) {
    const Level level(*this);
    std::vector<Statement> body;
    const auto is_end = [&] {
      return now().kind == Token::Kind::kBeginBlock && next().kind == Token::Kind::kName &&
             std::ranges::find(ends, next().text) != ends.end();
    };
    while (now().kind != Token::Kind::kEnd && !is_end()) {
      const int line = now().line;
      if (now().kind == Token::Kind::kData) {
        body.push_back({.kind = Statement::Kind::kData, .line = line, .text = take().text});
      } else if (now().kind == Token::Kind::kBeginOutput) {
        take();
        body.push_back({.kind = Statement::Kind::kOutput, .line = line});
        body.back().expressions.push_back(read_tuple(true));
        expect_end(Token::Kind::kEndOutput);
      } else {
        take();
        body.push_back(read_block(line));
      }
    }
    if (now().kind == Token::Kind::kEnd && !ends.empty()) {
      fail_expected("{% " + std::string(ends[0]) + " %}");
    }
    return body;
  }

  // The bodies of a block and its end tag: one, or with `middle`, as "else", perhaps two.
  void read_bodies(Statement& block, std::string_view end, std::string_view middle = {}) {
    expect_block_end();
    const Names names = middle.empty() ? Names{end} : Names{end, middle};
    block.branches.push_back({.condition = {}, .body = read_body(names)});
    take();
    if (take().text == middle && !middle.empty()) return read_bodies(block, end);
    expect_block_end();
  }

  Statement read_block(int line) {
    const std::string name = expect_name("the name of a block");
    Statement block{.kind = Statement::Kind::kWith, .line = line};
    if (name == "if") {
      read_if(block);
    } else if (name == "for") {
      read_for(block);
    } else if (name == "set") {
      read_set(block);
    } else if (name == "macro" || name == "call") {
      read_macro(block, name == "call");
    } else if (name == "filter") {
      block.kind = Statement::Kind::kFilter;
      block.expressions.push_back(read_filters(read_filter(make(Kind::kCaptured))));
      read_bodies(block, "endfilter");
    } else if (name == "with") {
      for (bool is_first = true; !error_ && now().kind != Token::Kind::kEndBlock;
           is_first = false) {
        if (!is_first) expect(",");
        std::string variable = expect_name("a name");
        expect("=");
        block.parameters.push_back({std::move(variable), read_expression()});
      }
      read_bodies(block, "endwith");
    } else if (name == "generation") {
      read_bodies(block, "endgeneration");
    } else if (name == "break" || name == "continue") {
      block.kind = name == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      if (n_loops_ == 0) fail(line, name + " outside of a loop");
      expect_block_end();
    } else {
      fail(line, "the block " + tensors::printable_name(name) + " is not supported");
    }
    return block;
  }

  void read_if(Statement& block) {
    block.kind = Statement::Kind::kIf;
    while (!error_) {
      ExpressionPtr condition = read_tuple(false);
      expect_block_end();
      block.branches.push_back({std::move(condition), read_body({"endif", "else", "elif"})});
      take();
      const std::string word = take().text;
      if (word == "elif") continue;
      if (word == "else") return read_bodies(block, "endif");
      return expect_block_end();
    }
  }

  void read_for(Statement& block) {
    block.kind = Statement::Kind::kFor;
    block.target = read_target();
    if (!skip_name("in")) fail_expected("in");
    block.expressions.push_back(read_tuple(false));
    block.expressions.push_back(skip_name("if") ? read_expression() : nullptr);
    if (is_name("recursive")) fail(block.line, "recursive loops are not supported");
    ++n_loops_;
    read_bodies(block, "endfor", "else");
    --n_loops_;
  }

  Target read_target() {
    Target target;
    const bool has_parenthesis = skip_operator("(");
    do {
      if (target.unpacks && now().kind != Token::Kind::kName) break;  // a comma at the end
      target.names.push_back(expect_name("a name"));
      static constexpr std::string_view kTaken[] = {"loop", "true", "false", "none"};
      if (std::ranges::find(kTaken, target.names.back()) != std::end(kTaken)) {
        fail(now().line, "an assignment to " + target.names.back());
      }
      target.unpacks = target.unpacks || is_operator(",");
    } while (skip_operator(","));
    if (has_parenthesis) expect(")");
    return target;
  }

  void read_set(Statement& block) {
    block.target = read_target();
    if (!block.target.unpacks && skip_operator(".")) block.target.field = expect_name("a name");
    if (skip_operator("=")) {
      block.kind = Statement::Kind::kSet;
      block.expressions.push_back(read_tuple(true));
      return expect_block_end();
    }
    block.kind = Statement::Kind::kSetBlock;
    block.expressions.push_back(read_filters(make(Kind::kCaptured)));
    read_bodies(block, "endset");
  }

  void read_macro(Statement& block, bool is_call) {
    block.kind = is_call ? Statement::Kind::kCallBlock : Statement::Kind::kMacro;
    block.text = is_call ? "caller" : expect_name("the name of a macro");
    if (!is_call || is_operator("(")) {
      expect("(");
      for (bool is_first = true; goes_on(")", is_first); is_first = false) {
        std::string name = expect_name("the name of a parameter");
        ExpressionPtr otherwise = skip_operator("=") ? read_expression() : nullptr;
        block.parameters.push_back({std::move(name), std::move(otherwise)});
      }
    }
    if (is_call) {
      block.expressions.push_back(read_expression());
      if (block.expressions[0]->kind != Kind::kCall) fail(block.line, "expected a call");
    }
    const int n_loops = std::exchange(n_loops_, 0);
    read_bodies(block, is_call ? "endcall" : "endmacro");
    n_loops_ = n_loops;
  }

  // --- Expressions. What is returned is never null.

  ExpressionPtr make(Kind kind) const {
    return std::make_unique<Expression>(Expression{.kind = kind, .line = now().line});
  }
  // A node with one more part, which may be null. Long chains of operators are deep trees.
  void add(Expression& node, ExpressionPtr part) {
    if (part) node.depth = std::max(node.depth, part->depth + 1);
    node.parts.push_back(std::move(part));
    if (node.depth > kMaxSyntaxDepth) fail_deep();
  }
  ExpressionPtr make(Kind kind, ExpressionPtr first) {
    ExpressionPtr node = make(kind);
    add(*node, std::move(first));
    return node;
  }

  // Values with commas between them are a tuple. `with_if`: each may be `a if b else c`.
  ExpressionPtr read_tuple(bool with_if) {
    ExpressionPtr first = with_if ? read_expression() : read_binary(0);
    if (!is_operator(",")) return first;
    ExpressionPtr tuple = make(Kind::kTuple, std::move(first));
    while (skip_operator(",")) {
      const Token::Kind kind = now().kind;
      if (kind == Token::Kind::kEndBlock || kind == Token::Kind::kEndOutput || is_operator(")")) {
        break;
      }
      add(*tuple, with_if ? read_expression() : read_binary(0));
    }
    return tuple;
  }

  ExpressionPtr read_expression() {
    const Level level(*this);
    ExpressionPtr value = read_binary(0);
    while (skip_name("if")) {
      ExpressionPtr node = make(Kind::kConditional, std::move(value));
      add(*node, read_binary(0));
      add(*node, skip_name("else") ? read_expression() : nullptr);
      value = std::move(node);
    }
    return value;
  }

  // Operators from the loosest to the tightest: or, and, not, comparisons, + -, ~, * / // %, **.
  ExpressionPtr read_binary(int level) {
    static const std::vector<std::string> kBinaryOperators[] = {
        {"or"}, {"and"}, {}, {}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == 2) return read_not();
    if (level == 3) return read_compare();
    if (level == 8) return read_filters_and_tests(read_signed());
    ExpressionPtr left = read_binary(level + 1);
    const auto is_one = [&](const std::string& op) { return is_operator(op) || is_name(op); };
    while (std::ranges::any_of(kBinaryOperators[level], is_one)) {
      const std::string op = take().text;
      const Kind kind = level == 0   ? Kind::kOr
                        : level == 1 ? Kind::kAnd
                        : level == 5 ? Kind::kConcat
                                     : Kind::kArithmetic;
      if (kind != Kind::kConcat || left->kind != kind) left = make(kind, std::move(left));
      left->name = op;
      add(*left, read_binary(level + 1));
    }
    return left;
  }

  ExpressionPtr read_not() {
    const Level level(*this);
    return skip_name("not") ? make(Kind::kNot, read_not()) : read_binary(3);
  }

  ExpressionPtr read_compare() {
    ExpressionPtr left = read_binary(4);
    if (!is_comparison()) return left;
    ExpressionPtr node = make(Kind::kCompare, std::move(left));
    while (is_comparison()) {
      std::string op = take().text;
      if (op == "not") op += " " + take().text;
      node->words.push_back(std::move(op));
      add(*node, read_binary(4));
    }
    return node;
  }
  bool is_comparison() const {
    static constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};
    const bool is_sign = now().kind == Token::Kind::kOperator &&
                         std::ranges::find(kComparisons, now().text) != std::end(kComparisons);
    return is_sign || is_name("in") || (is_name("not") && next().text == "in");
  }

  // A sign binds tighter than a filter.
  ExpressionPtr read_signed() {
    const Level level(*this);
    if (skip_operator("-")) return make(Kind::kMinus, read_signed());
    if (skip_operator("+")) return make(Kind::kPlus, read_signed());
    return read_postfix(read_primary());
  }

  ExpressionPtr read_primary() {
    ExpressionPtr node = make(Kind::kConstant);
    if (now().kind == Token::Kind::kName) {
      const std::string name = take().text;
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        node->constant = name == "true" || name == "True";
      } else if (name != "none" && name != "None") {
        node->kind = Kind::kName;
        node->name = name;
        names_.insert(name);
      }
    } else if (now().kind == Token::Kind::kString) {
      std::string text;
      while (now().kind == Token::Kind::kString) text += take().text;
      node->constant = std::make_shared<const Text>(Text{std::move(text)});
    } else if (now().kind == Token::Kind::kInteger) {
      node->constant = read_number<std::int64_t>();
    } else if (now().kind == Token::Kind::kFloat) {
      node->constant = read_number<double>();
    } else if (skip_operator("(")) {
      if (skip_operator(")")) return make(Kind::kTuple);
      node = read_tuple(true);
      expect(")");
    } else if (skip_operator("[")) {
      node->kind = Kind::kList;
      for (bool is_first = true; goes_on("]", is_first); is_first = false) {
        add(*node, read_expression());
      }
    } else if (skip_operator("{")) {
      node->kind = Kind::kDict;
      for (bool is_first = true; goes_on("}", is_first); is_first = false) {
        add(*node, read_expression());
        expect(":");
        add(*node, read_expression());
      }
    } else {
      fail_expected("a value");
    }
    return node;
  }

  template <class T>
  T read_number() {
    const Token token = take();
    T number = 0;
    const char* const end = token.text.data() + token.text.size();
    const auto read = std::from_chars(token.text.data(), end, number);
    if (read.ec != std::errc() || read.ptr != end) fail(token.line, token.text + " is too large");
    return number;
  }

  ExpressionPtr read_postfix(ExpressionPtr value) {
    while (!error_) {
      if (skip_operator(".")) {
        const bool is_index = now().kind == Token::Kind::kInteger;
        value = make(is_index ? Kind::kItem : Kind::kAttribute, std::move(value));
        if (is_index) {
          add(*value, read_primary());
        } else {
          value->name = expect_name("a name");
        }
      } else if (skip_operator("[")) {
        value = read_item(std::move(value));
      } else if (is_operator("(")) {
        value = make(Kind::kCall, std::move(value));
        read_arguments(*value);
      } else {
        break;
      }
    }
    return value;
  }

  // [index], [begin:end:step]
  ExpressionPtr read_item(ExpressionPtr value) {
    ExpressionPtr node = make(Kind::kItem, std::move(value));
    ExpressionPtr bounds[3];
    std::size_t n_colons = 0;
    while (!error_ && !is_operator("]")) {
      if (n_colons < 2 && skip_operator(":")) {
        ++n_colons;
      } else if (bounds[n_colons]) {
        fail_expected("]");
      } else {
        bounds[n_colons] = read_expression();
      }
    }
    expect("]");
    if (n_colons == 0 && !bounds[0]) fail(node->line, "[] without an index");
    if (n_colons > 0) node->kind = Kind::kSlice;
    for (std::size_t i = 0; i < (n_colons > 0 ? 3U : 1U); ++i) add(*node, std::move(bounds[i]));
    return node;
  }

  // (a, b, name=c, *d, **e)
  void read_arguments(Expression& node) {
    expect("(");
    for (bool is_first = true; goes_on(")", is_first); is_first = false) {
      if (is_operator("*") || is_operator("**")) {
        node.words.push_back(take().text);
        add(node, read_expression());
        continue;
      }
      if (now().kind == Token::Kind::kName && next().text == "=" &&
          next().kind == Token::Kind::kOperator) {
        node.words.push_back(take().text);
        take();
      } else if (!node.words.empty()) {
        fail_expected("an argument with a name");
      }
      add(node, read_expression());
    }
  }

  ExpressionPtr read_filters_and_tests(ExpressionPtr value) {
    while (!error_) {
      if (skip_operator("|")) {
        value = read_filter(std::move(value));
      } else if (skip_name("is")) {
        value = read_test(std::move(value));
      } else if (is_operator("(")) {
        value = make(Kind::kCall, std::move(value));
        read_arguments(*value);
      } else {
        break;
      }
    }
    return value;
  }

  ExpressionPtr read_filters(ExpressionPtr value) {
    while (skip_operator("|")) value = read_filter(std::move(value));
    return value;
  }

  ExpressionPtr read_filter(ExpressionPtr value) {
    ExpressionPtr node = make(Kind::kFilter, std::move(value));
    node->name = expect_name("the name of a filter");
    if (!is_filter(node->name)) {
      fail(node->line, "the filter " + tensors::printable_name(node->name) + " is not supported");
    }
    if (is_operator("(")) read_arguments(*node);
    return node;
  }

  // An argument may stand behind a test without parentheses: `is divisibleby 3`.
  ExpressionPtr read_test(ExpressionPtr value) {
    const bool is_not = skip_name("not");
    ExpressionPtr node = make(Kind::kTest, std::move(value));
    node->name = expect_name("the name of a test");
    if (!is_test(node->name)) {
      fail(node->line, "the test " + tensors::printable_name(node->name) + " is not supported");
    }
    const bool is_word = now().kind == Token::Kind::kName;
    const bool ends = is_name("else") || is_name("or") || is_name("and");
    const bool is_value = now().kind == Token::Kind::kString || now().kind == Token::Kind::kFloat ||
                          now().kind == Token::Kind::kInteger || is_operator("[") ||
                          is_operator("{");
    if (is_operator("(")) {
      read_arguments(*node);
    } else if (is_name("is")) {
      fail(node->line, "a test of a test");
    } else if (is_value || (is_word && !ends)) {
      add(*node, read_postfix(read_primary()));
    }
    return is_not ? make(Kind::kNot, std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  std::set<std::string, std::less<>>& names_;
  std::optional<Error> error_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int n_loops_ = 0;
};

}  // namespace

Result<std::vector<Statement>> parse_program(std::string_view source,
                                             std::set<std::string, std::less<>>& names) {
  TQC_TRY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens), names).run();
}

}  // namespace tqcache::tokenizer::jinja
