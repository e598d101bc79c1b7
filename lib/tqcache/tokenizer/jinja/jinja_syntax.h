#pragma once
// tokenizer/jinja/jinja_syntax.h: the syntax tree of a Jinja program.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tqcache/tokenizer/jinja/jinja_value.h"

namespace tqcache::tokenizer::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : std::uint8_t {
    kConstant,     // `constant`
    kName,         // `name`
    kCaptured,     // the text of the block that a filter is applied to
    kAttribute,    // parts[0].name
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], each of the last three may be null
    kCall,         // parts[0](arguments)
    kFilter,       // parts[0]|name(arguments)
    kTest,         // parts[0] is name(arguments)
    kNot,          // not parts[0]
    kMinus,        // -parts[0]
    kPlus,         // +parts[0]
    kAnd,          // parts[0] and parts[1]
    kOr,           // parts[0] or parts[1]
    kCompare,      // parts[0] words[0] parts[1] words[1] parts[2] ...
    kArithmetic,   // parts[0] name parts[1]
    kConcat,       // parts[0] ~ parts[1] ~ ...
    kConditional,  // parts[0] if parts[1] else parts[2], which may be null
    kList,
    kTuple,
    kDict,  // parts: key, value, key, value, ...
  };
  Kind kind;
  int line;
  int depth = 1;  // of the tree
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> parts = {};
  // The arguments of a call, filter or test are the parts behind the first one. The last of them
  // have these names; "*" and "**" are a list and a dictionary of arguments.
  std::vector<std::string> words = {};
};

// What a value is assigned to.
struct Target {
  std::vector<std::string> names;  // one, or several that a list is unpacked to
  std::string field;               // of the namespace names[0]; empty: the variable itself
  bool unpacks = false;
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: undefined
};

struct Branch {
  ExpressionPtr condition;  // null: else
  std::vector<Statement> body;
};

struct Statement {
  enum class Kind : std::uint8_t {
    kData,       // `text`
    kOutput,     // expressions[0]
    kIf,         // branches
    kFor,        // target, expressions[0], condition expressions[1] or null; branches: body, else
    kSet,        // target = expressions[0]
    kSetBlock,   // target = branches[0].body, through the filters of expressions[0]
    kMacro,      // text(parameters): branches[0].body
    kCallBlock,  // expressions[0] is the call; parameters and branches[0].body are the caller
    kFilter,     // expressions[0] of branches[0].body
    kWith,       // parameters of their own for branches[0].body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text = {};
  Target target = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<Parameter> parameters = {};
  std::vector<Branch> branches = {};
};

// Safe for untrusted input.
// Errors: kUnsupported, with the line: not a program, or one with parts that are not supported.
//         kTooLarge: nested too deep.
// Adds the names of variables that are read to `names`.
Result<std::vector<Statement>> parse_program(std::string_view source,
                                             std::set<std::string, std::less<>>& names);

// Whether there is a filter, or a test, of this name.
bool is_filter(std::string_view name);
bool is_test(std::string_view name);

}  // namespace tqcache::tokenizer::jinja
