#include "tqcache/interop/turbomlx/value_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kMaxDepth = 32;

// What nlohmann's parser calls; each returns whether to go on.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  bool null() { return put({}); }
  bool boolean(bool value) { return put({.kind = Kind::kBool, .integer = value}); }
  bool number_integer(number_integer_t value) {
    return put({.kind = Kind::kInteger, .integer = value});
  }
  bool number_unsigned(number_unsigned_t value) {
    if (value <= static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return put({.kind = Kind::kInteger, .integer = static_cast<std::int64_t>(value)});
    }
    return put({.kind = Kind::kNumber, .number = static_cast<double>(value)});
  }
  bool number_float(number_float_t value, const string_t&) {
    return put({.kind = Kind::kNumber, .number = value});
  }
  bool string(string_t& value) { return put({.kind = Kind::kText, .text = std::move(value)}); }
  bool binary(binary_t&) { return false; }

  bool start_object(std::size_t) { return open(Kind::kDict); }
  bool key(string_t& name) { return string(name); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Kind::kList); }
  bool end_array() { return close(); }

  template <class Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception&) {
    error_ = corrupt(fmt::format("byte {}: not JSON", position));
    return false;
  }

  std::optional<Error> error() && { return std::move(error_); }
  ValueTree tree() && { return std::move(tree_); }

 private:
  bool fail(std::string message) {
    error_ = too_large(std::move(message));
    return false;
  }

  bool put(Value value) {
    if (tree_.size() == kMaxTreeValues) return fail("more values than a prompt cache has");
    const ValueId id = tree_.add(std::move(value));
    if (!open_.empty()) tree_.at(open_.back()).items.push_back(id);
    last_ = id;
    return true;
  }
  bool open(Kind kind) {
    if (open_.size() == kMaxDepth) return fail("values nested too deep");
    if (!put({.kind = kind})) return false;
    open_.push_back(last_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  ValueTree tree_;  // its root is the first value
  std::vector<ValueId> open_;
  ValueId last_ = 0;
  std::optional<Error> error_;
};

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
  if (value->kind != kind) return corrupt(std::string(key) + ": of another kind");
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
  Builder builder;
  const bool is_done = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (auto error = std::move(builder).error()) return *std::move(error);
  if (!is_done) return corrupt("not JSON");
  return std::move(builder).tree();
}

}  // namespace tqcache::interop
