#include "tqcache/interop/json_tree.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace tqcache::interop {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kMaxValues = std::size_t{1} << 18;
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
    error_ = Error{ErrorCode::kCorrupt, "byte " + std::to_string(position) + ": not JSON"};
    return false;
  }

  std::optional<Error> error() && { return std::move(error_); }
  ValueTree tree() && { return std::move(tree_); }

 private:
  bool fail(std::string message) {
    error_ = Error{ErrorCode::kTooLarge, std::move(message)};
    return false;
  }

  bool put(Value value) {
    if (tree_.size() == kMaxValues) return fail("more values than a prompt cache has");
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

Result<ValueTree> parse_json_tree(std::string_view text) {
  Builder builder;
  const bool is_done = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (auto error = std::move(builder).error()) return *std::move(error);
  if (!is_done) return Error{ErrorCode::kCorrupt, "not JSON"};
  return std::move(builder).tree();
}

}  // namespace tqcache::interop
