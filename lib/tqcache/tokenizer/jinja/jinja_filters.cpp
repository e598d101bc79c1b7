#include <algorithm>
#include <charconv>
#include <cmath>

#include "tqcache/tokenizer/jinja/jinja_functions.h"
#include "tqcache/tokenizer/jinja/jinja_syntax.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"

namespace tqcache::tokenizer::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;
using Filter = Value (*)(Heap&, const Value&, const Bound&);

bool is_set(const std::optional<Value>& flag) { return flag && is_true(*flag); }

// --- Texts: most filters take any value, as its text

Value filter_trim(Heap& heap, const Value& value, const Bound& given) {
  std::optional<std::string_view> characters;
  if (given[0] && !given[0]->is<None>()) characters = text_of(heap, given[0]).bytes;
  return heap.text(strip(heap, to_text(heap, value), characters, {}));
}

template <Case kTo>
Value filter_case(Heap& heap, const Value& value, const Bound&) {
  return heap.text(change_case(heap, to_text(heap, value), kTo));
}

Value filter_string(Heap& heap, const Value& value, const Bound&) {
  return value.text() != nullptr ? value : heap.text(to_text(heap, value));
}

Value filter_safe(Heap& heap, const Value& value, const Bound&) {
  Text text = to_text(heap, value);
  text.is_safe = true;
  return heap.text(std::move(text));
}

Value filter_replace(Heap& heap, const Value& value, const Bound& given) {
  if (!given[0] || !given[1]) return heap.fail("replace needs two texts");
  const std::int64_t at_most = integer_of(heap, given[2], -1);
  const Text from = to_text(heap, *given[0]);
  return heap.text(
      replace(heap, to_text(heap, value), from.bytes, to_text(heap, *given[1]), at_most));
}

Value filter_indent(Heap& heap, const Value& value, const Bound& given) {
  Text indent{"    "};
  if (given[0] && given[0]->text() != nullptr) {
    indent = *given[0]->text();
  } else if (given[0]) {
    indent = text_of(heap, arithmetic(heap, "*", heap.text(" "), *given[0]));
  }
  // A line end is added before the text is cut into lines, so that a last empty line counts.
  TextBuilder ended(heap), out(heap);
  ended.add(text_of(heap, value));
  ended.add("\n");
  bool is_first = true;
  for (const Value& each : split_lines(heap, ended.take(), false)) {
    const Text& line = *each.text();
    if (!is_first) out.add("\n");
    if (is_first ? is_set(given[1]) : is_set(given[2]) || !line.bytes.empty()) out.add(indent);
    out.add(line);
    is_first = false;
  }
  return out.value();
}

Value filter_tojson(Heap& heap, const Value& value, const Bound& given) {
  JsonStyle style{.ascii = is_set(given[0]), .sort_keys = is_set(given[3])};
  if (given[1] && !given[1]->is<None>()) {
    const bool is_text = given[1]->text() != nullptr;
    const Value made = is_text ? *given[1] : arithmetic(heap, "*", heap.text(" "), *given[1]);
    style.indent = text_of(heap, made).bytes;
    style.item_separator = ",";
  }
  if (given[2] && !given[2]->is<None>()) {
    const List* const pair = given[2]->list();
    if (pair == nullptr || pair->items.size() != 2) return heap.fail("separators are not a pair");
    style.item_separator = text_of(heap, pair->items[0]).bytes;
    style.key_separator = text_of(heap, pair->items[1]).bytes;
  }
  TextBuilder out(heap);
  write_json(heap, value, style, out);
  return out.value();
}

// --- Any values

Value filter_length(Heap& heap, const Value& value, const Bound&) {
  if (value.is<Undefined>()) return std::int64_t{0};
  if (value.text() != nullptr) return n_characters(value.text()->bytes);
  if (value.dict() != nullptr) return std::ssize(value.dict()->items);
  const List* const list = value.list();
  if (list != nullptr && list->kind != List::Kind::kIterator) return std::ssize(list->items);
  return heap.fail("a " + type_name(value) + " has no length");
}

Value filter_default(Heap& heap, const Value& value, const Bound& given) {
  const bool is_kept = !value.is<Undefined>() && (!is_set(given[1]) || is_true(value));
  return is_kept ? value : given[0].value_or(heap.text(""));
}

// The number that is the whole of a text, but for white space.
std::optional<double> number_in(Heap& heap, const Text& text) {
  const Text digits = strip(heap, text, std::nullopt, {});
  if (digits.bytes.find('_') != std::string::npos) heap.fail("a number with _");
  const char* const begin = digits.bytes.data() + (digits.bytes.starts_with('+') ? 1 : 0);
  const char* const end = digits.bytes.data() + digits.bytes.size();
  double number = 0;
  const auto read = std::from_chars(begin, end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

Value filter_float(Heap& heap, const Value& value, const Bound& given) {
  if (value.undefined() != nullptr) return heap.fail_undefined(*value.undefined());
  std::optional<double> number = value.number();
  if (value.text() != nullptr) number = number_in(heap, *value.text());
  return number ? Value(*number) : given[0].value_or(0.0);
}

Value filter_int(Heap& heap, const Value& value, const Bound& given) {
  if (value.integer()) return *value.integer();
  const Value number = filter_float(heap, value, {Value(std::nan(""))});
  const double d = number.number().value_or(0);
  if (!std::isfinite(d)) return given[0].value_or(std::int64_t{0});
  // Beyond, a double is not the integer that the text may be.
  if (std::fabs(d) >= 9007199254740992.0) return heap.fail("an integer beyond 53 bits");
  return static_cast<std::int64_t>(d);
}

// --- Lists. What Jinja gives as a generator is an iterator.

Value filter_list(Heap& heap, const Value& value, const Bound&) {
  return heap.list({}, items_of(heap, value));
}

Value filter_first(Heap& heap, const Value& value, const Bound&) {
  List* const list = value.list();
  if (list != nullptr && list->kind == List::Kind::kIterator && !list->items.empty()) {
    Value first = std::move(list->items.front());
    list->items.erase(list->items.begin());
    return first;
  }
  const std::vector<Value> items = items_of(heap, value);
  return items.empty() ? Undefined{"the first item"} : items.front();
}

Value filter_last(Heap& heap, const Value& value, const Bound&) {
  const bool is_iterator = value.list() != nullptr && value.list()->kind == List::Kind::kIterator;
  if (value.is<Undefined>() || is_iterator) return heap.fail("last of a " + type_name(value));
  const std::vector<Value> items = items_of(heap, value);
  return items.empty() ? Undefined{"the last item"} : items.back();
}

Value filter_reverse(Heap& heap, const Value& value, const Bound&) {
  if (value.text() != nullptr) return heap.text(slice(heap, *value.text(), {{}, {}, -1}));
  std::vector<Value> items = items_of(heap, value);
  std::ranges::reverse(items);
  return heap.list(List::Kind::kIterator, std::move(items));
}

Value filter_items(Heap& heap, const Value& value, const Bound&) {
  if (value.is<Undefined>()) return heap.list(List::Kind::kIterator);
  if (value.dict() == nullptr) return heap.fail("items of a " + type_name(value));
  const Value view = call_method(heap, value, "items", {});
  return heap.list(List::Kind::kIterator, view.list()->items);
}

// The item, or its attribute "a.b".
Value attribute_of(Heap& heap, const Value& item, const std::optional<Value>& path) {
  if (!path || path->is<None>()) return item;
  if (path->text() == nullptr) return get_item(heap, item, *path);
  Value value = item;
  for (const Value& name : split(heap, *path->text(), ".", -1, false)) {
    const std::string& bytes = name.text()->bytes;
    std::int64_t index = 0;
    const auto read = std::from_chars(bytes.data(), bytes.data() + bytes.size(), index);
    const bool is_index = read.ec == std::errc() && read.ptr == bytes.data() + bytes.size();
    value = get_item(heap, value, is_index ? Value(index) : name);
  }
  return value;
}

Value filter_join(Heap& heap, const Value& value, const Bound& given) {
  TextBuilder out(heap);
  bool is_first = true;
  for (const Value& item : items_of(heap, value)) {
    if (heap.is_spent()) break;
    if (!is_first && given[0]) write_str(heap, *given[0], out);
    write_str(heap, attribute_of(heap, item, given[1]), out);
    is_first = false;
  }
  return out.value();
}

// A key to sort by. Texts are compared in lower case unless `with_case`.
Value sort_key(Heap& heap, const Value& value, bool with_case) {
  return with_case || value.text() == nullptr ? value : filter_case<Case::kLower>(heap, value, {});
}

// Sorts by keys, keeping the order of equals. Merges: less() may fail, which std::sort forbids.
Value sorted(Heap& heap, std::vector<std::pair<Value, Value>> items, bool descending) {
  std::vector<std::pair<Value, Value>> merged = items;
  const std::size_t n = items.size();
  heap.spend(4 * n * sizeof(Value));
  for (std::size_t width = 1; width < n && !heap.is_spent(); width *= 2) {
    for (std::size_t begin = 0; begin < n; begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, n), end = std::min(begin + 2 * width, n);
      std::size_t left = begin, right = middle;
      for (std::size_t at = begin; at < end; ++at) {
        bool takes_right = left == middle;
        if (left < middle && right < end) {
          const Value &a = items[left].first, &b = items[right].first;
          takes_right = descending ? less(heap, a, b) : less(heap, b, a);
        }
        merged[at] = items[takes_right ? right++ : left++];
      }
    }
    std::swap(items, merged);
  }
  List* const list = heap.list();
  for (auto& [key, item] : items) list->items.push_back(std::move(item));
  return list;
}

Value filter_sort(Heap& heap, const Value& value, const Bound& given) {
  std::vector<std::pair<Value, Value>> items;
  for (Value& item : items_of(heap, value)) {
    const Value key = attribute_of(heap, item, given[2]);
    items.emplace_back(sort_key(heap, key, is_set(given[1])), std::move(item));
  }
  return sorted(heap, std::move(items), is_set(given[0]));
}

Value filter_dictsort(Heap& heap, const Value& value, const Bound& given) {
  if (value.dict() == nullptr) return heap.fail("dictsort of a " + type_name(value));
  const std::string by = given[1] ? text_of(heap, given[1]).bytes : "key";
  if (by != "key" && by != "value") return heap.fail("dictsort by something else than a key");
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, held] : value.dict()->items) {
    Value pair = heap.list(List::Kind::kTuple, {key, held});
    items.emplace_back(sort_key(heap, by == "key" ? key : held, is_set(given[0])), std::move(pair));
  }
  return sorted(heap, std::move(items), is_set(given[2]));
}

Value filter_unique(Heap& heap, const Value& value, const Bound& given) {
  List* const unique = heap.list(List::Kind::kIterator);
  std::vector<Value> seen;
  for (const Value& item : items_of(heap, value)) {
    const Value key = sort_key(heap, attribute_of(heap, item, given[1]), is_set(given[0]));
    const auto is_same = [&](const Value& other) { return equal(heap, other, key); };
    if (std::ranges::any_of(seen, is_same)) continue;
    seen.push_back(key);
    unique->items.push_back(item);
  }
  return unique;
}

struct Row {
  std::string_view name;
  Filter filter;
  std::vector<std::string_view> arguments;  // their names
};

const Row* find_filter(std::string_view name) {
  static const Row kFilters[] = {
      {"capitalize", filter_case<Case::kCapitalized>, {}},
      {"count", filter_length, {}},
      {"d", filter_default, {"default_value", "boolean"}},
      {"default", filter_default, {"default_value", "boolean"}},
      {"dictsort", filter_dictsort, {"case_sensitive", "by", "reverse"}},
      {"first", filter_first, {}},
      {"float", filter_float, {"default"}},
      {"indent", filter_indent, {"width", "first", "blank"}},
      {"int", filter_int, {"default"}},
      {"items", filter_items, {}},
      {"join", filter_join, {"d", "attribute"}},
      {"last", filter_last, {}},
      {"length", filter_length, {}},
      {"list", filter_list, {}},
      {"lower", filter_case<Case::kLower>, {}},
      {"replace", filter_replace, {"old", "new", "count"}},
      {"reverse", filter_reverse, {}},
      {"safe", filter_safe, {}},
      {"sort", filter_sort, {"reverse", "case_sensitive", "attribute"}},
      {"string", filter_string, {}},
      {"title", filter_case<Case::kWords>, {}},
      {"tojson", filter_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
      {"trim", filter_trim, {"chars"}},
      {"unique", filter_unique, {"case_sensitive", "attribute"}},
      {"upper", filter_case<Case::kUpper>, {}},
  };
  const Row* const found = std::ranges::find(kFilters, name, &Row::name);
  return found == std::end(kFilters) ? nullptr : found;
}

// --- Filters that apply others: map, select, reject, selectattr, rejectattr

Value apply_to_items(Heap& heap, std::string_view name, const Value& value,
                     const Arguments& given) {
  List* const result = heap.list(List::Kind::kIterator);
  if (!is_true(value)) return result;  // also of none
  const bool is_map = name == "map", has_attribute = name.ends_with("attr");
  Arguments rest{given.values, given.named};
  std::optional<Value> attribute, otherwise;
  if (has_attribute && !rest.values.empty()) {
    attribute = rest.values[0];
    rest.values.erase(rest.values.begin());
  } else if (is_map && rest.values.empty()) {
    const Bound bound = bind_arguments(heap, given, {"attribute", "default"});
    attribute = bound[0];
    otherwise = bound[1];
  }
  if ((has_attribute || (is_map && rest.values.empty())) && !attribute) {
    return heap.fail("the name of an attribute is missing");
  }
  std::string applied;  // the name of a filter, or of a test
  if (!rest.values.empty()) {
    applied = text_of(heap, rest.values[0]).bytes;
    rest.values.erase(rest.values.begin());
    if (is_map ? !is_filter(applied) : !is_test(applied)) return heap.fail("an unknown name");
  }
  for (const Value& item : items_of(heap, value)) {
    if (!heap.spend(sizeof(Value))) break;
    Value held = attribute_of(heap, item, attribute);
    if (is_map) {
      if (held.is<Undefined>() && otherwise) held = *otherwise;
      if (!applied.empty()) held = apply_filter(heap, applied, held, rest);
      result->items.push_back(std::move(held));
    } else {
      const bool passes = applied.empty() ? is_true(held) : apply_test(heap, applied, held, rest);
      if (passes == name.starts_with("select")) result->items.push_back(item);
    }
  }
  return result;
}

bool applies_others(std::string_view name) {
  return name == "map" || name == "select" || name == "reject" || name == "selectattr" ||
         name == "rejectattr";
}

}  // namespace

bool is_filter(std::string_view name) {
  return applies_others(name) || find_filter(name) != nullptr;
}

Value apply_filter(Heap& heap, std::string_view name, const Value& value,
                   const Arguments& arguments) {
  const bool is_safe = value.text() != nullptr && value.text()->is_safe;
  if (is_safe && name != "string" && name != "safe" && name != "length") {
    return heap.fail("a filter of a text that `safe` marked");
  }
  if (applies_others(name)) return apply_to_items(heap, name, value, arguments);
  const Row& row = *find_filter(name);
  const Bound bound = bind_arguments(heap, arguments, row.arguments);
  return heap.is_spent() ? Value() : row.filter(heap, value, bound);
}

}  // namespace tqcache::tokenizer::jinja
