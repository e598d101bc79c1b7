#include <utf8proc.h>

#include <algorithm>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_functions.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"

namespace tqcache::tokenizer::jinja {
namespace {

// The methods that Python has, in the order of dir(). What is not below is refused.
constexpr std::string_view kTextMethods =
    " capitalize casefold center count encode endswith expandtabs find format format_map index "
    "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace "
    "istitle isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace "
    "rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title "
    "translate upper zfill ";
constexpr std::string_view kListMethods =
    " append clear copy count extend index insert pop remove reverse sort ";
constexpr std::string_view kDictMethods =
    " clear copy fromkeys get items keys pop popitem setdefault update values ";

Failed no_method(Heap& heap, const Value& value, const std::string& name) {
  return heap.fail(type_name(value) + "." + name + "() is not supported");
}

// A text, or each of a tuple.
bool starts_or_ends(Heap& heap, const Text& text, const Value& value, bool starts) {
  const bool is_tuple = value.list() != nullptr && value.list()->kind == List::Kind::kTuple;
  for (const Value& each : is_tuple ? value.list()->items : std::vector<Value>{value}) {
    const std::string& part = text_of(heap, each).bytes;
    if (starts ? text.bytes.starts_with(part) : text.bytes.ends_with(part)) return true;
  }
  return false;
}

// isalpha() and its relatives: whether each of one or more characters is of a kind.
Value is_all(Heap& heap, const Text& text, std::string_view name) {
  bool has_case = false;
  for (std::size_t at = 0; at < text.bytes.size(); at = next_character(text.bytes, at)) {
    const char32_t c = character_at(text.bytes, at);
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool is_digit = category == UTF8PROC_CATEGORY_ND;
    const bool is_upper = category == UTF8PROC_CATEGORY_LU;
    has_case |= is_letter;
    const bool is_exact = name == "isspace" || name == "isalpha" || name == "isdecimal";
    if (c >= 0x80 && !is_exact) return heap.fail("str." + std::string(name) + "() beyond ASCII");
    const bool fits = name == "isspace"   ? is_python_space(c)
                      : name == "isalpha" ? is_letter
                      : name == "isalnum" ? is_letter || is_digit
                      : name == "isupper" ? is_upper || !is_letter
                      : name == "islower" ? !is_upper || !is_letter
                                          : is_digit;
    if (!fits) return false;
  }
  return name == "isupper" || name == "islower" ? has_case : !text.bytes.empty();
}

// "{} {0} {name}"
Value format_braces(Heap& heap, const Text& text, const Arguments& arguments) {
  TextBuilder out(heap);
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.bytes.size() && !heap.is_spent();) {
    const char c = text.bytes[at];
    const std::size_t plain_end = std::min(text.bytes.find_first_of("{}", at), text.bytes.size());
    const std::size_t field_end = text.bytes.find('}', at);
    if (plain_end > at) {
      out.add(text, at, plain_end);
      at = plain_end;
    } else if (text.bytes.substr(at + 1, 1) == std::string(1, c)) {
      out.add(text, at, at + 1);
      at += 2;
    } else if (c == '}' || field_end == std::string::npos) {
      return heap.fail("a format with a single brace");
    } else {
      const std::string field = text.bytes.substr(at + 1, field_end - at - 1);
      const bool is_index = field.size() == 1 && field[0] >= '0' && field[0] <= '9';
      const std::size_t index = field.empty() ? next++ : is_index ? std::stoul(field) : 10;
      const auto name = std::ranges::find(arguments.named, field, [](auto& e) { return e.first; });
      if ((field.empty() || is_index) && index < arguments.values.size()) {
        write_str(heap, arguments.values[index], out);
      } else if (name != arguments.named.end()) {
        write_str(heap, name->second, out);
      } else {
        return heap.fail("no value for {" + tensors::printable_name(field) + "}");
      }
      at = field_end + 1;
    }
  }
  return out.value();
}

Value text_method(Heap& heap, const Value& self, const std::string& name, const Arguments& given) {
  const Text& text = *self.text();
  const std::vector<Value>& values = given.values;
  const bool has_one = values.size() == 1 && given.named.empty();
  const bool has_none = values.empty() && given.named.empty();
  if (text.is_safe) return heap.fail("a method of a text that `safe` marked");
  heap.spend(text.bytes.size() / 16);
  const auto characters_of = [&](const std::optional<Value>& value) {
    std::optional<std::string_view> characters;
    if (value && !value->is<None>()) characters = text_of(heap, value).bytes;
    return characters;
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const auto bound = bind_arguments(heap, given, {"chars"});
    const Sides sides{name != "rstrip", name != "lstrip"};
    return heap.text(strip(heap, text, characters_of(bound[0]), sides));
  }
  if (name == "split" || name == "rsplit") {
    const auto bound = bind_arguments(heap, given, {"sep", "maxsplit"});
    const auto separator = characters_of(bound[0]);
    if (separator && separator->empty()) return heap.fail("an empty separator");
    const std::int64_t at_most = integer_of(heap, bound[1], -1);
    return heap.list({}, split(heap, text, separator, at_most, name == "rsplit"));
  }
  if (name == "splitlines") {
    const auto bound = bind_arguments(heap, given, {"keepends"});
    return heap.list({}, split_lines(heap, text, bound[0] && is_true(*bound[0])));
  }
  if (name == "replace") {
    const auto bound = bind_arguments(heap, given, {"old", "new", "count"});
    const std::int64_t at_most = integer_of(heap, bound[2], -1);
    const Text& from = text_of(heap, bound[0]);
    return heap.text(replace(heap, text, from.bytes, text_of(heap, bound[1]), at_most));
  }
  if (name == "format") return format_braces(heap, text, given);
  if (has_none) {
    static constexpr std::pair<std::string_view, Case> kCases[] = {
        {"upper", Case::kUpper},
        {"lower", Case::kLower},
        {"title", Case::kTitle},
        {"capitalize", Case::kCapitalized}};
    for (const auto& [each, to] : kCases) {
      if (name == each) return heap.text(change_case(heap, text, to));
    }
    static constexpr std::string_view kQuestions[] = {"isspace", "isalpha", "isalnum",  "isupper",
                                                      "islower", "isdigit", "isdecimal"};
    const bool is_question = std::ranges::find(kQuestions, name) != std::end(kQuestions);
    if (is_question) return is_all(heap, text, name);
  }
  if (!has_one) return no_method(heap, self, name);
  if (name == "startswith") return starts_or_ends(heap, text, values[0], true);
  if (name == "endswith") return starts_or_ends(heap, text, values[0], false);
  if (name == "removeprefix" || name == "removesuffix") {
    const bool is_prefix = name == "removeprefix";
    const std::size_t end = text.bytes.size(), size = text_of(heap, values[0]).bytes.size();
    const std::size_t n = starts_or_ends(heap, text, values[0], is_prefix) ? size : 0;
    return heap.text(is_prefix ? part(text, n, end) : part(text, 0, end - n));
  }
  if (name == "join") {
    TextBuilder out(heap);
    bool is_first = true;
    for (const Value& each : items_of(heap, values[0])) {
      if (!std::exchange(is_first, false)) out.add(text);
      out.add(text_of(heap, each));
    }
    return out.value();
  }
  if (name == "find" || name == "rfind" || name == "count") {
    const std::string& what = text_of(heap, values[0]).bytes;
    if (what.empty()) return heap.fail(name + "() of nothing");
    std::int64_t n = 0;
    std::size_t last = std::string::npos;
    for (std::size_t at = find_part(heap, text.bytes, what); at != std::string::npos; ++n) {
      last = at;
      if (name == "find") break;
      at = find_part(heap, text.bytes, what, at + (name == "rfind" ? 1 : what.size()));
    }
    if (name == "count") return n;
    return last == std::string::npos ? -1
                                     : n_characters(std::string_view(text.bytes).substr(0, last));
  }
  return no_method(heap, self, name);
}

Value list_method(Heap& heap, const Value& self, const std::string& name, const Arguments& given) {
  const std::vector<Value>& items = self.list()->items;
  const bool has_one = given.values.size() == 1 && given.named.empty();
  if (name == "copy" && given.values.empty()) return heap.list({}, items);
  if (has_one && (name == "index" || name == "count")) {
    std::int64_t n = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const bool same = equal(heap, items[i], given.values[0]);
      if (same && name == "index") return static_cast<std::int64_t>(i);
      n += same ? 1 : 0;
    }
    if (name == "count") return n;
    return heap.fail("index(): not found");
  }
  const bool changes = name != "copy" && name != "index" && name != "count";
  if (!changes) return no_method(heap, self, name);
  return heap.fail("list." + name + "() would change a list, which a template must not");
}

Value dict_method(Heap& heap, const Value& self, const std::string& name, const Arguments& given) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const auto bound = bind_arguments(heap, given, {"key", "default"});
    const Value* const found = bound[0] ? find(heap, dict, *bound[0]) : nullptr;
    return found != nullptr ? *found : bound[1].value_or(None{});
  }
  if (!given.values.empty() || !given.named.empty()) return no_method(heap, self, name);
  if (name == "copy") return heap.spend(dict.items.size() * 64) ? heap.dict(dict) : nullptr;
  if (name != "items" && name != "keys" && name != "values") {
    return heap.fail("dict." + name + "() would change a dictionary, which a template must not");
  }
  List* const view = heap.list(List::Kind::kView);
  for (const auto& [key, value] : dict.items) {
    if (!heap.spend(sizeof(Value))) break;
    view->items.push_back(name == "keys"     ? key
                          : name == "values" ? value
                                             : heap.list(List::Kind::kTuple, {key, value}));
  }
  return view;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  const List* const list = value.list();
  if (list != nullptr && list->kind == List::Kind::kTuple)
    return name == "index" || name == "count";
  const std::string_view names = value.text() != nullptr   ? kTextMethods
                                 : value.dict() != nullptr ? kDictMethods
                                 : list != nullptr && list->kind == List::Kind::kList
                                     ? kListMethods
                                     : std::string_view();
  const bool is_word = name.find(' ') == std::string_view::npos;
  return is_word && names.find(" " + std::string(name) + " ") != std::string_view::npos;
}

Value call_method(Heap& heap, const Value& value, const std::string& name,
                  const Arguments& arguments) {
  if (value.text() != nullptr) return text_method(heap, value, name, arguments);
  if (value.list() != nullptr) return list_method(heap, value, name, arguments);
  if (value.dict() != nullptr) return dict_method(heap, value, name, arguments);
  return no_method(heap, value, name);
}

}  // namespace tqcache::tokenizer::jinja
