#pragma once
// tokenizer/jinja/jinja_functions.h: what a program can apply to values: operators, attributes,
// methods, filters and tests.
//
// Source: jinja2 3.1 (filters.py, tests.py, sandbox.py) and the methods of Python's str, list and
//         dict. What changes a value in place is refused, as in the sandbox.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/tokenizer/jinja/jinja_value.h"

namespace tqcache::tokenizer::jinja {

struct Arguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

// The arguments in the order of `names`; nullopt: absent. Fails if there are others.
std::vector<std::optional<Value>> bind_arguments(Heap& heap, const Arguments& arguments,
                                                 const std::vector<std::string_view>& names);

// One of them as a text or an integer. Fails if it is another type; a text must be present.
const Text& text_of(Heap& heap, const std::optional<Value>& value);
std::int64_t integer_of(Heap& heap, const std::optional<Value>& value, std::int64_t otherwise);

// `op` is + - * / // % ** for arithmetic(), == != < <= > >= in "not in" for compare().
Value arithmetic(Heap& heap, const std::string& op, const Value& a, const Value& b);
bool compare(Heap& heap, std::string_view op, const Value& a, const Value& b);

// value.name and value[key]. What is absent is Undefined.
Value get_attribute(Heap& heap, const Value& value, const std::string& name);
Value get_item(Heap& heap, const Value& value, const Value& key);

// Whether the value has the method in Python, supported here or not.
bool has_method(const Value& value, std::string_view name);
Value call_method(Heap& heap, const Value& value, const std::string& name,
                  const Arguments& arguments);

// Requires: is_filter(name), is_test(name) (jinja_syntax.h).
Value apply_filter(Heap& heap, std::string_view name, const Value& value,
                   const Arguments& arguments);
bool apply_test(Heap& heap, std::string_view name, const Value& value, const Arguments& arguments);

}  // namespace tqcache::tokenizer::jinja
