#include "tqcache/tensors/gguf_metadata.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

// Keys are at most 65,535 bytes long (ggml docs/gguf.md, "File Structure").
constexpr std::uint64_t kMaxKeyBytes = 65'535;
// Room for a whole tokenizer.json, which ggml's specification allows as one string.
constexpr std::uint64_t kMaxStringBytes = 64ull << 20;
// In all arrays of a file together: some ten times the tokens, types, scores and merges of a
// vocabulary of 262,144. One-byte elements, eight times larger in memory, then take 128 MiB at
// most, and empty strings (8 bytes in the file, 32 in memory) 512 MiB.
constexpr std::uint64_t kMaxArrayElements = 1ull << 24;

constexpr std::uint32_t kTypeU32 = 4;
constexpr std::uint32_t kTypeArray = 9;

template <class T>
using ReadOne = Result<T> (*)(ByteReader&);

struct ValueType {
  std::uint32_t id;
  std::uint64_t min_bytes;  // that one value takes in the file
  std::variant<ReadOne<std::int64_t>, ReadOne<double>, ReadOne<bool>, ReadOne<std::string>> read;
};

template <class T>
Result<std::int64_t> read_integer(ByteReader& in) {
  TQC_TRY_ASSIGN(const T value, in.read<T>());
  if (!std::in_range<std::int64_t>(value)) {
    return Error{ErrorCode::kUnsupported, std::to_string(value) + " is beyond 63 bits"};
  }
  return static_cast<std::int64_t>(value);
}

template <class T>
Result<double> read_float(ByteReader& in) {
  TQC_TRY_ASSIGN(const T value, in.read<T>());
  return static_cast<double>(value);
}

Result<bool> read_bool(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto value, in.read<std::uint8_t>());
  if (value > 1) {
    return Error{ErrorCode::kCorrupt, "bool of value " + std::to_string(value)};
  }
  return value == 1;
}

Result<std::string> read_text(ByteReader& in) { return read_gguf_string(in, kMaxStringBytes); }

// Numbered as enum gguf_type in ggml's gguf.h; 9 is the array.
constexpr std::array kValueTypes = {
    ValueType{0, 1, read_integer<std::uint8_t>},
    ValueType{1, 1, read_integer<std::int8_t>},
    ValueType{2, 2, read_integer<std::uint16_t>},
    ValueType{3, 2, read_integer<std::int16_t>},
    ValueType{kTypeU32, 4, read_integer<std::uint32_t>},
    ValueType{5, 4, read_integer<std::int32_t>},
    ValueType{6, 4, read_float<float>},
    ValueType{7, 1, read_bool},
    ValueType{8, 8, read_text},  // an empty string is its length alone
    ValueType{10, 8, read_integer<std::uint64_t>},
    ValueType{11, 8, read_integer<std::int64_t>},
    ValueType{12, 8, read_float<double>},
};

Result<const ValueType*> find_value_type(std::uint32_t id) {
  const auto found = std::ranges::find(kValueTypes, id, &ValueType::id);
  if (found != kValueTypes.end()) return &*found;
  return Error{ErrorCode::kUnsupported, "value type " + std::to_string(id) + " is unknown"};
}

template <class T>
Result<GgufValue> read_elements(ByteReader& in, std::uint64_t count, ReadOne<T> read_one) {
  std::vector<T> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    auto value = read_one(in);
    if (!value) return in_context("element " + std::to_string(i), std::move(value).error());
    values.push_back(std::move(value).value());
  }
  return GgufValue(std::move(values));
}

Result<GgufValue> read_array(ByteReader& in, std::uint64_t& elements_left) {
  TQC_TRY_ASSIGN(const auto id, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto count, in.read<std::uint64_t>());
  if (id == kTypeArray) return Error{ErrorCode::kUnsupported, "an array of arrays"};
  TQC_TRY_ASSIGN(const ValueType* type, find_value_type(id));
  if (count > elements_left) {
    return Error{ErrorCode::kTooLarge, "array of " + std::to_string(count) +
                                           " elements, where a file may have " +
                                           std::to_string(kMaxArrayElements) + " in all"};
  }
  if (count > in.remaining() / type->min_bytes) {
    return Error{ErrorCode::kTruncated, "array of " + std::to_string(count) + " elements in " +
                                            std::to_string(in.remaining()) + " bytes"};
  }
  elements_left -= count;
  return std::visit([&](auto read_one) { return read_elements(in, count, read_one); }, type->read);
}

Result<GgufValue> read_value(ByteReader& in, std::uint32_t id, std::uint64_t& elements_left) {
  if (id == kTypeArray) return read_array(in, elements_left);
  TQC_TRY_ASSIGN(const ValueType* type, find_value_type(id));
  return std::visit(
      [&](auto read_one) -> Result<GgufValue> {
        TQC_TRY_ASSIGN(auto value, read_one(in));
        return GgufValue(std::move(value));
      },
      type->read);
}

Result<std::string> read_key(ByteReader& in) {
  TQC_TRY_ASSIGN(std::string key, read_gguf_string(in, kMaxKeyBytes));
  if (key.empty()) return Error{ErrorCode::kCorrupt, "empty key"};
  if (key.find('\0') != std::string::npos) {
    return Error{ErrorCode::kCorrupt, "key " + printable_name(key) + " holds a NUL"};
  }
  return key;
}

Result<GgufValue> read_value_of(const std::string& key, ByteReader& in,
                                std::uint64_t& elements_left) {
  TQC_TRY_ASSIGN(const auto id, in.read<std::uint32_t>());
  // Checked here because the width is forgotten afterwards; ggml takes nothing else either.
  if (key == "general.alignment" && id != kTypeU32) {
    return Error{ErrorCode::kCorrupt, "not a u32"};
  }
  return read_value(in, id, elements_left);
}

}  // namespace

Result<std::string> read_gguf_string(ByteReader& in, std::uint64_t max_bytes) {
  TQC_TRY_ASSIGN(const auto size, in.read<std::uint64_t>());
  if (size > max_bytes) {
    return Error{ErrorCode::kTooLarge, "text of " + std::to_string(size) + " bytes, at most " +
                                           std::to_string(max_bytes) + " are read"};
  }
  return in.take_string(size);
}

Result<std::map<std::string, GgufValue>> read_gguf_metadata(ByteReader& in, std::uint64_t count) {
  std::map<std::string, GgufValue> metadata;
  std::uint64_t elements_left = kMaxArrayElements;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto key = read_key(in);
    if (!key) return in_context("key " + std::to_string(i), std::move(key).error());
    const std::string place = "key " + printable_name(*key);
    if (metadata.contains(*key)) return Error{ErrorCode::kCorrupt, place + ": given twice"};
    auto value = read_value_of(*key, in, elements_left);
    if (!value) return in_context(place, std::move(value).error());
    metadata.emplace(std::move(key).value(), std::move(value).value());
  }
  return metadata;
}

namespace {

Result<const GgufValue*> find_value(const Gguf& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) {
    return Error{ErrorCode::kCorrupt, "key " + printable_name(key) + ": missing"};
  }
  return &found->second;
}

template <class T>
Result<const T*> find_as(const Gguf& file, const std::string& key, const char* kind) {
  TQC_TRY_ASSIGN(const GgufValue* value, find_value(file, key));
  const T* typed = std::get_if<T>(value);
  if (!typed) return Error{ErrorCode::kCorrupt, "key " + printable_name(key) + ": not " + kind};
  return typed;
}

}  // namespace

Result<std::int64_t> Gguf::get_int(const std::string& key) const {
  TQC_TRY_ASSIGN(const auto* value, find_as<std::int64_t>(*this, key, "an integer"));
  return *value;
}

Result<double> Gguf::get_float(const std::string& key) const {
  TQC_TRY_ASSIGN(const GgufValue* value, find_value(*this, key));
  if (const auto* integer = std::get_if<std::int64_t>(value)) return static_cast<double>(*integer);
  TQC_TRY_ASSIGN(const auto* number, find_as<double>(*this, key, "a number"));
  return *number;
}

Result<bool> Gguf::get_bool(const std::string& key) const {
  TQC_TRY_ASSIGN(const auto* value, find_as<bool>(*this, key, "a bool"));
  return *value;
}

Result<std::string> Gguf::get_string(const std::string& key) const {
  TQC_TRY_ASSIGN(const auto* value, find_as<std::string>(*this, key, "a string"));
  return *value;
}

Result<const std::vector<std::int64_t>*> Gguf::get_ints(const std::string& key) const {
  return find_as<std::vector<std::int64_t>>(*this, key, "an array of integers");
}

Result<const std::vector<std::string>*> Gguf::get_strings(const std::string& key) const {
  return find_as<std::vector<std::string>>(*this, key, "an array of strings");
}

}  // namespace tqcache::tensors
