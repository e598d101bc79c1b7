#include "tqcache/tokenizer/jinja/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tqcache/tensors/printable_name.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"

namespace tqcache::tokenizer::jinja {

std::optional<std::int64_t> Value::integer() const {
  if (const bool* b = std::get_if<bool>(&held)) return *b ? 1 : 0;
  if (const std::int64_t* i = std::get_if<std::int64_t>(&held)) return *i;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* d = std::get_if<double>(&held)) return *d;
  if (const auto i = integer()) return static_cast<double>(*i);
  return std::nullopt;
}

bool Heap::spend(std::uint64_t work) {
  if (budget_ > work) {
    budget_ -= work;
  } else if (!error_) {
    fail("the template takes too many steps or too much memory", ErrorCode::kTooLarge);
  }
  return budget_ > 0;
}

Failed Heap::fail(std::string message, ErrorCode code) {
  budget_ = 0;
  if (!error_) error_ = {code, "line " + std::to_string(line_) + ": " + message};
  return {};
}

Failed Heap::fail_undefined(const Undefined& undefined) {
  return fail(tensors::printable_name(undefined.name) + " is undefined");
}

List* Heap::list(List::Kind kind, std::vector<Value> items) {
  spend(items.size() * sizeof(Value));
  return add(lists_, {kind, std::move(items)});
}

void TextBuilder::add(std::string_view bytes, Mark mark) {
  if (!heap_->spend(bytes.size())) return;
  if (mark != Mark::kTemplate && text_.marks.empty()) text_.marks.assign(text_.bytes.size(), 0);
  const bool has_marks = mark != Mark::kTemplate || !text_.marks.empty();
  if (has_marks) text_.marks.append(bytes.size(), static_cast<char>(mark));
  text_.bytes += bytes;
}

void TextBuilder::add(const Text& text, std::size_t begin, std::size_t end) {
  const std::string_view bytes = std::string_view(text.bytes).substr(begin, end - begin);
  if (text.marks.empty()) return add(bytes);
  if (!heap_->spend(bytes.size())) return;
  if (text_.marks.empty()) text_.marks.assign(text_.bytes.size(), 0);
  text_.marks.append(text.marks, begin, end - begin);
  text_.bytes += bytes;
}

Mark mark_at(const Text& text, std::size_t at) {
  return text.marks.empty() ? Mark::kTemplate : static_cast<Mark>(text.marks[at]);
}

Text part(const Text& text, std::size_t begin, std::size_t end) {
  Text cut{text.bytes.substr(begin, end - begin)};
  if (!text.marks.empty()) cut.marks = text.marks.substr(begin, end - begin);
  return cut;
}

std::string type_name(const Value& value) {
  static constexpr const char* kNames[] = {"NoneType", "Undefined", "bool",     "int",
                                           "float",    "str",       "list",     "dict",
                                           "function", "loop",      "namespace"};
  static constexpr const char* kLists[] = {"list", "tuple", "range", "view", "iterator"};
  if (const List* list = value.list()) return kLists[static_cast<int>(list->kind)];
  return kNames[value.held.index()];
}

bool is_true(const Value& value) {
  if (value.is<Undefined>() || value.is<None>()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  const List* const list = value.list();
  return list == nullptr || list->kind == List::Kind::kIterator || !list->items.empty();
}

bool equal(Heap& heap, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) return heap.fail("values nested too deep", ErrorCode::kTooLarge);
  if (!heap.spend(1)) return false;
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.number() && b.number()) return *a.number() == *b.number();
  if (a.held.index() != b.held.index()) return false;
  if (const Text* text = a.text()) {
    if (text->bytes.size() != b.text()->bytes.size()) return false;
    heap.spend(text->bytes.size() / 16);
    return text->bytes == b.text()->bytes;
  }
  if (const List* x = a.list(), *y = b.list(); x != nullptr) {
    if (x->kind != y->kind || x->items.size() != y->items.size()) return false;
    if (!x->has_indices()) return x == y;
    bool same = true;
    for (std::size_t i = 0; i < x->items.size() && same; ++i) {
      same = equal(heap, x->items[i], y->items[i], depth + 1);
    }
    return same;
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr) {
    bool same = x->items.size() == y->items.size();
    for (std::size_t i = 0; i < x->items.size() && same; ++i) {
      const Value* const other = find(heap, *y, x->items[i].first, depth + 1);
      same = other != nullptr && equal(heap, x->items[i].second, *other, depth + 1);
    }
    return same;
  }
  if (a.is<Undefined>() || a.is<None>()) return true;
  if (a.is<Namespace*>()) return std::get<Namespace*>(a.held) == std::get<Namespace*>(b.held);
  return heap.fail("a comparison of functions");
}

bool less(Heap& heap, const Value& a, const Value& b, int depth) {
  if (depth > kMaxNesting) return heap.fail("values nested too deep", ErrorCode::kTooLarge);
  if (!heap.spend(1)) return false;
  if (a.integer() && b.integer()) return *a.integer() < *b.integer();
  if (a.number() && b.number()) return *a.number() < *b.number();
  if (a.text() != nullptr && b.text() != nullptr) {
    return a.text()->bytes < b.text()->bytes;  // UTF-8 sorts as its characters do
  }
  const List *x = a.list(), *y = b.list();
  if (x != nullptr && y != nullptr && x->kind == y->kind && x->kind <= List::Kind::kTuple) {
    for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
      if (equal(heap, x->items[i], y->items[i], depth + 1)) continue;
      return less(heap, x->items[i], y->items[i], depth + 1);
    }
    return x->items.size() < y->items.size();
  }
  for (const Value* each : {&a, &b}) {
    if (each->undefined() != nullptr) return heap.fail_undefined(*each->undefined());
  }
  return heap.fail("a " + type_name(a) + " and a " + type_name(b) + " have no order");
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) return heap.fail("a " + type_name(item) + " in a text");
    return find_part(heap, text->bytes, item.text()->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return find(heap, *dict, item) != nullptr;
  for (const Value& each : items_of(heap, container)) {
    if (equal(heap, each, item)) return true;
  }
  return false;
}

const Value* find(Heap& heap, const Dict& dict, const Value& key, int depth) {
  if (key.list() != nullptr || key.dict() != nullptr || key.is<Namespace*>()) {
    return heap.fail("a " + type_name(key) + " as the key of a dictionary"), nullptr;
  }
  for (const auto& [name, value] : dict.items) {
    if (equal(heap, name, key, depth)) return &value;
  }
  return nullptr;
}

const Value* find(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict.items) {
    if (name.text() != nullptr && name.text()->bytes == key) return &value;
  }
  return nullptr;
}

void set_item(Heap& heap, Dict& dict, Value key, Value value) {
  if (!heap.spend(2 * sizeof(Value))) return;
  if (const Value* found = find(heap, dict, key)) {
    const auto at = std::ranges::find_if(dict.items, [&](auto& e) { return &e.second == found; });
    at->second = std::move(value);
  } else {
    dict.items.emplace_back(std::move(key), std::move(value));
  }
}

std::vector<Value> items_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  if (List* list = value.list()) {
    if (!heap.spend(list->items.size() * sizeof(Value))) return items;
    return list->kind == List::Kind::kIterator ? std::exchange(list->items, {}) : list->items;
  }
  if (const Dict* dict = value.dict()) {
    if (!heap.spend(dict->items.size() * sizeof(Value))) return items;
    for (const auto& [key, unused] : dict->items) items.push_back(key);
  } else if (const Text* text = value.text()) {
    for (std::size_t at = 0; at < text->bytes.size() && heap.spend(2 * sizeof(Text));) {
      const std::size_t end = next_character(text->bytes, at);
      items.push_back(heap.text(part(*text, at, end)));
      at = end;
    }
  } else if (!value.is<Undefined>()) {
    heap.fail("a " + type_name(value) + " is not iterable");
  }
  return items;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format);
  std::string text(buffer, end.ptr);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

void write_quoted(const Text& text, TextBuilder& out) {
  const bool has_single = text.bytes.find('\'') != std::string::npos;
  const bool has_double = text.bytes.find('"') != std::string::npos;
  const std::string_view quote = has_single && !has_double ? "\"" : "'";
  out.add(quote);
  for (std::size_t at = 0; at < text.bytes.size() && !out.is_spent();) {
    const std::size_t end = next_character(text.bytes, at);
    const char32_t c = character_at(text.bytes, at);
    if (c == '\\' || c == static_cast<char32_t>(quote[0])) out.add("\\", mark_at(text, at));
    if (c == '\n' || c == '\r' || c == '\t') {
      out.add(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", mark_at(text, at));
    } else if (is_printable(c)) {
      out.add(text, at, end);
    } else {
      const char* const prefix = c < 0x100 ? "\\x" : c < 0x10000 ? "\\u" : "\\U";
      out.add(hexadecimal(prefix, c, c < 0x100 ? 2 : c < 0x10000 ? 4 : 8), mark_at(text, at));
    }
    at = end;
  }
  out.add(quote);
}

void write_repr(Heap& heap, const Value& value, TextBuilder& out, int depth) {
  if (depth > kMaxNesting) return void(heap.fail("values nested too deep", ErrorCode::kTooLarge));
  if (!heap.spend(1)) return;
  if (value.is<None>()) return out.add("None");
  if (value.is<Undefined>()) return out.add("Undefined");
  if (value.is<bool>()) return out.add(is_true(value) ? "True" : "False");
  if (value.is<std::int64_t>()) return out.add(std::to_string(*value.integer()));
  if (value.is<double>()) return out.add(float_text(*value.number()));
  if (const Text* text = value.text()) return write_quoted(*text, out);
  if (const List* list = value.list(); list != nullptr && list->kind <= List::Kind::kTuple) {
    const bool is_tuple = list->kind == List::Kind::kTuple;
    out.add(is_tuple ? "(" : "[");
    for (std::size_t i = 0; i < list->items.size() && !out.is_spent(); ++i) {
      if (i > 0) out.add(", ");
      write_repr(heap, list->items[i], out, depth + 1);
    }
    return out.add(!is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* dict = value.dict()) {
    out.add("{");
    for (std::size_t i = 0; i < dict->items.size() && !out.is_spent(); ++i) {
      if (i > 0) out.add(", ");
      write_repr(heap, dict->items[i].first, out, depth + 1);
      out.add(": ");
      write_repr(heap, dict->items[i].second, out, depth + 1);
    }
    return out.add("}");
  }
  heap.fail("a " + type_name(value) + " has no text");
}

}  // namespace

void write_str(Heap& heap, const Value& value, TextBuilder& out) {
  if (value.is<Undefined>()) return;
  if (const Text* text = value.text()) return out.add(*text);
  write_repr(heap, value, out, 0);
}

Text to_text(Heap& heap, const Value& value) {
  TextBuilder out(heap);
  write_str(heap, value, out);
  return out.take();
}

}  // namespace tqcache::tokenizer::jinja
