#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tokenizer/jinja/jinja_text.h"
#include "tqcache/tokenizer/jinja/jinja_value.h"

namespace tqcache::tokenizer::jinja {
namespace {

using Json = nlohmann::ordered_json;

void write_string(const Text& text, bool ascii, TextBuilder& out) {
  static constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
  out.add("\"");
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.bytes.size() && !out.is_spent();) {
    const std::size_t next = next_character(text.bytes, at);
    const char32_t c = character_at(text.bytes, at);
    const std::size_t named = kNamed.find(text.bytes[at]);
    std::string escaped;
    if (named != std::string_view::npos) {
      escaped = {'\\', kNames[named]};
    } else if (ascii && c >= 0x10000) {
      escaped = hexadecimal("\\u", 0xd7c0 + (c >> 10), 4);
      escaped += hexadecimal("\\u", 0xdc00 + (c & 0x3ff), 4);
    } else if (c < 0x20 || (ascii && c >= 0x7f)) {
      escaped = hexadecimal("\\u", c, 4);
    }
    if (!escaped.empty()) {
      out.add(text, done, at);
      out.add(escaped, mark_at(text, at));
      done = next;
    }
    at = next;
  }
  out.add(text, done, text.bytes.size());
  out.add("\"");
}

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style, TextBuilder& out)
      : heap_(heap), style_(style), out_(out) {}

  void write(const Value& value, int depth) {
    if (depth > kMaxNesting) heap_.fail("values nested too deep", ErrorCode::kTooLarge);
    if (!heap_.spend(1)) return;
    if (value.is<None>()) return out_.add("null");
    if (value.is<bool>()) return out_.add(is_true(value) ? "true" : "false");
    if (value.is<std::int64_t>()) return out_.add(std::to_string(*value.integer()));
    if (const Text* text = value.text()) return write_string(*text, style_.ascii, out_);
    if (value.is<double>()) {
      const double d = *value.number();
      if (!std::isfinite(d))
        return out_.add(std::isnan(d) ? "NaN" : d < 0 ? "-Infinity" : "Infinity");
      return out_.add(float_text(d));
    }
    if (const Dict* dict = value.dict()) return write_dict(*dict, depth);
    const List* const list = value.list();
    if (list == nullptr || list->kind > List::Kind::kTuple) {
      return void(heap_.fail("tojson of a " + type_name(value)));
    }
    out_.add("[");
    for (std::size_t i = 0; i < list->items.size() && !heap_.is_spent(); ++i) {
      begin_item(i, depth + 1);
      write(list->items[i], depth + 1);
    }
    if (!list->items.empty()) begin_line(depth);
    out_.add("]");
  }

 private:
  void begin_line(int depth) {
    if (!style_.indent) return;
    out_.add("\n");
    for (int i = 0; i < depth; ++i) out_.add(*style_.indent);
  }
  void begin_item(std::size_t index, int depth) {
    if (index > 0) out_.add(style_.item_separator);
    begin_line(depth);
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<std::pair<Value, Value>> items = dict.items;
    heap_.spend(items.size() * 2 * sizeof(Value));
    for (auto& [key, value] : items) {
      if (key.text() != nullptr) continue;
      TextBuilder name(heap_);
      JsonWriter(heap_, style_, name).write(key, 0);
      key = name.value();
    }
    const auto name_of = [](const auto& item) { return item.first.text()->bytes; };
    if (style_.sort_keys) std::ranges::stable_sort(items, {}, name_of);
    out_.add("{");
    for (std::size_t i = 0; i < items.size() && !heap_.is_spent(); ++i) {
      begin_item(i, depth + 1);
      write_string(*items[i].first.text(), style_.ascii, out_);
      out_.add(style_.key_separator);
      write(items[i].second, depth + 1);
    }
    if (!items.empty()) begin_line(depth);
    out_.add("}");
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

Value value_of(Heap& heap, const Json& json, Mark mark) {
  const auto marked = [&](const std::string& bytes) {
    TextBuilder text(heap);
    text.add(bytes, mark);
    return text.value();
  };
  if (json.is_string()) return marked(json.get_ref<const std::string&>());
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) {
    return heap.fail("a number beyond 64 bits", ErrorCode::kTooLarge);
  }
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_array()) {
    List* const list = heap.list();
    for (const Json& item : json) {
      if (!heap.spend(sizeof(Value))) break;
      list->items.push_back(value_of(heap, item, mark));
    }
    return list;
  }
  if (!json.is_object()) return None{};
  Dict* const dict = heap.dict();
  for (const auto& [key, value] : json.items()) {
    if (!heap.spend(2 * sizeof(Value))) break;
    dict->items.emplace_back(marked(key), value_of(heap, value, mark));
  }
  return dict;
}

}  // namespace

void write_json(Heap& heap, const Value& value, const JsonStyle& style, TextBuilder& out) {
  JsonWriter(heap, style, out).write(value, 0);
}

Result<Value> value_of_json(Heap& heap, std::string_view json, Mark mark) {
  // Keys keep their order in a list, in which programs search.
  TQC_TRY_ASSIGN(const Json parsed, tensors::parse_ordered_json(json, {.max_bytes = json.size(),
                                                                       .max_depth = kMaxNesting,
                                                                       .max_values = 1 << 20,
                                                                       .max_keys = 4096}));
  Value value = value_of(heap, parsed, mark);
  if (heap.error()) return *heap.error();
  return value;
}

}  // namespace tqcache::tokenizer::jinja
