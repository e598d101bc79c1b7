#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/error.h"
#include "tqcache/interop/turbomlx/pickle.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

using tensors::printable_name;
using tensors::TensorType;
using Kind = Value::Kind;

constexpr std::size_t kMaxDimensions = 32;  // NumPy's own limit, before version 2

// The names that a pickle may use, and what they mean here.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kNames = {{
    {"numpy.core.multiarray._reconstruct", "reconstruct"},
    {"numpy._core.multiarray._reconstruct", "reconstruct"},
    {"numpy.core.numeric._frombuffer", "frombuffer"},
    {"numpy._core.numeric._frombuffer", "frombuffer"},
    {"numpy.ndarray", "ndarray"},
    {"numpy.dtype", "dtype"},
    {"_codecs.encode", "encode"},
    {"__builtin__.bytes", "bytes"},
    {"builtins.bytes", "bytes"},
    {"builtins.bytearray", "bytes"},
}};

struct NumberFormat {
  std::string_view name;
  TensorType type;
};

constexpr std::array<NumberFormat, 12> kFormats = {{{"b1", TensorType::kBool},
                                                    {"i1", TensorType::kI8},
                                                    {"i2", TensorType::kI16},
                                                    {"i4", TensorType::kI32},
                                                    {"i8", TensorType::kI64},
                                                    {"u1", TensorType::kU8},
                                                    {"u2", TensorType::kU16},
                                                    {"u4", TensorType::kU32},
                                                    {"u8", TensorType::kU64},
                                                    {"f2", TensorType::kF16},
                                                    {"f4", TensorType::kF32},
                                                    {"f8", TensorType::kF64}}};

// Checks the number and the kinds of the arguments.
bool are_kinds(const ValueTree& tree, const Value& tuple, std::initializer_list<Kind> kinds) {
  if (tuple.kind != Kind::kTuple || tuple.items.size() < kinds.size()) return false;
  std::size_t i = 0;
  return std::ranges::all_of(kinds,
                             [&](Kind kind) { return tree.at(tuple.items[i++]).kind == kind; });
}

Result<std::vector<std::uint64_t>> shape_of(const ValueTree& tree, const Value& tuple) {
  std::vector<std::uint64_t> shape;
  if (tuple.items.size() > kMaxDimensions) return corrupt("an array of too many dimensions");
  for (const ValueId id : tuple.items) {
    const Value& n = tree.at(id);
    if (n.kind != Kind::kInteger || n.integer < 0) return corrupt("a dimension that is no number");
    shape.push_back(static_cast<std::uint64_t>(n.integer));
  }
  return shape;
}

// Sets the bytes of an array. Fortran order is accepted only if it equals C order.
Result<void> set_array(ArrayValue& array, const ArrayValue& dtype, std::vector<std::uint64_t> shape,
                       bool is_fortran, const ByteRun& bytes) {
  const auto n_long = std::ranges::count_if(shape, [](std::uint64_t n) { return n != 1; });
  if (is_fortran && n_long > 1) return unsupported("an array in Fortran's order");
  const auto count = element_count(shape);
  const auto size = count ? checked_mul(*count, type_size(dtype.type)) : std::nullopt;
  if (size != bytes.size) {
    return corrupt(fmt::format("an array of {} bytes where its shape asks for {}", bytes.size,
                               (size ? std::to_string(*size) : "more than there can be")));
  }
  array.type = dtype.type;
  array.type_name = dtype.type_name;
  array.shape = std::move(shape);
  array.bytes = bytes;
  return {};
}

Result<Value> make_dtype(const ValueTree& tree, const Value& arguments) {
  if (!are_kinds(tree, arguments, {Kind::kText})) return corrupt("dtype of no text");
  std::string_view name = tree.at(arguments.items[0]).text;
  for (const NumberFormat& format : kFormats) {
    if (format.name != name) continue;
    Value value{.kind = Kind::kDtype};
    value.array = std::make_shared<ArrayValue>();
    value.array->type = format.type;
    value.array->type_name = std::string(name);
    return value;
  }
  return unsupported("arrays of dtype " + printable_name(name));
}

// (ndarray, (0,), b"b"): an array that BUILD will fill.
Result<Value> make_empty(const ValueTree& tree, const Value& arguments) {
  if (!are_kinds(tree, arguments, {Kind::kGlobal, Kind::kTuple, Kind::kBytes}) ||
      tree.at(arguments.items[0]).text != "ndarray") {
    return corrupt("_reconstruct of something other than an array");
  }
  Value value{.kind = Kind::kArray};
  value.array = std::make_shared<ArrayValue>();
  return value;
}

// (bytes, dtype, shape, order), to which NumPy 2 may add the order of the axes.
Result<Value> from_buffer(const ValueTree& tree, const Value& arguments) {
  if (!are_kinds(tree, arguments, {Kind::kBytes, Kind::kDtype, Kind::kTuple, Kind::kText})) {
    return corrupt("_frombuffer of something other than bytes, dtype, shape and order");
  }
  const std::string& order = tree.at(arguments.items[3]).text;
  if (order != "C" && order != "F")
    return unsupported("an array in order " + printable_name(order));
  TQC_TRY_ASSIGN(auto shape, shape_of(tree, tree.at(arguments.items[2])));
  Value value{.kind = Kind::kArray};
  value.array = std::make_shared<ArrayValue>();
  TQC_TRY(set_array(*value.array, *tree.at(arguments.items[1]).array, std::move(shape),
                    order == "F", tree.at(arguments.items[0]).bytes));
  return value;
}

// Converts characters up to U+00FF, which take one or two bytes in UTF-8, to bytes.
std::optional<Bytes> to_latin1(std::string_view utf8) {
  Bytes bytes;
  bytes.reserve(utf8.size());
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      bytes.push_back(std::byte{lead});
      continue;
    }
    const bool is_pair = (lead == 0xc2 || lead == 0xc3) && i + 1 < utf8.size();
    const auto next = is_pair ? static_cast<unsigned char>(utf8[++i]) : 0u;
    if ((next & 0xc0u) != 0x80u) return std::nullopt;
    bytes.push_back(static_cast<std::byte>((lead & 3u) << 6 | (next & 0x3fu)));
  }
  return bytes;
}

// ("...", "latin1"): the spelling of bytes in protocol 2, which has no bytes type.
Result<Value> encode(const ValueTree& tree, const Value& arguments, std::uint64_t& texts_left) {
  if (!are_kinds(tree, arguments, {Kind::kText, Kind::kText}) ||
      tree.at(arguments.items[1]).text != "latin1") {
    return corrupt("encode of something other than Latin-1");
  }
  const std::string& text = tree.at(arguments.items[0]).text;
  if (text.size() > texts_left) return too_large("more text than 64 MiB");
  texts_left -= text.size();
  auto bytes = to_latin1(text);
  if (!bytes) return corrupt("a text that is not Latin-1");
  Value value{.kind = Kind::kBytes};
  value.bytes.size = bytes->size();
  value.bytes.memory = std::make_shared<const Bytes>(std::move(*bytes));
  return value;
}

// bytes(), and bytearray(bytes).
Result<Value> make_bytes(const ValueTree& tree, const Value& arguments) {
  Value value{.kind = Kind::kBytes};
  if (arguments.items.empty()) return value;
  if (arguments.items.size() != 1 || !are_kinds(tree, arguments, {Kind::kBytes})) {
    return corrupt("bytes of something other than bytes");
  }
  value.bytes = tree.at(arguments.items[0]).bytes;
  return value;
}

// (3, byte order, None, None, None, -1, -1, 0)
Result<void> build_dtype(const ValueTree& tree, const Value& dtype, const Value& state) {
  if (!are_kinds(tree, state, {Kind::kInteger, Kind::kText})) return corrupt("a dtype's state");
  const std::string& order = tree.at(state.items[1]).text;
  if (order == "<" || order == "|" || order == "=") return {};
  return unsupported("arrays of dtype " + printable_name(order + dtype.array->type_name));
}

// (1, shape, dtype, is Fortran order, bytes)
Result<void> build_array(const ValueTree& tree, Value& object, const Value& state) {
  if (!are_kinds(tree, state,
                 {Kind::kInteger, Kind::kTuple, Kind::kDtype, Kind::kBool, Kind::kBytes})) {
    return corrupt("an array's state");
  }
  TQC_TRY_ASSIGN(auto shape, shape_of(tree, tree.at(state.items[1])));
  return set_array(*object.array, *tree.at(state.items[2]).array, std::move(shape),
                   tree.at(state.items[3]).integer != 0, tree.at(state.items[4]).bytes);
}

}  // namespace

Result<Value> pickle_global(std::string_view module, std::string_view name) {
  const std::string whole = std::string(module).append(".").append(name);
  for (const auto& [written, meaning] : kNames) {
    if (written == whole) return Value{.kind = Kind::kGlobal, .text = std::string(meaning)};
  }
  return unsupported("would import " + printable_name(whole));
}

Result<Value> pickle_call(const ValueTree& tree, const Value& global, const Value& arguments,
                          std::uint64_t& texts_left) {
  if (global.kind != Kind::kGlobal || arguments.kind != Kind::kTuple) {
    return corrupt("a call of something that is no name");
  }
  if (global.text == "dtype") return make_dtype(tree, arguments);
  if (global.text == "reconstruct") return make_empty(tree, arguments);
  if (global.text == "frombuffer") return from_buffer(tree, arguments);
  if (global.text == "encode") return encode(tree, arguments, texts_left);
  if (global.text == "bytes") return make_bytes(tree, arguments);
  return unsupported("a call of " + global.text);
}

Result<void> pickle_build(ValueTree& tree, Value& object, const Value& state) {
  if (object.kind == Kind::kDtype) return build_dtype(tree, object, state);
  if (object.kind == Kind::kArray) return build_array(tree, object, state);
  return corrupt("a state of something that is no array");
}

}  // namespace tqcache::interop
