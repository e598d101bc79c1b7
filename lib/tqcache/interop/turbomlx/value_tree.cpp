#include "tqcache/interop/turbomlx/value_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tqcache/error.h"
#include "tqcache/tensors/foreign_json.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;
constexpr int kMaxTreeDepth = 32;

ValueId add_json(const nlohmann::json& node, ValueTree& tree) {
  const ValueId id = tree.add({});
  Value value;
  if (node.is_boolean()) {
    value = {.kind = Kind::kBool, .integer = node.get<bool>()};
  } else if (node.is_number_integer() &&
             !(node.is_number_unsigned() &&
               node.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())) {
    value = {.kind = Kind::kInteger, .integer = node.get<std::int64_t>()};
  } else if (node.is_number()) {
    value = {.kind = Kind::kNumber, .number = node.get<double>()};
  } else if (node.is_string()) {
    value = {.kind = Kind::kText, .text = node.get<std::string>()};
  } else if (node.is_array()) {
    value.kind = Kind::kList;
    for (const nlohmann::json& item : node) value.items.push_back(add_json(item, tree));
  } else if (node.is_object()) {
    value.kind = Kind::kDict;
    for (const auto& [key, item] : node.items()) {
      value.items.push_back(tree.add({.kind = Kind::kText, .text = key}));
      value.items.push_back(add_json(item, tree));
    }
  }
  tree.at(id) = std::move(value);
  return id;
}

}  // namespace

Result<void> read_run(const ByteSource& file, const ByteRun& run, std::uint64_t at,
                      std::span<std::byte> out) {
  if (!run.memory) return file.read_at(run.offset + at, out);
  const auto from = ByteView(*run.memory).subspan(static_cast<std::size_t>(at), out.size());
  std::ranges::copy(from, out.begin());
  return {};
}

Result<const Value*> find_value(const ValueTree& tree, const Value& dict, std::string_view key) {
  const Value* found = nullptr;
  if (dict.kind != Value::Kind::kDict) return found;
  bool is_there = false;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Value& name = tree.at(dict.items[i]);
    if (name.kind != Value::Kind::kText || name.text != key) continue;
    if (is_there) return corrupt(std::string(key) + ": twice");
    is_there = true;
    found = &tree.at(dict.items[i + 1]);
  }
  if (found != nullptr && found->kind == Value::Kind::kNone) found = nullptr;
  return found;
}

Result<const Value*> require_value(const ValueTree& tree, const Value& dict, std::string_view key,
                                   Value::Kind kind) {
  TQC_TRY_ASSIGN(const Value* value, find_value(tree, dict, key));
  if (value == nullptr) return corrupt(std::string(key) + ": missing");
  if (value->kind != kind) {
    constexpr std::array kKindNames = {"nothing", "true or false", "an integer", "a number",
                                       "a text",  "bytes",         "a tuple",    "a list",
                                       "a dict",  "an array",      "a name",     "a number format"};
    const auto name = [&](Value::Kind of) { return kKindNames.at(static_cast<std::size_t>(of)); };
    return corrupt(fmt::format("{}: expected {}, found {}", key, name(kind), name(value->kind)));
  }
  return value;
}

Result<std::int64_t> get_integer(const ValueTree& tree, const Value& dict, std::string_view key) {
  TQC_TRY_ASSIGN(const Value* value, require_value(tree, dict, key, Value::Kind::kInteger));
  return value->integer;
}

Result<std::string> get_text(const ValueTree& tree, const Value& dict, std::string_view key) {
  TQC_TRY_ASSIGN(const Value* value, require_value(tree, dict, key, Value::Kind::kText));
  return value->text;
}

std::uint64_t type_size(tensors::TensorType type) {
  using tensors::TensorType;
  switch (type) {
    case TensorType::kBool:
    case TensorType::kI8:
    case TensorType::kU8:
      return 1;
    case TensorType::kF16:
    case TensorType::kBF16:
    case TensorType::kI16:
    case TensorType::kU16:
      return 2;
    case TensorType::kF32:
    case TensorType::kI32:
    case TensorType::kU32:
      return 4;
    case TensorType::kF64:
    case TensorType::kI64:
    case TensorType::kU64:
      return 8;
    default:
      return 0;
  }
}

std::string describe(const ArrayValue& array) {
  std::string text = tensors::printable_name(array.type_name) + " [";
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(array.shape[i]);
  }
  return text + "]";
}

Result<ValueTree> parse_json_tree(std::string_view text) {
  TQC_TRY_ASSIGN(const nlohmann::json json,
                 tensors::parse_json(text, {.max_bytes = kMaxJsonBytes,
                                            .max_depth = kMaxTreeDepth,
                                            .max_values = kMaxTreeValues}));
  ValueTree tree;
  tree.root = add_json(json, tree);
  return tree;
}

}  // namespace tqcache::interop
