#pragma once
// tests/tensors/gguf_builder.h: writes small GGUF files, good ones and ones with a chosen fault.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::test {

// Value types of the file (enum gguf_type).
enum GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// Tensor types of the file (enum ggml_type).
constexpr std::uint32_t kTensorF32 = 0;
constexpr std::uint32_t kTensorQ8_0 = 8;

inline void append_text(ByteWriter& out, std::string_view text) {
  out.append_sized(as_bytes(text));
}

// What a public member says goes into the file as it is; unset counts and offsets come out right.
class GgufBuilder {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> n_tensors, n_keys;
  std::uint64_t alignment = 32;  // of the tensors; the metadata does not get it by itself
  bool pad_end = true;

  template <class T>
  GgufBuilder& value(std::string_view key, std::uint32_t type, T value) {
    begin_key(key, type);
    keys_.write<T>(value);
    return *this;
  }

  GgufBuilder& text(std::string_view key, std::string_view value) {
    begin_key(key, kString);
    append_text(keys_, value);
    return *this;
  }

  // `count` is what the file says, where it is not the truth.
  template <class T>
  GgufBuilder& array(std::string_view key, std::uint32_t type, const std::vector<T>& values,
                     std::optional<std::uint64_t> count = {}) {
    begin_array(key, type, count.value_or(values.size()));
    keys_.append(std::as_bytes(std::span(values)));
    return *this;
  }

  GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, kString, values.size());
    for (const std::string& value : values) append_text(keys_, value);
    return *this;
  }

  // `ne`: innermost dimension first, as the file has it. The bytes count up from 1.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::int64_t>& ne,
                      std::uint32_t type, std::size_t n_bytes,
                      std::optional<std::uint64_t> offset = {}) {
    append_text(infos_, name);
    infos_.write(static_cast<std::uint32_t>(ne.size()));
    for (const std::int64_t n : ne) infos_.write(n);
    infos_.write(type);
    pad(data_, alignment);
    infos_.write<std::uint64_t>(offset.value_or(data_.bytes().size()));
    for (std::size_t i = 0; i < n_bytes; ++i) data_.write(static_cast<std::uint8_t>(i + 1));
    ++tensors_written_;
    return *this;
  }

  Bytes build() const {
    ByteWriter out;
    out.append(as_bytes(magic));
    out.write(version);
    out.write(n_tensors.value_or(tensors_written_));
    out.write(n_keys.value_or(keys_written_));
    out.append(keys_.bytes());
    out.append(infos_.bytes());
    if (tensors_written_ > 0) pad(out, alignment);
    out.append(data_.bytes());
    if (tensors_written_ > 0 && pad_end) pad(out, alignment);
    return std::move(out).take();
  }

 private:
  static void pad(ByteWriter& out, std::uint64_t alignment) {
    while (out.bytes().size() % alignment != 0) out.write<std::uint8_t>(0);
  }

  void begin_key(std::string_view key, std::uint32_t type) {
    append_text(keys_, key);
    keys_.write(type);
    ++keys_written_;
  }

  void begin_array(std::string_view key, std::uint32_t type, std::uint64_t count) {
    begin_key(key, kArray);
    keys_.write(type);
    keys_.write(count);
  }

  std::uint64_t tensors_written_ = 0, keys_written_ = 0;
  ByteWriter keys_, infos_, data_;
};

// Some of everything; its last byte belongs to a tensor, so that every cut hurts.
inline Bytes small_gguf() {
  return GgufBuilder()
      .text("general.architecture", "tiny")
      .value<std::uint32_t>("general.alignment", kU32, 32)
      .value<float>("tiny.eps", kF32, 0.5f)
      .value<std::uint8_t>("tiny.flag", kBool, 1)
      .array<std::int32_t>("tiny.types", kI32, {1, -2, 3})
      .texts("tiny.tokens", {"a", "", "bcd"})
      .tensor("embd.weight", {32, 2}, kTensorQ8_0, 68)
      .tensor("norm.weight", {8}, kTensorF32, 32)
      .build();
}

}  // namespace tqcache::test
