#include <algorithm>
#include <cmath>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_functions.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"

namespace tqcache::tokenizer::jinja {
namespace {

Value of_integers(Heap& heap, const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  if (op == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (b == 0) {
    return heap.fail("a division by zero");
  } else if (op == "/") {
    return static_cast<double>(a) / static_cast<double>(b);
  } else if (b == -1) {  // the least integer has no opposite
    overflows = op == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
  } else {
    // Rounded down, as Python does.
    const bool is_down = a % b != 0 && (a % b < 0) != (b < 0);
    result = op == "%" ? a % b + (is_down ? b : 0) : a / b - (is_down ? 1 : 0);
  }
  if (overflows) return heap.fail(op + " beyond 64 bits");
  return result;
}

Value of_floats(Heap& heap, const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (b == 0) return heap.fail("a division by zero");
  if (op == "/") return a / b;
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return op == "%" ? rest : std::floor((a - rest) / b + 0.5);
}

bool is_sequence(const Value& value) {
  return value.list() != nullptr && value.list()->kind <= List::Kind::kTuple;
}

Value joined(Heap& heap, const Value& a, const Value& b, std::int64_t n_times) {
  if (a.text() != nullptr) {
    TextBuilder out(heap);
    for (std::int64_t i = 0; i < n_times && heap.spend(1); ++i) out.add(*a.text());
    if (b.text() != nullptr) out.add(*b.text());
    return out.value();
  }
  List* const all = heap.list(a.list()->kind);
  const auto add = [&](const List& list) {
    if (!heap.spend(1 + list.items.size() * sizeof(Value))) return;
    all->items.insert(all->items.end(), list.items.begin(), list.items.end());
  };
  for (std::int64_t i = 0; i < n_times && !heap.is_spent(); ++i) add(*a.list());
  if (b.list() != nullptr) add(*b.list());
  return all;
}

}  // namespace

Value arithmetic(Heap& heap, const std::string& op, const Value& a, const Value& b) {
  const bool are_numbers = a.number() && b.number();
  if (are_numbers && op == "**") return heap.fail("** is not supported");
  if (a.integer() && b.integer()) return of_integers(heap, op, *a.integer(), *b.integer());
  if (are_numbers) return of_floats(heap, op, *a.number(), *b.number());
  for (const Value* each : {&a, &b}) {
    const bool is_safe = each->text() != nullptr && each->text()->is_safe;
    if (is_safe) return heap.fail(op + " of a text that `safe` marked");
    if (each->undefined() != nullptr) return heap.fail_undefined(*each->undefined());
  }
  if (op == "%" && a.text() != nullptr) {
    const bool is_tuple = b.list() != nullptr && b.list()->kind == List::Kind::kTuple;
    return format_percent(heap, *a.text(), is_tuple ? b.list()->items : std::vector<Value>{b});
  }
  const bool are_lists = is_sequence(a) && is_sequence(b) && a.list()->kind == b.list()->kind;
  const bool are_texts = a.text() != nullptr && b.text() != nullptr;
  if (op == "+" && (are_lists || are_texts)) return joined(heap, a, b, 1);
  const bool repeats_a = (a.text() != nullptr || is_sequence(a)) && b.integer();
  const bool repeats_b = (b.text() != nullptr || is_sequence(b)) && a.integer();
  if (op == "*" && repeats_a) return joined(heap, a, None{}, *b.integer());
  if (op == "*" && repeats_b) return joined(heap, b, None{}, *a.integer());
  return heap.fail(op + " of a " + type_name(a) + " and a " + type_name(b));
}

bool compare(Heap& heap, std::string_view op, const Value& a, const Value& b) {
  if (op == "in") return contains(heap, b, a);
  if (op == "not in") return !contains(heap, b, a);
  if (op == "==") return equal(heap, a, b);
  if (op == "!=") return !equal(heap, a, b);
  if (a.number() && b.number() && (std::isnan(*a.number()) || std::isnan(*b.number())))
    return false;
  if (op == "<") return less(heap, a, b);
  if (op == ">") return less(heap, b, a);
  return op == "<=" ? !less(heap, b, a) : !less(heap, a, b);
}

namespace {

Value loop_attribute(Heap& heap, const Value& value, const std::string& name) {
  const Loop& loop = *std::get<Loop*>(value.held);
  const std::int64_t index = static_cast<std::int64_t>(loop.index), n = std::ssize(loop.items);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return n - index;
  if (name == "revindex0") return n - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == n;
  if (name == "length") return n;
  if (name == "previtem") return index > 0 ? loop.items[loop.index - 1] : Undefined{name};
  if (name == "nextitem") return index + 1 < n ? loop.items[loop.index + 1] : Undefined{name};
  return heap.fail("loop." + tensors::printable_name(name) + " is not supported");
}

}  // namespace

Value get_attribute(Heap& heap, const Value& value, const std::string& name) {
  if (value.undefined() != nullptr) return heap.fail_undefined(*value.undefined());
  if (name.starts_with("__")) return heap.fail("the attribute " + tensors::printable_name(name));
  if (value.is<Loop*>()) return loop_attribute(heap, value, name);
  if (has_method(value, name)) {
    return heap.function({.kind = Function::Kind::kMethod, .name = name, .self = value});
  }
  const bool is_space = value.is<Namespace*>();
  const Dict* const dict = is_space ? &std::get<Namespace*>(value.held)->fields : value.dict();
  if (dict == nullptr) return Undefined{name};
  heap.spend(dict->items.size());
  const Value* const found = find(*dict, name);
  return found != nullptr ? *found : Undefined{name};
}

Value get_item(Heap& heap, const Value& value, const Value& key) {
  if (value.undefined() != nullptr) return heap.fail_undefined(*value.undefined());
  const std::string name = key.text() != nullptr ? key.text()->bytes : "the item";
  const Value absent = Undefined{name};
  if (const Dict* dict = value.dict()) {
    const bool is_key = key.list() == nullptr && key.dict() == nullptr;
    const Value* const found = is_key ? find(heap, *dict, key) : nullptr;
    if (found != nullptr) return *found;
    return key.text() != nullptr && has_method(value, name) ? get_attribute(heap, value, name)
                                                            : absent;
  }
  if (key.text() != nullptr) return get_attribute(heap, value, name);
  if (!key.integer()) return absent;
  std::int64_t index = *key.integer();
  if (value.text() != nullptr) {
    heap.spend(value.text()->bytes.size());
    std::optional<Text> found = character(*value.text(), index);
    return found ? heap.text(std::move(*found)) : absent;
  }
  const List* const list = value.list();
  if (list == nullptr || !list->has_indices()) return absent;
  if (index < 0) index += std::ssize(list->items);
  const bool is_inside = index >= 0 && index < std::ssize(list->items);
  return is_inside ? list->items[static_cast<std::size_t>(index)] : absent;
}

std::vector<std::optional<Value>> bind_arguments(Heap& heap, const Arguments& arguments,
                                                 const std::vector<std::string_view>& names) {
  std::vector<std::optional<Value>> bound(std::max(names.size(), arguments.values.size()));
  std::ranges::copy(arguments.values, bound.begin());
  if (bound.size() > names.size()) heap.fail("too many arguments");
  for (const auto& [name, value] : arguments.named) {
    const auto index = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
    if (index == names.size() || bound[index]) {
      heap.fail("the argument " + tensors::printable_name(name) + " is not supported");
      break;
    }
    bound[index] = value;
  }
  return bound;
}

const Text& text_of(Heap& heap, const std::optional<Value>& value) {
  static const Text kNone;
  if (value && value->text() != nullptr) return *value->text();
  if (value && value->undefined() != nullptr) {
    heap.fail_undefined(*value->undefined());
  } else {
    heap.fail("expected a text, found " + (value ? "a " + type_name(*value) : "nothing"));
  }
  return kNone;
}

std::int64_t integer_of(Heap& heap, const std::optional<Value>& value, std::int64_t otherwise) {
  if (!value) return otherwise;
  if (value->integer()) return *value->integer();
  return heap.fail("expected an integer, found a " + type_name(*value));
}

}  // namespace tqcache::tokenizer::jinja
