#pragma once
// interop/turbomlx/value_tree.h: the contents of a pickle or a JSON text as a tree of plain values.
// Safe for untrusted input: values refer to each other by number, so a value that contains itself
// does no harm.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::interop {

// Bytes in memory, or in a file until they are read.
struct ByteRun {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t size = 0;
  std::shared_ptr<const Bytes> memory = nullptr;  // of `size`; if set, the file is not used
};

// Fills `out` with the bytes from `at` on. Requires: they lie within the run.
// Errors: those of the file.
Result<void> read_run(const ByteSource& file, const ByteRun& run, std::uint64_t at,
                      std::span<std::byte> out);

// An array in row-major order, with as many bytes as type and shape require.
struct ArrayValue {
  tensors::TensorType type = tensors::TensorType::kOther;
  std::string type_name;             // the file's name of the type: "f4", "F32"
  std::vector<std::uint64_t> shape;  // outermost first
  ByteRun bytes;
};

using ValueId = std::uint32_t;

struct Value {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInteger,  // fits a signed 64-bit number
    kNumber,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,
    kArray,
    kGlobal,  // pickles only: a name that was not imported, and a number format
    kDtype,
  };

  Kind kind = Kind::kNone;
  std::int64_t integer = 0;                     // kInteger; kBool: 0 or 1
  double number = 0;                            // kNumber
  std::string text = {};                        // kText, kGlobal
  std::vector<ValueId> items = {};              // kTuple, kList; kDict: key, value, key, value, ...
  ByteRun bytes = {};                           // kBytes
  std::shared_ptr<ArrayValue> array = nullptr;  // kArray, kDtype (its type)
};

// Enough for 20 times the values of a file of 128 layers.
inline constexpr std::size_t kMaxTreeValues = std::size_t{1} << 18;

class ValueTree {
 public:
  ValueId add(Value value) {
    values_.push_back(std::move(value));
    return static_cast<ValueId>(values_.size() - 1);
  }
  // Requires: an id returned by add(). References stay valid.
  Value& at(ValueId id) { return values_[id]; }
  const Value& at(ValueId id) const { return values_[id]; }
  std::size_t size() const { return values_.size(); }

  ValueId root = 0;

 private:
  std::deque<Value> values_;
};

// The value of a text key; nullptr when it is absent or None, or `dict` is not a dict.
// Errors: kCorrupt when the key is repeated.
Result<const Value*> find_value(const ValueTree& tree, const Value& dict, std::string_view key);

// Errors: kCorrupt, naming the key, when it is missing or has another type.
Result<const Value*> require_value(const ValueTree& tree, const Value& dict, std::string_view key,
                                   Value::Kind kind);
Result<std::int64_t> get_integer(const ValueTree& tree, const Value& dict, std::string_view key);
Result<std::string> get_text(const ValueTree& tree, const Value& dict, std::string_view key);

// A list or a tuple.
inline bool is_sequence(const Value& value) {
  return value.kind == Value::Kind::kList || value.kind == Value::Kind::kTuple;
}

// Bytes of one value of an array; 0: unknown type.
std::uint64_t type_size(tensors::TensorType type);

// "f4 [1, 2, 10, 1]": the description of an array in messages.
std::string describe(const ArrayValue& array);

// Errors: those of tensors::parse_json(), with at most kMaxTreeValues values and a nesting depth of
//         at most 32.
Result<ValueTree> parse_json_tree(std::string_view text);

}  // namespace tqcache::interop
