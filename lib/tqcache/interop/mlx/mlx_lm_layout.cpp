#include "tqcache/interop/mlx/mlx_lm_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "tqcache/interop/mlx/mlx_lm_state.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

std::string format_object(const MlxObject& object) {
  std::string text = object.is_list ? "CacheList(" : "";
  for (std::size_t i = 0; i < object.members.size(); ++i) {
    const MlxMember& member = object.members[i];
    text += (i == 0 ? "" : ",") + member.class_name;
    if (member.chunk_size > 0) text += fmt::format("[{}]", member.chunk_size);
  }
  return object.is_list ? text + ')' : text;
}

bool is_kind(std::string_view class_name, const cache::LayerDesc& layer) {
  const bool is_attention = std::holds_alternative<cache::AttentionDesc>(layer);
  const bool is_window = std::holds_alternative<cache::WindowDesc>(layer);
  if (class_name == "KVCache" || class_name == "ConcatenateKVCache") return is_attention;
  if (class_name == "RotatingKVCache") return is_window;
  if (class_name == "ChunkedKVCache") return is_attention || is_window;
  return class_name == "ArraysCache" && !is_attention && !is_window;
}

// Reads one text from left to right.
class LayoutParser {
 public:
  explicit LayoutParser(std::string_view text) : rest_(text) {}

  bool is_at_end() const { return rest_.empty(); }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::string_view take_name() {
    const auto is_other = [](char c) {
      return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9');
    };
    const auto end = std::ranges::find_if(rest_, is_other) - rest_.begin();
    const std::string_view name = rest_.substr(0, static_cast<std::size_t>(end));
    rest_.remove_prefix(name.size());
    return name;
  }
  // 0: there is none from 1 to `most`.
  std::int64_t take_number(std::int64_t most) {
    const auto end =
        std::ranges::find_if(rest_, [](char c) { return c < '0' || c > '9'; }) - rest_.begin();
    const auto number = mlx_number(rest_.substr(0, static_cast<std::size_t>(end)));
    rest_.remove_prefix(static_cast<std::size_t>(end));
    return number && *number <= most ? *number : 0;
  }

 private:
  std::string_view rest_;
};

// Reads a member. Its name is empty if there is none.
MlxMember parse_member(LayoutParser& parser) {
  MlxMember member{.class_name = std::string(parser.take_name())};
  if (!parser.take("[")) return member;
  member.chunk_size = parser.take_number(cache::kMaxTokens);
  if (member.chunk_size == 0 || !parser.take("]")) member.class_name.clear();
  return member;
}

// An object and how often it is there; 0 times: the text is not one of format_objects().
std::pair<MlxObject, std::int64_t> parse_object(LayoutParser& parser) {
  MlxObject object;
  object.is_list = parser.take("CacheList(");
  do {
    object.members.push_back(parse_member(parser));
    if (object.members.back().class_name.empty()) return {object, 0};
  } while (object.is_list && parser.take(","));
  if (object.is_list && !parser.take(")")) return {object, 0};
  return {object, parser.take("*") ? parser.take_number(cache::kMaxLayers) : 1};
}

}  // namespace

std::vector<MlxObject> plain_objects(std::span<const cache::LayerDesc> layers) {
  std::vector<MlxObject> objects;
  for (const cache::LayerDesc& layer : layers) {
    for (const char* name : {"KVCache", "RotatingKVCache", "ArraysCache"}) {
      if (is_kind(name, layer)) objects.push_back({.members = {{.class_name = name}}});
    }
  }
  return objects;
}

std::string format_objects(std::span<const MlxObject> objects) {
  std::string text;
  for (std::size_t i = 0; i < objects.size();) {
    const auto is_other = [&](const MlxObject& object) { return object != objects[i]; };
    const auto n = std::ranges::find_if(objects.subspan(i), is_other) - objects.begin() -
                   static_cast<std::ptrdiff_t>(i);
    text += (i == 0 ? "" : ",") + format_object(objects[i]);
    if (n > 1) text += fmt::format("*{}", n);
    i += static_cast<std::size_t>(n);
  }
  return text;
}

Result<std::vector<MlxObject>> parse_objects(std::string_view text,
                                             std::span<const cache::LayerDesc> layers) {
  const auto wrong = [&] {
    return corrupt(fmt::format("source layout {}: not of these {} layers",
                               tensors::printable_name(text), layers.size()));
  };
  std::vector<MlxObject> objects;
  std::size_t n_layers = 0;
  LayoutParser parser(text);
  do {
    const auto [object, n] = parse_object(parser);
    if (n == 0) return wrong();
    for (std::int64_t i = 0; i < n; ++i) {
      for (const MlxMember& member : object.members) {
        if (n_layers == layers.size() || !is_kind(member.class_name, layers[n_layers])) {
          return wrong();
        }
        if ((member.class_name == "ChunkedKVCache") != (member.chunk_size > 0)) return wrong();
        ++n_layers;
      }
      objects.push_back(object);
    }
  } while (parser.take(","));
  if (!parser.is_at_end() || n_layers != layers.size()) return wrong();
  return objects;
}

}  // namespace tqcache::interop
