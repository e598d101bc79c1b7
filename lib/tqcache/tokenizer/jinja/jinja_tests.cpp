#include <algorithm>

#include "tqcache/tokenizer/jinja/jinja_functions.h"
#include "tqcache/tokenizer/jinja/jinja_syntax.h"

namespace tqcache::tokenizer::jinja {
namespace {

// Tests of the value alone.
constexpr std::string_view kAlone[] = {"boolean", "callable",  "defined",  "even",   "false",
                                       "float",   "integer",   "iterable", "lower",  "mapping",
                                       "none",    "number",    "odd",      "string", "sequence",
                                       "true",    "undefined", "upper"};

// Tests against an argument, and their operators.
constexpr std::pair<std::string_view, std::string_view> kComparing[] = {
    {"eq", "=="}, {"equalto", "=="}, {"ge", ">="},      {"greaterthan", ">"}, {"gt", ">"},
    {"in", "in"}, {"le", "<="},      {"lessthan", "<"}, {"lt", "<"},          {"ne", "!="}};

std::string_view operator_of(std::string_view name) {
  for (const auto& [test, op] : kComparing) {
    // Filters like select also know the operators themselves.
    if (test == name || (op == name && name != "in")) return op;
  }
  return {};
}

bool is_alone(std::string_view name) { return std::ranges::find(kAlone, name) != std::end(kAlone); }

bool test_alone(Heap& heap, std::string_view name, const Value& value) {
  const List* const list = value.list();
  const bool is_iterable = value.is<Undefined>() || value.text() != nullptr ||
                           value.dict() != nullptr || list != nullptr || value.is<Loop*>();
  if (name == "defined") return !value.is<Undefined>();
  if (name == "undefined") return value.is<Undefined>();
  if (name == "none") return value.is<None>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true" || name == "false") {
    return value.is<bool>() && is_true(value) == (name == "true");
  }
  if (name == "integer") return value.is<std::int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "number") return value.number().has_value();
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable") return is_iterable;
  if (name == "sequence") {
    return is_iterable && !value.is<Loop*>() && (list == nullptr || list->has_indices());
  }
  if (name == "callable") return value.is<Function*>() || value.is<Undefined>();
  if (name == "odd" || name == "even") {
    return (integer_of(heap, value, 0) % 2 != 0) == (name == "odd");
  }
  const Value text = heap.text(to_text(heap, value));
  return is_true(call_method(heap, text, name == "upper" ? "isupper" : "islower", {}));
}

// Whether both are the same object. Texts and numbers have no identity here.
bool is_same(Heap& heap, const Value& a, const Value& b) {
  if (a.held.index() != b.held.index()) return false;
  if (a.is<None>()) return true;
  if (a.is<bool>()) return is_true(a) == is_true(b);
  if (a.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  return heap.fail("sameas of a " + type_name(a));
}

}  // namespace

bool is_test(std::string_view name) {
  return is_alone(name) || !operator_of(name).empty() || name == "divisibleby" || name == "sameas";
}

bool apply_test(Heap& heap, std::string_view name, const Value& value, const Arguments& arguments) {
  const std::size_t n_arguments = is_alone(name) ? 0 : 1;
  if (!arguments.named.empty() || arguments.values.size() != n_arguments) {
    return heap.fail("the test needs " + std::to_string(n_arguments) + " arguments");
  }
  if (n_arguments == 0) return test_alone(heap, name, value);
  const Value& other = arguments.values[0];
  if (name == "sameas") return is_same(heap, value, other);
  if (name == "divisibleby") return !is_true(arithmetic(heap, "%", value, other));
  return compare(heap, operator_of(name), value, other);
}

}  // namespace tqcache::tokenizer::jinja
