#include "tqcache/tensors/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/tensors/block_types.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::tensors {
namespace {

// Keys have at most 65,535 bytes (ggml docs/gguf.md, "File Structure").
constexpr std::uint64_t kMaxKeyBytes = 65'535;
// Enough for a complete tokenizer.json, which ggml's specification allows as one string.
constexpr std::uint64_t kMaxStringBytes = 64ull << 20;
// The limit for all arrays of a file together: about ten times the tokens, types, scores and merges
// of a vocabulary of 262,144. One-byte elements, eight times larger in memory, then take at most
// 128 MiB, and empty strings (8 bytes in the file, 16 in memory) 256 MiB.
constexpr std::uint64_t kMaxArrayElements = 1ull << 24;

constexpr std::uint32_t kTypeU32 = 4;
constexpr std::uint32_t kTypeArray = 9;

template <class T>
Result<std::int64_t> read_integer(ByteReader& in) {
  TQC_TRY_ASSIGN(const T value, in.read<T>());
  return static_cast<std::int64_t>(value);
}

// Bits 0 to 62 are an i64. Otherwise the caller reads the value once more as f64.
constexpr std::uint32_t kTypeU64 = 10;

Result<double> read_u64_as_float(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto value, in.read<std::uint64_t>());
  return static_cast<double>(value);
}

// Whether one of the next `count` u64 is beyond i64. Requires: they are there.
Result<bool> has_wide(ByteReader in, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    TQC_TRY_ASSIGN(const auto value, in.read<std::uint64_t>());
    if (!std::in_range<std::int64_t>(value)) return true;
  }
  return false;
}

template <class T>
Result<double> read_float(ByteReader& in) {
  TQC_TRY_ASSIGN(const T value, in.read<T>());
  return static_cast<double>(value);
}

Result<bool> read_bool(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto value, in.read<std::uint8_t>());
  if (value > 1) {
    return corrupt(fmt::format("bool of value {}", value));
  }
  return value == 1;
}

// A u64 length, then that many bytes. Errors: kTruncated, kTooLarge (above `max_bytes`).
Result<std::string_view> read_gguf_string(ByteReader& in, std::uint64_t max_bytes) {
  TQC_TRY_ASSIGN(const auto size, in.read<std::uint64_t>());
  if (size > max_bytes) {
    return too_large(fmt::format("text of {} bytes, at most {} are read", size, max_bytes));
  }
  TQC_TRY_ASSIGN(const ByteView bytes, in.take(size));
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::string_view> read_text(ByteReader& in) { return read_gguf_string(in, kMaxStringBytes); }

// read_one() is a parameter of the template because files have hundreds of thousands of elements.
template <auto read_one>
Result<GgufValue> read_single(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto value, read_one(in));
  if constexpr (std::is_same_v<decltype(value), const std::string_view>) {
    return GgufValue(std::string(value));
  } else {
    return GgufValue(value);
  }
}

template <auto read_one>
Result<GgufValue> read_elements(ByteReader& in, std::uint64_t count) {
  std::vector<std::decay_t<decltype(read_one(in).value())>> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    auto value = read_one(in);
    if (!value) return in_context(fmt::format("element {}", i), std::move(value).error());
    values.push_back(*value);
  }
  return GgufValue(std::move(values));
}

struct ValueType {
  std::uint32_t id;
  std::uint64_t min_bytes;  // of one value in the file
  Result<GgufValue> (*read)(ByteReader& in);
  Result<GgufValue> (*read_array)(ByteReader& in, std::uint64_t count);
};

template <auto read_one>
constexpr ValueType value_type(std::uint32_t id, std::uint64_t min_bytes) {
  return {id, min_bytes, read_single<read_one>, read_elements<read_one>};
}

// Numbered as enum gguf_type in ggml's gguf.h; 9 is the array.
constexpr std::array kValueTypes = {
    value_type<read_integer<std::uint8_t>>(0, 1),
    value_type<read_integer<std::int8_t>>(1, 1),
    value_type<read_integer<std::uint16_t>>(2, 2),
    value_type<read_integer<std::int16_t>>(3, 2),
    value_type<read_integer<std::uint32_t>>(kTypeU32, 4),
    value_type<read_integer<std::int32_t>>(5, 4),
    value_type<read_float<float>>(6, 4),
    value_type<read_bool>(7, 1),
    value_type<read_text>(8, 8),  // an empty string has only its length
    value_type<read_integer<std::uint64_t>>(kTypeU64, 8),
    value_type<read_integer<std::int64_t>>(11, 8),
    value_type<read_float<double>>(12, 8),
};

Result<const ValueType*> find_value_type(std::uint32_t id) {
  const auto found = std::ranges::find(kValueTypes, id, &ValueType::id);
  if (found != kValueTypes.end()) return &*found;
  return unsupported(fmt::format("value type {} is unknown", id));
}

Result<GgufValue> read_array(ByteReader& in, std::uint64_t& elements_left) {
  TQC_TRY_ASSIGN(const auto id, in.read<std::uint32_t>());
  TQC_TRY_ASSIGN(const auto count, in.read<std::uint64_t>());
  if (id == kTypeArray) return unsupported("an array of arrays");
  TQC_TRY_ASSIGN(const ValueType* type, find_value_type(id));
  if (count > elements_left) {
    return too_large(fmt::format("array of {} elements, where a file may have {} in all", count,
                                 kMaxArrayElements));
  }
  if (count > in.remaining() / type->min_bytes) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("array of {} elements in {} bytes", count, in.remaining())};
  }
  elements_left -= count;
  if (id == kTypeU64) {
    TQC_TRY_ASSIGN(const bool is_wide, has_wide(in, count));
    if (is_wide) return read_elements<read_u64_as_float>(in, count);
  }
  return type->read_array(in, count);
}

Result<GgufValue> read_value(ByteReader& in, std::uint32_t id, std::uint64_t& elements_left) {
  if (id == kTypeArray) return read_array(in, elements_left);
  TQC_TRY_ASSIGN(const ValueType* type, find_value_type(id));
  if (id == kTypeU64) {
    TQC_TRY_ASSIGN(const bool is_wide, has_wide(in, 1));
    if (is_wide) {
      TQC_TRY_ASSIGN(const double value, read_u64_as_float(in));
      return GgufValue(value);
    }
  }
  return type->read(in);
}

Result<std::string> read_key(ByteReader& in) {
  TQC_TRY_ASSIGN(const std::string_view text, read_gguf_string(in, kMaxKeyBytes));
  std::string key(text);
  if (key.empty()) return corrupt("empty key");
  if (key.find('\0') != std::string::npos) {
    return corrupt("key " + printable_name(key) + " holds a NUL");
  }
  return key;
}

Result<GgufValue> read_value_of(const std::string& key, ByteReader& in,
                                std::uint64_t& elements_left) {
  TQC_TRY_ASSIGN(const auto id, in.read<std::uint32_t>());
  // Checked here because the integer type is lost afterwards; ggml accepts no other type either.
  if (key == "general.alignment" && id != kTypeU32) {
    return corrupt("not a u32");
  }
  return read_value(in, id, elements_left);
}

Result<const GgufValue*> find_value(const Gguf& file, const std::string& key) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) {
    return corrupt("key " + printable_name(key) + ": missing");
  }
  return &found->second;
}

template <class T>
Result<const T*> find_as(const Gguf& file, const std::string& key, const char* kind) {
  TQC_TRY_ASSIGN(const GgufValue* value, find_value(file, key));
  const T* typed = std::get_if<T>(value);
  if (!typed) return corrupt("key " + printable_name(key) + ": not " + kind);
  return typed;
}

// The next `count` pairs. Requires: the caller has limited `count`.
// Errors: kTruncated, kCorrupt (a duplicate or empty key, or one with a NUL; a bool that is neither
//         0 nor 1; general.alignment not a u32), kTooLarge, kUnsupported (value types, nested
//         arrays).
Result<std::map<std::string, GgufValue>> read_gguf_metadata(ByteReader& in, std::uint64_t count) {
  std::map<std::string, GgufValue> metadata;
  std::uint64_t elements_left = kMaxArrayElements;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto key = read_key(in);
    if (!key) return in_context(fmt::format("key {}", i), std::move(key).error());
    const std::string place = "key " + printable_name(*key);
    if (metadata.contains(*key)) return corrupt(place + ": given twice");
    auto value = read_value_of(*key, in, elements_left);
    if (!value) return in_context(place, std::move(value).error());
    metadata.emplace(std::move(key).value(), std::move(value).value());
  }
  return metadata;
}

// Far above any model in use. Entries are larger in memory than in the file (at least 24 bytes);
// this limit bounds the memory for the list.
constexpr std::uint64_t kMaxTensors = 65'536;
constexpr std::uint64_t kMaxKeys = 65'536;
constexpr std::uint64_t kMaxNameBytes = 63;  // ggml stores names in 64 bytes with a NUL at the end
constexpr std::uint32_t kMaxDims = 4;        // GGML_MAX_DIMS
constexpr std::int64_t kDefaultAlignment = 32;   // where general.alignment is absent
constexpr std::int64_t kMaxAlignment = 1 << 20;  // ggml's bound; writers use 32 to 4,096

struct Header {
  std::uint32_t version;
  std::uint64_t n_tensors;
  std::uint64_t n_keys;
};

struct TensorInfo {
  std::string name;
  std::vector<std::uint64_t> shape;  // outermost first
  const GgmlType* type;
  std::uint64_t n_bytes;
  std::uint64_t offset;  // from the start of the data
};

Result<void> check_version(std::uint32_t version) {
  if (version == 2 || version == 3) return {};
  if (version == 0) return corrupt("header: GGUF version 0");
  // A small number in the wrong byte order has zeros in its low bytes.
  if ((version & 0xffff) == 0) {
    return unsupported("header: big-endian GGUF file");
  }
  return unsupported(fmt::format("header: GGUF version {}, only 2 and 3 are read", version));
}

Result<Header> read_header(ByteReader& in) {
  TQC_TRY_ASSIGN(const std::string magic, in.take_string(4));
  if (magic != "GGUF") return corrupt("header: not a GGUF file (bad magic)");
  Header header;
  TQC_TRY_ASSIGN(header.version, in.read<std::uint32_t>());
  TQC_TRY(check_version(header.version));
  TQC_TRY_ASSIGN(header.n_tensors, in.read<std::uint64_t>());
  TQC_TRY_ASSIGN(header.n_keys, in.read<std::uint64_t>());
  if (header.n_tensors > kMaxTensors) {
    return too_large(
        fmt::format("header: {} tensors, at most {} are read", header.n_tensors, kMaxTensors));
  }
  if (header.n_keys > kMaxKeys) {
    return too_large(
        fmt::format("header: {} metadata keys, at most {} are read", header.n_keys, kMaxKeys));
  }
  return header;
}

Result<std::uint64_t> find_alignment(const Gguf& file) {
  if (!file.has("general.alignment")) return std::uint64_t{kDefaultAlignment};
  TQC_TRY_ASSIGN(const std::int64_t alignment, file.get_int("general.alignment"));
  const auto value = static_cast<std::uint64_t>(alignment);  // it was a u32
  // ggml's specification allows multiples of 8, its reader powers of two alone.
  if (!std::has_single_bit(value)) {
    return unsupported(fmt::format(
        "key \"general.alignment\": {}, only powers of two are read (by llama.cpp, too)", value));
  }
  if (alignment > kMaxAlignment) {
    return too_large(
        fmt::format("key \"general.alignment\": {} is above {}", value, kMaxAlignment));
  }
  return value;
}

Result<std::string> read_name(ByteReader& in) {
  TQC_TRY_ASSIGN(const std::string_view text, read_gguf_string(in, kMaxNameBytes));
  std::string name(text);
  if (name.find('\0') != std::string::npos) {
    return corrupt("name " + printable_name(name) + " holds a NUL");
  }
  return name;
}

// The file stores the innermost dimension first.
Result<std::vector<std::uint64_t>> read_shape(ByteReader& in) {
  TQC_TRY_ASSIGN(const auto n_dims, in.read<std::uint32_t>());
  if (n_dims > kMaxDims) {
    return too_large(fmt::format("{} dimensions, at most {} are read", n_dims, kMaxDims));
  }
  std::vector<std::uint64_t> shape(n_dims);
  for (std::uint32_t i = n_dims; i-- > 0;) {
    TQC_TRY_ASSIGN(const auto size, in.read<std::int64_t>());
    if (size <= 0) return corrupt(fmt::format("dimension of size {}", size));
    shape[i] = static_cast<std::uint64_t>(size);
  }
  return shape;
}

Result<std::uint64_t> tensor_bytes(const GgmlType& type, const std::vector<std::uint64_t>& shape) {
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (row % type.block_values != 0) {
    return corrupt(fmt::format("rows of {} values, which {} stores in blocks of {}", row, type.name,
                               type.block_values));
  }
  const std::optional<std::uint64_t> count = element_count(shape);
  const auto bytes =
      count ? checked_mul(*count / type.block_values, type.block_bytes) : std::nullopt;
  if (!bytes) return corrupt("its size does not fit 64 bits");
  return *bytes;
}

Result<TensorInfo> read_tensor_info(ByteReader& in, std::string name) {
  TQC_TRY_ASSIGN(std::vector<std::uint64_t> shape, read_shape(in));
  TQC_TRY_ASSIGN(const auto type_id, in.read<std::uint32_t>());
  const GgmlType* type = find_ggml_type(type_id);
  if (!type) {
    return unsupported(fmt::format("tensor type {} is unknown", type_id));
  }
  TQC_TRY_ASSIGN(const std::uint64_t n_bytes, tensor_bytes(*type, shape));
  TQC_TRY_ASSIGN(const auto offset, in.read<std::uint64_t>());
  return TensorInfo{std::move(name), std::move(shape), type, n_bytes, offset};
}

Result<std::vector<TensorInfo>> read_tensor_infos(ByteReader& in, std::uint64_t count) {
  std::vector<TensorInfo> infos;
  for (std::uint64_t i = 0; i < count; ++i) {
    auto name = read_name(in);
    if (!name) return in_context(fmt::format("tensor {}", i), std::move(name).error());
    const std::string place = "tensor " + printable_name(*name);
    auto info = read_tensor_info(in, std::move(name).value());
    if (!info) return in_context(place, std::move(info).error());
    infos.push_back(std::move(info).value());
  }
  return infos;
}

// `expected` is the padded end of the previous tensor: ggml writes and requires exactly that, which
// rules out both overlaps and unexplained bytes.
Result<ByteView> tensor_data(const TensorInfo& info, std::uint64_t expected,
                             std::uint64_t alignment, ByteView data) {
  if (info.offset % alignment != 0) {
    return corrupt(fmt::format("offset {} is not a multiple of {}", info.offset, alignment));
  }
  if (info.offset != expected) {
    return corrupt(fmt::format("offset {}, expected {}", info.offset, expected));
  }
  const std::optional<std::uint64_t> end = checked_add(info.offset, info.n_bytes);
  if (!end) return corrupt("its end does not fit 64 bits");
  if (*end > data.size()) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("bytes {} to {} lie beyond the end of the data", info.offset, *end)};
  }
  return data.subspan(static_cast<std::size_t>(info.offset),
                      static_cast<std::size_t>(info.n_bytes));
}

Result<std::map<std::string, TensorView>> place_tensors(std::vector<TensorInfo> infos,
                                                        std::uint64_t alignment, ByteView data) {
  std::map<std::string, TensorView> tensors;
  std::uint64_t expected = 0;
  for (TensorInfo& info : infos) {
    const std::string place = "tensor " + printable_name(info.name);
    if (tensors.contains(info.name)) return corrupt(place + ": given twice");
    const auto bytes = tensor_data(info, expected, alignment, data);
    if (!bytes) return in_context(place, bytes.error());
    // Cannot overflow: the end is inside the file, and no file size comes within kMaxAlignment of
    // 2^64.
    expected = *align_up(info.offset + info.n_bytes, alignment);
    tensors.emplace(std::move(info.name),
                    TensorView{info.type->type, info.type->name, std::move(info.shape), *bytes});
  }
  return tensors;
}

// From the first aligned byte after the tensor list to the end of the file.
Result<ByteView> find_data(ByteView file, std::size_t position, std::uint64_t alignment) {
  const std::optional<std::uint64_t> start = align_up(position, alignment);
  if (!start || *start > file.size()) {
    return Error{ErrorCode::kTruncated,
                 fmt::format("byte {}: the file ends before its tensor data", position)};
  }
  return file.subspan(static_cast<std::size_t>(*start));
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

Result<const std::vector<std::string_view>*> Gguf::get_strings(const std::string& key) const {
  return find_as<std::vector<std::string_view>>(*this, key, "an array of strings");
}

Result<Gguf> read_gguf(ByteView file) {
  ByteReader in(file);
  TQC_TRY_ASSIGN(const Header header, read_header(in));
  Gguf gguf;
  gguf.version = header.version;
  TQC_TRY_ASSIGN(gguf.metadata, read_gguf_metadata(in, header.n_keys));
  TQC_TRY_ASSIGN(const std::uint64_t alignment, find_alignment(gguf));
  TQC_TRY_ASSIGN(std::vector<TensorInfo> infos, read_tensor_infos(in, header.n_tensors));
  if (infos.empty()) return gguf;  // a file with only metadata need not be padded
  TQC_TRY_ASSIGN(const ByteView data, find_data(file, in.position(), alignment));
  TQC_TRY_ASSIGN(gguf.tensors, place_tensors(std::move(infos), alignment, data));
  return gguf;
}

}  // namespace tqcache::tensors
