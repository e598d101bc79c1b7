#include <algorithm>
#include <utility>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_functions.h"
#include "tqcache/tokenizer/jinja/jinja_program.h"
#include "tqcache/tokenizer/jinja/jinja_syntax.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"

namespace tqcache::tokenizer::jinja {
namespace {

using Kind = Expression::Kind;

constexpr std::size_t kMaxProgramBytes = std::size_t{1} << 20;
constexpr std::int64_t kMaxRange = 100'000;  // as in the sandbox
constexpr int kMaxRunDepth = 300;            // of running statements and expressions

constexpr std::string_view kFunctions[] = {"range", "dict", "namespace", "raise_exception"};
// Names that Jinja has a meaning for, and this interpreter has not.
constexpr std::string_view kRefused[] = {"lipsum", "cycler",  "joiner", "self",
                                         "super",  "varargs", "kwargs"};

enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(Heap& heap, const CivilTime* now) : heap_(heap), now_(now) {}

  // Writes what the statements write.
  Flow execute(const std::vector<Statement>& body, Scope& scope, TextBuilder& out) {
    for (const Statement& statement : body) {
      const Level level(*this, statement.line);
      if (heap_.is_spent()) return Flow::kBreak;
      const Flow flow = execute(statement, scope, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

 private:
  // A step, at some depth.
  struct Level {
    Level(Interpreter& owner, int line) : interpreter(owner) {
      owner.heap_.set_line(line);
      owner.heap_.spend(1);
      if (++owner.depth_ > kMaxRunDepth) {
        owner.heap_.fail("macros that call themselves too often", ErrorCode::kTooLarge);
      }
    }
    ~Level() { --interpreter.depth_; }
    Interpreter& interpreter;
  };

  // --- Variables

  Value look_up(const std::string& name, const Scope& scope) {
    for (const Scope* each = &scope; each != nullptr; each = each->around) {
      for (const auto& [known, value] : each->variables) {
        if (known == name) return value;
      }
    }
    const bool is_function = std::ranges::find(kFunctions, name) != std::end(kFunctions) ||
                             (name == "strftime_now" && now_ != nullptr);
    if (is_function) return heap_.function({.kind = Function::Kind::kGlobal, .name = name});
    const bool is_refused = std::ranges::find(kRefused, name) != std::end(kRefused);
    if (is_refused) return heap_.fail("the name " + name + " is not supported");
    return Undefined{name};
  }

  void set_variable(Scope& scope, const std::string& name, Value value) {
    for (auto& [known, held] : scope.variables) {
      if (known == name) return void(held = std::move(value));
    }
    heap_.spend(sizeof scope.variables[0] + name.size());
    scope.variables.emplace_back(name, std::move(value));
  }

  void assign(const Target& target, Value value, Scope& scope) {
    if (!target.field.empty()) {
      const Value space = look_up(target.names[0], scope);
      if (!space.is<Namespace*>() || target.field.starts_with('_')) {
        return void(heap_.fail("an assignment to " + target.names[0] + "." + target.field));
      }
      Dict& fields = std::get<Namespace*>(space.held)->fields;
      return set_item(heap_, fields, heap_.text(target.field), std::move(value));
    }
    if (!target.unpacks) return set_variable(scope, target.names[0], std::move(value));
    const std::vector<Value> items = items_of(heap_, value);
    if (items.size() != target.names.size()) {
      return void(heap_.fail(std::to_string(items.size()) + " values for " +
                             std::to_string(target.names.size()) + " names"));
    }
    for (std::size_t i = 0; i < items.size(); ++i) set_variable(scope, target.names[i], items[i]);
  }

  // --- Statements

  Flow execute(const Statement& statement, Scope& scope, TextBuilder& out) {
    switch (statement.kind) {
      case Statement::Kind::kData:
        out.add(statement.text);
        return Flow::kNext;
      case Statement::Kind::kOutput:
        write_str(heap_, evaluate(*statement.expressions[0], scope), out);
        return Flow::kNext;
      case Statement::Kind::kIf:
        for (const Branch& branch : statement.branches) {
          const bool is_taken = !branch.condition || is_true(evaluate(*branch.condition, scope));
          if (is_taken) return execute(branch.body, scope, out);
        }
        return Flow::kNext;
      case Statement::Kind::kFor:
        return execute_loop(statement, scope, out);
      case Statement::Kind::kSet:
        assign(statement.target, evaluate(*statement.expressions[0], scope), scope);
        return Flow::kNext;
      case Statement::Kind::kSetBlock:
      case Statement::Kind::kFilter: {
        TextBuilder body(heap_);
        const Flow flow = execute(statement.branches[0].body, *heap_.scope(&scope), body);
        const Value around = std::exchange(captured_, body.value());
        const Value value = evaluate(*statement.expressions[0], scope);
        captured_ = around;
        if (flow != Flow::kNext) return flow;
        if (statement.kind == Statement::Kind::kFilter) {
          write_str(heap_, value, out);
        } else {
          assign(statement.target, value, scope);
        }
        return Flow::kNext;
      }
      case Statement::Kind::kMacro:
        set_variable(scope, statement.text, heap_.function(macro_of(statement, scope)));
        return Flow::kNext;
      case Statement::Kind::kCallBlock: {
        const Value caller = heap_.function(macro_of(statement, scope));
        write_str(heap_, call(*statement.expressions[0], scope, &caller), out);
        return Flow::kNext;
      }
      case Statement::Kind::kWith: {
        Scope& inner = *heap_.scope(&scope);
        for (const Parameter& each : statement.parameters) {
          set_variable(inner, each.name, evaluate(*each.otherwise, scope));
        }
        return execute(statement.branches[0].body, inner, out);
      }
      case Statement::Kind::kBreak:
        return Flow::kBreak;
      case Statement::Kind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  static Function macro_of(const Statement& statement, Scope& scope) {
    return {Function::Kind::kMacro, statement.text, {}, &statement, &scope};
  }

  Flow execute_loop(const Statement& statement, Scope& scope, TextBuilder& out) {
    std::vector<Value> items = items_of(heap_, evaluate(*statement.expressions[0], scope));
    if (const Expression* condition = statement.expressions[1].get()) {
      std::erase_if(items, [&](const Value& item) {
        Scope& inner = *heap_.scope(&scope);
        assign(statement.target, item, inner);
        return !is_true(evaluate(*condition, inner));
      });
    }
    if (items.empty()) {
      const bool has_else = statement.branches.size() > 1;
      return has_else ? execute(statement.branches[1].body, *heap_.scope(&scope), out)
                      : Flow::kNext;
    }
    Loop& loop = *heap_.loop(std::move(items));
    for (; loop.index < loop.items.size() && !heap_.is_spent(); ++loop.index) {
      Scope& inner = *heap_.scope(&scope);
      set_variable(inner, "loop", &loop);
      assign(statement.target, loop.items[loop.index], inner);
      if (execute(statement.branches[0].body, inner, out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  // --- Expressions

  Value evaluate(const Expression& expression, Scope& scope) {
    const Level level(*this, expression.line);
    if (heap_.is_spent()) return {};
    const std::vector<ExpressionPtr>& parts = expression.parts;
    switch (expression.kind) {
      case Kind::kConstant:
        return expression.constant;
      case Kind::kCaptured:
        return captured_;
      case Kind::kName:
        return look_up(expression.name, scope);
      case Kind::kCall:
        return call(expression, scope, nullptr);
      case Kind::kNot:
        return !is_true(evaluate(*parts[0], scope));
      case Kind::kAnd:
      case Kind::kOr: {
        const Value left = evaluate(*parts[0], scope);
        const bool decides = is_true(left) == (expression.kind == Kind::kOr);
        return decides ? left : evaluate(*parts[1], scope);
      }
      case Kind::kConditional:
        if (is_true(evaluate(*parts[1], scope))) return evaluate(*parts[0], scope);
        return parts[2] ? evaluate(*parts[2], scope)
                        : Undefined{"the value of an `if` without else"};
      case Kind::kCompare: {
        Value left = evaluate(*parts[0], scope);
        for (std::size_t i = 0; i < expression.words.size(); ++i) {
          const Value right = evaluate(*parts[i + 1], scope);
          if (!compare(heap_, expression.words[i], left, right)) return false;
          left = right;
        }
        return true;
      }
      case Kind::kSlice:
        return cut(expression, scope);
      case Kind::kList:
      case Kind::kTuple: {
        const bool is_list = expression.kind == Kind::kList;
        std::vector<Value> items;
        for (const ExpressionPtr& each : parts) items.push_back(evaluate(*each, scope));
        return heap_.list(is_list ? List::Kind::kList : List::Kind::kTuple, std::move(items));
      }
      case Kind::kDict: {
        Dict* const dict = heap_.dict();
        for (std::size_t i = 0; i < parts.size(); i += 2) {
          const Value key = evaluate(*parts[i], scope);
          set_item(heap_, *dict, key, evaluate(*parts[i + 1], scope));
        }
        return dict;
      }
      case Kind::kConcat: {
        TextBuilder out(heap_);
        for (const ExpressionPtr& each : parts) {
          const Value value = evaluate(*each, scope);
          const bool is_safe = value.text() != nullptr && value.text()->is_safe;
          if (is_safe) return heap_.fail("~ of a text that `safe` marked");
          write_str(heap_, value, out);
        }
        return out.value();
      }
      case Kind::kAttribute:
        return get_attribute(heap_, evaluate(*parts[0], scope), expression.name);
      case Kind::kItem: {
        const Value value = evaluate(*parts[0], scope);
        return get_item(heap_, value, evaluate(*parts[1], scope));
      }
      case Kind::kFilter: {
        const Value value = evaluate(*parts[0], scope);
        return apply_filter(heap_, expression.name, value, arguments_of(expression, scope));
      }
      case Kind::kTest: {
        const Value value = evaluate(*parts[0], scope);
        return apply_test(heap_, expression.name, value, arguments_of(expression, scope));
      }
      case Kind::kMinus:
      case Kind::kPlus: {
        const Value value = evaluate(*parts[0], scope);
        if (value.is<double>()) return *value.number() * (expression.kind == Kind::kMinus ? -1 : 1);
        return arithmetic(heap_, expression.kind == Kind::kMinus ? "-" : "+", std::int64_t{0},
                          value);
      }
      case Kind::kArithmetic: {
        const Value left = evaluate(*parts[0], scope);
        return arithmetic(heap_, expression.name, left, evaluate(*parts[1], scope));
      }
    }
    return {};
  }

  Value cut(const Expression& expression, Scope& scope) {
    const Value value = evaluate(*expression.parts[0], scope);
    std::optional<std::int64_t> bounds[3];
    for (std::size_t i = 0; i < 3; ++i) {
      if (!expression.parts[i + 1]) continue;
      const Value bound = evaluate(*expression.parts[i + 1], scope);
      if (!bound.is<None>()) bounds[i] = integer_of(heap_, bound, 0);
    }
    const SliceBounds slice_bounds{bounds[0], bounds[1], bounds[2]};
    if (value.undefined() != nullptr) return heap_.fail_undefined(*value.undefined());
    if (value.text() != nullptr) return heap_.text(slice(heap_, *value.text(), slice_bounds));
    const List* const list = value.list();
    if (list == nullptr || !list->has_indices()) {
      return heap_.fail("a slice of a " + type_name(value));
    }
    List* const selected = heap_.list(list->kind);
    for (const std::size_t at : slice_positions(heap_, std::ssize(list->items), slice_bounds)) {
      selected->items.push_back(list->items[at]);
    }
    return selected;
  }

  // --- Calls

  Arguments arguments_of(const Expression& expression, Scope& scope) {
    Arguments arguments;
    const std::size_t first_named = expression.parts.size() - expression.words.size();
    for (std::size_t i = 1; i < expression.parts.size(); ++i) {
      Value value = evaluate(*expression.parts[i], scope);
      const std::string name = i < first_named ? "" : expression.words[i - first_named];
      if (name == "*") {
        for (Value& each : items_of(heap_, value)) arguments.values.push_back(std::move(each));
      } else if (name == "**") {
        if (value.dict() == nullptr) heap_.fail("** of a " + type_name(value));
        for (const Value& key : items_of(heap_, value)) {
          arguments.named.emplace_back(text_of(heap_, key).bytes, get_item(heap_, value, key));
        }
      } else if (name.empty()) {
        arguments.values.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(name, std::move(value));
      }
    }
    return arguments;
  }

  Value call(const Expression& expression, Scope& scope, const Value* caller) {
    const Expression& callee = *expression.parts[0];
    Value function;
    if (callee.kind == Kind::kAttribute) {
      // Most calls: a method, which needs no object of its own.
      const Value self = evaluate(*callee.parts[0], scope);
      if (has_method(self, callee.name)) {
        return call_method(heap_, self, callee.name, arguments_of(expression, scope));
      }
      function = get_attribute(heap_, self, callee.name);
    } else {
      function = evaluate(callee, scope);
    }
    if (function.undefined() != nullptr) return heap_.fail_undefined(*function.undefined());
    if (!function.is<Function*>()) return heap_.fail("a call of a " + type_name(function));
    const Function& called = *std::get<Function*>(function.held);
    const Arguments arguments = arguments_of(expression, scope);
    switch (called.kind) {
      case Function::Kind::kMethod:
        return call_method(heap_, called.self, called.name, arguments);
      case Function::Kind::kMacro:
        return call_macro(called, arguments, caller);
      case Function::Kind::kGlobal:
        return call_global(called.name, arguments);
    }
    return {};
  }

  Value call_macro(const Function& macro, const Arguments& arguments, const Value* caller) {
    const std::vector<Parameter>& parameters = macro.macro->parameters;
    Scope& inner = *heap_.scope(macro.scope);
    std::vector<std::string_view> names;
    for (const Parameter& each : parameters) names.push_back(each.name);
    const std::vector<std::optional<Value>> bound = bind_arguments(heap_, arguments, names);
    if (caller != nullptr) set_variable(inner, "caller", *caller);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& each = parameters[i];
      set_variable(inner, each.name,
                   bound[i]         ? *bound[i]
                   : each.otherwise ? evaluate(*each.otherwise, inner)
                                    : Undefined{each.name});
    }
    TextBuilder out(heap_);
    execute(macro.macro->branches[0].body, inner, out);
    return out.value();
  }

  Value call_global(const std::string& name, const Arguments& arguments) {
    if (name == "range") return make_range(arguments);
    if (name == "raise_exception") {
      const auto bound = bind_arguments(heap_, arguments, {"message"});
      std::string message = to_text(heap_, bound[0].value_or(None{})).bytes.substr(0, 200);
      const auto is_unprintable = [](char c) { return c < ' ' || c > '~'; };
      std::ranges::replace_if(message, is_unprintable, '?');
      return heap_.fail("the template refuses the conversation: " + message,
                        ErrorCode::kInvalidArgument);
    }
    if (name == "strftime_now") {
      const auto bound = bind_arguments(heap_, arguments, {"format"});
      const auto time = format_time(text_of(heap_, bound[0]).bytes, *now_);
      return time ? heap_.text(*time)
                  : heap_.fail("a code of strftime_now() that is not supported");
    }
    // dict and namespace: of a dictionary, and of names.
    const auto is_dict = [](const Value& value) { return value.dict() != nullptr; };
    if (arguments.values.size() > 1 || !std::ranges::all_of(arguments.values, is_dict)) {
      return heap_.fail(name + "() of something else than a dictionary");
    }
    Dict items;
    if (!arguments.values.empty()) items = *arguments.values[0].dict();
    heap_.spend(items.items.size() * 2 * sizeof(Value));
    for (const auto& [key, value] : arguments.named) set_item(heap_, items, heap_.text(key), value);
    if (name == "dict") return heap_.dict(std::move(items));
    for (const auto& [key, value] : items.items) {
      if (key.text() == nullptr || key.text()->bytes.starts_with('_')) {
        return heap_.fail("a namespace with a name that begins with _");
      }
    }
    return heap_.name_space(std::move(items));
  }

  Value make_range(const Arguments& arguments) {
    const std::vector<Value>& given = arguments.values;
    if (!arguments.named.empty() || given.empty() || given.size() > 3) {
      return heap_.fail("range() needs one to three integers");
    }
    std::int64_t at = given.size() > 1 ? integer_of(heap_, given[0], 0) : 0;
    const std::int64_t end = integer_of(heap_, given[given.size() > 1 ? 1 : 0], 0);
    const std::int64_t step = given.size() > 2 ? integer_of(heap_, given[2], 1) : 1;
    if (step == 0) return heap_.fail("range() with step 0");
    List* const range = heap_.list(List::Kind::kRange);
    while ((step > 0 ? at < end : at > end) && heap_.spend(sizeof(Value))) {
      if (std::ssize(range->items) == kMaxRange) return heap_.fail("range() of more than 100,000");
      range->items.emplace_back(at);
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    return range;
  }

  Heap& heap_;
  const CivilTime* now_;
  Value captured_;  // the text of the block that a filter is applied to
  int depth_ = 0;
};

}  // namespace

Result<Program> Program::parse(std::string_view source) {
  if (source.size() > kMaxProgramBytes) {
    return too_large(std::to_string(source.size()) + " bytes of program, at most " +
                     std::to_string(kMaxProgramBytes) + " are read");
  }
  Program program;
  TQC_TRY_ASSIGN(std::vector<Statement> body, parse_program(source, program.names_));
  program.body_ = std::make_shared<const std::vector<Statement>>(std::move(body));
  return program;
}

Result<Text> Program::run(Heap& heap, std::vector<std::pair<std::string, Value>> variables,
                          const CivilTime* now) const {
  Scope& scope = *heap.scope(nullptr);
  scope.variables = std::move(variables);
  TextBuilder out(heap);
  Interpreter(heap, now).execute(*body_, scope, out);
  if (heap.error()) return *heap.error();
  return out.take();
}

}  // namespace tqcache::tokenizer::jinja
